//! `firstflight doctor` on the machine of the tests, where the lab works.

use serde_json::Value;

use crate::running::{firstflight, run, site};

#[test]
fn finds_what_the_lab_needs_and_says_how_to_mend_the_rest() {
    let home = site();
    let ended = run(firstflight(home.path()).args(["doctor", "--json"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let findings: Value = serde_json::from_str(&ended.out).unwrap();
    let findings = findings.as_array().unwrap();
    let state = |name: &str| {
        let finding = findings.iter().find(|finding| finding["name"] == name);
        finding.unwrap_or_else(|| panic!("{name}"))["state"].as_str().unwrap().to_owned()
    };
    for name in ["namespaces", "packet sockets"] {
        assert_eq!(state(name), "good", "{}", ended.out);
    }
    // A busy machine limits it.
    assert_ne!(state("emulated network"), "missing", "{}", ended.out);
    for finding in findings.iter().filter(|finding| finding["state"] != "good") {
        assert!(finding["mend"].is_string(), "{finding}");
    }
}

#[test]
fn says_it_in_lines_that_fit() {
    let home = site();
    let ended = run(firstflight(home.path()).arg("doctor"));
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
    assert!(ended.out.contains("good    namespaces"), "{}", ended.out);
}
