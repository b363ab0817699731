//! Any bytes as a record: refused with a reason, or shown in every form without a panic and without
//! markup of its own.
#![no_main]

use firstflight_report::conditions::Condition;
use firstflight_report::{
    Pictures, check_run, compare, csv, html, junit, markdown, parse, terminal,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = parse(bytes) else { return };
    let page = html::render(&record, &Pictures::default());
    assert!(!page.contains("<script") && !page.contains("<img"));
    assert!(!terminal::render(&record).contains('\u{1b}'));
    markdown::render(&record);
    csv::samples(&record, std::io::sink()).expect("a sink takes all");
    csv::cells(&record, std::io::sink()).expect("a sink takes all");
    csv::visits(&record, std::io::sink()).expect("a sink takes all");
    csv::visit_cells(&record, std::io::sink()).expect("a sink takes all");
    let mut outcomes = check_run(&record, "firstflight");
    if let Ok(condition) = Condition::parse("p50(0rtt) > 1.2*rtt or p95(full) > old") {
        outcomes.push(condition.outcome(&record, Some(&record)));
    }
    terminal::check_outcomes(&outcomes);
    junit::render(&outcomes);
    let comparison = compare(&record, &record);
    assert_eq!(comparison.differing(), 0);
    comparison.html(&outcomes);
    comparison.text(&outcomes);
});
