//! Conditions: parsing, errors with their column, and evaluation on a record.

use firstflight_report::conditions::{CheckError, Condition};
use firstflight_report::{Cell, Fault, Figures, Record, Replay, Sample, Summary};
use proptest::prelude::*;

fn cell(server: &str, rtt_ms: f64, kind: &str, tfo: bool, p50_ms: f64, samples: usize) -> Cell {
    Cell {
        experiment: "get".to_owned(),
        server: server.to_owned(),
        workload: "get".to_owned(),
        profile: if rtt_ms == 28.0 { "cable".to_owned() } else { format!("{rtt_ms} ms") },
        rtt_ms,
        tls: "1.3".to_owned(),
        kind: kind.to_owned(),
        tfo,
        response_bytes: 1024,
        summary: Some(Summary {
            samples,
            first_byte: Figures {
                min_ms: p50_ms - 0.5,
                p50_ms,
                p50_interval_ms: (p50_ms - 0.1, p50_ms + 0.1),
                p95_ms: (samples >= 59).then_some(p50_ms + 1.0),
                max_ms: p50_ms + 5.0,
                mean_ms: p50_ms + 0.2,
                ..Figures::default()
            },
            total: Some(Figures { p50_ms: p50_ms + 2.0, ..Figures::default() }),
            round_trips: Some(2),
            ..Summary::default()
        }),
        ..Cell::default()
    }
}

fn record() -> Record {
    let cells = vec![
        cell("firstflight", 20.0, "full", false, 60.8, 100),
        cell("firstflight", 20.0, "0-RTT", false, 40.6, 100),
        cell("firstflight", 20.0, "0-RTT", true, 20.5, 100),
        cell("firstflight", 28.0, "full", false, 84.9, 100),
        cell("firstflight", 28.0, "0-RTT", false, 56.7, 40),
        cell("nginx", 20.0, "full", false, 61.2, 100),
        cell("nginx", 20.0, "0-RTT", false, 40.9, 100),
        Cell { control: true, ..cell("nginx", 20.0, "0-RTT", false, 999.0, 100) },
    ];
    let spoiled = Some(Fault::Spoiled("late".to_owned()));
    let samples = vec![Sample { cell: 1, fault: spoiled, ..Sample::default() }, Sample::default()];
    let replay = |server: &str, executed| Replay {
        server: server.to_owned(),
        executed,
        ..Replay::default()
    };
    let replays = vec![replay("firstflight", 0), replay("nginx", 1000)];
    Record { cells, samples, replays, ..Record::default() }
}

fn findings(condition: &str) -> Vec<String> {
    let condition = Condition::parse(condition).unwrap_or_else(|error| panic!("{error}"));
    condition.check(&record(), None).unwrap_or_else(|error| panic!("{error}")).findings
}

fn refusal(condition: &str) -> (usize, String) {
    let error = Condition::parse(condition).unwrap_err();
    (error.column, error.message)
}

fn undecided(condition: &str) -> String {
    Condition::parse(condition).unwrap().check(&record(), None).unwrap_err().to_string()
}

#[test]
fn a_condition_is_evaluated_for_each_cell_with_its_round_trip_time() {
    assert_eq!(findings("p50(0rtt, tfo=off) > 2.1*rtt"), [""; 0]);
    assert_eq!(
        findings("p50(0-RTT, tfo=off) > 2.04 * rtt"),
        ["nginx get at 20 ms, TLS 1.3 0-RTT: p50(0-RTT, tfo=off) is 40.90 ms, rtt is 20.00 ms"]
    );
    assert_eq!(findings("p50(0rtt, profile=cable) > 0.05s").len(), 1);
    assert_eq!(findings("p50(0rtt, rtt=28) > 50000us").len(), 1);
    assert_eq!(findings("p50(0rtt, rtt=20ms, tfo=on) > 20").len(), 1, "bare numbers are ms");
}

#[test]
fn further_figures_come_from_the_cell_that_differs_only_in_their_filters() {
    assert_eq!(findings("p50(0rtt, tfo=off) > 0.6678*p50(full)").len(), 2, "cable and nginx");
    assert_eq!(findings("p50(0rtt, tfo=off) > 0.668*p50(full)").len(), 1, "nginx");
    let slower = findings("p50(full, server=nginx) > p50(full, server=firstflight)");
    assert_eq!(slower.len(), 1, "{slower:?}");
    assert_eq!(findings("p50(0rtt, time=total, tfo=off, server=nginx) > 42.8").len(), 1);
}

/// Cells of two networks with the same round-trip time, the slower one last.
fn record_of_two_networks_at_20_ms() -> Record {
    let at = |profile: &str, kind: &str, p50_ms: f64| Cell {
        profile: profile.to_owned(),
        ..cell("firstflight", 20.0, kind, false, p50_ms, 100)
    };
    let cells = vec![
        at("20 ms", "full", 60.0),
        at("20 ms", "0-RTT", 40.0),
        at("20 ms, 5 % lost", "full", 90.0),
        at("20 ms, 5 % lost", "0-RTT", 80.0),
    ];
    Record { cells, ..Record::default() }
}

#[test]
fn a_figure_selected_by_round_trip_time_comes_from_the_subjects_own_network() {
    let record = record_of_two_networks_at_20_ms();
    let check = |condition: &str, old: Option<&Record>| {
        let outcome = Condition::parse(condition).unwrap().check(&record, old).unwrap();
        (outcome.checked, outcome.findings)
    };
    let lossy = "firstflight get at 20 ms, 5 % lost (20 ms), TLS 1.3 0-RTT";
    assert_eq!(
        check("p50(0rtt, rtt=20) > 50ms", None),
        (2, vec![format!("{lossy}: p50(0rtt, rtt=20) is 80.00 ms")])
    );
    let further = check("p50(0rtt) > 0.8*p50(full, rtt=20)", None);
    assert_eq!((further.0, further.1.len()), (2, 1));
    assert!(further.1[0].starts_with(lossy), "{further:?}");

    let mut old = record_of_two_networks_at_20_ms();
    old.cells[3].summary.as_mut().unwrap().first_byte.p50_ms = 70.0;
    assert_eq!(check("p50(0rtt, rtt=20) > 1.1*old", Some(&old)).1.len(), 1);
    old.cells.truncate(2);
    assert_eq!(check("p50(0rtt, rtt=20) > 1.1*old", Some(&old)), (1, vec![]), "no other network's");
}

#[test]
fn a_figure_that_fits_several_networks_is_ambiguous() {
    let mut record = record_of_two_networks_at_20_ms();
    record.cells.push(cell("firstflight", 28.0, "0-RTT", false, 56.0, 100));
    let condition = Condition::parse("p50(0rtt, rtt=28) > p50(0rtt, rtt=20)").unwrap();
    let error = condition.check(&record, None).unwrap_err();
    assert!(matches!(error, CheckError::Ambiguous { .. }), "{error}");
    assert!(error.to_string().contains("20 ms, 5 % lost"), "{error}");
}

#[test]
fn cells_without_a_counterpart_are_skipped_by_name() {
    let condition = Condition::parse("p50(0rtt) > 0.9*p50(full)").unwrap();
    let outcome = condition.check(&record(), None).unwrap();
    assert!(outcome.passed());
    assert_eq!(outcome.checked, 3);
    assert_eq!(outcome.skipped, ["firstflight get at 20 ms, TLS 1.3 0-RTT + TFO: no p50(full)"]);
    assert_eq!(
        undecided("p50(0rtt, tfo=on) > p50(full)"),
        "p50(0rtt, tfo=on) > p50(full): no cell of p50(0rtt, tfo=on) has a \
         corresponding p50(full); measure both, or add filters"
    );
}

#[test]
fn a_figure_that_was_not_measured_does_not_pass() {
    assert_eq!(
        undecided("p50(0rtt, server=h2o) > 1ms"),
        "p50(0rtt, server=h2o) > 1ms: p50(0rtt, server=h2o) selects nothing in the record; available: \
         kind full, 0-RTT; server firstflight, nginx"
    );
    assert!(undecided("p95(0rtt, profile=cable) > 1ms").contains(
        "has 40 good samples, p95(0rtt, \
        profile=cable) needs 59"
    ));
    assert!(undecided("p50(0rtt, time=setup) > 1ms").contains("was not measured"));
    assert!(undecided("p50(0rtt) / (rtt - rtt) > 1").contains("divides by zero"));
    assert!(undecided("p50(0rtt) > old").contains("--compare"));
}

#[test]
fn a_round_trip_time_that_is_not_known_decides_nothing() {
    let cells = vec![cell("firstflight", 0.0, "0-RTT", false, 40.0, 100)];
    let record = Record { cells, ..Record::default() };
    let condition = Condition::parse("p50(0rtt) > 2.1*rtt").unwrap();
    assert!(matches!(condition.check(&record, None), Err(CheckError::NotFinite { .. })));
}

#[test]
fn both_sides_of_or_are_evaluated() {
    assert!(undecided("p50(0rtt) > 0 or p99(0rtt) > 5").contains("p99(0rtt)"));
}

#[test]
fn counts_round_trips_and_replays_are_figures() {
    assert_eq!(findings("count(0rtt) < 50").len(), 1);
    assert_eq!(findings("spoiled(0rtt) > 0.005*count(0rtt)").len(), 1);
    assert_eq!(findings("replays() > 0"), ["nginx: replays() is 1,000"]);
    assert_eq!(findings("replays(server=firstflight) > 0"), [""; 0]);
    let mut record = record();
    record.replays[0].failed = 1;
    let error = Condition::parse("replays() > 0").unwrap().check(&record, None).unwrap_err();
    assert!(matches!(error, CheckError::Uncounted { .. }), "{error}");
    assert_eq!(findings("round_trips(0rtt) != 2"), [""; 0]);
    assert_eq!(findings("not (p50(0rtt, tfo=on) < 20ms) and replays() == 0").len(), 1);
}

#[test]
fn old_is_the_first_figure_in_the_earlier_record() {
    let mut old = record();
    old.cells.remove(6);
    old.cells[1].summary.as_mut().unwrap().first_byte.p50_ms = 38.0;
    let condition = Condition::parse("p50(0rtt) > 1.05*old").unwrap();
    assert!(condition.needs_old());
    let outcome = condition.check(&record(), Some(&old)).unwrap();
    assert_eq!(
        outcome.findings,
        ["firstflight get at 20 ms, TLS 1.3 0-RTT: p50(0rtt) is 40.60 ms, was 38.00 ms"]
    );
    assert_eq!(outcome.checked, 3);
    assert_eq!(
        outcome.skipped,
        ["nginx get at 20 ms, TLS 1.3 0-RTT: no p50(0rtt) in the earlier record"]
    );
    old.cells.clear();
    let error = condition.check(&record(), Some(&old)).unwrap_err();
    assert!(matches!(error, CheckError::NoCounterpart { .. }), "{error}");
}

#[test]
fn only_figures_of_the_earlier_record_that_are_used_must_be_in_it() {
    let check = |condition: &str, old: &Record| {
        Condition::parse(condition)
            .unwrap()
            .check(&record(), Some(old))
            .map(|outcome| outcome.checked)
    };
    let mut old = record();
    for summary in old.cells.iter_mut().filter_map(|cell| cell.summary.as_mut()) {
        (summary.samples, summary.first_byte.p95_ms, summary.total) = (40, None, None);
    }
    let first = "firstflight get at 20 ms, TLS 1.3 0-RTT";
    let used = "p50(0rtt, rtt=20) > 1.05*old";
    assert_eq!(check(&format!("{used} and p95(0rtt, rtt=20) > 50ms"), &old), Ok(3));
    assert_eq!(check(&format!("{used} and p50(0rtt, time=total) > 50ms"), &old), Ok(3));
    let few = check("p95(0rtt, rtt=20) > old", &old).unwrap_err().to_string();
    assert!(few.contains(&format!("{first} in the earlier record has 40 good samples")), "{few}");
    let none = check("p50(0rtt, time=total) > old", &old).unwrap_err().to_string();
    assert!(none.contains(&format!("not measured in {first} in the earlier record;")), "{none}");
}

#[test]
fn mistakes_are_reported_with_their_column() {
    assert_eq!(refusal("p97(0rtt) > 5").0, 1);
    assert!(refusal("p97(0rtt) > 5").1.contains("allowed are min, p50, p95"));
    assert_eq!(refusal("p50(0rtt, sever=x) > 5").0, 11);
    assert!(refusal("p50(0rtt, sever=x) > 5").1.contains("experiment, client, server, workload"));
    assert!(refusal("p50(early) > 5").1.contains("full, resumed, 0rtt and refused"));
    assert_eq!(
        refusal("p50(0rtt) > 5min"),
        (14, "unknown unit \"min\"; allowed are us, ms and s".into())
    );
    assert_eq!(refusal("p50(0rtt) > count(0rtt)").1, "cannot compare a time and a count");
    assert_eq!(refusal("p50(0rtt) * rtt > 1").1, "cannot multiply a time and a time");
    assert_eq!(refusal("p50(0rtt) >").0, 12);
    assert_eq!(refusal("p50(0rtt").1, "this parenthesis is not closed");
    assert!(refusal("p50(0rtt)").1.starts_with("a condition must be a comparison"));
    assert!(refusal("1 > 2").1.starts_with("a condition must contain a figure"));
    assert!(refusal("p50 > 2").1.contains("p50(0rtt)"));
    assert!(refusal("p50(0rtt) > 2 > 1").0 == 15);
    assert!(refusal("µ").1.contains("unexpected"));
    assert!(refusal("p50(0rtt, 0rtt) > 1").1.contains("twice"));
    assert!(refusal("old > 1").1.contains("old needs a figure"));
    assert!(refusal("replays(tls=1.3) > 0").1.contains("server= only"));
    assert!(refusal(&"(".repeat(200)).1.contains("nested too deeply"));
    assert!(refusal(&"1+".repeat(3000)).1.contains("longer than"));
    let error = Condition::parse("p50(0rtt) > 5min").unwrap_err();
    assert_eq!(error.pointer(), "p50(0rtt) > 5min\n             ^");
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused_with_a_valid_column(text in "\\PC{0,60}") {
        if let Err(error) = Condition::parse(&text) {
            prop_assert!(error.column <= text.chars().count() + 1);
        }
    }

    #[test]
    fn arithmetic_has_the_usual_precedence(a in 1..100u32, b in 1..100u32, c in 1..100u32) {
        let (x, y, z) = (f64::from(a), f64::from(b), f64::from(c));
        let value = x + y * z - x / y - (x - z);
        let sum = format!("count(server=nginx, kind=full) - 100 + {a}+{b}*{c}-{a}/{b}-({a}-{c})");
        let found = findings(&format!("{sum} > {} and {sum} < {}", value - 1e-6, value + 1e-6));
        prop_assert_eq!(found.len(), 1);
    }
}
