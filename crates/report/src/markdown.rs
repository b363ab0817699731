//! A record as Markdown with tables, as GitHub shows it: for job summaries and pull requests.

use std::fmt::Write;

use firstflight_units::is_unprintable;

use crate::headline::sentences;
use crate::sheets::{self, Sheet};
use crate::{Record, Verdict, tables};

/// The whole record.
pub fn render(record: &Record) -> String {
    let sentences = sentences(record);
    let title = sentences.first().map_or("What a handshake costs here", String::as_str);
    let mut text = format!("# {}\n\n", escaped(title));
    for sentence in sentences.iter().skip(1) {
        let _ = writeln!(text, "{}\n", escaped(sentence));
    }
    for group in sheets::groups(record) {
        text.push_str(&section(&sheets::matrix(&group, false)));
    }
    for sheet in sheets::others(record) {
        text.push_str(&section(&sheet));
    }
    let setting = [
        sheets::servers(record),
        sheets::browsers(record),
        sheets::profiles(record),
        sheets::captures(record),
    ];
    for sheet in setting {
        text.push_str(&sheet.as_ref().map(section).unwrap_or_default());
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
    for line in tables::verdict(record).lines() {
        let _ = writeln!(text, "- {}", escaped(line));
    }
    if !record.command.is_empty() {
        let command = record.command.join(" ").replace(['\n', '\r'], " ");
        let _ = writeln!(text, "\n```sh\nfirstflight {}\n```", command.replace("```", "'''"));
    }
    text
}

/// Verdicts as a list, findings below each.
pub fn verdicts(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let mark = if verdict.passed() { "\u{2705}" } else { "\u{274c}" };
        let _ = writeln!(text, "- {mark} {}: {}", verdict.group, escaped(&verdict.name));
        let more = verdict.undecided.iter().chain(&verdict.findings);
        for finding in more.take(MAX_FINDINGS) {
            let _ = writeln!(text, "  - {}", escaped(finding));
        }
        let rest = verdict.findings.len().saturating_sub(MAX_FINDINGS);
        if rest > 0 {
            let _ = writeln!(text, "  - and {rest} more");
        }
    }
    text
}

/// A table with its heading.
pub(crate) fn section(sheet: &Sheet) -> String {
    let mut text = format!("## {}\n\n", escaped(&sheet.title));
    if !sheet.lead.is_empty() {
        let _ = writeln!(text, "{}\n", escaped(&sheet.lead));
    }
    let long = sheet.rows.len() > LONG;
    if long {
        let _ = writeln!(text, "<details><summary>{} rows</summary>\n", sheet.rows.len());
    }
    let row = |fields: Vec<String>| format!("| {} |\n", fields.join(" | "));
    text.push_str(&row(sheet.head.iter().map(|head| escaped(&head.text)).collect()));
    let rule = sheet.head.iter().map(|head| if head.right { "---:" } else { "---" }.to_owned());
    text.push_str(&row(rule.collect()));
    for fields in &sheet.rows {
        text.push_str(&row(fields.iter().map(|field| escaped(field)).collect()));
    }
    text.push('\n');
    if long {
        text.push_str("</details>\n\n");
    }
    for note in &sheet.notes {
        let _ = writeln!(text, "{}\n", escaped(note));
    }
    text
}

/// Foreign text that stays text: no table borders, no HTML, no links, no mentions.
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
const LONG: usize = 30;
