//! Visits as CSV.

use std::io::{self, Write};

use ::csv::Writer;

use super::{FIGURES, fault, fields, some};
use crate::{BrowserTimings, Record, VisitCell, VisitPackets};

/// Every visit, with its cell before it, the browser's times and what the packets show.
///
/// # Errors
/// What `out` cannot take.
pub fn visits(record: &Record, out: impl Write) -> io::Result<()> {
    let mut csv = Writer::from_writer(out);
    let own = ["block", "turn", "at_ms"];
    let end = ["warnings", "fault", "why"];
    csv.write_record(PLACE.into_iter().chain(own).chain(BROWSER).chain(WIRE).chain(end))?;
    for visit in &record.visits {
        let mut row = place(&record.visit_cells[visit.cell]).to_vec();
        row.extend([visit.block.to_string(), visit.turn.to_string(), visit.at_ms.to_string()]);
        row.extend(visit.browser.as_ref().map_or_else(Default::default, timings));
        row.extend(visit.wire.as_ref().map_or_else(Default::default, packets));
        let (kind, why) = fault(visit.fault.as_ref());
        row.extend([visit.warnings.join("; "), kind.to_owned(), why.to_owned()]);
        csv.write_record(row)?;
    }
    csv.flush()
}

/// Every cell of the visits with all its figures.
///
/// # Errors
/// What `out` cannot take.
pub fn visit_cells(record: &Record, out: impl Write) -> io::Result<()> {
    let mut csv = Writer::from_writer(out);
    let mut head: Vec<String> = PLACE.map(str::to_owned).to_vec();
    head.extend(["visits", "early", "round_trips"].map(str::to_owned));
    for time in ["tls", "wire_tls", "total", "wire_total", "load", "largest_paint"] {
        head.extend(FIGURES.map(|figure| format!("{time}_{figure}_ms")));
    }
    csv.write_record(&head)?;
    for cell in &record.visit_cells {
        let summary = cell.summary.as_ref();
        let mut row = place(cell).to_vec();
        row.push(summary.map_or(0, |summary| summary.visits).to_string());
        row.push(summary.map_or(0, |summary| summary.early).to_string());
        row.push(some(summary.and_then(|summary| summary.round_trips)));
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

const PLACE: [&str; 7] = ["browser", "server", "profile", "rtt_ms", "http", "page", "visit"];

fn place(cell: &VisitCell) -> [String; 7] {
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

const BROWSER: [&str; 11] = [
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

fn timings(of: &BrowserTimings) -> [String; 11] {
    [
        of.connect_start_ms.to_string(),
        some(of.secure_connection_start_ms),
        of.connect_end_ms.to_string(),
        of.request_start_ms.to_string(),
        of.response_start_ms.to_string(),
        of.response_end_ms.to_string(),
        some(of.load_event_ms),
        some(of.first_paint_ms),
        some(of.largest_paint_ms),
        of.protocol.clone(),
        of.resources.to_string(),
    ]
}

const WIRE: [&str; 11] = [
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

fn packets(of: &VisitPackets) -> [String; 11] {
    [
        of.label.clone(),
        of.detail.clone(),
        of.connections.to_string(),
        of.early_connections.to_string(),
        of.early_bytes.to_string(),
        some(of.tls_ms),
        some(of.first_byte_ms),
        some(of.last_byte_ms),
        some(of.round_trips),
        some(of.group.as_ref()),
        some(of.tickets),
    ]
}
