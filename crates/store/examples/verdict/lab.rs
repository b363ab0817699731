//! Tables of the lab's records.

use std::collections::BTreeMap;

use firstflight_statistics::{
    Interval, ascending, median_interval, paired_difference_of_medians, percentile,
    percentile_interval, reported_percentile,
};
use serde::Deserialize;

/// What is needed of a record (`docs/record.md`).
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
    round_trips: Option<u32>,
    label: Option<String>,
    fault: Option<Fault>,
}

#[derive(Deserialize)]
struct Fault {
    kind: String,
}

/// Which samples of a cell.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    /// What the cell asked for.
    Good,
    /// Early data that was refused though the cell asked for it to be accepted.
    Refused,
}

impl Record {
    fn cell(&self, server: &str, kind: &str, rtt_ms: f64) -> Option<usize> {
        self.cells.iter().position(|cell| {
            (cell.server.as_str(), cell.kind.as_str(), cell.rtt_ms) == (server, kind, rtt_ms)
                && !cell.control
        })
    }

    fn samples(&self, cell: usize, which: Which) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.cell == cell && sample.is(which))
    }

    fn times(&self, cell: usize, which: Which) -> Vec<f64> {
        ascending(self.samples(cell, which).filter_map(|sample| sample.time_ms))
    }

    /// Round trips by the packets, each with its count.
    fn round_trips(&self, cell: usize, which: Which) -> String {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for count in self.samples(cell, which).filter_map(|sample| sample.round_trips) {
            *counts.entry(count).or_default() += 1;
        }
        let each = counts.iter().map(|(round_trips, count)| format!("{round_trips} ({count})"));
        each.collect::<Vec<_>>().join(", ")
    }

    /// How much later `to` is than `from`, in milliseconds, block by block.
    fn difference(&self, from: (usize, Which), to: (usize, Which)) -> Option<Interval> {
        let mut blocks: BTreeMap<usize, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
        for (first, (cell, which)) in [(true, from), (false, to)] {
            for sample in self.samples(cell, which) {
                let Some(time) = sample.time_ms else { continue };
                let block = blocks.entry(sample.block).or_default();
                if first { block.0.push(time) } else { block.1.push(time) }
            }
        }
        let blocks: Vec<_> = blocks.into_values().collect();
        paired_difference_of_medians(&blocks, self.seed)
    }

    /// Of all samples of a cell, those in no figure, by their fault.
    fn left_out(&self, cell: usize, which: Which) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| sample.cell == cell && !sample.is(which))
        {
            *counts.entry(sample.what()).or_default() += 1;
        }
        let each = counts.iter().map(|(what, count)| format!("{count} {what}"));
        each.collect::<Vec<_>>().join(", ")
    }

    fn rtts(&self) -> Vec<f64> {
        let mut rtts = ascending(self.cells.iter().map(|cell| cell.rtt_ms));
        rtts.dedup();
        rtts
    }

    fn row(&self, cell: usize, which: Which) {
        let Cell { server, rtt_ms, kind, .. } = &self.cells[cell];
        let times = self.times(cell, which);
        let asked = match which {
            Which::Good => kind.clone(),
            Which::Refused => format!("{kind}, refused"),
        };
        let at = |p| reported_percentile(&times, p).map_or("-".to_owned(), |ms| format!("{ms:.3}"));
        println!(
            "{server:<8} {asked:<15} {rtt_ms:>5} ms {:>6} {:>9} {:>9} {:>9}  {}  {}",
            times.len(),
            percentile(&times, 0.5).map_or("-".to_owned(), |ms| format!("{ms:.3}")),
            at(0.95),
            at(0.99),
            self.round_trips(cell, which),
            self.left_out(cell, which),
        );
    }
}

impl Sample {
    fn is(&self, which: Which) -> bool {
        match which {
            Which::Good => self.fault.is_none(),
            Which::Refused => self.what() == REFUSED,
        }
    }

    fn what(&self) -> &str {
        match (&self.fault, &self.label) {
            (None, _) => "good",
            (Some(Fault { kind }), Some(label)) if kind == "mislabelled" => {
                if label.contains(REFUSED) { REFUSED } else { kind }
            }
            (Some(Fault { kind }), _) => kind,
        }
    }
}

const REFUSED: &str = "early data refused";

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

fn word(holds: bool) -> &'static str {
    if holds { "holds" } else { "MISSED" }
}

/// The same server with its own register and with a store on the same host.
pub(crate) fn near(record: &Record) {
    head(
        "Store on the same host, unix socket: 0-RTT, time to the first byte of the answer",
        record,
    );
    for rtt in record.rtts() {
        for server in ["local", "shared"] {
            if let Some(cell) = record.cell(server, "0-RTT", rtt) {
                record.row(cell, Which::Good);
            }
        }
    }
    println!();
    for rtt in record.rtts() {
        let cells = (record.cell("local", "0-RTT", rtt), record.cell("shared", "0-RTT", rtt));
        let (Some(local), Some(shared)) = cells else { continue };
        let Some(grown) = record.difference((local, Which::Good), (shared, Which::Good)) else {
            continue;
        };
        println!(
            "asked: p50 grows by at most {MOST_GROWTH_MS} ms; at RTT {rtt} ms: {}: {}",
            shown(&grown),
            word(grown.estimate <= MOST_GROWTH_MS)
        );
    }
    println!();
}

const MOST_GROWTH_MS: f64 = 0.15;

/// The store 5 ms from the server.
pub(crate) fn far(record: &Record) {
    head("Store 5 ms away: time to the first byte of the answer", record);
    let Some(&rtt) = record.rtts().last() else { return };
    for server in ["local", "shared"] {
        for kind in ["resumed", "0-RTT"] {
            if let Some(cell) = record.cell(server, kind, rtt) {
                record.row(cell, Which::Good);
            }
        }
    }
    println!();
    for server in ["local", "shared"] {
        let cells = (record.cell(server, "resumed", rtt), record.cell(server, "0-RTT", rtt));
        let (Some(resumed), Some(early)) = cells else { continue };
        let Some(gained) = record.difference((resumed, Which::Good), (early, Which::Good)) else {
            continue;
        };
        let by_packets = record.round_trips(early, Which::Good);
        println!(
            "{server}: 0-RTT against 1-RTT at RTT {rtt} ms: {} ({:+.2} RTT); round trips by the \
             packets: {by_packets} against {}",
            shown(&gained),
            gained.estimate / rtt,
            record.round_trips(resumed, Which::Good),
        );
    }
    println!("asked: with the store 5 ms away 0-RTT still ends one round trip ahead of 1-RTT\n");
}

/// Stores that were killed or stopped while the lab measured.
pub(crate) fn dead(record: &Record) {
    head("Store dead from a tenth of the samples on: time to the first byte of the answer", record);
    let Some(&rtt) = record.rtts().last() else { return };
    for server in DEAD {
        for (kind, which) in
            [("resumed", Which::Good), ("0-RTT", Which::Good), ("0-RTT", Which::Refused)]
        {
            if let Some(cell) = record.cell(server, kind, rtt) {
                record.row(cell, which);
            }
        }
    }
    println!();
    for server in DEAD {
        let cells = (record.cell(server, "resumed", rtt), record.cell(server, "0-RTT", rtt));
        let (Some(resumed), Some(early)) = cells else { continue };
        let one_rtt = record.times(resumed, Which::Good);
        let refused = record.times(early, Which::Refused);
        let (Some(asked), Some(found)) =
            (reported_percentile(&one_rtt, 0.99), reported_percentile(&refused, 0.99))
        else {
            println!("{server}: too few samples for p99");
            continue;
        };
        let grown = record.difference((resumed, Which::Good), (early, Which::Refused));
        println!(
            "{server}: asked: p99 at most that of 1-RTT, {asked:.3} ms{}, plus the budget of \
             {BUDGET_MS} ms; found: {found:.3} ms{}: {}; p50 against 1-RTT: {}",
            interval(percentile_interval(&one_rtt, 0.99)),
            interval(percentile_interval(&refused, 0.99)),
            word(found <= asked + BUDGET_MS),
            grown.as_ref().map_or("-".to_owned(), shown),
        );
        let late = |times: &[f64]| -> usize {
            let Some((_, high)) = median_interval(&one_rtt) else { return 0 };
            times.iter().filter(|time| **time > high + BUDGET_MS / 2.0).count()
        };
        println!(
            "{server}: later than 1-RTT's p50 by more than half a budget: {} of {} refused, {} of \
             {} 1-RTT",
            late(&refused),
            refused.len(),
            late(&one_rtt),
            one_rtt.len()
        );
    }
    println!();
}

const DEAD: [&str; 2] = ["killed", "frozen"];
const BUDGET_MS: f64 = 3.0;

fn interval(of: Option<(f64, f64)>) -> String {
    of.map_or(String::new(), |(low, high)| format!(" [{low:.3}, {high:.3}]"))
}
