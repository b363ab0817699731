//! What was tried beside the matrix: attack, middleboxes, load, costs.

use maud::{Markup, html};

use super::{Section, folded, panels, table};
use crate::axes::{QUIC, named_version};
use crate::drawing::{Bar, BarChart, BarGroup, kind_class};
use crate::sheets::{self, Sheet};
use crate::{Cost, Record};

pub(super) fn replays(record: &Record) -> Option<Section> {
    let sheet = sheets::replays(record)?;
    plain("replay", "Attack", sheet)
}

pub(super) fn middleboxes(record: &Record) -> Option<Section> {
    plain("middleboxes", "Middleboxes", sheets::middleboxes(record)?)
}

pub(super) fn loads(record: &Record) -> Option<Section> {
    let sheet = sheets::loads(record)?;
    let mut more = Sheet::new(
        "Handshakes and errors",
        "What the TLS state says of the handshakes, what failed, and the times of set-up and total.",
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
            latency.as_ref().map_or("-".to_owned(), |l| crate::figure::bare(l.p50_ms))
        };
        more.rows.push(vec![
            load.server.clone(),
            sheets::model(load),
            load.http.clone(),
            load.kind.clone(),
            crate::figure::count(load.completed as f64),
            list(&load.handshakes),
            list(&load.errors),
            p50(&load.setup),
            p50(&load.total),
        ]);
    }
    let body = html! {
        p { (sheet.lead) }
        (panels(&rates(record)))
        (table(&sheet))
        (folded("Handshakes and errors", &[more]))
    };
    Some(Section { id: "load", title: sheet.title, short: "Load", body })
}

/// Connections a second of the closed runs, where that is the result, by how they were made.
fn rates(record: &Record) -> Vec<(String, Markup)> {
    let mut groups: Vec<BarGroup> = Vec::new();
    for load in record.loads.iter().filter(|load| load.rate_wanted.is_none()) {
        let name = format!("{}, HTTP/{}, {}", load.server, load.http, sheets::model(load));
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
    groups.truncate(MAX_ROWS);
    if groups.is_empty() {
        return Vec::new();
    }
    let caption = "Connections a second, closed loop".to_owned();
    let chart = BarChart {
        id: "rates",
        title: &caption,
        description: "Connections a second by kind of handshake; the table below has the figures.",
        unit: "connections/s",
        groups: &groups,
    };
    vec![(caption.clone(), chart.draw())]
}

pub(super) fn costs(record: &Record) -> Option<Section> {
    let sheet = sheets::costs(record)?;
    let place = |cost: &Cost| (cost.server.clone(), cost.workload.clone(), version(cost));
    let mut captions: Vec<(String, String, String)> = Vec::new();
    for cost in &record.costs {
        let caption = place(cost);
        if !captions.contains(&caption) {
            captions.push(caption);
        }
    }
    let drawings: Vec<_> = captions
        .into_iter()
        .filter(|(_, _, version)| version == "1.3" || version == QUIC)
        .take(MAX_ROWS)
        .enumerate()
        .map(|(number, whose)| {
            let of: Vec<&Cost> = record.costs.iter().filter(|c| place(c) == whose).collect();
            let (server, workload, version) = whose;
            let tls = if version == QUIC { "" } else { "TLS " };
            let caption = format!("{server}, {workload}, {tls}{version}: \u{b5}s a connection");
            let groups =
                [("client", bars(&of, |c| c.client_us)), ("server", bars(&of, |c| c.server_us))]
                    .map(|(name, bars)| BarGroup { name: name.to_owned(), bars });
            let chart = BarChart {
                id: &format!("cost-{number}"),
                title: &caption,
                description: "Processor time of client and server by kind of handshake; the table \
                              below has the figures.",
                unit: "\u{b5}s",
                groups: &groups,
            };
            (caption.clone(), chart.draw())
        })
        .collect();
    let body = html! {
        p { (sheet.lead) }
        (panels(&drawings))
        (table(&sheet))
    };
    Some(Section { id: "costs", title: sheet.title, short: "Costs", body })
}

fn version(cost: &Cost) -> String {
    named_version(&cost.transport, &cost.tls)
}

fn bars(costs: &[&Cost], of: fn(&Cost) -> f64) -> Vec<Bar> {
    let bar = |cost: &&Cost| Bar {
        name: cost.kind.clone(),
        class: kind_class(&cost.kind),
        value: of(cost),
        published: None,
    };
    costs.iter().map(bar).collect()
}

fn plain(id: &'static str, short: &'static str, sheet: Sheet) -> Option<Section> {
    let body = html! {
        p { (sheet.lead) }
        (table(&sheet))
    };
    Some(Section { id, title: sheet.title, short, body })
}

const MAX_ROWS: usize = 8;
