//! Distributions of the raw samples, not only points.

use maud::{Markup, html};

use super::{Section, latency::legend, panels};
use crate::axes::{self, QUIC, path};
use crate::drawing::{Curve, CurveChart, Shape, distribution, kind_class};
use crate::sheets::{Group, columns, groups};
use crate::{Cell, Record};

pub(super) fn section(record: &Record) -> Option<Section> {
    let times = times(record);
    let mut drawings = Vec::new();
    let mut left_out = 0;
    for group in groups(record) {
        let mut networks: Vec<&Cell> = Vec::new();
        for (_, cell) in &group.cells {
            if !networks.iter().any(|other| other.profile == cell.profile) {
                networks.push(cell);
            }
        }
        for network in networks {
            let newest = group.newest();
            for version in &newest {
                let drawn = curves(&group, network, version, &times);
                let Some((curves, beyond)) = drawn else { continue };
                if drawings.len() == MAX_PANELS {
                    left_out += 1;
                    continue;
                }
                let mut caption = format!("{}, {}", group.heading, path(network));
                if newest.len() > 1 && version == QUIC {
                    caption = format!("{caption}, {QUIC}");
                }
                let id = format!("spread-{}", drawings.len());
                drawings.push((caption.clone(), draw(&id, &caption, &curves, beyond)));
            }
        }
    }
    if drawings.is_empty() {
        return None;
    }
    let body = html! {
        p { "The share of connections that had their first byte by then, from every good sample. "
            "Where the round trips are known they are taken off, so that what differs is what the "
            "network does not explain: computing, waking, stalls, and on some networks rates and "
            "jitter." }
        (legend(record))
        (panels(&drawings[..drawings.len().min(SHOWN)]))
        @if drawings.len() > SHOWN {
            details {
                summary { (drawings.len() - SHOWN) " distributions more" }
                (panels(&drawings[SHOWN..]))
            }
        }
        @if left_out > 0 { p.note { (left_out) " more are left out here; the record has the samples." } }
    };
    Some(Section { id: "spread", title: "Distributions".to_owned(), short: "Distributions", body })
}

/// Good first-byte times of each cell, ascending.
fn times(record: &Record) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); record.cells.len()];
    for sample in record.samples.iter().filter(|sample| sample.fault.is_none()) {
        if let Some(time) = sample.time_ms.filter(|time| time.is_finite()) {
            times[sample.cell].push(time);
        }
    }
    for times in &mut times {
        times.sort_unstable_by(f64::total_cmp);
    }
    times
}

/// The curves of one network and version, and whether they are what lies beyond the round trips.
fn curves(
    group: &Group<'_>,
    network: &Cell,
    version: &str,
    times: &[Vec<f64>],
) -> Option<(Vec<Curve>, bool)> {
    let cells: Vec<(usize, &Cell)> = group
        .cells
        .iter()
        .filter(|(_, c)| c.profile == network.profile && axes::version(c) == version)
        .filter(|(place, _)| times[*place].len() >= MIN_SAMPLES)
        .copied()
        .collect();
    let network_ms = |cell: &Cell| {
        let trips = cell.summary.as_ref().and_then(|summary| summary.round_trips)?;
        Some(f64::from(trips) * cell.rtt_ms)
    };
    // A logarithmic axis takes what lies beyond only where there is always something.
    let beyond = cells.iter().all(|(place, cell)| {
        network_ms(cell).is_some_and(|network| times[*place][0] - network > 1e-3)
    });
    let mut curves = Vec::new();
    for column in columns(group) {
        for (place, cell) in &cells {
            if !column.has(cell) {
                continue;
            }
            let less = if beyond { network_ms(cell).unwrap_or(0.0) } else { 0.0 };
            let times: Vec<f64> = times[*place].iter().map(|time| time - less).collect();
            curves.push(Curve {
                name: column.name(),
                class: kind_class(&column.kind),
                dashed: column.helped(),
                shape: Shape::Steps,
                points: distribution(&times, POINTS),
            });
        }
    }
    (!curves.is_empty()).then_some((curves, beyond))
}

fn draw(id: &str, title: &str, curves: &[Curve], beyond: bool) -> Markup {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let low = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high = points().map(|point| point.0).fold(0.0, f64::max);
    CurveChart {
        id,
        title,
        description: "Share of connections by time to the first byte, a curve for each kind of \
                      handshake; the table of every percentile has the figures.",
        x: if beyond { "beyond the round trips, ms" } else { "first byte, ms" },
        y: "share of connections",
        logarithmic: (low > 0.0 && (beyond || high / low > 20.0), false),
        y_bounds: Some((0.0, 1.0)),
        percent: true,
        curves,
    }
    .draw()
}

const MAX_PANELS: usize = 24;
const SHOWN: usize = 9;
// Fewer samples have no distribution worth drawing.
const MIN_SAMPLES: usize = 10;
const POINTS: usize = 160;
