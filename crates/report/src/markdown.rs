//! A record as GitHub-flavoured Markdown, for job summaries and pull requests.

use std::fmt::Write;

use firstflight_units::is_unprintable;

use crate::headline::sentences;
use crate::html::setup::quoted;
use crate::tables::{self, Table};
use crate::{CheckOutcome, Record, terminal};

/// Renders the whole record.
pub fn render(record: &Record) -> String {
    let sentences = sentences(record);
    let title = sentences.first().map_or("What a handshake costs here", String::as_str);
    let mut text = format!("# {}\n\n", escaped(title));
    for sentence in sentences.iter().skip(1) {
        let _ = writeln!(text, "{}\n", escaped(sentence));
    }
    for group in tables::groups(record) {
        text.push_str(&section(&tables::matrix(&group, false)));
    }
    for table in tables::others(record) {
        text.push_str(&section(&table));
    }
    let setting = [
        tables::servers(record),
        tables::browsers(record),
        tables::profiles(record),
        tables::captures(record),
    ];
    for table in setting {
        text.push_str(&table.as_ref().map(section).unwrap_or_default());
    }
    text.push_str("## How it was measured\n\n");
    let machine = &record.machine;
    let _ = writeln!(
        text,
        "- {}, for {:.0} s, seed {}\n- {}, {} processors, {}",
        escaped(&record.date),
        record.seconds,
        record.seed,
        escaped(&machine.processor),
        machine.processors,
        escaped(&machine.kernel)
    );
    for line in terminal::data_quality(record).lines() {
        let _ = writeln!(text, "- {}", escaped(line));
    }
    if !record.command.is_empty() {
        let words: Vec<_> = record.command.iter().map(|word| quoted(word)).collect();
        let command = words.join(" ").replace(['\n', '\r'], " ");
        let _ = writeln!(text, "\n```sh\nfirstflight {}\n```", command.replace("```", "'''"));
    }
    text
}

/// Renders check outcomes as a list with the findings below each.
pub fn check_outcomes(outcomes: &[CheckOutcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let mark = match () {
            () if outcome.is_idle() => "\u{2796}",
            () if outcome.passed() => "\u{2705}",
            () => "\u{274c}",
        };
        let _ = writeln!(text, "- {mark} {}: {}", outcome.group, escaped(&outcome.claim()));
        let findings = outcome.findings.iter().take(MAX_FINDINGS);
        for finding in outcome.undecided.iter().chain(findings) {
            let _ = writeln!(text, "  - {}", escaped(finding));
        }
        let rest = outcome.findings.len().saturating_sub(MAX_FINDINGS);
        if rest > 0 {
            let _ = writeln!(text, "  - and {rest} more");
        }
    }
    text
}

/// A table with its heading.
pub(crate) fn section(table: &Table) -> String {
    let mut text = format!("## {}\n\n", escaped(&table.title));
    if !table.lead.is_empty() {
        let _ = writeln!(text, "{}\n", escaped(&table.lead));
    }
    let long = table.rows.len() > MAX_UNFOLDED_ROWS;
    if long {
        let _ = writeln!(text, "<details><summary>{} rows</summary>\n", table.rows.len());
    }
    let row = |fields: Vec<String>| format!("| {} |\n", fields.join(" | "));
    text.push_str(&row(table.head.iter().map(|head| escaped(&head.text)).collect()));
    let rule = table.head.iter().map(|head| if head.right { "---:" } else { "---" }.to_owned());
    text.push_str(&row(rule.collect()));
    for fields in &table.rows {
        text.push_str(&row(fields.iter().map(|field| escaped(field)).collect()));
    }
    text.push('\n');
    if long {
        text.push_str("</details>\n\n");
    }
    for note in &table.notes {
        let _ = writeln!(text, "{}\n", escaped(note));
    }
    text
}

/// Escapes untrusted text: no table borders, HTML, links or mentions.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '@' => out.push_str("&#64;"),
            c if is_unprintable(c) => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

const MAX_FINDINGS: usize = 20;
// Longer tables are folded.
const MAX_UNFOLDED_ROWS: usize = 30;
