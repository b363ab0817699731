//! Records as HTML, Markdown, CSV and JUnit XML, checks of a run, and comparisons of records.

use firstflight_report::conditions::Condition;
use firstflight_report::{
    CheckOutcome, Fault, Pictures, ProfileFacts, Record, Sample, check_run, compare, csv, html,
    junit, markdown, read, terminal,
};

/// A record with few samples, for snapshots.
fn small() -> Record {
    let mut record = crate::synthetic::record(7);
    record.samples.retain(|sample| sample.cell < 2 && sample.block < 4);
    record.cells.truncate(2);
    record.effects.clear();
    record.visits.clear();
    record.visit_cells.clear();
    record.visit_effects.clear();
    record.filmstrips.clear();
    record.browsers.clear();
    record.profiles.truncate(4);
    record.waterfalls.clear();
    record.control = None;
    record
}

fn page_of(record: &Record) -> String {
    html::render(record, &Pictures::default())
}

fn page_with_pictures(record: &Record) -> String {
    let directory = tempfile::tempdir().unwrap();
    crate::synthetic::paint(record, directory.path()).unwrap();
    html::render(record, &Pictures::load(record, directory.path()))
}

fn csv_of(write: impl Fn(&Record, &mut Vec<u8>) -> std::io::Result<()>, record: &Record) -> String {
    let mut out = Vec::new();
    write(record, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn html_requests_nothing_from_other_hosts_and_has_no_script() {
    let page = page_with_pictures(&crate::synthetic::record(7));
    for word in ["http://", "https://", "<script", "@import", "url(", "javascript:"] {
        assert!(!page.contains(word), "{word}");
    }
    assert_eq!(page.matches("src=").count(), page.matches("src=\"data:image/png;base64,").count());
    assert!(page.contains("default-src 'none'"));
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
}

#[test]
fn html_has_exactly_the_sections_that_the_record_fills() {
    let all = [
        "claims",
        "walk-through",
        "networks",
        "film",
        "phases",
        "visit-effects",
        "visits",
        "disagreements",
        "packets",
        "trips",
        "latency",
        "access",
        "bars",
        "page",
        "loss",
        "published",
        "blueprint",
        "clients",
        "matrix",
        "spread",
        "effects",
        "control",
        "bytes",
        "model",
        "replay",
        "middleboxes",
        "stalls",
        "cold-starts",
        "load",
        "costs",
        "link",
        "setting",
    ];
    let has = |page: &str, id: &str| page.contains(&format!("<section id=\"{id}\""));
    let page = page_of(&crate::synthetic::record(7));
    for id in all {
        assert!(has(&page, id), "{id}");
        assert!(page.contains(&format!("<a href=\"#{id}\"")), "{id} in the navigation");
    }
    let empty = page_of(&Record::default());
    for id in &all[..all.len() - 1] {
        assert!(!has(&empty, id), "{id}");
    }
    assert!(has(&empty, "setting"));
}

#[test]
fn bars_are_drawn_for_the_cells_of_any_experiment() {
    for experiment in ["matrix", "remote", "another"] {
        let mut record = crate::synthetic::record(7);
        record.cells.iter_mut().for_each(|cell| cell.experiment = experiment.to_owned());
        let page = page_of(&record);
        assert!(page.contains("<section id=\"bars\"") && page.contains("bars-0"), "{experiment}");
    }
}

#[test]
fn html_escapes_untrusted_text() {
    let evil = "<img src=x onerror=alert(1)>\"'&";
    let mut record = crate::synthetic::record(7);
    for cell in &mut record.cells {
        cell.server = evil.to_owned();
        cell.profile = evil.to_owned();
        cell.kind = evil.to_owned();
    }
    record.command = vec![evil.to_owned()];
    record.machine.processor = evil.to_owned();
    record.servers[0].notes = vec![evil.to_owned()];
    record.left_out = vec![evil.to_owned()];
    record.middleboxes[0].labels[0].0 = evil.to_owned();
    record.waterfalls[0].packets[0].what = vec![evil.to_owned()];
    record.loads[0].errors = vec![(evil.to_owned(), 1)];
    for cell in &mut record.visit_cells {
        (cell.server, cell.profile, cell.browser) = (evil.into(), evil.into(), evil.into());
    }
    record.visits[0].warnings = vec![evil.to_owned()];
    record.browsers[0].notes = vec![evil.to_owned()];
    record.filmstrips[0].frames[0].file = evil.to_owned();
    let page = page_of(&record);
    assert!(!page.contains("<img"));
    assert!(page.contains("&lt;img"));
}

#[test]
fn every_drawing_has_a_title_and_a_description() {
    let page = page_of(&crate::synthetic::record(7));
    let drawings: Vec<&str> = page.split("<svg ").skip(1).collect();
    assert!(drawings.len() > 20);
    let mut ids = std::collections::HashSet::new();
    for drawing in drawings {
        let tag = drawing.split('>').next().unwrap();
        if tag.contains("aria-hidden") {
            continue;
        }
        assert!(tag.contains("role=\"img\""), "{tag}");
        let labelled = tag.split("aria-labelledby=\"").nth(1).unwrap().split('"').next().unwrap();
        for id in labelled.split(' ') {
            assert!(drawing.contains(&format!("id=\"{id}\"")), "{id}");
            assert!(ids.insert(id.to_owned()), "{id} twice");
        }
    }
}

#[test]
fn extreme_and_invalid_values_are_drawn_with_finite_coordinates() {
    for value in [0.0, -5.0, 1e-300, 1e300, f64::MAX, f64::NAN, f64::INFINITY] {
        let mut record = crate::synthetic::record(7);
        record.samples.truncate(500);
        for sample in &mut record.samples {
            sample.time_ms = Some(value);
        }
        for cell in &mut record.cells {
            cell.rtt_ms = value;
            let summary = cell.summary.as_mut().unwrap();
            summary.first_byte.p50_ms = value;
            summary.setup = None;
        }
        for waterfall in &mut record.waterfalls {
            waterfall.last_byte_ms = value;
            waterfall.packets[0].sent_ms = value;
        }
        for effect in &mut record.effects {
            effect.difference_rtt.low = value;
        }
        for cell in &mut record.visit_cells {
            cell.rtt_ms = value;
            let summary = cell.summary.as_mut().unwrap();
            summary.total.p50_ms = value;
            summary.total.p50_interval_ms = (value, -value);
        }
        for frame in record.filmstrips.iter_mut().flat_map(|strip| &mut strip.frames) {
            frame.at_ms = value;
        }
        let page = page_of(&record);
        assert!(!page.contains("NaN\"") && !page.contains("inf\""), "{value}");
    }
}

#[test]
fn a_record_of_many_cells_has_its_report() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/many-cells.json.gz");
    let record = read(path.as_ref()).unwrap();
    let page = page_of(&record);
    assert!(page.contains("<section id=\"latency\"") && page.contains("<section id=\"published\""));
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
}

#[test]
fn markdown_of_a_small_record() {
    insta::assert_snapshot!(markdown::render(&small()));
}

#[test]
fn markdown_escapes_untrusted_text() {
    let mut record = small();
    record.cells[0].server = "a|b <b> @all [x](y) `c`\n# d".to_owned();
    let text = markdown::render(&record);
    assert!(text.contains("a\\|b &lt;b&gt; &#64;all \\[x\\](y) \\`c\\` \\# d"), "{text}");
}

#[test]
fn samples_and_cells_as_csv() {
    let record = small();
    insta::assert_snapshot!("samples", csv_of(|record, out| csv::samples(record, out), &record));
    insta::assert_snapshot!("cells", csv_of(|record, out| csv::cells(record, out), &record));
}

#[test]
fn csv_has_a_line_for_each_sample_and_cell() {
    let record = crate::synthetic::record(7);
    let samples = csv_of(|record, out| csv::samples(record, out), &record);
    assert_eq!(samples.lines().count(), 1 + record.samples.len());
    let cells = csv_of(|record, out| csv::cells(record, out), &record);
    assert_eq!(cells.lines().count(), 1 + record.cells.len());
}

#[test]
fn a_run_is_checked_for_labels_replays_and_control() {
    let mut record = crate::synthetic::record(7);
    record.visits.clear();
    let outcomes = check_run(&record, "firstflight");
    let groups: Vec<&str> = outcomes.iter().map(|outcome| outcome.group.as_str()).collect();
    let expected =
        ["labels", "replay", "replay", "control", "load", "load", "load", "load", "load"];
    assert_eq!(groups, expected);
    assert!(outcomes.iter().all(CheckOutcome::passed));
    record.replays[0].failed = 99;
    let undecided = check_run(&record, "firstflight")[1].undecided.clone();
    assert_eq!(undecided.unwrap(), "99 of 1099 resent flights did not reach the server");
    record.replays[0].executed = 1;
    let outcome = &check_run(&record, "firstflight")[1];
    assert!(!outcome.passed() && outcome.undecided.is_none(), "one execution decides");
    record.replays[0].originals = 3;
    assert!(check_run(&record, "firstflight")[1].undecided.is_some());
    assert!(!check_run(&record, "nginx")[1].passed(), "whose replays are judged is the caller's");
    record.replays[2].executed = 1;
    assert!(!check_run(&record, "firstflight")[2].passed(), "over QUIC too");
    record.control.as_mut().unwrap().differing = 3;
    assert!(!check_run(&record, "firstflight")[3].passed());
    record.loads[1].as_requested = Some(0);
    let outcome = &check_run(&record, "firstflight")[5];
    assert_eq!(outcome.findings, ["none of 77105 completed connections was resumed"]);
    record.loads[0].completed = 0;
    assert!(!check_run(&record, "firstflight")[4].passed());
}

#[test]
fn a_stage_that_failed_fails_the_run() {
    let mut record = crate::synthetic::record(7);
    record.failed_stages = vec!["the attack on nginx: it ended".to_owned()];
    let outcome = &check_run(&record, "firstflight")[0];
    assert_eq!((&*outcome.group, outcome.passed()), ("stages", false));
    assert_eq!(outcome.findings, record.failed_stages);
    assert!(terminal::data_quality(&record).contains("WRONG: the attack on nginx: it ended\n"));
    assert!(page_of(&record).contains("the attack on nginx: it ended"));
}

#[test]
fn spoiled_samples_are_not_counted_as_checked() {
    let mut record = small();
    let spoiled = Some(Fault::Spoiled("late".to_owned()));
    record.samples.iter_mut().for_each(|sample| sample.fault = None);
    record.samples[0].fault = spoiled.clone();
    let labels = |record: &Record| check_run(record, "firstflight").swap_remove(0);
    assert!(labels(&record).passed());
    assert_eq!(labels(&record).checked, record.samples.len() - 1);
    let of_first = |sample: &&mut Sample| sample.cell == 0;
    record.samples.iter_mut().filter(of_first).for_each(|sample| sample.fault = spoiled.clone());
    let first = "no good sample of firstflight ping-pong at 200 ms, TLS 1.0 full";
    assert_eq!(labels(&record).skipped, [first]);
    assert!(labels(&record).passed() && labels(&record).checked > 0);
    let text = terminal::check_outcomes(&[labels(&record)]);
    assert!(text.contains(&format!("  skipped: {first}\n")), "{text}");
    record.samples.iter_mut().for_each(|sample| sample.fault = spoiled.clone());
    let more = record.cells.len() - 1;
    let undecided = labels(&record).undecided.unwrap();
    assert_eq!(undecided, format!("{first}, and {more} more"));
    // One failure is enough.
    record.samples[0].fault = Some(Fault::Failed("reset".to_owned()));
    assert!(labels(&record).undecided.is_none() && !labels(&record).passed());
    assert_eq!(labels(&record).skipped.len(), more + 1);
}

#[test]
fn a_control_of_a_single_pair_is_not_decidable() {
    let mut record = crate::synthetic::record(7);
    let control = record.control.as_mut().unwrap();
    control.pairs.truncate(1);
    (control.allowed, control.differing) = (1, 1);
    let outcomes = check_run(&record, "firstflight");
    let outcome = outcomes.iter().find(|outcome| outcome.group == "control").unwrap();
    assert!(outcome.passed() && outcome.is_idle());
    let text = terminal::check_outcomes(std::slice::from_ref(outcome));
    assert_eq!(
        text,
        "not decidable: control: equal cells do not differ\n  \
         skipped: 1 of 1 A/A pairs may differ by chance\n"
    );
    assert!(junit::render(std::slice::from_ref(outcome)).contains("<skipped message=\"1 of 1"));
}

fn some_outcomes() -> Vec<CheckOutcome> {
    let record = small();
    let check = |text: &str| Condition::parse(text).unwrap().outcome(&record, None);
    vec![
        check("p95(full) > 4.1*rtt"),
        check("p50(full) > 3*rtt and count(full) > 0"),
        check("p50(0rtt) > 1.2*rtt"),
        CheckOutcome {
            findings: vec!["a\u{0}b <c> & \"d\"".to_owned()],
            ..CheckOutcome::default()
        },
    ]
}

#[test]
fn check_outcomes_as_junit_xml() {
    insta::assert_snapshot!(junit::render(&some_outcomes()));
}

#[test]
fn check_outcomes_as_lines_and_markdown() {
    insta::assert_snapshot!("verdict_lines", terminal::check_outcomes(&some_outcomes()));
    insta::assert_snapshot!("verdict_markdown", markdown::check_outcomes(&some_outcomes()));
}

#[test]
fn a_record_compared_with_itself_has_no_changes() {
    let record = crate::synthetic::record(7);
    let comparison = compare(&record, &record);
    assert_eq!(comparison.differing(), 0);
    let cells = record.cells.iter().filter(|cell| !cell.control).count();
    assert_eq!(comparison.changes.len(), cells + record.visit_cells.len());
    assert!(comparison.only_old.is_empty() && comparison.only_new.is_empty());
    assert!(comparison.cautions.is_empty());
}

#[test]
fn differing_networks_and_servers_are_cautions() {
    let old = crate::synthetic::record(7);
    let mut new = old.clone();
    let profile = |record: &mut Record, change: fn(&mut ProfileFacts)| {
        change(record.profiles.iter_mut().find(|profile| profile.name == "geo").unwrap());
    };
    profile(&mut new, |profile| profile.rtt_ms += 0.3);
    assert!(compare(&old, &new).cautions.is_empty(), "part of the cells");
    profile(&mut new, |profile| profile.up_mbps = None);
    profile(&mut new, |profile| profile.more = "1 % lost".to_owned());
    new.servers[1].version = "nginx/1.31".to_owned();
    assert_eq!(
        compare(&old, &new).cautions,
        [
            "The network geo differs: 100 Mbit/s down, 10 Mbit/s up, queue 64 KiB each way before, \
             100 Mbit/s down, 1 % lost now.",
            "The version of nginx differs: nginx/1.22.1 <\"Debian\" & co> before, nginx/1.31 now.",
        ]
    );
}

/// The round-trip time to a remote server is measured by each run, so it does not identify a cell.
#[test]
fn runs_at_a_remote_server_are_comparable() {
    let mut old = crate::synthetic::record(7);
    old.visit_cells.clear();
    old.visits.clear();
    let cells_at_20_ms: Vec<usize> =
        (0..old.cells.len()).filter(|&place| old.cells[place].rtt_ms == 20.0).collect();
    old.cells.retain(|cell| cell.rtt_ms == 20.0);
    old.samples.retain_mut(|sample| match cells_at_20_ms.binary_search(&sample.cell) {
        Ok(place) => {
            sample.cell = place;
            true
        }
        Err(_) => false,
    });
    let mut new = old.clone();
    new.cells.iter_mut().for_each(|cell| cell.rtt_ms = 20.3);
    assert!(compare(&old, &new).changes.is_empty());
    for cell in old.cells.iter_mut().chain(&mut new.cells) {
        cell.experiment = "remote".to_owned();
    }
    let comparison = compare(&old, &new);
    assert!(!comparison.changes.is_empty());
    assert!(comparison.only_old.is_empty() && comparison.only_new.is_empty());
}

#[test]
fn runs_of_other_seeds_differ_no_more_than_chance_and_an_injected_change_is_found() {
    let (old, mut new) = (crate::synthetic::record(7), crate::synthetic::record(8));
    let comparison = compare(&old, &new);
    assert!(comparison.differing() <= comparison.allowed, "{}", comparison.sentence());
    let slow =
        new.cells.iter().position(|cell| cell.kind == "0-RTT" && cell.rtt_ms == 20.0).unwrap();
    for sample in new.samples.iter_mut().filter(|sample| sample.cell == slow) {
        sample.time_ms = sample.time_ms.map(|time| time + 1.0);
    }
    let figures = &mut new.cells[slow].summary.as_mut().unwrap().first_byte;
    figures.p50_ms += 1.0;
    new.machine.kernel = "Linux 7.0".to_owned();
    new.cells
        .iter_mut()
        .filter(|cell| cell.server == "nginx")
        .for_each(|cell| cell.server.push('2'));
    let comparison = compare(&old, &new);
    let change = comparison.changes.iter().find(|change| change.cell == slow).unwrap();
    let interval = change.difference_ms.unwrap();
    assert!(change.differs() && interval.low < 1.0 && 1.0 < interval.high, "{interval:?}");
    assert_eq!(comparison.cautions, ["The kernel differs: Linux 6.18.44 before, Linux 7.0 now."]);
    assert_eq!(comparison.only_old.len(), comparison.only_new.len());
    assert!(comparison.only_old.iter().all(|name| name.starts_with("nginx ")));
    assert!(!comparison.only_old.is_empty());

    let condition = Condition::parse("p50(0rtt, server=firstflight) > 1.005*old").unwrap();
    let outcome = condition.check(&new, Some(&old)).unwrap();
    assert!(outcome.findings.iter().any(|finding| finding.contains("20 ms")), "{outcome:?}");
    let outcomes = [outcome];
    let (text, page) = (comparison.text(&outcomes), comparison.html(&outcomes));
    assert!(text.lines().all(|line| line.chars().count() <= 200) && text.contains("FAILED"));
    assert!(page.contains("<section id=\"conditions\"") && !page.contains("https://"));
    assert!(comparison.markdown(&outcomes).contains("Only in the old record"));
}
