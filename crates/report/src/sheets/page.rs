//! Whether a page that does not fit into three packets is there in one round trip, from packets.

use super::Sheet;
use crate::axes::kind;
use crate::figure::bare;
use crate::{Cell, Record, Sample};

/// Pages over QUIC as the packets have them, whoever the client is.
pub(crate) fn page(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new(
        "A page over HTTP/3, from packets",
        &format!(
            "Medians and 95th percentiles in ms from the client's first datagram to the delivery of \
             the response's first and last byte, and how many samples had the last by 0-RTT within \
             one round trip and {MORE_MS} ms. A server sends an address that it has not seen no more \
             than three times what it got (RFC 9000 section 8.1); an address token lifts that.",
        ),
        &[
            "network",
            "client",
            "server",
            "kind",
            ">first p50",
            ">p95",
            ">total p50",
            ">p95",
            ">RT",
            ">within",
        ],
    );
    for (place, cell) in record.cells.iter().enumerate().filter(|(_, cell)| is_page(cell)) {
        let samples: Vec<&Sample> =
            record.samples.iter().filter(|s| s.cell == place && s.fault.is_none()).collect();
        let (first, last) = (times(&samples, |s| s.wire_ms), times(&samples, |s| s.wire_total_ms));
        let Some(summary) = cell.summary.as_ref().filter(|_| !last.is_empty()) else { continue };
        let in_time = last.iter().filter(|ms| **ms <= cell.rtt_ms + MORE_MS).count();
        let within = match cell.kind.as_str() {
            "0-RTT" => format!("{in_time} of {}", last.len()),
            _ => String::new(),
        };
        let trips = [summary.round_trips, summary.total_round_trips];
        let mut row =
            vec![cell.profile.clone(), cell.client.clone(), cell.server.clone(), kind(cell)];
        row.extend([&first, &last].into_iter().flat_map(|times| {
            let percentile = |p| crate::statistics::reported_percentile(times, p);
            let p50 = crate::statistics::percentile(times, 0.5);
            [p50, percentile(0.95)].map(|ms| ms.map_or("-".to_owned(), bare))
        }));
        row.push(trips.map(|trips| trips.map_or("?".to_owned(), |n| n.to_string())).join(", "));
        row.push(within);
        sheet.rows.push(row);
    }
    sheet.filled()
}

/// What neither fits into three packets nor exceeds the first window.
fn is_page(cell: &Cell) -> bool {
    cell.over_quic() && !cell.control && (5_000..14_000).contains(&cell.response_bytes)
}

fn times(samples: &[&Sample], of: fn(&Sample) -> Option<f64>) -> Vec<f64> {
    crate::statistics::ascending(samples.iter().filter_map(|sample| of(sample)))
}

/// What computing and waking may take beside the network.
const MORE_MS: f64 = 3.0;
