//! A report as SARIF 2.1.0 (OASIS), which code hosts show as findings.

use serde_json::{Value, json};

use crate::checks::CHECKS;
use crate::{Finding, Report, Verdict};

/// Renders a report.
pub fn render(report: &Report) -> String {
    let rules: Vec<Value> = CHECKS
        .iter()
        .map(|check| {
            json!({
                "id": check.name,
                "shortDescription": { "text": check.title },
                "fullDescription": { "text": check.explanation },
                "properties": { "section": check.section },
            })
        })
        .collect();
    let results: Vec<Value> =
        report.findings.iter().map(|finding| result(report, finding)).collect();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "firstflight audit",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            } },
            "results": results,
        }],
    });
    let mut text = serde_json::to_string_pretty(&log).unwrap_or_default();
    text.push('\n');
    text
}

fn result(report: &Report, finding: &Finding) -> Value {
    // Section 3.27.9 and 3.27.10: a level belongs to a failure only.
    let (kind, level) = match finding.verdict {
        Verdict::Fail => ("fail", "error"),
        Verdict::Warn => ("fail", "warning"),
        Verdict::Inconclusive => ("open", "none"),
        Verdict::Pass => ("pass", "none"),
        Verdict::NotApplicable => ("notApplicable", "none"),
    };
    let remedy = finding.remedy.as_ref().map(|remedy| format!(" Remedy: {remedy}."));
    let message = format!("{}.{}", finding.summary, remedy.unwrap_or_default());
    json!({
        "ruleId": finding.check,
        "kind": kind,
        "level": level,
        "message": { "text": message },
        "locations": [{ "physicalLocation": { "artifactLocation": { "uri": report.target } } }],
        "properties": {
            "evidence": finding.evidence,
            "address": report.address,
            "connections": finding.connections,
        },
    })
}
