//! The matrix, and comparisons with published figures.

use maud::{Markup, html};

use super::{Section, folded, panels, simple_section};
use crate::axes::{self, REMOTE_EXPERIMENT, kind, path};
use crate::charts::{Bar, BarChart, BarGroup, kind_class};
use crate::format::format_ms;
use crate::tables::{self, Group, columns, groups, network_column, rows};
use crate::{Cell, Record, published};

/// A matrix for each server and workload.
pub(super) fn section(record: &Record) -> Option<Section> {
    let groups = groups(record);
    if groups.is_empty() {
        return None;
    }
    let all: Vec<_> = groups.iter().map(tables::figures).collect();
    let body = html! {
        p { "Milliseconds from the connect call to the first byte of the response: median, below it "
            "the 95th percentile and the round trips that the packets show. A dash: too few samples "
            "for that percentile. A question mark: the samples disagree." }
        @for group in &groups {
            h3 { (group.heading) }
            (grid(group))
        }
        (folded("Every percentile of every cell", &all))
    };
    let title = "The matrix".to_owned();
    Some(Section { id: "matrix", title, short: "Matrix", body })
}

fn grid(group: &Group<'_>) -> Markup {
    let columns = columns(group);
    let rows = rows(group);
    let network = network_column(group);
    html! {
        div.scroll tabindex="0" role="region" aria-label=(group.heading) {
            table.matrix {
                caption.hidden { (group.heading) }
                thead { tr {
                    th scope="col" { (network) @if network == "RTT" { " ms" } }
                    th scope="col" { "TLS" }
                    @for column in &columns {
                        th.n scope="col" { span class=(format!("dot {}", kind_class(&column.kind))) {}
                            (column.name()) }
                    }
                } }
                tbody { @for (place, row) in rows.iter().enumerate() {
                    @let begins = place == 0 || rows[place - 1].profile != row.profile;
                    tr.begins[begins] {
                        th scope="row" {
                            @if begins { (network_name(group, &row.profile, row.rtt_ms)) }
                            @else { span.hidden { (network_name(group, &row.profile, row.rtt_ms)) } }
                        }
                        td { (row.version) }
                        @for column in &columns {
                            td.n { @if let Some((_, cell)) = group.at(row, column) { (field(cell)) } }
                        }
                    }
                } }
            }
        }
    }
}

fn network_name(group: &Group<'_>, profile: &str, rtt_ms: f64) -> String {
    let named = group.cells.iter().find(|(_, cell)| cell.profile == profile);
    match named {
        Some((_, cell)) if network_column(group) != "RTT" => path(cell),
        _ => rtt_ms.to_string(),
    }
}

fn field(cell: &Cell) -> Markup {
    let Some(summary) = &cell.summary else {
        return html! { span.faint { "no good sample" } };
    };
    let trips = summary.round_trips.map_or("?".to_owned(), |trips| trips.to_string());
    html! {
        b { (format_ms(summary.first_byte.p50_ms)) }
        span.sub {
            (summary.first_byte.p95_ms.map_or("\u{2013}".to_owned(), format_ms))
            " \u{b7} " (trips) " RT"
        }
    }
}

/// Bars of TLS set-up, first byte and total for every group of cells; those with curl's published
/// figures first.
pub(super) fn bars(record: &Record) -> Option<Section> {
    let tables: Vec<_> =
        [tables::curl(record), tables::phases(record)].into_iter().flatten().collect();
    let groups = groups(record);
    let mut ordered: Vec<&Group<'_>> = groups.iter().collect();
    ordered.sort_by_key(|group| match group.first().experiment.as_str() {
        "curl" => 0,
        REMOTE_EXPERIMENT | "matrix" => 1,
        _ => 2,
    });
    let mut drawings = Vec::new();
    for group in ordered {
        let mut networks: Vec<&Cell> = Vec::new();
        for (_, cell) in &group.cells {
            if !networks.iter().any(|other| other.profile == cell.profile) {
                networks.push(cell);
            }
        }
        for (network, version) in networks
            .iter()
            .flat_map(|network| group.newest().into_iter().map(move |v| (network, v)))
        {
            if drawings.len() < MAX_BARS {
                drawings.extend(draw_bars(drawings.len(), group, network, &version));
            }
        }
    }
    if drawings.is_empty() {
        return None;
    }
    let published = groups.iter().any(|group| group.first().experiment == "curl");
    let first = tables.first();
    let body = html! {
        @if let Some(table) = first { p { (table.lead)
            @if published { " Filled bars are measured, hollow ones published." } } }
        @else { p { "Medians in ms from the connect call." } }
        (panels(&drawings[..drawings.len().min(UNFOLDED_BARS)]))
        @if drawings.len() > UNFOLDED_BARS {
            details {
                summary { (drawings.len() - UNFOLDED_BARS) " more bar charts" }
                (panels(&drawings[UNFOLDED_BARS..]))
            }
        }
        @if !tables.is_empty() { (folded("The bars as a table", &tables)) }
    };
    let title = first.map_or("TLS setup, first byte and total", |table| &table.title).to_owned();
    Some(Section { id: "bars", title, short: "Phases", body })
}

const MAX_BARS: usize = 24;
const UNFOLDED_BARS: usize = 6;

/// The bars of one version on one network, with their caption.
fn draw_bars(
    number: usize,
    group: &Group<'_>,
    network: &Cell,
    version: &str,
) -> Option<(String, Markup)> {
    let columns = columns(group);
    let mut cells: Vec<&Cell> = (group.cells.iter().map(|(_, cell)| *cell))
        .filter(|cell| cell.profile == network.profile && axes::version(cell) == version)
        .collect();
    cells.sort_by_key(|cell| columns.iter().position(|column| column.has(cell)));
    let groups: Vec<BarGroup> = ["TLS set-up", "first byte", "total"]
        .iter()
        .enumerate()
        .map(|(place, name)| BarGroup {
            name: (*name).to_owned(),
            bars: cells.iter().filter_map(|cell| bar(cell, place)).collect(),
        })
        .filter(|group| !group.bars.is_empty())
        .collect();
    let first = *cells.first().filter(|_| !groups.is_empty())?;
    let over = match first.http.as_str() {
        "" => format!(", {}", axes::protocol(first)),
        http if !group.heading.contains("HTTP/") => format!(", HTTP/{http}"),
        _ => String::new(),
    };
    let caption = format!("{}{over}, {}", group.heading, path(first));
    let chart = BarChart {
        id: &format!("bars-{number}"),
        title: &caption,
        heading: None,
        description: "Bars for TLS set-up, first byte and total, by kind of handshake.",
        unit: "ms",
        groups: &groups,
    };
    let drawing = chart.draw();
    Some((caption, drawing))
}

fn bar(cell: &Cell, place: usize) -> Option<Bar> {
    let ours = tables::times(cell.summary.as_ref()?)[place]?;
    Some(Bar {
        name: kind(cell),
        class: kind_class(&cell.kind),
        value: ours,
        published: published::curl(cell.rtt_ms, &cell.http, &cell.kind)
            .filter(|_| cell.experiment == "curl")
            .map(|theirs| theirs[place]),
    })
}

/// Pages over QUIC from packets.
pub(super) fn page(record: &Record) -> Option<Section> {
    simple_section("page", "Page", tables::page(record)?)
}

/// Loss over TCP and QUIC.
pub(super) fn loss(record: &Record) -> Option<Section> {
    simple_section("loss", "Loss", tables::loss(record)?)
}

/// The blueprint's percentiles.
pub(super) fn blueprint(record: &Record) -> Option<Section> {
    simple_section("blueprint", "Blueprint", tables::blueprint(record)?)
}

/// Comparison of clients.
pub(super) fn clients(record: &Record) -> Option<Section> {
    simple_section("clients", "Clients", tables::clients(record)?)
}

/// Published claims.
pub(super) fn claims(record: &Record) -> Option<Section> {
    simple_section("claims", "Claims", tables::claims(record)?)
}

/// Access networks.
pub(super) fn access(record: &Record) -> Option<Section> {
    simple_section("access", "Access", tables::access(record)?)
}

/// The bytes of each kind of connection.
pub(super) fn bytes(record: &Record) -> Option<Section> {
    simple_section("bytes", "Bytes", tables::bytes(record)?)
}

/// Comparison with the published ping-pong matrix.
pub(super) fn ping_pong(record: &Record) -> Option<Section> {
    simple_section("published", "Ping-pong", tables::ping_pong(record)?)
}
