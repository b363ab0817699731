//! Every percentile of every cell.

use super::{Group, Sheet};
use crate::figure::bare;

/// The cells of a group with all their figures.
pub(crate) fn figures(group: &Group<'_>) -> Sheet {
    let mut sheet = Sheet::new(
        &group.heading,
        "ms to the first byte; p50 with its 95 % interval",
        &[
            "network",
            "TLS",
            "kind",
            ">samples",
            ">min",
            ">p50",
            ">95 %",
            ">p95",
            ">p99",
            ">p99.9",
            ">max",
            ">mean",
            ">wire p50",
            ">round trips",
        ],
    );
    for (_, cell) in &group.cells {
        let Some(summary) = &cell.summary else { continue };
        let figures = &summary.first_byte;
        let some = |value: Option<f64>| value.map_or("-".to_owned(), bare);
        sheet.rows.push(vec![
            crate::axes::path(cell),
            crate::axes::version(cell),
            crate::axes::kind(cell),
            summary.samples.to_string(),
            bare(figures.min_ms),
            bare(figures.p50_ms),
            format!(
                "{}\u{2013}{}",
                bare(figures.p50_interval_ms.0),
                bare(figures.p50_interval_ms.1)
            ),
            some(figures.p95_ms),
            some(figures.p99_ms),
            some(figures.p999_ms),
            bare(figures.max_ms),
            bare(figures.mean_ms),
            some(summary.wire_p50_ms),
            summary.round_trips.map_or("?".to_owned(), |trips| trips.to_string()),
        ]);
    }
    sheet
}
