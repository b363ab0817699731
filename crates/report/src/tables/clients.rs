//! This project's client compared with others.

use super::Table;
use super::comparisons::wire_times;
use crate::axes::{CLIENT_TIMING, compares_clients, kind, protocol};
use crate::format::format_ms;
use crate::statistics::{percentile, reported_percentile};
use crate::{Record, Sample, published};

/// The times of each client, from packets.
pub(crate) fn clients(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Clients",
        "ms from a client's first packet to the delivery of the response's first byte, from packets \
         for every client, and round trips. What a client computes before its first packet is not \
         included.",
        &["client", "network", "over", "kind", ">n", ">min", ">p50", ">p95", ">max", ">RT"],
    );
    let cells = record.cells.iter().enumerate();
    for (place, cell) in cells.filter(|(_, cell)| compares_clients(cell) && !cell.control) {
        let samples: Vec<&Sample> =
            record.samples.iter().filter(|s| s.cell == place && s.fault.is_none()).collect();
        let times = wire_times(&samples, |sample| sample.wire_ms);
        let (Some(first), Some(last)) = (times.first(), times.last()) else { continue };
        let theirs = published::blueprint(&cell.kind).filter(|_| cell.experiment == CLIENT_TIMING);
        let beside = |ours: Option<f64>, place: usize| match (ours, theirs) {
            (Some(ours), Some(theirs)) => {
                format!("{} / {}", format_ms(ours), format_ms(theirs[place]))
            }
            (Some(ours), None) => format_ms(ours),
            (None, _) => "-".to_owned(),
        };
        let trips = cell.summary.as_ref().and_then(|summary| summary.round_trips);
        table.rows.push(vec![
            cell.client.clone(),
            cell.profile.clone(),
            protocol(cell),
            kind(cell),
            times.len().to_string(),
            beside(Some(*first), 0),
            beside(percentile(&times, 0.5), 1),
            beside(reported_percentile(&times, 0.95), 2),
            beside(Some(*last), 3),
            trips.map_or("?".to_owned(), |count| count.to_string()),
        ]);
        if theirs.is_some() && table.notes.is_empty() {
            table.notes.push("After the slash: the blueprint's figures.".to_owned());
        }
    }
    table.filled()
}
