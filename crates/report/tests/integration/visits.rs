//! What is shown of browsers' visits.

use std::path::Path;

use firstflight_report::conditions::Condition;
use firstflight_report::{
    BrowserTimings, CheckOutcome, Fault, Pictures, Record, VisitCell, check_run, compare, csv,
    html, markdown, parse, terminal,
};

fn page(record: &Record) -> String {
    html::render(record, &Pictures::default())
}

#[test]
fn a_record_of_visits_alone_on_a_terminal() {
    let text = terminal::render(&crate::synthetic::visits_alone(7));
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_record_of_visits_alone_as_html_and_markdown() {
    let record = crate::synthetic::visits_alone(7);
    let (page, text) = (page(&record), markdown::render(&record));
    let sections =
        ["walk-through", "networks", "film", "phases", "visit-effects", "visits", "setting"];
    for id in sections {
        assert!(page.contains(&format!("<section id=\"{id}\"")), "{id}");
    }
    assert!(!page.contains("<section id=\"matrix\"") && !page.contains("0 connections"));
    let headline = "At 112 ms round-trip time, 0-RTT brings a returning visitor a small page after \
                    229 instead of 342 ms in Firefox";
    assert!(text.starts_with(&format!("# {headline}")), "{text}");
    for words in ["## All visits", "## Browsers", "Mozilla Firefox 153.7.0esr", "published"] {
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn visits_follow_connections_in_sentences_and_precede_them_in_sections() {
    let record = crate::synthetic::record(7);
    let (page, text) = (page(&record), markdown::render(&record));
    let at = |text: &str, words: &str| text.find(words).unwrap_or_else(|| panic!("no {words}"));
    assert!(at(&text, "the first byte of a new connection") < at(&text, "a returning visitor"));
    assert!(at(&page, "<section id=\"visits\"") < at(&page, "<section id=\"matrix\""));
}

#[test]
fn the_walk_through_stands_beside_its_published_figures() {
    let text = terminal::render(&crate::synthetic::visits_alone(7));
    let row = |begin: &str| text.lines().find(|line| line.starts_with(begin)).unwrap().to_owned();
    let theirs = row("small page  published");
    let figures: Vec<&str> = theirs.split_whitespace().skip(4).collect();
    assert_eq!(figures, ["117.0", "0.00", "333.0", "221.0", "\u{2212}112.0", "-"]);
    assert!(row("image       published").contains("3500.0    3000.0"));
}

#[test]
fn return_visits_are_divided_into_phases() {
    let record = crate::synthetic::visits_alone(7);
    let text = terminal::render(&record);
    let table = text.split("Where the time of a return visit goes").nth(1).unwrap();
    let phases = |visit: &str| -> Vec<f64> {
        let is_row = |line: &&str| line.starts_with("walkthrough") && line.contains(visit);
        let row = table.lines().find(is_row).unwrap_or_else(|| panic!("{table}"));
        let fields: Vec<&str> = row.split_whitespace().collect();
        fields[fields.len() - 4..].iter().map(|field| field.parse().unwrap()).collect()
    };
    let (off, on) = (phases(" off "), phases(" on "));
    // Connecting, TLS, waiting.
    assert!(off[0] == 112.0 && off[1] > 112.0 && off[2] > 112.0, "{off:?}");
    assert!(on[0] == 112.0 && on[1] < 2.0 && on[2] > 112.0, "{on:?}");
    let page = page(&record);
    let drawing = page.split("<section id=\"phases\"").nth(1).unwrap();
    let drawing = drawing.split("</section>").next().unwrap();
    for part in ["connecting", "TLS", "waiting", "receiving"] {
        assert!(drawing.contains(&format!("0-RTT on, {part}: ")), "{part}");
    }
    for text in [text.as_str(), drawing] {
        assert!(text.contains("Firefox sends early data as shipped."));
        assert!(text.split_whitespace().any(|word| word == "EnableTLS13EarlyData,"), "{text}");
    }
}

#[test]
fn without_the_walk_throughs_network_the_rest_is_shown() {
    let mut record = crate::synthetic::visits_alone(7);
    for cell in record.visit_cells.iter_mut().filter(|cell| cell.profile == "walkthrough") {
        (cell.profile, cell.rtt_ms) = ("mine".to_owned(), 90.0);
    }
    let page = page(&record);
    assert!(!page.contains("<section id=\"walk-through\""));
    assert!(page.contains("<section id=\"networks\"") && page.contains("<section id=\"visits\""));
    assert!(page.contains("mine (90 ms)"));
}

#[test]
fn cells_without_a_good_visit_say_so() {
    let mut record = crate::synthetic::visits_alone(7);
    record.visit_cells.iter_mut().for_each(|cell| cell.summary = None);
    assert!(page(&record).contains("no good visit"));
    assert!(terminal::render(&record).contains("none"));
    markdown::render(&record);
}

/// Visits of a browser that sent no early data, although it was configured to, show nothing of
/// 0-RTT.
#[test]
fn nothing_is_claimed_of_visits_without_early_data() {
    let mut record = crate::synthetic::visits_alone(7);
    for summary in record.visit_cells.iter_mut().filter_map(|cell| cell.summary.as_mut()) {
        summary.early = summary.early.min(3);
    }
    let (page, text) = (page(&record), terminal::render(&record));
    for claim in ["0-RTT brings a returning visitor", "of a return visit's time"] {
        assert!(!page.contains(claim) && !text.contains(claim), "{claim}");
    }
    assert!(page.contains("early data in 3 of 29"));
    assert!(text.contains("Not all visits with 0-RTT on: Firefox, firstflight"));
}

#[test]
fn visits_and_their_cells_as_csv() {
    let record = crate::synthetic::visits_alone(7);
    let (mut visits, mut cells) = (Vec::new(), Vec::new());
    csv::visits(&record, &mut visits).unwrap();
    csv::visit_cells(&record, &mut cells).unwrap();
    let [visits, cells] = [visits, cells].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(visits.lines().count(), 1 + record.visits.len());
    assert_eq!(cells.lines().count(), 1 + record.visit_cells.len());
    let few = |text: &str, lines: usize| text.lines().take(lines).collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!("visits", few(&visits, 14));
    insta::assert_snapshot!("visit_cells", few(&cells, 4));
}

#[test]
fn visits_that_were_something_else_fail_the_run_and_warnings_do_not() {
    let mut record = crate::synthetic::visits_alone(7);
    let outcomes = check_run(&record, "firstflight");
    assert_eq!(outcomes.iter().map(|outcome| &*outcome.group).collect::<Vec<_>>(), ["visits"]);
    assert!(outcomes.iter().all(CheckOutcome::passed));
    record.visits[70].fault = Some(Fault::Mislabelled("a full handshake".to_owned()));
    record.visits[71].fault = Some(Fault::Failed("the browser hung".to_owned()));
    let outcomes = check_run(&record, "firstflight");
    assert_eq!(outcomes[0].findings.len(), 2);
    assert!(outcomes[0].findings[0].ends_with("return, 0-RTT on shows a full handshake"));
    assert!(
        terminal::render(&record).contains("WRONG: Firefox, firstflight, HTTP/1.1, small page")
    );
    assert!(page(&record).contains("2 of 1,380 visits failed"));
}

#[test]
fn cell_indices_out_of_range_are_refused() {
    let refusal = |spoil: fn(&mut Record)| {
        let mut record = crate::synthetic::visits_alone(7);
        spoil(&mut record);
        parse(&serde_json::to_vec(&record).unwrap()).unwrap_err().to_string()
    };
    assert!(refusal(|r| r.visits[3].cell = 999).contains("its visit refers to cell 999"));
    assert!(refusal(|r| r.visit_effects[0].from = 999).contains("its visit effect refers"));
    assert!(refusal(|r| r.filmstrips[0].cell = 999).contains("its filmstrip refers"));
}

#[test]
fn pictures_beside_the_record_go_into_the_page() {
    let record = crate::synthetic::visits_alone(7);
    let directory = tempfile::tempdir().unwrap();
    crate::synthetic::paint(&record, directory.path()).unwrap();
    let whole = html::render(&record, &Pictures::load(&record, directory.path()));
    // A picture that is replaced before the next step of the axis is not shown.
    let shown = whole.matches("<img src=\"data:image/png;base64,").count();
    assert!((8..=24).contains(&shown), "{shown}");
    assert!(!whole.contains("filmstrips/"));
    let bare = page(&record);
    assert_eq!(bare.matches("class=\"absent\"").count(), shown);
    assert!(!bare.contains("<img"));
}

/// A record is untrusted: it must not make the report read other files of the machine.
#[test]
fn only_small_pictures_below_the_directory_are_read() {
    let whole = tempfile::tempdir().unwrap();
    let directory = whole.path().join("record");
    std::fs::create_dir(&directory).unwrap();
    let png = [&[0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a][..], &[0; 90]].concat();
    let large = [&png[..], &vec![0; 100 << 10]].concat();
    let outside = whole.path().join("outside.png");
    std::fs::write(&outside, &png).unwrap();
    std::fs::write(directory.join("good.png"), &png).unwrap();
    std::fs::write(directory.join("text.png"), "-----BEGIN PRIVATE KEY-----").unwrap();
    std::fs::write(directory.join("large.png"), large).unwrap();
    let embeds = |file: &Path| {
        let mut record = crate::synthetic::visits_alone(7);
        for frame in record.filmstrips.iter_mut().flat_map(|strip| &mut strip.frames) {
            frame.file = file.display().to_string();
        }
        html::render(&record, &Pictures::load(&record, &directory)).contains("<img")
    };
    assert!(embeds("good.png".as_ref()));
    for file in ["text.png", "large.png", "absent.png", "../outside.png", ".", ""] {
        assert!(!embeds(file.as_ref()), "{file}");
    }
    assert!(!embeds(&outside));
}

/// A condition's findings in a record of visits.
fn findings(condition: &str) -> Vec<String> {
    let condition = Condition::parse(condition).unwrap_or_else(|error| panic!("{error}"));
    let checked = condition.check(&crate::synthetic::visits_alone(7), None);
    checked.unwrap_or_else(|error| panic!("{error}")).findings
}

#[test]
fn conditions_are_checked_on_visits_too() {
    let none: [&str; 0] = [];
    assert_eq!(findings("p50(visit=on, rtt=112, time=tls) > 3ms"), none);
    assert_eq!(findings("early(visit=on) < count(visit=on)"), none);
    assert_eq!(findings("p50(visit=on) > p50(visit=off)"), none, "each beside its like");
    assert_eq!(
        findings("p50(visit=on, page=small, profile=4g, browser=firefox) > 2*rtt"),
        ["Firefox, firstflight, HTTP/1.1, small page at 4g (53 ms), return, 0-RTT on: \
             p50(visit=on, page=small, profile=4g, browser=firefox) is 111.0 ms, rtt is 53.00 ms"]
    );
    assert_eq!(findings("warnings() > 1").len(), 1);
    assert_eq!(
        findings("p50(page=resources, time=load) > 3*rtt + p50(time=tls, visit=on)").len(),
        6
    );
}

#[test]
fn a_figure_of_visits_selected_by_round_trip_time_comes_from_the_subjects_own_network() {
    let mut record = crate::synthetic::visits_alone(7);
    let like = |cell: &VisitCell| cell.rtt_ms == 112.0 && cell.visit == "on";
    let mut slow = record.visit_cells.iter().find(|cell| like(cell)).unwrap().clone();
    slow.profile = "walkthrough, 1 Mbit/s".to_owned();
    slow.summary.as_mut().unwrap().total.p50_ms = 9_000.0;
    record.visit_cells.push(slow);
    let condition = Condition::parse("p50(visit=on, rtt=112) > 8s").unwrap();
    let findings = condition.check(&record, None).unwrap().findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].contains("walkthrough, 1 Mbit/s"), "{findings:?}");
}

#[test]
fn errors_of_conditions_on_visits_name_the_mistake() {
    let refusal = |text: &str| Condition::parse(text).unwrap_err().to_string();
    let undecided = |text: &str| {
        let condition = Condition::parse(text).unwrap();
        condition.check(&crate::synthetic::visits_alone(7), None).unwrap_err().to_string()
    };
    assert!(refusal("p50(visit=never) > 1").contains("allowed are first, off, on"));
    assert!(refusal("p50(visit=on, tfo=on) > 1").contains("unknown filter \"tfo\" of visits"));
    assert!(refusal("p50(visit=on, time=setup) > 1").contains("allowed are total, tls"));
    assert!(refusal("p50(0rtt) > p50(visit=on)").contains("cannot be combined with connections"));
    assert!(refusal("early(firefox) > 1").contains("such as visit=on"));
    assert!(refusal("p50(visit=on, visit=off) > 1").contains("twice"));
    assert!(undecided("p50(browser=lynx) > 1").contains("available: browser firefox, chromium"));
    assert!(undecided("p95(visit=on) > 1").contains("p95(visit=on) needs 59"));
    assert!(undecided("p50(visit=on, page=small) > old").contains("needs an earlier record"));
}

#[test]
fn a_picture_is_complete_at_its_load_event() {
    let times = BrowserTimings {
        response_end_ms: 351.0,
        load_event_ms: Some(1_042.0),
        ..BrowserTimings::default()
    };
    assert_eq!(times.total_ms("image"), 1_042.0);
    assert_eq!(times.total_ms("resources"), 351.0);
}

/// Firefox reports the `responseEnd` of a picture at its start, so it cannot be compared.
#[test]
fn pictures_are_compared_by_their_load_events() {
    let (old, mut new) = (crate::synthetic::visits_alone(7), crate::synthetic::visits_alone(7));
    let place = new.visit_cells.iter().position(|cell| cell.page == "image").unwrap();
    for visit in new.visits.iter_mut().filter(|visit| visit.cell == place) {
        *visit.browser.as_mut().unwrap().load_event_ms.as_mut().unwrap() += 300.0;
    }
    new.visit_cells[place].summary.as_mut().unwrap().total.p50_ms += 300.0;
    let comparison = compare(&old, &new);
    let change = comparison.changes.iter().find(|change| change.cell == place).unwrap();
    let difference = change.difference_ms.unwrap();
    assert!((difference.estimate - 300.0).abs() < 1e-9, "{change:?}");
    assert_eq!(comparison.differing(), 1);
}

#[test]
fn visits_are_compared_with_an_earlier_record() {
    let (old, mut new) = (crate::synthetic::visits_alone(7), crate::synthetic::visits_alone(8));
    let same = compare(&old, &old);
    assert_eq!((same.changes.len(), same.differing()), (old.visit_cells.len(), 0));
    let slow = 2;
    for visit in new.visits.iter_mut().filter(|visit| visit.cell == slow) {
        visit.browser.as_mut().unwrap().response_end_ms += 40.0;
    }
    new.visit_cells[slow].summary.as_mut().unwrap().total.p50_ms += 40.0;
    new.visit_cells[3].page = "another".to_owned();
    new.browsers[0].version = "Mozilla Firefox 160.0".to_owned();
    let comparison = compare(&old, &new);
    let change =
        comparison.changes.iter().find(|change| change.name.ends_with("0-RTT on")).unwrap();
    assert!(change.differs() && change.visits, "{change:?}");
    assert_eq!((comparison.only_old.len(), comparison.only_new.len()), (1, 1));
    assert!(comparison.cautions[0].contains("Mozilla Firefox 160.0 now"), "{comparison:?}");
    let condition = Condition::parse("p50(visit=on, rtt=112) > 1.1*old").unwrap();
    assert_eq!(condition.check(&new, Some(&old)).unwrap().findings.len(), 1);
    for line in comparison.text(&[]).lines() {
        assert!(line.chars().count() <= 200, "{line}");
    }
}
