//! Tables of records of the lab.

use std::collections::BTreeMap;
use std::fmt;

use firstflight_report::statistics::{
    Interval, ascending, paired_difference_of_medians, percentile, percentile_interval,
    reported_percentile,
};
use serde::Deserialize;

use crate::page::markdown;

/// The part of a record that the tables need (`docs/reference/record.md`).
#[derive(Deserialize)]
pub(crate) struct Record {
    seed: u64,
    cells: Vec<Cell>,
    #[serde(default)]
    left_out: Vec<String>,
    samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Cell {
    server: String,
    rtt_ms: f64,
    kind: String,
    #[serde(default)]
    control: bool,
}

#[derive(Deserialize)]
struct Sample {
    cell: usize,
    #[serde(default)]
    block: usize,
    time_ms: Option<f64>,
    wire_ms: Option<f64>,
    round_trips: Option<u32>,
    label: Option<String>,
    fault: Option<Fault>,
}

#[derive(Deserialize)]
struct Fault {
    kind: String,
    #[serde(default)]
    why: String,
}

/// Which samples of a cell a row shows.
#[derive(Clone, Copy, PartialEq)]
enum Selection {
    /// Samples with the outcome that the cell requires.
    Good,
    /// Samples with response 425 where the cell requires the page.
    TooEarly,
    /// Samples resumed without early data where the cell requires early data: the ticket did not
    /// allow it.
    NotOffered,
}

impl Record {
    fn cell(&self, server: &str, kind: &str, rtt_ms: f64) -> Option<usize> {
        self.cells.iter().position(|cell| {
            (cell.server.as_str(), cell.kind.as_str(), cell.rtt_ms) == (server, kind, rtt_ms)
                && !cell.control
        })
    }

    fn samples(&self, cell: usize, selection: Selection) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.cell == cell && sample.is(selection))
    }

    fn times(&self, cell: usize, selection: Selection) -> Vec<f64> {
        ascending(self.samples(cell, selection).filter_map(|sample| sample.time(selection)))
    }

    /// Round trips by the packets, each with the number of samples.
    fn round_trips(&self, cell: usize, selection: Selection) -> String {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for count in self.samples(cell, selection).filter_map(|sample| sample.round_trips) {
            *counts.entry(count).or_default() += 1;
        }
        let each = counts.iter().map(|(round_trips, count)| format!("{round_trips} ({count})"));
        each.collect::<Vec<_>>().join(", ")
    }

    /// The median round trips of a cell's samples.
    fn median_round_trips(&self, cell: usize) -> Option<u32> {
        let counts = ascending(
            self.samples(cell, Selection::Good)
                .filter_map(|sample| sample.round_trips)
                .map(f64::from),
        );
        percentile(&counts, 0.5).map(|median| median as u32)
    }

    /// How much slower `to` is than `from`, in milliseconds, paired by blocks.
    fn difference(&self, from: (usize, Selection), to: (usize, Selection)) -> Option<Interval> {
        let mut blocks: BTreeMap<usize, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
        for (first, (cell, selection)) in [(true, from), (false, to)] {
            for sample in self.samples(cell, selection) {
                let Some(time) = sample.time_ms else { continue };
                let block = blocks.entry(sample.block).or_default();
                if first { block.0.push(time) } else { block.1.push(time) }
            }
        }
        let blocks: Vec<_> = blocks.into_values().collect();
        paired_difference_of_medians(&blocks, self.seed)
    }

    /// The samples of a cell outside the selection, counted by their fault.
    fn left_out(&self, cell: usize, selection: Selection) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for sample in
            self.samples.iter().filter(|sample| sample.cell == cell && !sample.is(selection))
        {
            *counts.entry(sample.outcome()).or_default() += 1;
        }
        let each = counts.iter().map(|(outcome, count)| format!("{count} {outcome}"));
        each.collect::<Vec<_>>().join(", ")
    }

    fn rtts(&self) -> Vec<f64> {
        let mut rtts = ascending(self.cells.iter().map(|cell| cell.rtt_ms));
        rtts.dedup();
        rtts
    }

    fn row(&self, cell: usize, selection: Selection) {
        let Cell { server, rtt_ms, kind, .. } = &self.cells[cell];
        let times = self.times(cell, selection);
        let expected = match selection {
            Selection::Good => kind.clone(),
            Selection::TooEarly => format!("{kind}, 425"),
            Selection::NotOffered => format!("{kind}, none"),
        };
        let at = |p| reported_percentile(&times, p).map_or("-".to_owned(), |ms| format!("{ms:.3}"));
        println!(
            "{server:<8} {expected:<15} {rtt_ms:>5} ms {:>6} {:>9} {:>9} {:>9}  {}  {}",
            times.len(),
            percentile(&times, 0.5).map_or("-".to_owned(), |ms| format!("{ms:.3}")),
            at(0.95),
            at(0.99),
            self.round_trips(cell, selection),
            self.left_out(cell, selection),
        );
    }
}

impl Sample {
    fn is(&self, selection: Selection) -> bool {
        match selection {
            Selection::Good => self.fault.is_none(),
            Selection::TooEarly => self.outcome() == TOO_EARLY,
            Selection::NotOffered => self.outcome() == NOT_OFFERED,
        }
    }

    /// A failed sample has only its time on the link.
    fn time(&self, selection: Selection) -> Option<f64> {
        match selection {
            Selection::Good => self.time_ms,
            Selection::TooEarly | Selection::NotOffered => self.wire_ms,
        }
    }

    fn outcome(&self) -> &str {
        match (&self.fault, &self.label) {
            (None, _) => "good",
            (Some(Fault { kind, .. }), Some(label)) if kind == "mislabelled" => match label {
                label if label.contains(REFUSED) => REFUSED,
                label if label.contains(NOT_OFFERED) => NOT_OFFERED,
                _ => kind,
            },
            (Some(Fault { why, .. }), _) if why.contains(TOO_EARLY) => TOO_EARLY,
            (Some(Fault { kind, .. }), _) => kind,
        }
    }
}

const REFUSED: &str = "early data refused";
const NOT_OFFERED: &str = "resumed";
const TOO_EARLY: &str = "425";

fn head(title: &str, record: &Record) {
    println!("{title}\n");
    for left_out in &record.left_out {
        println!("NOT MEASURED: {left_out}");
    }
    println!(
        "{:<8} {:<15} {:>8} {:>6} {:>9} {:>9} {:>9}  round trips (n)  others",
        "register", "kind", "RTT", "n", "p50 ms", "p95 ms", "p99 ms"
    );
}

fn shown(Interval { low, estimate, high }: &Interval) -> String {
    format!("{estimate:+.3} ms [{low:+.3}, {high:+.3}]")
}

/// An expectation, and what was measured.
pub(crate) struct Finding {
    expected: String,
    found: String,
    /// `None` if there are too few samples.
    holds: Option<bool>,
}

impl Finding {
    fn word(&self) -> &'static str {
        match self.holds {
            Some(true) => "holds",
            Some(false) => "MISSED",
            None => "too few samples",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected: {}: {}: {}", self.expected, self.found, self.word())
    }
}

/// Findings in Markdown.
pub(crate) fn table(findings: &[Finding]) -> String {
    let row = |finding: &Finding| {
        [finding.expected.clone(), finding.found.clone(), finding.word().to_owned()]
    };
    markdown(["expected", "found", ""], &findings.iter().map(row).collect::<Vec<_>>())
}

/// The same server with its own register and with a store on the same host.
pub(crate) fn near(record: &Record) -> Vec<Finding> {
    head(
        "Store on the same host, unix socket: 0-RTT, time to the first byte of the response",
        record,
    );
    for rtt in record.rtts() {
        for server in ["local", "shared"] {
            if let Some(cell) = record.cell(server, "0-RTT", rtt) {
                record.row(cell, Selection::Good);
            }
        }
    }
    println!();
    let found = record.rtts().into_iter().filter_map(|rtt| {
        let local = record.cell("local", "0-RTT", rtt)?;
        let shared = record.cell("shared", "0-RTT", rtt)?;
        let grown = record.difference((local, Selection::Good), (shared, Selection::Good));
        Some(Finding {
            expected: format!(
                "store on the same host, RTT {rtt} ms: 0-RTT's p50 grows by at most \
                 {MAX_GROWTH_MS} ms"
            ),
            found: grown.as_ref().map_or(String::new(), shown),
            holds: grown.map(|grown| grown.estimate <= MAX_GROWTH_MS),
        })
    });
    found.collect()
}

const MAX_GROWTH_MS: f64 = 0.15;

/// The store 5 ms from the server.
pub(crate) fn far(record: &Record) -> Vec<Finding> {
    head("Store 5 ms away: time to the first byte of the response", record);
    let Some(&rtt) = record.rtts().last() else { return Vec::new() };
    for server in ["local", "shared"] {
        for kind in ["resumed", "0-RTT"] {
            if let Some(cell) = record.cell(server, kind, rtt) {
                record.row(cell, Selection::Good);
            }
        }
    }
    println!();
    let found = ["local", "shared"].into_iter().filter_map(|server| {
        let resumed = record.cell(server, "resumed", rtt)?;
        let early = record.cell(server, "0-RTT", rtt)?;
        let gained = record.difference((resumed, Selection::Good), (early, Selection::Good));
        let ahead =
            record.median_round_trips(resumed)?.checked_sub(record.median_round_trips(early)?);
        let store = match server {
            "local" => "no store (to compare)",
            _ => "store 5 ms away",
        };
        Some(Finding {
            expected: format!("{store}, RTT {rtt} ms: 0-RTT ends one round trip ahead of 1-RTT"),
            found: format!(
                "by the packets {} round trips against {}; by the clock {}",
                record.round_trips(early, Selection::Good),
                record.round_trips(resumed, Selection::Good),
                gained.as_ref().map_or(String::new(), shown),
            ),
            holds: gained.map(|gained| ahead == Some(1) && gained.high < 0.0),
        })
    });
    found.collect()
}

/// Stores that were killed or frozen during the measurement.
pub(crate) fn dead(record: &Record) -> Vec<Finding> {
    head(
        "Store dead from a tenth of the samples on: time to the first byte of the response",
        record,
    );
    let Some(&rtt) = record.rtts().last() else { return Vec::new() };
    let rows = [
        ("resumed", Selection::Good),
        ("0-RTT", Selection::Good),
        ("0-RTT", Selection::TooEarly),
        ("0-RTT", Selection::NotOffered),
    ];
    for server in DEAD {
        for (kind, selection) in rows {
            if let Some(cell) = record.cell(server, kind, rtt) {
                record.row(cell, selection);
            }
        }
    }
    println!();
    let found = DEAD.into_iter().filter_map(|server| {
        let early = record.cell(server, "0-RTT", rtt)?;
        let resumed = record.times(record.cell(server, "resumed", rtt)?, Selection::Good);
        let refused = record.times(early, Selection::TooEarly);
        let without = record.times(early, Selection::NotOffered);
        let resumed_p99 = reported_percentile(&resumed, 0.99)?;
        let in_time = without.iter().filter(|ms| **ms <= resumed_p99 + BUDGET_MS).count();
        let last = refused.last().copied()?;
        Some(Finding {
            expected: format!(
                "store {server}, RTT {rtt} ms: who offers early data on an earlier ticket gets 425 within \
                 {MAX_WAIT_MS} ms, who has a later one most within 1-RTT's p99, {}, and {BUDGET_MS} ms",
                with_interval(&resumed)
            ),
            found: format!(
                "{} got 425, the last after {last:.0} ms; {in_time} of {} in time",
                refused.len(),
                without.len(),
            ),
            holds: Some(
                last <= MAX_WAIT_MS && in_time * 2 > without.len() && without.len() > refused.len(),
            ),
        })
    });
    found.collect()
}

const DEAD: [&str; 2] = ["killed", "frozen"];
const BUDGET_MS: f64 = 3.0;
/// Requests wait for up to 5 s after the handshake; once one has, later ones do not.
const MAX_WAIT_MS: f64 = 5100.0;

/// p99 of ascending times.
fn with_interval(times: &[f64]) -> String {
    let p99 = reported_percentile(times, 0.99);
    let between = percentile_interval(times, 0.99);
    let between = between.map_or(String::new(), |(low, high)| format!(" [{low:.1}, {high:.1}]"));
    p99.map_or("-".to_owned(), |p99| format!("{p99:.1} ms{between}"))
}
