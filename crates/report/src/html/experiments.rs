//! Experiments other than the matrix: replays, middleboxes, load, processor time, waterfalls.

use maud::{Markup, html};

use super::{Section, folded, panels, simple_section, table_html};
use crate::axes::{QUIC, kind, named_version, path, protocol};
use crate::charts::{Bar, BarChart, BarGroup, WaterfallChart, kind_class};
use crate::format::format_ms;
use crate::tables::{self, Table};
use crate::{Cost, Record, Waterfall};

pub(super) fn replays(record: &Record) -> Option<Section> {
    let table = tables::replays(record)?;
    simple_section("replay", "Attack", table)
}

pub(super) fn middleboxes(record: &Record) -> Option<Section> {
    simple_section("middleboxes", "Middleboxes", tables::middleboxes(record)?)
}

pub(super) fn stalls(record: &Record) -> Option<Section> {
    simple_section("stalls", "Boxes and proxies", tables::stalls(record)?)
}

pub(super) fn cold_starts(record: &Record) -> Option<Section> {
    simple_section("cold-starts", "Cold starts", tables::cold_starts(record)?)
}

pub(super) fn loads(record: &Record) -> Option<Section> {
    let table = tables::loads(record)?;
    let mut more = Table::new(
        "Handshakes and errors",
        "Handshakes by the TLS state, failures, and the times of setup and total.",
        &[
            "server",
            "model",
            "HTTP",
            "kind",
            ">completed",
            "handshakes",
            "errors",
            ">set-up p50",
            ">total p50",
        ],
    );
    for load in &record.loads {
        let list = |pairs: &[(String, u64)]| {
            let words: Vec<String> =
                pairs.iter().map(|(what, n)| format!("{n} \u{d7} {what}")).collect();
            words.join("; ")
        };
        let p50 = |latency: &Option<crate::LoadLatency>| {
            latency.as_ref().map_or("-".to_owned(), |l| crate::format::format_ms(l.p50_ms))
        };
        more.rows.push(vec![
            load.server.clone(),
            tables::model(load),
            load.http.clone(),
            load.kind.clone(),
            crate::format::count(load.completed as f64),
            list(&load.handshakes),
            list(&load.errors),
            p50(&load.setup),
            p50(&load.total),
        ]);
    }
    let body = html! {
        p { (table.lead) }
        (panels(&rates(record)))
        (table_html(&table))
        (folded("Handshakes and errors", &[more]))
    };
    Some(Section { id: "load", title: table.title, short: "Load", body })
}

/// Connections per second of closed runs, by kind of handshake.
fn rates(record: &Record) -> Vec<(String, Markup)> {
    let mut groups: Vec<BarGroup> = Vec::new();
    for load in record.loads.iter().filter(|load| load.rate_wanted.is_none()) {
        let name = format!("{}, HTTP/{}, {}", load.server, load.http, tables::model(load));
        let bar = Bar {
            name: load.kind.clone(),
            class: kind_class(&load.kind),
            value: load.rate,
            published: None,
        };
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.bars.push(bar),
            None => groups.push(BarGroup { name, bars: vec![bar] }),
        }
    }
    groups.truncate(MAX_CHARTS);
    if groups.is_empty() {
        return Vec::new();
    }
    let caption = "Connections a second, closed loop".to_owned();
    let chart = BarChart {
        id: "rates",
        title: &caption,
        heading: None,
        description: "Connections a second by kind of handshake; the table below has the figures.",
        unit: "connections/s",
        groups: &groups,
    };
    vec![(caption.clone(), chart.draw())]
}

pub(super) fn costs(record: &Record) -> Option<Section> {
    let table = tables::costs(record)?;
    let key_of = |cost: &Cost| (cost.server.clone(), cost.workload.clone(), version(cost));
    let mut keys: Vec<(String, String, String)> = Vec::new();
    for cost in &record.costs {
        let key = key_of(cost);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let drawings: Vec<_> = keys
        .into_iter()
        .filter(|(_, _, version)| version == "1.3" || version == QUIC)
        .take(MAX_CHARTS)
        .enumerate()
        .map(|(number, key)| {
            let costs: Vec<&Cost> =
                record.costs.iter().filter(|cost| key_of(cost) == key).collect();
            let (server, workload, version) = key;
            let tls = if version == QUIC { "" } else { "TLS " };
            let caption = format!("{server}, {workload}, {tls}{version}: \u{b5}s a connection");
            let groups = [
                ("client", bars(record, &costs, |c| c.client_us)),
                ("server", bars(record, &costs, |c| c.server_us)),
            ]
            .map(|(name, bars)| BarGroup { name: name.to_owned(), bars });
            let chart = BarChart {
                id: &format!("cost-{number}"),
                title: &caption,
                heading: None,
                description: "Processor time of client and server by kind of handshake; the table \
                              below has the figures.",
                unit: "\u{b5}s",
                groups: &groups,
            };
            (caption.clone(), chart.draw())
        })
        .collect();
    let body = html! {
        p { (table.lead) }
        (panels(&drawings))
        (table_html(&table))
    };
    Some(Section { id: "costs", title: table.title, short: "Costs", body })
}

fn version(cost: &Cost) -> String {
    named_version(&cost.transport, &cost.tls)
}

fn bars(record: &Record, costs: &[&Cost], time: fn(&Cost) -> f64) -> Vec<Bar> {
    let bar = |cost: &&Cost| Bar {
        name: tables::with_variant(record, cost, &cost.kind),
        class: kind_class(&cost.kind),
        value: time(cost),
        published: None,
    };
    costs.iter().map(bar).collect()
}

pub(super) fn waterfalls(record: &Record) -> Option<Section> {
    if record.waterfalls.is_empty() {
        return None;
    }
    let mut drawings = Vec::new();
    let mut tables = Vec::new();
    for waterfall in &record.waterfalls {
        let cell = &record.cells[waterfall.cell];
        let caption = format!("{}, {} {}, {}", cell.server, protocol(cell), kind(cell), path(cell));
        let chart = WaterfallChart {
            id: &format!("packets-{}", drawings.len()),
            title: &caption,
            waterfall,
            until_ms: until(record, &cell.profile),
        };
        drawings.push((caption.clone(), chart.draw()));
        tables.push(packets(&caption, waterfall));
    }
    let body = html! {
        p { "One sample near the median of each kind, drawn from its capture: time flows down, each "
            "arrow is a packet. Charts of one network share their time axis. Dotted arrows carry no "
            "data. Packets after the last byte of the response are omitted." }
        ul.legend aria-label="Legend" {
            li { span.dot.p-tcp {} "TCP, QUIC" } li { span.dot.p-tls {} "TLS handshake" }
            li { span.dot.p-early {} "early data" } li { span.dot.p-data {} "application data" }
            li { span.dot.p-dropped {} "dropped" }
        }
        (panels(&drawings))
        (folded("The packets as tables", &tables))
    };
    Some(Section { id: "packets", title: "Packets".to_owned(), short: "Packets", body })
}

/// The end of the time axis of all charts of one network.
fn until(record: &Record, profile: &str) -> f64 {
    let same = |waterfall: &&Waterfall| record.cells[waterfall.cell].profile == profile;
    let last = record
        .waterfalls
        .iter()
        .filter(same)
        .map(|waterfall| waterfall.last_byte_ms.max(waterfall.first_byte_ms));
    1.06 * last.filter(|last| last.is_finite()).fold(1e-3, f64::max)
}

fn packets(caption: &str, waterfall: &Waterfall) -> Table {
    let capture = waterfall.capture.as_ref().map_or(String::new(), |file| format!("; {file}"));
    let mut table = Table::new(
        caption,
        &format!("{}{capture}", waterfall.label),
        &[">sent ms", ">delivered ms", "from", "what", ">bytes", ">round trips"],
    );
    for packet in waterfall.packets.iter().take(MAX_PACKETS) {
        table.rows.push(vec![
            format_ms(packet.sent_ms),
            packet.delivered_ms.map_or("dropped".to_owned(), format_ms),
            if packet.up { "client" } else { "server" }.to_owned(),
            format!("{}{}", if packet.again { "again: " } else { "" }, packet.what.join(", ")),
            packet.payload.to_string(),
            packet.depth.map_or(String::new(), |depth| depth.to_string()),
        ]);
    }
    if waterfall.packets.len() > MAX_PACKETS {
        table.notes.push(format!("and {} more", waterfall.packets.len() - MAX_PACKETS));
    }
    table
}

const MAX_CHARTS: usize = 8;

const MAX_PACKETS: usize = 200;
