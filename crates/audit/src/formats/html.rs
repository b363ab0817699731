//! A report as one HTML file, in the style of the other reports.

use firstflight_report::html::{Section, page};
use maud::{Markup, html};

use crate::{CHECKLIST, Finding, Report, Verdict};

/// Renders a report.
pub fn render(report: &Report) -> String {
    let headline = report.headline();
    let header = html! {
        header {
            p.kicker { "firstflight \u{b7} audit of early data" }
            h1 { (headline) }
            p.lead {
                (report.address) ", " (report.server) "; " (report.date) "; "
                @if report.witness { "executions were counted by a witness" }
                @else { "executions were concluded from responses before Finished" }
            }
        }
    };
    let open: Vec<&Finding> =
        report.findings.iter().filter(|finding| finding.verdict <= Verdict::Inconclusive).collect();
    let mut sections = vec![Section {
        id: "checks",
        title: "All checks".to_owned(),
        short: "Checks",
        body: checks(report),
    }];
    if !open.is_empty() {
        sections.push(Section {
            id: "findings",
            title: "What did not pass".to_owned(),
            short: "Findings",
            body: html! { @for finding in open { (details(finding)) } },
        });
    }
    let passed: Vec<&Finding> =
        report.findings.iter().filter(|finding| finding.verdict == Verdict::Pass).collect();
    if !passed.is_empty() {
        let body = html! { @for finding in passed { (folded(finding)) } };
        let title = "Evidence of what passed".to_owned();
        sections.push(Section { id: "passed", title, short: "Passed", body });
    }
    sections.push(Section {
        id: "checklist",
        title: "Checklist".to_owned(),
        short: "Checklist",
        body: checklist(report),
    });
    page(&headline, &header, &sections).into_string()
}

fn checks(report: &Report) -> Markup {
    let rows = report.findings.iter().map(|finding| {
        let cells = vec![finding.title.clone(), finding.summary.clone(), finding.section.clone()];
        (finding.verdict.name(), cells)
    });
    table("All checks", &["check", "what was found", "source"], rows)
}

fn checklist(report: &Report) -> Markup {
    let rows = CHECKLIST.iter().map(|item| {
        // A box to tick.
        let result = item.verdict(report).map_or("\u{2610}", Verdict::name);
        let verified_by = match item.checks {
            [] => "you".to_owned(),
            checks => checks.join(", "),
        };
        (result, vec![item.statement.to_owned(), verified_by])
    });
    table("Checklist", &["what should be so", "verified by"], rows)
}

/// A table whose rows start with a result.
fn table<'a>(
    label: &str,
    columns: &[&str],
    rows: impl Iterator<Item = (&'a str, Vec<String>)>,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead { tr {
                    th scope="col" { "result" }
                    @for column in columns { th scope="col" { (column) } }
                } }
                tbody {
                    @for (result, cells) in rows { tr {
                        th scope="row" { (result) }
                        @for cell in cells { td { (cell) } }
                    } }
                }
            }
        }
    }
}

/// The connections of a check, as they can be found in a capture.
fn connections(finding: &Finding) -> Markup {
    let columns =
        ["sent after", "to", "local port", "first flight", "its SHA-256", "sent", "received"];
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Connections of " (finding.check) } {
            table {
                thead { tr { @for column in columns { th scope="col" { (column) } } } }
                tbody {
                    @for connection in &finding.connections { tr {
                        td { (format!("{:.3} s", connection.opened_ms as f64 / 1000.0)) }
                        td { (connection.address) }
                        td { @if let Some(port) = connection.local_port { (port) } }
                        td { (connection.first_flight_bytes) " bytes" }
                        td { code {
                            (connection.first_flight_sha256.get(..16).unwrap_or_default())
                        } }
                        td { (connection.sent_bytes) " bytes" }
                        td { (connection.received_bytes) " bytes" }
                    } }
                }
            }
        }
    }
}

fn folded(finding: &Finding) -> Markup {
    html! {
        details {
            summary { (finding.title) }
            (evidence(finding))
        }
    }
}

fn evidence(finding: &Finding) -> Markup {
    html! {
        p { (finding.summary) " (" (finding.section) ")" }
        @if !finding.evidence.is_empty() {
            ul { @for line in &finding.evidence { li { (line) } } }
        }
        @if !finding.connections.is_empty() { (connections(finding)) }
    }
}

fn details(finding: &Finding) -> Markup {
    html! {
        h3 { (finding.verdict.name()) ": " (finding.title) }
        (evidence(finding))
        @if let Some(remedy) = &finding.remedy { p { "Remedy: " (remedy) } }
    }
}
