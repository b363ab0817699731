//! `firstflight report` with records in the repository.

use std::fs;
use std::path::Path;

use firstflight_report::{
    Figures, Filmstrip, Frame, Record, SCHEMA, Visit, VisitCell, VisitSummary,
};

use crate::support::program::{Ended, firstflight, run, site};

const RECORD: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../report/tests/data/many-cells.json.gz");

fn report(dir: &Path, arguments: &[&str]) -> Ended {
    run(firstflight(dir).current_dir(dir).arg("report").args(arguments))
}

#[test]
fn a_record_in_every_format() {
    let site = site();
    let files = ["--html", "r.html", "--markdown", "r.md", "--cells-csv", "c.csv"];
    let ended = report(site.path(), &[&[RECORD, "--samples-csv", "s.csv"][..], &files].concat());
    assert_eq!((ended.code, &*ended.out), (Some(0), ""), "{ended:?}");
    let read = |name: &str| fs::read_to_string(site.path().join(name)).unwrap();
    let html = read("r.html");
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("<svg"), "{}", &html[..200]);
    for elsewhere in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!html.contains(elsewhere), "requests another host: {elsewhere}");
    }
    assert!(read("r.md").contains("| --- |") || read("r.md").contains("|---"));
    assert_eq!(read("s.csv").lines().count(), 21_600 + 1);
    assert!(read("c.csv").lines().count() > 100);

    let ended = report(site.path(), &[RECORD]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
    assert!(ended.out.contains("0-RTT"), "{}", ended.out);
}

/// A record of browsers' visits, with a picture next to it.
#[test]
fn a_record_of_visits_in_every_format() {
    let site = site();
    let visited = |visit: &str, p50_ms: f64| VisitCell {
        browser: "firefox".to_owned(),
        server: "nginx".to_owned(),
        profile: "walkthrough".to_owned(),
        rtt_ms: 112.0,
        http: "1.1".to_owned(),
        page: "small".to_owned(),
        visit: visit.to_owned(),
        summary: Some(VisitSummary {
            visits: 30,
            total: Figures { p50_ms, ..Figures::default() },
            ..VisitSummary::default()
        }),
    };
    let record = Record {
        schema: SCHEMA,
        visit_cells: vec![visited("off", 342.0), visited("on", 229.0)],
        visits: vec![Visit::default(), Visit { cell: 1, ..Visit::default() }],
        filmstrips: vec![Filmstrip {
            cell: 1,
            frames: vec![Frame { at_ms: 240.0, file: "film/a.jpg".to_owned() }],
        }],
        ..Record::default()
    };
    let kept = site.path().join("kept");
    fs::create_dir_all(kept.join("film")).unwrap();
    fs::write(kept.join("film/a.jpg"), [0xff, 0xd8, 0xff, 0xe0]).unwrap();
    firstflight_report::write(&record, &kept.join("lab.json.gz")).unwrap();

    let files = ["--html", "r.html", "--visits-csv", "v.csv", "--visit-cells-csv", "c.csv"];
    let ended = report(site.path(), &[&["kept/lab.json.gz"][..], &files].concat());
    assert_eq!((ended.code, &*ended.out), (Some(0), ""), "{ended:?}");
    let read = |name: &str| fs::read_to_string(site.path().join(name)).unwrap();
    assert!(read("r.html").contains("src=\"data:image/jpeg;base64,/9j/4A==\""));
    assert_eq!((read("v.csv").lines().count(), read("c.csv").lines().count()), (3, 3));

    let condition = "p50(visit=on) > p50(visit=off) - 0.9*rtt";
    let ended = report(site.path(), &["kept/lab.json.gz", "--fail-if", condition]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("published (Firefox)") && ended.out.contains("229.0"), "{ended:?}");
}

#[test]
fn conditions_decide_the_exit_code() {
    let site = site();
    let holds = "round_trips(0rtt, tfo=off) != 2";
    let fails = "p50(0rtt, rtt=200, tfo=off) > 1.2*rtt";
    let ended = report(site.path(), &[RECORD, "--fail-if", holds]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ended = report(site.path(), &[RECORD, "--fail-if", fails, "--junit", "j.xml"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("400."), "the figures: {}", ended.err);
    let junit = fs::read_to_string(site.path().join("j.xml")).unwrap();
    assert!(junit.contains("<failure"), "{junit}");
    for (condition, words) in [
        ("p50(0rtt, server=caddy) > 1", "selects nothing in the record"),
        ("p999(0rtt) > 1", "p999"),
        ("p50(0rtt) >", "column"),
        ("p51(0rtt) > 1", "p50"),
        ("p50(0rtt) > 1.1*old", "--compare"),
    ] {
        let ended = report(site.path(), &[RECORD, "--fail-if", condition]);
        assert_eq!(ended.code, Some(2), "{condition}: {ended:?}");
        assert!(ended.err.contains(words), "{condition}: {}", ended.err);
    }
}

#[test]
fn a_record_does_not_differ_from_itself() {
    let site = site();
    let arguments = [RECORD, "--compare", RECORD, "--fail-if", "p50(0rtt) > 1.01*old"];
    let ended = report(site.path(), &arguments);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn files_that_are_not_records_are_refused() {
    let site = site();
    fs::write(site.path().join("no.json"), "{}").unwrap();
    for (file, words) in [("no.json", "no.json"), ("none.json", "No such file")] {
        let ended = report(site.path(), &[file]);
        assert_eq!((ended.code, &*ended.out), (Some(2), ""), "{ended:?}");
        assert!(ended.err.contains(words), "{ended:?}");
    }
}
