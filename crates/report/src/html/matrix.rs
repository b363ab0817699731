//! The matrix, and comparisons with published figures.

use maud::{Markup, html};

use super::{Section, folded, panels, table_html};
use crate::axes::{kind, path};
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

/// Comparison with the published ping-pong matrix.
pub(super) fn ping_pong(record: &Record) -> Option<Section> {
    let table = tables::ping_pong(record)?;
    let body = html! {
        p { (table.lead) }
        (table_html(&table))
    };
    Some(Section { id: "published", title: table.title, short: "Ping-pong", body })
}

/// curl's bars.
pub(super) fn bars(record: &Record) -> Option<Section> {
    let table = tables::curl(record)?;
    let mut drawings = Vec::new();
    for group in groups(record).iter().filter(|group| group.first().experiment == "curl") {
        let mut networks: Vec<(&str, f64)> = Vec::new();
        for (_, cell) in &group.cells {
            if !networks.iter().any(|(profile, _)| *profile == cell.profile) {
                networks.push((&cell.profile, cell.rtt_ms));
            }
        }
        for (profile, rtt_ms) in networks {
            let first = group.first();
            let caption = format!("{}, HTTP/{}, {rtt_ms} ms RTT", first.server, first.http);
            let id = format!("bars-{}", drawings.len());
            drawings.push((caption.clone(), draw_bars(&id, &caption, group, profile)));
        }
    }
    let body = html! {
        p { (table.lead) " Filled bars are measured, hollow ones published." }
        (panels(&drawings))
        (folded("The bars as a table", std::slice::from_ref(&table)))
    };
    Some(Section { id: "bars", title: table.title, short: "curl's bars", body })
}

fn draw_bars(id: &str, caption: &str, group: &Group<'_>, profile: &str) -> Markup {
    let mut cells: Vec<&Cell> =
        group.cells.iter().map(|(_, cell)| *cell).filter(|c| c.profile == profile).collect();
    cells.sort_by_key(|cell| columns(group).iter().position(|column| column.has(cell)));
    let groups: Vec<BarGroup> = ["TLS set-up", "first byte", "total"]
        .iter()
        .enumerate()
        .map(|(place, name)| BarGroup {
            name: (*name).to_owned(),
            bars: cells.iter().filter_map(|cell| bar(cell, place)).collect(),
        })
        .filter(|group| !group.bars.is_empty())
        .collect();
    let description = "Bars for TLS set-up, first byte and total, by kind of handshake; the table \
                       below has the figures.";
    BarChart { id, title: caption, description, unit: "ms", groups: &groups }.draw()
}

fn bar(cell: &Cell, place: usize) -> Option<Bar> {
    let ours = tables::times(cell.summary.as_ref()?)[place]?;
    Some(Bar {
        name: kind(cell).replace(" + ", "+"),
        class: kind_class(&cell.kind),
        value: ours,
        published: published::curl(cell.rtt_ms, &cell.http, &cell.kind).map(|theirs| theirs[place]),
    })
}

/// Pages over QUIC from packets.
pub(super) fn page(record: &Record) -> Option<Section> {
    let table = tables::page(record)?;
    let body = html! {
        p { (table.lead) }
        (table_html(&table))
    };
    Some(Section { id: "page", title: table.title, short: "Page", body })
}

/// Loss over TCP and QUIC.
pub(super) fn loss(record: &Record) -> Option<Section> {
    let table = tables::loss(record)?;
    let body = html! {
        p { (table.lead) }
        (table_html(&table))
    };
    Some(Section { id: "loss", title: table.title, short: "Loss", body })
}

/// The blueprint's percentiles.
pub(super) fn blueprint(record: &Record) -> Option<Section> {
    let table = tables::blueprint(record)?;
    let body = html! {
        p { (table.lead) }
        (table_html(&table))
    };
    Some(Section { id: "blueprint", title: table.title, short: "Blueprint", body })
}
