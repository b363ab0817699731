//! A report as text for a terminal, at most 100 columns wide.

use std::fmt::Write;

use comfy_table::{Cell, ContentArrangement, Table, presets};
use firstflight_units::printable;

use crate::checks::Check;
use crate::{CHECKLIST, Report, Verdict};

/// Renders a report: the headline, all findings, then evidence and remedies of what did not pass.
pub fn render(report: &Report) -> String {
    let mut text = format!("{}\n", wrap(&report.headline(), ""));
    let proof = match report.witness {
        true => "executions counted by a witness",
        false => "executions concluded from responses before Finished (no --witness)",
    };
    let about = format!("{}, {}; {}; {proof}", report.address, report.server, report.date);
    let _ = writeln!(text, "{}\n\n{}", wrap(&about, ""), table(report));
    for finding in report.findings.iter().filter(|finding| finding.verdict <= Verdict::Inconclusive)
    {
        let title = format!("{}: {} ({})", finding.check, finding.title, finding.section);
        let _ = writeln!(text, "\n{}", wrap(&title, ""));
        for line in &finding.evidence {
            let _ = writeln!(text, "{}", wrap(line, "  "));
        }
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "{}", wrap(&format!("-> {remedy}"), "  "));
        }
    }
    text
}

/// Renders the explanation of a check.
pub fn explain(check: &Check) -> String {
    let title = format!("{}: {} ({})", check.name, check.title, check.section);
    format!("{}\n\n{}\n", wrap(&title, ""), wrap(check.explanation, ""))
}

/// Renders the checklist, to be printed.
pub fn checklist() -> String {
    let mut text = "0-RTT: what to know before it is switched on\n".to_owned();
    for (title, verified) in
        [("Verified by `firstflight audit`:", true), ("Yours to answer:", false)]
    {
        let _ = writeln!(text, "\n{title}\n");
        for item in CHECKLIST.iter().filter(|item| item.checks.is_empty() != verified) {
            let mut line = format!("[ ] {}", item.statement);
            if verified {
                line.push_str(&format!(" ({})", item.checks.join(", ")));
            }
            // The first line is not indented.
            let wrapped = wrap(&line, "    ");
            let _ = writeln!(text, "{}", wrapped.strip_prefix("    ").unwrap_or(&wrapped));
        }
    }
    text
}

fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    // The padding of the last column is trimmed below.
    table.set_width(WIDTH as u16 + 2);
    for finding in &report.findings {
        table.add_row([
            Cell::new(finding.verdict.name()),
            Cell::new(printable(&finding.check)),
            Cell::new(printable(&finding.summary)),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Wraps text at 100 columns, each line behind an indent.
fn wrap(text: &str, indent: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in printable(text).split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.join("\n")
}

const WIDTH: usize = 100;
