use std::collections::BTreeMap;
use std::fmt::Write;

use firstflight_bench::{Datagrams, MAX_CLIENT_BUSY};
use firstflight_report::statistics::{ascending, median_interval, percentile};
use serde::{Deserialize, Serialize};

use crate::measure::Measured;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) round: usize,
    pub(crate) cell: String,
    pub(crate) server: String,
    #[serde(flatten)]
    pub(crate) measured: Measured,
}

/// Medians of all rounds, by cell and server.
pub(crate) struct Summary {
    cells: Vec<(String, Vec<Line>)>,
}

/// The cost of a connection or request for a server, in microseconds of CPU.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    server: String,
    total: f64,
    interval: (f64, f64),
    user: f64,
    system: f64,
    rate: f64,
    /// Whether the load was busy nearly all the time, so that the server could do more.
    limited_by_client: bool,
    /// What the first server costs for each unit of this one's cost: the median of the ratios
    /// within each round, and its interval.
    ratio: Option<(f64, (f64, f64))>,
    datagrams: Option<Datagrams<f64>>,
}

impl Summary {
    /// Summarizes rows in the order of `cells` and `servers`. The first server is the reference.
    pub(crate) fn new(rows: &[Row], cells: &[String], servers: &[&str]) -> Self {
        let lines = |cell: &String| {
            let rows_of = |server: &str| -> Vec<&Row> {
                rows.iter().filter(|row| row.cell == *cell && row.server == server).collect()
            };
            let first = rows_of(servers[0]);
            servers
                .iter()
                .filter_map(|server| Line::new(server, &rows_of(server), &first))
                .collect()
        };
        Self { cells: cells.iter().map(|cell| (cell.clone(), lines(cell))).collect() }
    }

    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for (cell, lines) in self.cells.iter().filter(|(_, lines)| !lines.is_empty()) {
            let _ = writeln!(
                text,
                "\n{cell:<28} {:>5} {:>18} {:>7} {:>7} {:>7} {:>19}",
                "us", "interval", "user", "system", "rate/s", "ratio, interval"
            );
            for line in lines {
                let interval = format!("{} to {}", us(line.interval.0), us(line.interval.1));
                let ratio = line.ratio.map_or_else(
                    || "-".to_owned(),
                    |(ratio, (low, high))| format!("{ratio:.2} ({low:.2} to {high:.2})"),
                );
                let mark = if line.limited_by_client { "*" } else { "" };
                let rate = format!("{:.0}{mark}", line.rate);
                let _ = writeln!(
                    text,
                    "  {:<22} {:>9} {interval:>18} {:>7} {:>7} {rate:>7} {ratio:>19}",
                    line.server,
                    us(line.total),
                    us(line.user),
                    us(line.system),
                );
            }
        }
        if self.cells.iter().flat_map(|(_, lines)| lines).any(|line| line.limited_by_client) {
            let percent = 100.0 * MAX_CLIENT_BUSY;
            let _ = writeln!(
                text,
                "\n* the load's core was busy for {percent:.0} % of the time or more: the server \
                 can do more"
            );
        }
        text
    }

    /// Datagrams per connection over QUIC. Empty if there are none.
    pub(crate) fn datagrams(&self) -> String {
        let mut text = String::new();
        for (cell, lines) in &self.cells {
            for line in lines {
                let Some(Datagrams { sent, received }) = line.datagrams else { continue };
                if text.is_empty() {
                    let head = "datagrams per connection";
                    text = format!("\n{head:<40}  {:>12}  {:>12}\n", "from client", "to client");
                }
                let name = format!("{cell}, {}", line.server);
                let _ = writeln!(text, "{name:<40}  {sent:>12.1}  {received:>12.1}");
            }
        }
        text
    }

    /// Cells of connections, with their servers and medians, for a chart.
    pub(crate) fn connections(&self) -> Vec<(String, Vec<(String, f64)>)> {
        let connections = self.cells.iter().filter(|(cell, _)| !cell.starts_with("kept"));
        let bars =
            |lines: &[Line]| lines.iter().map(|line| (line.server.clone(), line.total)).collect();
        connections
            .filter(|(_, lines)| !lines.is_empty())
            .map(|(cell, lines)| (cell.clone(), bars(lines)))
            .collect()
    }
}

/// The cells and servers with fewer rounds than the others, and why, one per line.
pub(crate) fn incomplete(
    failures: &BTreeMap<(String, String), Vec<String>>,
    rounds: usize,
) -> String {
    let mut text = String::new();
    for ((cell, server), reasons) in failures {
        let (measured, reason) = (rounds - reasons.len(), reasons.join("; "));
        let _ = writeln!(text, "{server}, {cell}: {measured} of {rounds} rounds: {reason}");
    }
    text
}

/// The median of each direction.
fn median_datagrams(rows: &[&Row]) -> Option<Datagrams<f64>> {
    let all = || rows.iter().filter_map(|row| row.measured.datagrams);
    Some(Datagrams {
        sent: percentile(&ascending(all().map(|datagrams| datagrams.sent)), 0.5)?,
        received: percentile(&ascending(all().map(|datagrams| datagrams.received)), 0.5)?,
    })
}

/// Microseconds, with a decimal below 10,000.
fn us(micros: f64) -> String {
    if micros < 1e4 { format!("{micros:.1}") } else { format!("{micros:.0}") }
}

impl Line {
    fn new(server: &str, rows: &[&Row], first: &[&Row]) -> Option<Self> {
        let sorted =
            |value: fn(&Measured) -> f64| ascending(rows.iter().map(|row| value(&row.measured)));
        let median = |value| percentile(&sorted(value), 0.5);
        let ratio = |row: &&Row| {
            let other = first.iter().find(|other| other.round == row.round)?;
            Some(Measured::total_us(&other.measured) / Measured::total_us(&row.measured))
        };
        let ratios = ascending(rows.iter().filter_map(ratio));
        Some(Self {
            server: server.to_owned(),
            total: median(Measured::total_us)?,
            interval: median_interval(&sorted(Measured::total_us))?,
            user: median(|measured| measured.user_us)?,
            system: median(|measured| measured.system_us)?,
            rate: median(|measured| measured.completed as f64 / measured.seconds)?,
            limited_by_client: median(|measured| measured.client_busy)? >= MAX_CLIENT_BUSY,
            ratio: percentile(&ratios, 0.5).zip(median_interval(&ratios)),
            datagrams: median_datagrams(rows),
        })
    }
}

impl Measured {
    fn total_us(&self) -> f64 {
        self.user_us + self.system_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(round: usize, server: &str, us: f64) -> Row {
        let measured = Measured {
            completed: 1000,
            seconds: 2.0,
            user_us: us * 0.75,
            system_us: us * 0.25,
            client_us: 100.0,
            server_busy: 1.0,
            client_busy: if server == "fast" { 0.95 } else { 0.94 },
            refills: 0,
            datagrams: None,
        };
        Row { round, cell: "TCP, full".to_owned(), server: server.to_owned(), measured }
    }

    #[test]
    fn medians_are_measured_values_and_ratios_are_within_a_round() {
        // The machine was half as fast in the second round.
        let rows = [
            row(1, "ours", 100.0),
            row(1, "other", 200.0),
            row(2, "ours", 200.0),
            row(2, "other", 400.0),
            row(3, "ours", 110.0),
            row(3, "other", 220.0),
        ];
        let summary = Summary::new(&rows, &["TCP, full".to_owned()], &["ours", "other", "absent"]);
        let (_, lines) = &summary.cells[0];
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[1].total, lines[1].interval), (220.0, (200.0, 400.0)));
        assert_eq!(lines[1].ratio, Some((0.5, (0.5, 0.5))), "ours costs half as much");
        assert_eq!(lines[0].rate, 500.0);
    }

    #[test]
    fn rounds_that_failed_are_named() {
        let key = ("TCP, full".to_owned(), "nginx".to_owned());
        let failures = BTreeMap::from([(key, vec!["reset".to_owned(), "timeout".to_owned()])]);
        assert_eq!(incomplete(&failures, 5), "nginx, TCP, full: 3 of 5 rounds: reset; timeout\n");
        assert_eq!(incomplete(&BTreeMap::new(), 5), "");
    }

    #[test]
    fn the_table_fits_into_100_columns() {
        let rows = [
            row(1, "firstflight, release", 1_234_567.8),
            row(1, "fast", 200_000.0),
            row(1, "b", 1_000_000.0),
        ];
        let cells = ["TCP, full".to_owned(), "TCP, resumed".to_owned()];
        let summary = Summary::new(&rows, &cells, &["firstflight, release", "fast", "b"]);
        let table = summary.table();
        assert!(table.lines().all(|line| line.len() <= 100), "{table}");
        assert!(table.contains("1234568 to 1234568"), "{table}");
        assert!(table.contains("6.17 (6.17 to 6.17)"), "{table}");
        let limited = |name: &str| {
            let line = table.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.contains('*')
        };
        assert!(limited("fast") && limited("* the load") && !limited("b "), "{table}");
        assert!(!table.contains("resumed"), "cells without figures are left out: {table}");
        assert_eq!(summary.connections().len(), 1);
    }
}
