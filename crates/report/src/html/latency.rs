//! Charts of latency against round-trip time, and distributions of the raw samples.

use maud::{Markup, html};

use super::{Section, panels};
use crate::axes::{self, QUIC, path};
use crate::charts::{Curve, CurveChart, Shape, distribution, kind_class};
use crate::tables::{Group, columns, groups};
use crate::{Cell, Record};

pub(super) fn latency(record: &Record) -> Option<Section> {
    let mut drawings = Vec::new();
    for group in groups(record) {
        for version in group.newest() {
            if drawings.len() < MAX_PANELS {
                draw_version(&group, &version, &mut drawings);
            }
        }
    }
    if drawings.is_empty() {
        return None;
    }
    let body = html! {
        p { "Medians to the first byte. The dotted lines show one to four round trips. In units of the RTT "
            "long paths lie on these lines; on short paths computing and wake-ups take more time than "
            "the network." }
        (legend(record))
        (panels(&drawings))
        p.note { "The figures are in the matrix below." }
    };
    let title = "Latency against round-trip time".to_owned();
    Some(Section { id: "latency", title, short: "Latency", body })
}

/// The drawings of one version, if it was measured at several round-trip times.
fn draw_version(group: &Group<'_>, version: &str, drawings: &mut Vec<(String, Markup)>) {
    let curves = curves(group, version);
    let measured = curves.iter().filter(|curve| curve.shape == Shape::Marks);
    let points = measured.map(|curve| curve.points.len()).max().unwrap_or(0);
    if points < 2 {
        return;
    }
    let caption = match version {
        QUIC => format!("{}, {QUIC}", group.heading),
        tls => format!("{}, TLS {tls}", group.heading),
    };
    let id = format!("rtt-{}", drawings.len());
    drawings.push((caption.clone(), draw(&id, &caption, &curves)));
    if points > 2 {
        let caption = format!("{caption}, in round trips");
        let id = format!("rtt-{}", drawings.len());
        drawings.push((caption.clone(), draw_trips(&id, &caption, &curves)));
    }
}

/// The legend of colours and dashes.
pub(super) fn legend(record: &Record) -> Markup {
    let kinds = ["full", "resumed", "0-RTT", "refused"];
    let is_measured = |kind: &str| record.cells.iter().any(|cell| cell.kind == kind);
    html! {
        ul.legend aria-label="Legend" {
            @for kind in kinds.into_iter().filter(|kind| is_measured(kind)) {
                li { span class=(format!("dot {}", kind_class(kind))) {} (kind) }
            }
            @if record.cells.iter().any(|cell| cell.tfo) {
                li { span.dash {} "with TCP Fast Open" }
            }
            @if record.cells.iter().any(|cell| cell.token) {
                li { span.dash {} "with an address token (QUIC)" }
            }
        }
    }
}

fn curves(group: &Group<'_>, version: &str) -> Vec<Curve> {
    let cells: Vec<&Cell> = (group.cells.iter().map(|(_, cell)| *cell))
        .filter(|cell| axes::version(cell) == version && cell.rtt_ms > 0.0)
        .collect();
    let rtts = || cells.iter().map(|cell| cell.rtt_ms);
    let low = rtts().fold(f64::INFINITY, f64::min);
    let high = rtts().fold(0.0, f64::max);
    let mut curves: Vec<Curve> = (1..=4)
        .filter(|trips| cells.iter().any(|c| trips_of(c) == Some(*trips)))
        .map(|trips| Curve {
            name: format!("{trips} RTT"),
            class: "k-other",
            dashed: false,
            shape: Shape::Model,
            points: [low, high].map(|rtt| (rtt, rtt * f64::from(trips))).to_vec(),
        })
        .collect();
    for column in columns(group) {
        let mut points: Vec<(f64, f64)> = cells
            .iter()
            .filter(|cell| column.has(cell))
            .filter_map(|c| c.summary.as_ref().map(|s| (c.rtt_ms, s.first_byte.p50_ms)))
            .filter(|(_, ms)| *ms > 0.0)
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        curves.push(Curve {
            name: column.name(),
            class: kind_class(&column.kind),
            dashed: column.has_options(),
            shape: Shape::Marks,
            points,
        });
    }
    curves
}

fn trips_of(cell: &Cell) -> Option<u32> {
    cell.expected_round_trips.or(cell.summary.as_ref().and_then(|summary| summary.round_trips))
}

fn draw(id: &str, title: &str, curves: &[Curve]) -> Markup {
    CurveChart {
        id,
        title,
        description: "Median time to the first byte against round-trip time, a curve for each kind \
                      of handshake; the matrix has the figures.",
        x: "RTT, ms",
        y: "first byte, ms",
        logarithmic: (false, false),
        y_bounds: None,
        percent: false,
        curves,
    }
    .draw()
}

/// Like [`draw`], in units of the round-trip time and with logarithmic axes.
fn draw_trips(id: &str, title: &str, curves: &[Curve]) -> Markup {
    let mut curves = curves.to_vec();
    for point in curves.iter_mut().flat_map(|curve| &mut curve.points) {
        point.1 /= point.0;
    }
    CurveChart {
        id,
        title,
        description: "Median time to the first byte in round-trip times, a curve for each kind of \
                      handshake; the matrix has the figures.",
        x: "RTT, ms",
        y: "first byte, RTTs",
        logarithmic: (true, true),
        y_bounds: None,
        percent: false,
        curves: &curves,
    }
    .draw()
}

pub(super) fn distributions(record: &Record) -> Option<Section> {
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
                let drawn = distribution_curves(&group, network, version, &times);
                let Some((distribution_curves, beyond)) = drawn else { continue };
                if drawings.len() == MAX_DISTRIBUTIONS {
                    left_out += 1;
                    continue;
                }
                let mut caption = format!("{}, {}", group.heading, path(network));
                if newest.len() > 1 && version == QUIC {
                    caption = format!("{caption}, {QUIC}");
                }
                let id = format!("spread-{}", drawings.len());
                drawings.push((
                    caption.clone(),
                    draw_distribution(&id, &caption, &distribution_curves, beyond),
                ));
            }
        }
    }
    if drawings.is_empty() {
        return None;
    }
    let body = html! {
        p { "The share of connections that had their first byte by this time, from every good sample. "
            "Known round trips are subtracted, so the rest is what the round-trip time does not "
            "explain: computing, wake-ups, stalls, and on some networks rates and jitter." }
        (legend(record))
        (panels(&drawings[..drawings.len().min(UNFOLDED_DISTRIBUTIONS)]))
        @if drawings.len() > UNFOLDED_DISTRIBUTIONS {
            details {
                summary { (drawings.len() - UNFOLDED_DISTRIBUTIONS) " more distributions" }
                (panels(&drawings[UNFOLDED_DISTRIBUTIONS..]))
            }
        }
        @if left_out > 0 { p.note { (left_out) " more are omitted here; the record has the samples." } }
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

/// The curves of one network and version, and whether round trips are subtracted.
fn distribution_curves(
    group: &Group<'_>,
    network: &Cell,
    version: &str,
    times: &[Vec<f64>],
) -> Option<(Vec<Curve>, bool)> {
    let cells: Vec<(usize, &Cell)> = group
        .cells
        .iter()
        .filter(|(_, c)| c.profile == network.profile && axes::version(c) == version)
        .filter(|(place, _)| times[*place].len() >= MIN_DISTRIBUTION_SAMPLES)
        .copied()
        .collect();
    let network_ms = |cell: &Cell| {
        let trips = cell.summary.as_ref().and_then(|summary| summary.round_trips)?;
        Some(f64::from(trips) * cell.rtt_ms)
    };
    // A logarithmic axis needs positive values.
    let beyond = cells.iter().all(|(place, cell)| {
        network_ms(cell).is_some_and(|network| times[*place][0] - network > 1e-3)
    });
    let mut distribution_curves = Vec::new();
    for column in columns(group) {
        for (place, cell) in &cells {
            if !column.has(cell) {
                continue;
            }
            let less = if beyond { network_ms(cell).unwrap_or(0.0) } else { 0.0 };
            let times: Vec<f64> = times[*place].iter().map(|time| time - less).collect();
            distribution_curves.push(Curve {
                name: column.name(),
                class: kind_class(&column.kind),
                dashed: column.has_options(),
                shape: Shape::Steps,
                points: distribution(&times, POINTS_PER_CURVE),
            });
        }
    }
    (!distribution_curves.is_empty()).then_some((distribution_curves, beyond))
}

fn draw_distribution(id: &str, title: &str, curves: &[Curve], beyond: bool) -> Markup {
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

const MAX_PANELS: usize = 12;

const MAX_DISTRIBUTIONS: usize = 24;
const UNFOLDED_DISTRIBUTIONS: usize = 9;
// Fewer samples do not show a distribution.
const MIN_DISTRIBUTION_SAMPLES: usize = 10;
const POINTS_PER_CURVE: usize = 160;
