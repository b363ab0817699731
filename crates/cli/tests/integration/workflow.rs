//! The example workflow for pipelines, run step by step as a pipeline would.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use saphyr::{LoadableYamlNode, Yaml};

use crate::lab::LAB;
use crate::running::{Ended, PROGRAM, run};

const WORKFLOW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/ci/handshakes.yml");

/// The one job of the workflow.
fn job<'a>(workflow: &'a [Yaml<'a>]) -> &'a Yaml<'a> {
    &workflow[0]["jobs"]["handshakes"]
}

/// The shell of the step of this name.
fn step(workflow: &[Yaml<'_>], name: &str) -> String {
    let steps = job(workflow)["steps"].as_vec().expect("steps");
    let step =
        steps.iter().find(|step| step.as_mapping_get("name").and_then(Yaml::as_str) == Some(name));
    step.unwrap_or_else(|| panic!("no step {name}"))["run"].as_str().expect("shell").to_owned()
}

fn bash(script: &str, server: &str, dir: &Path) -> Ended {
    let mut path = PathBuf::from(PROGRAM);
    path.pop();
    let search = std::env::var("PATH").unwrap_or_default();
    run(Command::new("bash")
        .args(["-e", "-o", "pipefail", "-c", script])
        .current_dir(dir)
        .env("HOME", dir)
        .env("SERVER", server)
        .env("PATH", format!("{}:{search}:/usr/sbin:/sbin", path.display())))
}

#[test]
fn a_change_is_measured_and_compared_with_what_was_before() {
    let _one_at_a_time = LAB.lock().unwrap_or_else(|error| error.into_inner());
    let text = fs::read_to_string(WORKFLOW).unwrap();
    let workflow = Yaml::load_from_str(&text).unwrap();
    let server = job(&workflow)["env"]["SERVER"].as_str().unwrap();
    let (measure, compare, keep) = (
        step(&workflow, "Measure"),
        step(&workflow, "Compare with main"),
        step(&workflow, "Keep main's figures"),
    );
    let dir = tempfile::tempdir().unwrap();

    let measured = bash(&measure, server, dir.path());
    assert_eq!(measured.code, Some(0), "{measured:?}");
    let junit = fs::read_to_string(dir.path().join("handshakes/junit.xml")).unwrap();
    assert!(
        junit.contains("round_trips(0rtt, transport=tcp) != 2") && !junit.contains("<failure"),
        "{junit}"
    );
    assert_eq!(bash(&compare, server, dir.path()).code, Some(0), "nothing to compare with yet");
    assert_eq!(bash(&keep, server, dir.path()).code, Some(0));

    let compared = bash(&compare, server, dir.path());
    assert_eq!(compared.code, Some(0), "{compared:?}");
    assert!(fs::read_to_string(dir.path().join("handshakes/compared.md")).is_ok());

    // A server that was twice as fast before: the comparison has to fail.
    let kept = dir.path().join("handshakes-main/lab.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    for cell in record["cells"].as_array_mut().unwrap() {
        let p50 = &mut cell["summary"]["first_byte"]["p50_ms"];
        *p50 = (p50.as_f64().unwrap() / 2.0).into();
    }
    fs::write(&kept, record.to_string()).unwrap();
    let compared = bash(&compare, server, dir.path());
    assert_eq!(compared.code, Some(1), "{compared:?}");
    assert!(
        compared.err.contains("FAILED: condition: not (p50(0rtt) > 1.1*old + 2ms)"),
        "{}",
        compared.err
    );
}
