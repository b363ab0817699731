//! A record as CSV (RFC 4180 with line feeds): for spreadsheets and data frames.

mod visits;

use std::io::{self, Write};

use ::csv::Writer;

use crate::axes::Axis;
use crate::{Cell, Fault, Figures, Record};

pub use visits::{visit_cells, visits};

/// Every sample, with the axes of its cell before it.
///
/// # Errors
/// What `out` cannot take.
pub fn samples(record: &Record, out: impl Write) -> io::Result<()> {
    let mut csv = Writer::from_writer(out);
    let own = [
        "block",
        "at_ms",
        "setup_ms",
        "time_ms",
        "total_ms",
        "wire_ms",
        "wire_total_ms",
        "round_trips",
        "total_round_trips",
        "label",
        "lateness_us",
        "dropped",
        "fault",
        "why",
    ];
    csv.write_record(axis_names().chain(own))?;
    for sample in &record.samples {
        let (fault, why) = fault(sample.fault.as_ref());
        let mut row = places(&record.cells[sample.cell]);
        row.extend([
            sample.block.to_string(),
            sample.at_ms.to_string(),
            some(sample.setup_ms),
            some(sample.time_ms),
            some(sample.total_ms),
            some(sample.wire_ms),
            some(sample.wire_total_ms),
            some(sample.round_trips),
            some(sample.total_round_trips),
            some(sample.label.as_ref()),
            sample.lateness_us.to_string(),
            sample.dropped.to_string(),
            fault.to_owned(),
            why.to_owned(),
        ]);
        csv.write_record(row)?;
    }
    csv.flush()
}

/// Every cell with all its figures.
///
/// # Errors
/// What `out` cannot take.
pub fn cells(record: &Record, out: impl Write) -> io::Result<()> {
    let mut csv = Writer::from_writer(out);
    let mut head: Vec<String> = axis_names().map(str::to_owned).collect();
    head.extend(["expected_round_trips", "samples"].map(str::to_owned));
    for time in ["setup", "first_byte", "total"] {
        head.extend(FIGURES.map(|figure| format!("{time}_{figure}_ms")));
    }
    head.extend(
        [
            "wire_p50_ms",
            "wire_total_p50_ms",
            "round_trips",
            "total_round_trips",
            "model_ms",
            "residual_ms",
            "flagged",
        ]
        .map(str::to_owned),
    );
    csv.write_record(&head)?;
    for cell in &record.cells {
        let summary = cell.summary.as_ref();
        let residual = summary.and_then(|summary| summary.residual);
        let mut row = places(cell);
        row.push(some(cell.expected_round_trips));
        row.push(summary.map_or(0, |summary| summary.samples).to_string());
        for figures in [
            summary.and_then(|summary| summary.setup.as_ref()),
            summary.map(|summary| &summary.first_byte),
            summary.and_then(|summary| summary.total.as_ref()),
        ] {
            row.extend(figures.map_or_else(Default::default, fields));
        }
        row.extend([
            some(summary.and_then(|summary| summary.wire_p50_ms)),
            some(summary.and_then(|summary| summary.wire_total_p50_ms)),
            some(summary.and_then(|summary| summary.round_trips)),
            some(summary.and_then(|summary| summary.total_round_trips)),
            some(residual.map(|residual| residual.model_ms)),
            some(residual.map(|residual| residual.residual_ms)),
            some(residual.map(|residual| residual.flagged)),
        ]);
        csv.write_record(row)?;
    }
    csv.flush()
}

/// A fault's kind and reason; both empty without one.
fn fault(of: Option<&Fault>) -> (&'static str, &str) {
    match of {
        None => ("", ""),
        Some(Fault::Spoiled(why)) => ("spoiled", why),
        Some(Fault::Disturbed(why)) => ("disturbed", why),
        Some(Fault::Mislabelled(why)) => ("mislabelled", why),
        Some(Fault::Failed(why)) => ("failed", why),
    }
}

const FIGURES: [&str; 13] = [
    "min", "p50", "p50_low", "p50_high", "p95", "p95_low", "p95_high", "p99", "p99_low",
    "p99_high", "p999", "max", "mean",
];

fn fields(figures: &Figures) -> [String; 13] {
    let ends = |interval: Option<(f64, f64)>| {
        [some(interval.map(|(low, _)| low)), some(interval.map(|(_, high)| high))]
    };
    let [p50_low, p50_high] = ends(Some(figures.p50_interval_ms));
    let [p95_low, p95_high] = ends(figures.p95_interval_ms);
    let [p99_low, p99_high] = ends(figures.p99_interval_ms);
    [
        figures.min_ms.to_string(),
        figures.p50_ms.to_string(),
        p50_low,
        p50_high,
        some(figures.p95_ms),
        p95_low,
        p95_high,
        some(figures.p99_ms),
        p99_low,
        p99_high,
        some(figures.p999_ms),
        figures.max_ms.to_string(),
        figures.mean_ms.to_string(),
    ]
}

/// The axes' names; the size is in bytes and the round-trip time in milliseconds.
fn axis_names() -> impl Iterator<Item = &'static str> {
    let named = Axis::ALL.into_iter().map(|axis| match axis {
        Axis::Size => "response_bytes",
        Axis::Rtt => "rtt_ms",
        axis => axis.name(),
    });
    named.chain(["control"])
}

fn places(cell: &Cell) -> Vec<String> {
    let place = |axis: Axis| match axis {
        Axis::Size => cell.response_bytes.to_string(),
        axis => axis.of(cell),
    };
    Axis::ALL.into_iter().map(place).chain([cell.control.to_string()]).collect()
}

fn some(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
