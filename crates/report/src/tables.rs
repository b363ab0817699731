use std::collections::BTreeSet;
use std::fmt::Write;

use comfy_table::{Cell as Field, CellAlignment, ContentArrangement, Table, presets};

use crate::{Cell, Fault, Record, Replay};

/// The matrix of one server and workload in the shape of the ping-pong matrix: a row for each
/// round-trip time and version, a column for each kind with and without TCP Fast Open. A field is
/// p50, p95 and round trips. At most 100 columns wide.
pub fn matrix(record: &Record, server: &str, workload: &str) -> Option<String> {
    let cells: Vec<&Cell> =
        record.cells.iter().filter(|c| c.server == server && c.workload == workload).collect();
    let kinds: Vec<(&str, bool)> = KINDS
        .iter()
        .flat_map(|kind| [(*kind, false), (*kind, true)])
        .filter(|(kind, tfo)| cells.iter().any(|c| c.kind == *kind && c.tfo == *tfo))
        .collect();
    if kinds.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec!["RTT".to_owned(), "TLS".to_owned()];
    header.extend(kinds.iter().map(|(kind, tfo)| match tfo {
        true => format!("{kind} + TFO"),
        false => (*kind).to_owned(),
    }));
    table.set_header(header);
    for (rtt, version) in rows(&cells) {
        let mut row = vec![Field::new(trim(rtt)), Field::new(version)];
        for (kind, tfo) in &kinds {
            let cell = cells
                .iter()
                .find(|c| c.rtt_ms == rtt && c.tls == version && c.kind == *kind && c.tfo == *tfo);
            let text = match cell {
                None => String::new(),
                Some(cell) => field(cell),
            };
            row.push(Field::new(text).set_alignment(CellAlignment::Right));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    Some(format!("{server}, {}\n{}\n", describe(workload), without_trailing_blanks(&table)))
}

/// The replay line of each server.
pub fn replays(record: &Record) -> String {
    let mut text = String::new();
    for replay in &record.replays {
        let Replay { server, flights, tries, executed, .. } = replay;
        let _ = writeln!(
            text,
            "replay: {server} executed {executed} of {tries} resent flights ({flights} captured, byte \
             for byte)"
        );
    }
    text
}

/// What a reader has to know before believing the tables: spoiled samples, the link's own error,
/// and everything that fails the run.
pub fn verdict(record: &Record) -> String {
    let mut text = format!(
        "{} samples; {} spoiled by the machine and left out; {} with other round trips than most of \
         their cell\n",
        record.samples.len(),
        record.spoiled(),
        record.deviating(),
    );
    if let Some(link) = &record.link {
        let _ = write!(
            text,
            "link: lateness p50 {:.0} us, p99 {:.0} us; {}, initial window {}; processors {}; ",
            link.lateness_p50_us,
            link.lateness_p99_us,
            link.congestion_control,
            link.initial_window,
            if link.keep_awake { "kept awake" } else { "free to sleep" },
        );
    }
    let _ = writeln!(text, "seed {}", record.seed);
    for (shown, sample) in record.failures().enumerate() {
        if shown == MOST_FAILURES {
            let _ = writeln!(text, "... and {} more", record.failures().count() - shown);
            break;
        }
        let cell = &record.cells[sample.cell];
        let why = sample.fault.as_ref().map(why).unwrap_or_default();
        let _ = writeln!(text, "WRONG: {} {why}", name(cell));
    }
    text
}

/// What is wrong with a sample, to follow its cell's name.
pub(crate) fn why(fault: &Fault) -> String {
    match fault {
        Fault::Mislabelled(why) => format!("shows {why}"),
        Fault::Failed(why) => format!("failed: {why}"),
        Fault::Spoiled(why) => format!("was spoiled: {why}"),
        Fault::Disturbed(why) => format!("was disturbed by its network: {why}"),
    }
}

/// A cell in words.
fn name(cell: &Cell) -> String {
    format!(
        "{} {} at {} ms, TLS {} {}{}",
        cell.server,
        cell.workload,
        trim(cell.rtt_ms),
        cell.tls,
        cell.kind,
        if cell.tfo { " + TFO" } else { "" }
    )
}

const KINDS: [&str; 3] = ["full", "resumed", "0-RTT"];
const MOST_FAILURES: usize = 10;

fn rows<'a>(cells: &[&'a Cell]) -> Vec<(f64, &'a str)> {
    let mut rtts: Vec<f64> = cells.iter().map(|c| c.rtt_ms).collect();
    rtts.sort_by(|a, b| b.total_cmp(a));
    rtts.dedup();
    let versions: BTreeSet<&str> = cells.iter().map(|c| c.tls.as_str()).collect();
    rtts.into_iter().flat_map(|rtt| versions.iter().map(move |v| (rtt, *v))).collect()
}

fn field(cell: &Cell) -> String {
    let Some(summary) = &cell.summary else {
        return "no good sample".to_owned();
    };
    let p95 = summary.first_byte.p95_ms.map_or_else(|| "-".to_owned(), figure);
    let trips = summary.round_trips.map_or_else(|| "?".to_owned(), |count| count.to_string());
    format!("{} {p95} {trips}", figure(summary.first_byte.p50_ms))
}

/// Milliseconds with about four digits, as wide as needed and no wider.
fn figure(ms: f64) -> String {
    match ms {
        ms if ms < 100.0 => format!("{ms:.2}"),
        ms => format!("{ms:.1}"),
    }
}

fn trim(ms: f64) -> String {
    format!("{ms}")
}

fn describe(workload: &str) -> &str {
    match workload {
        "ping-pong" => "ping-pong (ms: p50, p95, round trips)",
        "get" => "HTTP GET of 1 KiB (ms to first byte: p50, p95, round trips)",
        other => other,
    }
}

fn without_trailing_blanks(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}
