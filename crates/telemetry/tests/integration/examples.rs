//! The example alerts, recording rules and dashboard use only existing metrics. promtool verifies
//! that each alert fires in its scenario, and none when all is well.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use firstflight_telemetry::metrics::{Kind, Metrics, Readings};
use firstflight_testkit::{TEST_TIMEOUT, output_within, skipped_without};
use serde_json::Value;

fn example(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(example(path)).unwrap()
}

fn promtool(arguments: &[&str]) -> String {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(example("prometheus"));
    let ended = output_within(&mut command, TEST_TIMEOUT);
    let output =
        [ended.stdout, ended.stderr].map(|output| String::from_utf8(output).unwrap()).concat();
    assert!(ended.status.success(), "{arguments:?}: {output}");
    output
}

/// The names of all series.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for family in &Metrics::default().snapshot(&Readings::default()).families {
        let name = family.description.name;
        match family.description.kind {
            Kind::Histogram => ["bucket", "sum", "count"].iter().for_each(|part| {
                names.insert(format!("{name}_{part}"));
            }),
            _ => drop(names.insert(name.to_owned())),
        }
    }
    names
}

/// The metrics in an expression.
fn metrics_of(expression: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = expression.split(move |c| !is_name(c));
    words.filter(|word| {
        ["firstflight_", "firstflight:", "process_"].iter().any(|prefix| word.starts_with(prefix))
    })
}

fn alerts() -> Vec<String> {
    let alerts = text("prometheus/alerts.yml");
    let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

#[test]
fn promtool_accepts_the_rules_and_the_configuration() {
    if skipped_without(&["promtool"]) {
        return;
    }
    promtool(&["check", "rules", "recording.yml", "alerts.yml"]);
    promtool(&["check", "config", "prometheus.yml"]);
}

#[test]
fn each_alert_fires_in_its_scenario_and_none_when_all_is_well() {
    if skipped_without(&["promtool"]) {
        return;
    }
    let scenarios = text("prometheus/alerts_test.yml");
    for alert in alerts() {
        let fires = format!("alertname: {alert}\n        exp_alerts:");
        assert!(scenarios.contains(&fires), "{alert} has no scenario in which it fires");
        let quiet = format!("alertname: {alert} }}");
        assert!(scenarios.contains(&quiet), "{alert} is missing where all is well");
    }
    promtool(&["test", "rules", "alerts_test.yml"]);
}

#[test]
fn rules_use_existing_metrics() {
    let names = names();
    let recording = text("prometheus/recording.yml");
    let recorded = recording.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
    let recorded = recorded.collect::<BTreeSet<_>>();
    for line in [&recording, &text("prometheus/alerts.yml")].into_iter().flat_map(|all| all.lines())
    {
        // Annotations may name whole histograms.
        for name in metrics_of(line).filter(|_| line.contains(['(', '{', '>', '<', '='])) {
            assert!(
                names.contains(name) || recorded.contains(name) || is_histogram(&names, name),
                "there is no {name}: {line}"
            );
        }
    }
}

fn is_histogram(names: &BTreeSet<String>, name: &str) -> bool {
    names.contains(&format!("{name}_bucket"))
}

#[test]
fn the_dashboard_uses_existing_metrics() {
    let names = names();
    let expressions = expressions();
    assert!(expressions.len() > 40, "{}", expressions.len());
    for expression in &expressions {
        let metrics = metrics_of(expression).collect::<Vec<_>>();
        assert!(!metrics.is_empty(), "{expression}");
        for name in metrics {
            assert!(names.contains(name), "there is no {name}: {expression}");
        }
        for label in [r#"job=~"$job""#, r#"instance=~"$instance""#] {
            assert!(expression.contains(label), "{label} is missing: {expression}");
        }
    }
}

#[test]
fn the_dashboard_has_valid_panels() {
    let dashboard = dashboard();
    assert_eq!(dashboard["uid"], "firstflight");
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    let panels = dashboard["panels"].as_array().unwrap();
    let ids = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect::<BTreeSet<_>>();
    assert_eq!(ids.len(), panels.len(), "panel ids are unique");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        let (x, y, width, height) = (place("x"), place("y"), place("w"), place("h"));
        assert!(x + width <= 24, "{panel}");
        for at in (y..y + height).flat_map(|y| (x..x + width).map(move |x| (x, y))) {
            assert!(taken.insert(at), "two panels at {at:?}: {}", panel["title"]);
        }
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()));
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
            assert!(panel["description"].as_str().is_some(), "{}", panel["title"]);
        }
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&text("grafana/firstflight.json")).unwrap()
}

/// The expressions of the dashboard.
fn expressions() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}
