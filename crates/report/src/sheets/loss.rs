//! What lost and overtaken packets cost, over TCP and over QUIC.

use super::{Sheet, comparisons::in_experiment};
use crate::axes::{kind, protocol};
use crate::figure::bare;
use crate::{Figures, Record};

/// The cells of the experiment, TCP and QUIC beside each other on each network.
pub(crate) fn loss(record: &Record) -> Option<Sheet> {
    let mut sheet = Sheet::new(
        "Lost and overtaken packets",
        "ms to the response's first and last byte, and packets that the network dropped in a \
         connection. No sample is left out for what its network did.",
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
    for cell in cells {
        let Some(summary) = &cell.summary else { continue };
        let mine = record.samples.iter().filter(|sample| {
            std::ptr::eq(&record.cells[sample.cell], cell) && sample.fault.is_none()
        });
        let dropped: u32 = mine.map(|sample| sample.dropped).sum();
        let mut row = vec![cell.profile.clone(), protocol(cell), kind(cell)];
        row.push(format!("{:.2}", f64::from(dropped) / summary.samples.max(1) as f64));
        row.extend(percentiles(Some(&summary.first_byte)));
        row.extend(percentiles(summary.total.as_ref()));
        sheet.rows.push(row);
    }
    sheet.filled()
}

fn percentiles(figures: Option<&Figures>) -> [String; 3] {
    let of = |pick: fn(&Figures) -> Option<f64>| {
        figures.and_then(pick).map_or_else(|| "-".to_owned(), bare)
    };
    [of(|f| Some(f.p50_ms)), of(|f| f.p95_ms), of(|f| f.p99_ms)]
}
