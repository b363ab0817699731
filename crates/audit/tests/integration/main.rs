//! The report of an audit in all formats.

use std::io;
use std::time::Duration;

use firstflight_audit::formats::{html, json, junit, sarif, text};
use firstflight_audit::{CHECKS, Node, Report, Settings, Target, Verdict, audit};
use firstflight_first_flight::Link;
use firstflight_first_flight::test_server::{Behaviour, EarlyRequest, Recorded, TestServer};
use firstflight_testkit::assert_committed;

struct Simulated(TestServer);

impl Target for Simulated {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        Ok(self.0.link())
    }

    fn connect_with_fast_open(&self) -> io::Result<Box<dyn Link>> {
        Ok(self.0.fast_open_link())
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wait(&self, time: Duration) {
        self.0.wait(time);
    }
}

mod capture;

/// The audit of a server that keeps no records and executes every method.
fn report() -> Report {
    let server = Simulated(TestServer::new(Behaviour {
        recorded: Recorded::Never,
        others: EarlyRequest::Execute,
        software: "nginx/1.22.1 <b>",
        ..Behaviour::default()
    }));
    let settings =
        Settings { witness: true, ..Settings::new("localhost", "localhost:443", "/witness") };
    let node = Node { address: "127.0.0.1:443".to_owned(), target: &server };
    audit(&[node], &settings, "2026-11-23T18:00:00Z", |_| {}).unwrap()
}

#[test]
fn text_is_at_most_100_columns_wide() {
    let text = text::render(&report());
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn json_is_read_back() {
    let report = report();
    assert_eq!(json::parse(&json::render(&report)), Ok(report));
    assert!(json::parse("{}").unwrap_err().to_string().contains("not the JSON of an audit"));
    assert_committed("docs/reference/audit.schema.json", &json::json_schema());
}

#[test]
fn sarif_has_a_rule_and_a_result_for_each_check() {
    let log: serde_json::Value = serde_json::from_str(&sarif::render(&report())).unwrap();
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["rules"].as_array().unwrap().len(), CHECKS.len());
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), CHECKS.len());
    assert_eq!((&results[0]["kind"], &results[0]["level"]), (&"fail".into(), &"error".into()));
    for result in results {
        assert_eq!(result["kind"] == "fail", result["level"] != "none", "{result}");
    }
}

#[test]
fn junit_has_failures_as_requested() {
    let report = report();
    let failures = |fail_on| junit::render(&report, fail_on).matches("<failure").count();
    assert_eq!(failures(Verdict::Fail), report.count(Verdict::Fail));
    assert_eq!(failures(Verdict::Warn), report.count(Verdict::Fail) + report.count(Verdict::Warn));
}

#[test]
fn html_escapes_the_server_field() {
    let page = html::render(&report());
    assert!(page.contains("nginx/1.22.1 &lt;b&gt;") && !page.contains("1.22.1 <b>"));
    assert!(page.contains("proxy_set_header Early-Data"), "the remedy for nginx");
    assert!(page.contains("id=\"checklist\""), "{page}");
    assert!(page.contains("id=\"passed\"") && page.contains("the handshake was ended"), "{page}");
}
