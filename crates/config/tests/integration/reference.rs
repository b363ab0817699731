//! The published reference matches the code.

use std::fs;
use std::path::{Path, PathBuf};

use firstflight_config::{ServerConfig, json_schema, reference, reference_tables};
use firstflight_testkit::assert_committed;

fn committed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn the_published_reference_is_current() {
    assert_committed("docs/reference/configuration.md", &reference_tables());
    assert_committed("docs/reference/configuration.schema.json", &json_schema());
}

#[test]
fn every_key_is_described_with_a_reason_for_its_default() {
    let text = reference();
    for entry in text.split("\n### ").skip(1) {
        let entry = entry.split("\n## ").next().unwrap();
        let (key, rest) = entry.split_once('\n').unwrap();
        assert!(rest.split_whitespace().count() > 5, "{key} says nothing: {rest}");
        let has_default = rest.lines().any(|line| line.contains("; default `"));
        let reason = ["By default", "The default ", " by default "];
        let reason = reason.iter().any(|words| rest.contains(words));
        // The meanings of enumerated values can be the reason.
        let enumerated = rest.contains("One of the values below");
        assert!(
            reason || enumerated || !has_default,
            "{key} has a default without a reason: {rest}"
        );
    }
}

#[test]
fn tables_and_text_have_the_same_keys() {
    let (tables, text) = (reference_tables(), reference());
    let rows = tables.lines().filter_map(|line| line.strip_prefix("|`")?.split('`').next());
    let headings = text.lines().filter_map(|line| line.strip_prefix("### "));
    assert_eq!(rows.collect::<Vec<_>>(), headings.collect::<Vec<_>>());
    for row in tables.lines().filter(|line| line.starts_with('|')) {
        assert_eq!(row.replace("\\|", "").matches('|').count(), 5, "{row}");
    }
}

/// All keys of a file with all defaults, and all sections, are in the reference.
#[test]
fn every_key_of_a_file_is_in_the_reference() {
    let page = reference();
    let text = ServerConfig::default().to_toml();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match line.split_once(" = ") {
            Some((key, _)) if line.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                let known =
                    page.contains(&format!("\n### {key}\n")) || ["listener", "site"].contains(&key);
                assert!(known, "{key} is not in the reference");
            }
            _ => {
                let section = line.split('.').next().unwrap().trim_end_matches(']');
                assert!(page.contains(&format!("\n## {section}")), "{line}");
            }
        }
    }
}

#[test]
fn the_examples_are_valid() {
    for name in ["examples/firstflight.toml", "examples/cluster/serve.toml"] {
        let text = fs::read_to_string(committed(name)).unwrap();
        // The password files of the examples do not exist here.
        let text: String = text
            .lines()
            .filter(|line| !line.starts_with("password_file") && !line.starts_with("username"))
            .map(|line| format!("{line}\n"))
            .collect();
        ServerConfig::parse(&text, Path::new(name)).unwrap_or_else(|error| panic!("{error}"));
    }
}
