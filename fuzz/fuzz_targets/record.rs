//! Any bytes as a record: refused with a reason, or shown in every form without a panic and without
//! markup of its own.
#![no_main]

use firstflight_report::conditions::Condition;
use firstflight_report::{
    Pictures, compare, csv, html, junit, markdown, parse, summary, verdict_lines, verdicts,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = parse(bytes) else { return };
    let page = html::render(&record, &Pictures::default());
    assert!(!page.contains("<script") && !page.contains("<img"));
    assert!(!summary(&record).contains('\u{1b}'));
    markdown::render(&record);
    csv::samples(&record, std::io::sink()).expect("a sink takes all");
    csv::cells(&record, std::io::sink()).expect("a sink takes all");
    csv::visits(&record, std::io::sink()).expect("a sink takes all");
    csv::visit_cells(&record, std::io::sink()).expect("a sink takes all");
    let mut asked = verdicts(&record, "firstflight");
    if let Ok(condition) = Condition::parse("p50(0rtt) > 1.2*rtt or p95(full) > old") {
        asked.push(condition.verdict(&record, Some(&record)));
    }
    verdict_lines(&asked);
    junit::render(&asked);
    let comparison = compare(&record, &record);
    assert_eq!(comparison.differing(), 0);
    comparison.html(&asked);
    comparison.text(&asked);
});
