//! Comparisons: with published figures, between cells, under loss, and pages over QUIC.

use super::Table;
use crate::axes::{cell_names, kind, protocol};
use crate::format::{format_ms, format_signed_ms};
use crate::{Cell, Effect, Fault, Figures, Interval, Record, Sample, published};

/// The ping-pong matrix and the published one, mean beside mean.
pub(crate) fn ping_pong(record: &Record) -> Option<Table> {
    const COLUMNS: [(&str, bool); 4] =
        [("full", false), ("full", true), ("resumed", false), ("resumed", true)];
    let mut table = Table::new(
        "The ping-pong matrix and the published one",
        "Means in ms, ours / published (C++, OpenSSL 1.1.1), and our round trips. There is no \
         published 0-RTT.",
        &["RTT", "TLS", ">full", ">full + TFO", ">resumed", ">resumed + TFO"],
    );
    for group in crate::tables::groups(record) {
        if group.first().workload != "ping-pong" {
            continue;
        }
        for row in crate::tables::rows(&group) {
            let fields = COLUMNS.map(|(kind, tfo)| {
                let theirs = published::ping_pong(row.rtt_ms, &row.version, kind, tfo)?;
                let column =
                    crate::tables::matrix::Column { kind: kind.to_owned(), tfo, token: false };
                let (_, cell) = group.at(&row, &column)?;
                let ours = cell.summary.as_ref()?;
                let trips = ours.round_trips.map_or("?".to_owned(), |trips| trips.to_string());
                Some(format!(
                    "{} / {} ({trips})",
                    format_ms(ours.first_byte.mean_ms),
                    format_ms(theirs)
                ))
            });
            if fields.iter().any(Option::is_some) {
                let mut line = vec![row.rtt_ms.to_string(), row.version.clone()];
                line.extend(fields.map(Option::unwrap_or_default));
                table.rows.push(line);
            }
        }
    }
    table.filled()
}

/// Percentiles compared with the blueprint's.
pub(crate) fn blueprint(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Percentiles compared with the blueprint's",
        "ms to the first byte on a LAN, ours / published (the blueprint states neither network nor \
         request).",
        &["server", "HTTP", "kind", ">samples", ">min", ">p50", ">p95", ">p99", ">max"],
    );
    for cell in in_experiment(record, "blueprint") {
        let Some(summary) = &cell.summary else { continue };
        let theirs = published::blueprint(&cell.kind);
        let beside = |ours: Option<f64>, place: usize| match (ours, theirs) {
            (Some(ours), Some(theirs)) => {
                format!("{} / {}", format_ms(ours), format_ms(theirs[place]))
            }
            (Some(ours), None) => format_ms(ours),
            (None, _) => "-".to_owned(),
        };
        let figures = &summary.first_byte;
        table.rows.push(vec![
            cell.server.clone(),
            cell.http.clone(),
            cell.kind.clone(),
            summary.samples.to_string(),
            beside(Some(figures.min_ms), 0),
            beside(Some(figures.p50_ms), 1),
            beside(figures.p95_ms, 2),
            figures.p99_ms.map_or("-".to_owned(), format_ms),
            beside(Some(figures.max_ms), 3),
        ]);
    }
    table.filled()
}

/// The effects.
pub(crate) fn effects(record: &Record) -> Option<Table> {
    let names = cell_names(record);
    let mut table = Table::new(
        "What is saved",
        "Difference of medians to the first byte with its 95 % interval, in ms and in round trips.",
        &["what", "where", ">ms", ">95 %", ">round trips"],
    );
    table.terminal_rows = Some(MAX_TERMINAL_ROWS);
    for effect in ordered_effects(record) {
        table.rows.push(vec![
            effect.what.clone(),
            names[effect.to].clone(),
            format_signed_ms(effect.difference_ms.estimate),
            range(&effect.difference_ms),
            in_round_trips(record, effect),
        ]);
    }
    table.filled()
}

/// An effect in round trips, or `-` if the round-trip time is too short.
pub(crate) fn in_round_trips(record: &Record, effect: &Effect) -> String {
    match record.cells[effect.to].counts_in_round_trips() {
        true => format_signed_ms(effect.difference_rtt.estimate),
        false => "-".to_owned(),
    }
}

/// The effects, those of 0-RTT first, each kind together.
pub(crate) fn ordered_effects(record: &Record) -> Vec<&Effect> {
    let mut effects: Vec<&Effect> = record.effects.iter().collect();
    effects.sort_by_key(|effect| (!effect.what.starts_with("0-RTT"), &effect.what));
    effects
}

/// The A/A control.
pub(crate) fn control(record: &Record) -> Option<Table> {
    let control = record.control.as_ref()?;
    let names = cell_names(record);
    let mut table = Table::new(
        "The A/A control",
        &format!(
            "Cells measured twice under two names: {} of {} pairs differ at 95 %, chance \
             allows {}.",
            control.differing,
            control.pairs.len(),
            control.allowed
        ),
        &["cell", ">ms", ">95 %", "differs"],
    );
    for pair in &control.pairs {
        table.rows.push(vec![
            names[pair.cell].clone(),
            format_signed_ms(pair.difference_ms.estimate),
            range(&pair.difference_ms),
            if pair.differs { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.filled()
}

/// Cells whose median the model does not explain.
pub(crate) fn residuals(record: &Record) -> Option<Table> {
    let names = cell_names(record);
    let has_residual =
        |cell: &&Cell| !cell.control && cell.summary.as_ref().is_some_and(|s| s.residual.is_some());
    let count = record.cells.iter().filter(has_residual).count();
    let mut table = Table::new(
        "What the model does not explain",
        "",
        &["cell", ">model ms", ">measured ms", ">beyond ms"],
    );
    table.terminal_rows = Some(MAX_TERMINAL_ROWS);
    for (cell, name) in record.cells.iter().zip(names).filter(|(cell, _)| !cell.control) {
        let Some(summary) = &cell.summary else { continue };
        let Some(residual) = summary.residual.filter(|residual| residual.flagged) else { continue };
        table.rows.push(vec![
            name,
            format_ms(residual.model_ms),
            format_ms(summary.first_byte.p50_ms),
            format_signed_ms(residual.residual_ms),
        ]);
    }
    table.lead = format!(
        "The model is round trips times RTT, the rates' part, and both sides' processor time. {} of \
         {count} cells are outside its tolerance.",
        table.rows.len()
    );
    table.filled()
}

/// An interval as text.
pub(crate) fn range(interval: &Interval) -> String {
    format!("{} to {}", format_signed_ms(interval.low), format_signed_ms(interval.high))
}

/// The cells of an experiment without the second arms of A/A controls.
pub(crate) fn in_experiment<'a>(
    record: &'a Record,
    name: &'a str,
) -> impl Iterator<Item = &'a Cell> {
    record.cells.iter().filter(move |cell| cell.experiment == name && !cell.control)
}

/// The experiment with packet loss: TCP and QUIC side by side on each network.
pub(crate) fn loss(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "Packet loss and reordering",
        "ms to the response's first and last byte, and packets that the network dropped in a \
         connection.",
        &[
            "network",
            "over",
            "kind",
            ">dropped",
            ">first p50",
            ">p95",
            ">p99",
            ">total p50",
            ">p95",
            ">p99",
        ],
    );
    let mut cells: Vec<_> = in_experiment(record, "loss").collect();
    let place = |name: &str| record.profiles.iter().position(|profile| profile.name == name);
    cells.sort_by_key(|cell| (place(&cell.profile), cell.kind == "0-RTT", cell.over_quic()));
    let mut excluded = Vec::new();
    for cell in cells {
        let samples_of_cell =
            || record.samples.iter().filter(|s| std::ptr::eq(&record.cells[s.cell], cell));
        let good = || samples_of_cell().filter(|sample| sample.fault.is_none());
        let disturbed =
            samples_of_cell().filter(|s| matches!(s.fault, Some(Fault::Disturbed(_)))).count();
        if disturbed > 0 {
            let (all, over, kind) = (good().count() + disturbed, protocol(cell), kind(cell));
            excluded.push(format!("{disturbed} of {all} {over} {kind} at {}", cell.profile));
        }
        let Some(summary) = &cell.summary else { continue };
        let dropped: u32 = good().map(|sample| sample.dropped).sum();
        let mut row = vec![cell.profile.clone(), protocol(cell), kind(cell)];
        row.push(format!("{:.2}", f64::from(dropped) / summary.samples.max(1) as f64));
        row.extend(percentiles(Some(&summary.first_byte)));
        row.extend(percentiles(summary.total.as_ref()));
        table.rows.push(row);
    }
    table.notes.push(match excluded.is_empty() {
        true => "No sample is excluded because of its network.".to_owned(),
        false => format!(
            "Excluded, since dropped packets made them fail or changed their handshake: {}.",
            excluded.join("; ")
        ),
    });
    table.filled()
}

fn percentiles(figures: Option<&Figures>) -> [String; 3] {
    let of = |pick: fn(&Figures) -> Option<f64>| {
        figures.and_then(pick).map_or_else(|| "-".to_owned(), format_ms)
    };
    [of(|f| Some(f.p50_ms)), of(|f| f.p95_ms), of(|f| f.p99_ms)]
}

/// Pages over QUIC, by their packets, for any client.
pub(crate) fn page(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "A page over HTTP/3, from packets",
        &format!(
            "Medians and 95th percentiles in ms from the client's first datagram to the delivery of \
             the response's first and last byte, and how many samples had the last by 0-RTT within \
             one round trip and {ALLOWANCE_MS} ms. A server sends an address that it has not seen no more \
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
        let (first, last) =
            (wire_times(&samples, |s| s.wire_ms), wire_times(&samples, |s| s.wire_total_ms));
        let Some(summary) = cell.summary.as_ref().filter(|_| !last.is_empty()) else { continue };
        let in_time = last.iter().filter(|ms| **ms <= cell.rtt_ms + ALLOWANCE_MS).count();
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
            [p50, percentile(0.95)].map(|ms| ms.map_or("-".to_owned(), format_ms))
        }));
        row.push(trips.map(|trips| trips.map_or("?".to_owned(), |n| n.to_string())).join(", "));
        row.push(within);
        table.rows.push(row);
    }
    table.filled()
}

/// A response over QUIC that exceeds three packets but fits into the initial window.
fn is_page(cell: &Cell) -> bool {
    cell.over_quic() && !cell.control && (5_000..14_000).contains(&cell.response_bytes)
}

pub(super) fn wire_times(samples: &[&Sample], of: fn(&Sample) -> Option<f64>) -> Vec<f64> {
    crate::statistics::ascending(samples.iter().filter_map(|sample| of(sample)))
}

const MAX_TERMINAL_ROWS: usize = 12;

/// Time allowed for computing and wake-ups beyond the network's, in milliseconds.
const ALLOWANCE_MS: f64 = 3.0;
