//! A report as JUnit XML: a test case for each check.

use firstflight_report::{CheckOutcome, junit};

use crate::{Report, Verdict};

/// Renders a report. Checks with `fail_on` or worse are failures, inconclusive ones errors, and those
/// that do not apply say so.
pub fn render(report: &Report, fail_on: Verdict) -> String {
    let outcomes: Vec<CheckOutcome> = report
        .findings
        .iter()
        .map(|finding| {
            let mut outcome = CheckOutcome {
                group: "audit".to_owned(),
                name: format!("{}: {}", finding.check, finding.title),
                checked: finding.evidence.len().max(1),
                ..CheckOutcome::default()
            };
            match finding.verdict {
                Verdict::Inconclusive => outcome.undecided = Some(finding.summary.clone()),
                Verdict::NotApplicable => {
                    outcome.checked = 0;
                    outcome.skipped.push(finding.summary.clone());
                }
                verdict if verdict <= fail_on => {
                    let remedy = finding.remedy.iter().cloned();
                    let evidence = finding.evidence.iter().cloned();
                    outcome.findings.push(finding.summary.clone());
                    outcome.findings.extend(evidence.chain(remedy));
                }
                _ => {}
            }
            outcome
        })
        .collect();
    junit::render(&outcomes)
}
