//! Latency against round-trip time, with the protocols' own lines.

use maud::{Markup, html};

use super::{Section, panels};
use crate::axes::{self, QUIC};
use crate::drawing::{Curve, CurveChart, Shape, kind_class};
use crate::sheets::{Group, columns, groups};
use crate::{Cell, Record};

pub(super) fn section(record: &Record) -> Option<Section> {
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
        p { "Medians to the first byte. The dotted lines are what the protocols' round trips take, "
            "one to four times the RTT. In units of the RTT the long paths lie on these lines; on "
            "short ones computing and waking cost more than the network." }
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

/// What colours and dashes mean.
pub(super) fn legend(record: &Record) -> Markup {
    let kinds = ["full", "resumed", "0-RTT", "refused"];
    let there = |kind: &str| record.cells.iter().any(|cell| cell.kind == kind);
    html! {
        ul.legend aria-label="Legend" {
            @for kind in kinds.into_iter().filter(|kind| there(kind)) {
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
            dashed: column.helped(),
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

/// The same in units of the round-trip time, with a logarithmic axis for it.
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

const MAX_PANELS: usize = 12;
