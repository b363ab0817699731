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
        report.findings.iter().filter(|it| it.verdict <= Verdict::Inconclusive).collect();
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
    sections.push(Section {
        id: "checklist",
        title: "Checklist".to_owned(),
        short: "Checklist",
        body: checklist(report),
    });
    page(&headline, &header, &sections).into_string()
}

fn checks(report: &Report) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="All checks" {
            table {
                thead { tr {
                    th scope="col" { "result" }
                    th scope="col" { "check" }
                    th scope="col" { "what was found" }
                    th scope="col" { "source" }
                } }
                tbody {
                    @for finding in &report.findings { tr {
                        th scope="row" { (finding.verdict.name()) }
                        td { (finding.title) }
                        td { (finding.summary) }
                        td { (finding.section) }
                    } }
                }
            }
        }
    }
}

fn checklist(report: &Report) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Checklist" {
            table {
                thead { tr {
                    th scope="col" { "result" }
                    th scope="col" { "what should be so" }
                    th scope="col" { "verified by" }
                } }
                tbody {
                    @for item in CHECKLIST { tr {
                        th scope="row" {
                            @match item.verdict(report) {
                                Some(verdict) => (verdict.name()),
                                None => "\u{2610}",
                            }
                        }
                        td { (item.statement) }
                        td {
                            @if item.checks.is_empty() { "you" } @else { (item.checks.join(", ")) }
                        }
                    } }
                }
            }
        }
    }
}

fn details(finding: &Finding) -> Markup {
    html! {
        h3 { (finding.verdict.name()) ": " (finding.title) }
        p { (finding.summary) " (" (finding.section) ")" }
        @if !finding.evidence.is_empty() {
            ul { @for line in &finding.evidence { li { (line) } } }
        }
        @if let Some(remedy) = &finding.remedy { p { "Remedy: " (remedy) } }
    }
}
