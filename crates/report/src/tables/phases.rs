//! The phases of a connection (TLS set-up, first byte, total), and the bytes that each takes.

use super::Table;
use super::comparisons::in_experiment;
use crate::axes::{
    Axis, OWN_CLIENT, REMOTE_EXPERIMENT, kind, kind_order, path, protocol, same_except, varying,
};
use crate::format::{both_ways, format_ms};
use crate::{Bytes, Cell, Record, Summary, published};

/// Our times compared with curl's published bars.
pub(crate) fn curl(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "TLS setup, first byte and total compared with curl's",
        "Medians in ms of a 10 KiB page, ours / published (curl 8.12, read off its bars), and our \
         round trips to the first byte and to the last. Of address tokens nothing is published.",
        &["network", "server", "HTTP", "kind", ">TLS set-up", ">first byte", ">total", ">RT"],
    );
    for cell in in_experiment(record, "curl") {
        let Some(summary) = &cell.summary else { continue };
        let published = published::curl(cell.rtt_ms, &cell.http, &cell.kind);
        let ours = times(summary);
        let fields = (0..3).map(|place| match (ours[place], published) {
            (Some(ours), Some(theirs)) => {
                format!("{} / {}", format_ms(ours), format_ms(theirs[place]))
            }
            (Some(ours), None) => format_ms(ours),
            (None, _) => "-".to_owned(),
        });
        let mut row =
            vec![cell.profile.clone(), cell.server.clone(), cell.http.clone(), kind(cell)];
        row.extend(fields);
        row.push(round_trips(summary));
        table.rows.push(row);
    }
    table.filled()
}

/// The phases of connections to a remote server, and of axes that were chosen by hand.
pub(crate) fn phases(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "TLS setup, first byte and total",
        "Medians in ms from the connect call, and round trips to the first byte and to the last.",
        &["network", "server", "over", "kind", ">TLS set-up", ">first byte", ">total", ">RT"],
    );
    let cells = || {
        record.cells.iter().filter(|cell| {
            !cell.control && [REMOTE_EXPERIMENT, "matrix"].contains(&cell.experiment.as_str())
        })
    };
    // Axes that vary only in other experiments do not lengthen the names of these rows.
    let axes = varying(cells());
    for cell in cells() {
        let Some(summary) = &cell.summary else { continue };
        let response = axes.contains(&Axis::Size).then(|| response(cell));
        let words: Vec<String> =
            [over(cell)].into_iter().chain(response).chain(variant(&axes, cell)).collect();
        let mut row = vec![path(cell), cell.server.clone(), words.join(", "), kind(cell)];
        row.extend(times(summary).map(|ms| ms.map_or("-".to_owned(), format_ms)));
        row.push(round_trips(summary));
        table.rows.push(row);
    }
    table.filled()
}

/// Protocol and application: `TLS 1.3, HTTP/2`, `QUIC, HTTP/3`, `TLS 1.3`.
fn over(cell: &Cell) -> String {
    match cell.http.as_str() {
        "" => protocol(cell),
        http => format!("{}, HTTP/{http}", protocol(cell)),
    }
}

fn round_trips(summary: &Summary) -> String {
    let trips = [summary.round_trips, summary.total_round_trips];
    trips.map(|trips| trips.map_or("?".to_owned(), |n| n.to_string())).join(", ")
}

/// Medians of set-up, first byte and total.
pub(crate) fn times(summary: &Summary) -> [Option<f64>; 3] {
    [
        summary.setup.as_ref().map(|figures| figures.p50_ms),
        Some(summary.first_byte.p50_ms),
        summary.total.as_ref().map(|figures| figures.p50_ms),
    ]
}

/// The bytes of each kind of connection. Networks hardly change them, so there is one row for all.
pub(crate) fn bytes(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Bytes of a connection",
        "Medians of IP packets with payload, to the server / to the client: until the client had the \
         server's Finished (early data included), and until the first byte of the response. ms at \
         2G: what the latter take to send at 0.256 Mbit/s up and 0.28 down.",
        &["connection", "kind", ">handshake", ">first byte", ">ms at 2G"],
    );
    table.terminal_rows = Some(MAX_TERMINAL_ROWS);
    let axes = varying(record.cells.iter().filter(|cell| !cell.control));
    let mut listed: Vec<&Cell> = Vec::new();
    for cell in record.cells.iter().filter(|cell| !cell.control) {
        let Some(summary) = &cell.summary else { continue };
        let Some(first_byte) = summary.first_byte_bytes else { continue };
        const SAME: [Axis; 3] = [Axis::Experiment, Axis::Profile, Axis::Rtt];
        if listed.iter().any(|other| same_except(other, cell, &SAME)) {
            continue;
        }
        listed.push(cell);
        table.rows.push(vec![
            connection(&axes, cell),
            kind(cell),
            summary.handshake_bytes.map_or("-".to_owned(), both_ways),
            both_ways(first_byte),
            format!("{:.0}", milliseconds_at_2g(first_byte)),
        ]);
    }
    let order = |row: &Vec<String>| kind_order(row[1].split(' ').next().unwrap_or_default());
    table.rows.sort_by(|a, b| a[0].cmp(&b[0]).then_with(|| order(a).cmp(&order(b))));
    table.filled()
}

/// Everything but network and kind, as far as it varies in the record.
fn connection(axes: &[Axis], cell: &Cell) -> String {
    let mut words = vec![cell.server.clone(), over(cell), response(cell)];
    words.extend(variant(axes, cell));
    words.join(", ")
}

/// What is fetched: `GET of 1 KiB`, `ping-pong`.
fn response(cell: &Cell) -> String {
    match cell.workload.as_str() {
        "get" => format!("GET of {}", Axis::Size.value(cell)),
        other => other.to_owned(),
    }
}

/// Client, group, cipher and certificate, those of them that vary.
fn variant(axes: &[Axis], cell: &Cell) -> Vec<String> {
    let mut words = Vec::new();
    if axes.contains(&Axis::Client) && cell.client != OWN_CLIENT {
        words.push(format!("by {}", cell.client));
    }
    for axis in [Axis::Group, Axis::Cipher, Axis::Certificate] {
        let value = axis.value(cell);
        if axes.contains(&axis) && !value.is_empty() {
            words.push(value);
        }
    }
    words
}

/// How long the bytes take to send on 2G, one direction after the other.
fn milliseconds_at_2g(bytes: Bytes) -> f64 {
    const UP_MBPS: f64 = 0.256;
    const DOWN_MBPS: f64 = 0.28;
    (bytes.up as f64 / UP_MBPS + bytes.down as f64 / DOWN_MBPS) * 8.0 / 1e3
}

const MAX_TERMINAL_ROWS: usize = 24;
