//! Any text as a condition: understood and asked of a small record, or refused in one sentence with
//! its place.
#![no_main]

use std::sync::LazyLock;

use firstflight_report::conditions::Condition;
use firstflight_report::{Cell, Figures, Record, Replay, Summary};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Condition::parse(text) {
        Ok(condition) => {
            let undecided = condition.check(&RECORD, Some(&RECORD)).err();
            assert!(undecided.is_none_or(|error| !error.to_string().is_empty()));
        }
        Err(error) => {
            assert!(error.column <= text.chars().count() + 1);
            assert!(!error.message.is_empty());
        }
    }
});

static RECORD: LazyLock<Record> = LazyLock::new(|| {
    let cell = |kind: &str, p50_ms: f64| Cell {
        server: "nginx".to_owned(),
        profile: "cable".to_owned(),
        rtt_ms: 28.0,
        tls: "1.3".to_owned(),
        kind: kind.to_owned(),
        summary: Some(Summary {
            samples: 100,
            first_byte: Figures { p50_ms, p95_ms: Some(p50_ms + 1.0), ..Figures::default() },
            ..Summary::default()
        }),
        ..Cell::default()
    };
    Record {
        cells: vec![cell("full", 84.0), cell("0-RTT", 56.0)],
        replays: vec![Replay { server: "nginx".to_owned(), executed: 3, ..Replay::default() }],
        ..Record::default()
    }
});
