//! A record as CSV (RFC 4180 with line feeds), for spreadsheets and data frames.

use std::io::{self, Write};

use ::csv::Writer;

use crate::axes::Axis;
use crate::{BrowserTimings, Cell, Fault, Figures, Record, VisitCell, VisitPackets};

/// Writes every sample, after the axes of its cell.
///
/// # Errors
/// Errors of `out`.
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
        "handshake_bytes_up",
        "handshake_bytes_down",
        "first_byte_bytes_up",
        "first_byte_bytes_down",
        "label",
        "lateness_us",
        "dropped",
        "fault",
        "why",
    ];
    csv.write_record(axis_names().chain(own))?;
    for sample in &record.samples {
        let (fault, why) = fault(sample.fault.as_ref());
        let mut row = axis_fields(&record.cells[sample.cell]);
        row.extend([
            sample.block.to_string(),
            sample.at_ms.to_string(),
            or_empty(sample.setup_ms),
            or_empty(sample.time_ms),
            or_empty(sample.total_ms),
            or_empty(sample.wire_ms),
            or_empty(sample.wire_total_ms),
            or_empty(sample.round_trips),
            or_empty(sample.total_round_trips),
            or_empty(sample.handshake_bytes.map(|bytes| bytes.up)),
            or_empty(sample.handshake_bytes.map(|bytes| bytes.down)),
            or_empty(sample.first_byte_bytes.map(|bytes| bytes.up)),
            or_empty(sample.first_byte_bytes.map(|bytes| bytes.down)),
            or_empty(sample.label.as_ref()),
            sample.lateness_us.to_string(),
            sample.dropped.to_string(),
            fault.to_owned(),
            why.to_owned(),
        ]);
        csv.write_record(row)?;
    }
    csv.flush()
}

/// Writes every cell with all its figures.
///
/// # Errors
/// Errors of `out`.
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
            "handshake_bytes_up",
            "handshake_bytes_down",
            "first_byte_bytes_up",
            "first_byte_bytes_down",
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
        let mut row = axis_fields(cell);
        row.push(or_empty(cell.expected_round_trips));
        row.push(summary.map_or(0, |summary| summary.samples).to_string());
        for figures in [
            summary.and_then(|summary| summary.setup.as_ref()),
            summary.map(|summary| &summary.first_byte),
            summary.and_then(|summary| summary.total.as_ref()),
        ] {
            row.extend(figures.map_or_else(Default::default, fields));
        }
        row.extend([
            or_empty(summary.and_then(|summary| summary.wire_p50_ms)),
            or_empty(summary.and_then(|summary| summary.wire_total_p50_ms)),
            or_empty(summary.and_then(|summary| summary.round_trips)),
            or_empty(summary.and_then(|summary| summary.total_round_trips)),
            or_empty(summary.and_then(|summary| Some(summary.handshake_bytes?.up))),
            or_empty(summary.and_then(|summary| Some(summary.handshake_bytes?.down))),
            or_empty(summary.and_then(|summary| Some(summary.first_byte_bytes?.up))),
            or_empty(summary.and_then(|summary| Some(summary.first_byte_bytes?.down))),
            or_empty(residual.map(|residual| residual.model_ms)),
            or_empty(residual.map(|residual| residual.residual_ms)),
            or_empty(residual.map(|residual| residual.flagged)),
        ]);
        csv.write_record(row)?;
    }
    csv.flush()
}

/// A fault's kind and reason; both empty without one.
fn fault(fault: Option<&Fault>) -> (&'static str, &str) {
    match fault {
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
        [or_empty(interval.map(|(low, _)| low)), or_empty(interval.map(|(_, high)| high))]
    };
    let [p50_low, p50_high] = ends(Some(figures.p50_interval_ms));
    let [p95_low, p95_high] = ends(figures.p95_interval_ms);
    let [p99_low, p99_high] = ends(figures.p99_interval_ms);
    [
        figures.min_ms.to_string(),
        figures.p50_ms.to_string(),
        p50_low,
        p50_high,
        or_empty(figures.p95_ms),
        p95_low,
        p95_high,
        or_empty(figures.p99_ms),
        p99_low,
        p99_high,
        or_empty(figures.p999_ms),
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

fn axis_fields(cell: &Cell) -> Vec<String> {
    let field = |axis: Axis| match axis {
        Axis::Size => cell.response_bytes.to_string(),
        axis => axis.value(cell),
    };
    Axis::ALL.into_iter().map(field).chain([cell.control.to_string()]).collect()
}

fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Writes every visit: its cell, the browser's times and what the packets show.
///
/// # Errors
/// Errors of `out`.
pub fn visits(record: &Record, out: impl Write) -> io::Result<()> {
    let mut csv = Writer::from_writer(out);
    let own = ["block", "turn", "at_ms"];
    let end = ["warnings", "fault", "why"];
    csv.write_record(
        VISIT_AXES.into_iter().chain(own).chain(BROWSER_COLUMNS).chain(PACKET_COLUMNS).chain(end),
    )?;
    for visit in &record.visits {
        let mut row = visit_axis_fields(&record.visit_cells[visit.cell]).to_vec();
        row.extend([visit.block.to_string(), visit.turn.to_string(), visit.at_ms.to_string()]);
        row.extend(visit.browser.as_ref().map_or_else(Default::default, timings));
        row.extend(visit.wire.as_ref().map_or_else(Default::default, packets));
        let (kind, why) = fault(visit.fault.as_ref());
        row.extend([visit.warnings.join("; "), kind.to_owned(), why.to_owned()]);
        csv.write_record(row)?;
    }
    csv.flush()
}

/// Writes every visit cell with all its figures.
///
/// # Errors
/// Errors of `out`.
pub fn visit_cells(record: &Record, out: impl Write) -> io::Result<()> {
    let mut csv = Writer::from_writer(out);
    let mut head: Vec<String> = VISIT_AXES.map(str::to_owned).to_vec();
    head.extend(["visits", "early", "round_trips"].map(str::to_owned));
    for time in ["tls", "wire_tls", "total", "wire_total", "load", "largest_paint"] {
        head.extend(FIGURES.map(|figure| format!("{time}_{figure}_ms")));
    }
    csv.write_record(&head)?;
    for cell in &record.visit_cells {
        let summary = cell.summary.as_ref();
        let mut row = visit_axis_fields(cell).to_vec();
        row.push(summary.map_or(0, |summary| summary.visits).to_string());
        row.push(summary.map_or(0, |summary| summary.early).to_string());
        row.push(or_empty(summary.and_then(|summary| summary.round_trips)));
        for figures in [
            summary.and_then(|summary| summary.tls.as_ref()),
            summary.and_then(|summary| summary.wire_tls.as_ref()),
            summary.map(|summary| &summary.total),
            summary.and_then(|summary| summary.wire_total.as_ref()),
            summary.and_then(|summary| summary.load.as_ref()),
            summary.and_then(|summary| summary.largest_paint.as_ref()),
        ] {
            row.extend(figures.map_or_else(Default::default, fields));
        }
        csv.write_record(row)?;
    }
    csv.flush()
}

const VISIT_AXES: [&str; 7] = ["browser", "server", "profile", "rtt_ms", "http", "page", "visit"];

fn visit_axis_fields(cell: &VisitCell) -> [String; 7] {
    [
        cell.browser.clone(),
        cell.server.clone(),
        cell.profile.clone(),
        cell.rtt_ms.to_string(),
        cell.http.clone(),
        cell.page.clone(),
        cell.visit.clone(),
    ]
}

const BROWSER_COLUMNS: [&str; 11] = [
    "connect_start_ms",
    "secure_connection_start_ms",
    "connect_end_ms",
    "request_start_ms",
    "response_start_ms",
    "response_end_ms",
    "load_event_ms",
    "first_paint_ms",
    "largest_paint_ms",
    "protocol",
    "resources",
];

fn timings(times: &BrowserTimings) -> [String; 11] {
    [
        times.connect_start_ms.to_string(),
        or_empty(times.secure_connection_start_ms),
        times.connect_end_ms.to_string(),
        times.request_start_ms.to_string(),
        times.response_start_ms.to_string(),
        times.response_end_ms.to_string(),
        or_empty(times.load_event_ms),
        or_empty(times.first_paint_ms),
        or_empty(times.largest_paint_ms),
        times.protocol.clone(),
        times.resources.to_string(),
    ]
}

const PACKET_COLUMNS: [&str; 11] = [
    "label",
    "detail",
    "connections",
    "early_connections",
    "early_bytes",
    "wire_tls_ms",
    "wire_first_byte_ms",
    "wire_last_byte_ms",
    "round_trips",
    "group",
    "tickets",
];

fn packets(wire: &VisitPackets) -> [String; 11] {
    [
        wire.label.clone(),
        wire.detail.clone(),
        wire.connections.to_string(),
        wire.early_connections.to_string(),
        wire.early_bytes.to_string(),
        or_empty(wire.tls_ms),
        or_empty(wire.first_byte_ms),
        or_empty(wire.last_byte_ms),
        or_empty(wire.round_trips),
        or_empty(wire.group.as_ref()),
        or_empty(wire.tickets),
    ]
}
