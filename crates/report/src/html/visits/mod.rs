//! Visits of browsers: the walk-through, access networks, filmstrips, every cell, and disagreements
//! between browser and packets.

mod cells;
mod filmstrip;
mod phases;

use maud::{Markup, html};

use super::{Section, folded, panels};
use crate::charts::{Dumbbell, DumbbellChart, DumbbellGroup, Estimate};
use crate::format::{format_ms, format_ms_minus, format_ms_unit, format_range, format_signed_ms};
use crate::published::{WalkThrough, walk_through as published};
use crate::tables::{
    self, NetworkSeries, network_series, percent, range, visits_each, walkthrough_pairs,
};
use crate::visits::{VisitPair, as_shipped, browser, class, networks as networks_of, page, path};
use crate::{Figures, Interval, Record};

pub(super) use cells::{cells, disagreements, effects};
pub use filmstrip::Pictures;
pub(super) use filmstrip::filmstrips;
pub(super) use phases::phases;

/// A median, its interval, and the same figure from the packets.
fn figures(browser: Option<&Figures>, wire: Option<&Figures>) -> Markup {
    html! {
        @if let Some(figures) = browser {
            b { (format_ms_minus(figures.p50_ms)) }
            span.sub { (format_range(figures.p50_interval_ms)) }
        } @else { b { "\u{2013}" } }
        @if let Some(wire) = wire { span.sub { "packets " (format_ms_minus(wire.p50_ms)) } }
    }
}

/// The CSS class of an effect: saving, cost or neither.
fn outcome(significant: bool, interval: &Interval) -> &'static str {
    match (significant, interval.estimate < 0.0) {
        (false, _) => "k-other",
        (true, true) => "k-saves",
        (true, false) => "k-costs",
    }
}

pub(in crate::html) fn networks(record: &Record) -> Option<Section> {
    let table = tables::returning(record)?;
    let drawings: Vec<(String, Markup)> = network_series(record)
        .iter()
        .take(MAX_NETWORKS)
        .enumerate()
        .map(|(place, series)| (series.heading.clone(), draw(record, series, place)))
        .collect();
    let body = html! {
        p { "A return visit from the start of the navigation to the last byte (for a page with "
            "subresources, to the load event): medians with their 95 % intervals. The axis is "
            "logarithmic, so equal lengths are equal shares of the time." }
        @for note in as_shipped(record) { p.note { (note) } }
        ul.legend aria-label="Legend" {
            li { span class=(format!("dot ring {}", class("off"))) {} "0-RTT off" }
            li { span class=(format!("dot {}", class("on"))) {} "0-RTT on" }
        }
        @match drawings.as_slice() {
            [(caption, drawing)] => figure.alone { figcaption { (caption) } (drawing) }
            several => (panels(several))
        }
        (folded("The drawing as a table", std::slice::from_ref(&table)))
    };
    Some(Section { id: "networks", title: table.title, short: "Networks", body })
}

fn draw(record: &Record, series: &NetworkSeries<'_>, place: usize) -> Markup {
    let group = |network: &str| {
        let pairs: Vec<&VisitPair<'_>> =
            series.pairs.iter().filter(|pair| pair.on.profile == network).collect();
        let name = path(pairs.first()?.on);
        Some(DumbbellGroup { name, dumbbells: pairs.into_iter().filter_map(dumbbell).collect() })
    };
    let groups: Vec<DumbbellGroup> = networks_of(record).into_iter().filter_map(group).collect();
    let title = format!("Return visits, {}", series.heading);
    DumbbellChart {
        id: &format!("ladder-{place}"),
        title: &title,
        description: "A line for each network and browser, from the median with 0-RTT off to the one \
                      with it on; the table below has the figures.",
        x: "ms",
        classes: [class("off"), class("on")],
        groups: &groups,
    }
    .draw()
}

fn dumbbell(pair: &VisitPair<'_>) -> Option<Dumbbell> {
    let (off, on) = pair.summaries()?;
    let shown_estimate = |summary: &crate::VisitSummary| {
        let load = summary.load.as_ref().filter(|_| pair.on.has_subresources());
        estimate_of(load.unwrap_or(&summary.total))
    };
    let share = pair.percent().map_or(String::new(), |share| format!(" ({} %)", percent(share)));
    let saved = pair.difference_ms()?;
    let between = match saved.abs() >= 100.0 {
        true => format!("{saved:.0} ms"),
        false => format!("{saved:.1} ms"),
    };
    Some(Dumbbell {
        name: browser(&pair.on.browser).to_owned(),
        from: shown_estimate(off),
        to: shown_estimate(on),
        between: between.replace('-', "\u{2212}"),
        hint: format!("{} less{share}", format_ms_unit(-saved)),
    })
}

fn estimate_of(figures: &Figures) -> Estimate {
    Estimate { value: figures.p50_ms, interval: figures.p50_interval_ms }
}

pub(in crate::html) fn walk_through(record: &Record) -> Option<Section> {
    let table = tables::walk_through(record)?;
    let pairs = walkthrough_pairs(record);
    let visits =
        visits_each(pairs.iter().filter_map(VisitPair::summaries).flat_map(|(a, b)| [a, b]))?;
    let mut pages: Vec<&str> = pairs.iter().map(|pair| &*pair.on.page).collect();
    pages.dedup();
    let body = html! {
        p { "Waiting time of a returning visitor at 112 ms round-trip time, with 0-RTT off and on. TLS setup "
            "and total are those of the browser in ms: median, 95 % interval, and the same figure from "
            "the packets. " (visits) ". The published figures were read by hand from Firefox's "
            "network panel in 2019, which showed the 0 as \u{2212}1." }
        @for note in as_shipped(record) { p.note { (note) } }
        div.scroll tabindex="0" role="region" aria-label=(table.title) {
            table.matrix.walk {
                caption.hidden { (table.title) }
                thead {
                    tr {
                        th scope="col" rowspan="2" { "browser" }
                        th scope="col" rowspan="2" { "server" }
                        th.over scope="colgroup" colspan="2" { "TLS set-up" }
                        th.over scope="colgroup" colspan="2" { "total" }
                        th.n scope="col" rowspan="2" { "saved" }
                    }
                    tr { @for head in ["off", "on", "off", "on"] { th.n scope="col" { (head) } } }
                }
                @for name in pages { tbody {
                    tr.begins { th scope="colgroup" colspan="7" { (page(name)) } }
                    @if let Some(theirs) = published(name) { (published_row(&theirs)) }
                    @for pair in pairs.iter().filter(|pair| pair.on.page == name) { (row(pair)) }
                } }
            }
        }
    };
    Some(Section { id: "walk-through", title: table.title, short: "Walk-through", body })
}

fn published_row(theirs: &WalkThrough) -> Markup {
    let [off, on] = theirs.total;
    html! { tr.theirs {
        th scope="row" { "Firefox, published" }
        td { "nginx" }
        @match theirs.tls {
            Some(tls) => { @for ms in tls { td.n { (whole(ms)) } } }
            None => { td.n { "\u{2013}" } td.n { "\u{2013}" } }
        }
        td.n { (whole(off)) } td.n { (whole(on)) }
        td.n { (signed_whole(on - off)) }
    } }
}

/// Published figures have no decimals.
fn whole(ms: f64) -> String {
    crate::format::count(ms.round())
}

fn signed_whole(ms: f64) -> String {
    whole(ms).replace('-', "\u{2212}")
}

fn row(pair: &VisitPair<'_>) -> Markup {
    let Some((off, on)) = pair.summaries() else { return html! {} };
    html! { tr {
        th scope="row" { (browser(&pair.on.browser)) }
        td {
            (pair.on.server)
            span.sub { "HTTP/" (pair.on.http) }
            @if let Some(early) = pair.early_data_share() { span.sub { (early) } }
        }
        @for visit in [off, on] { td.n { (figures(visit.tls.as_ref(), visit.wire_tls.as_ref())) } }
        @for visit in [off, on] { td.n { (figures(Some(&visit.total), visit.wire_total.as_ref())) } }
        td.n {
            b.saving { (pair.difference_ms().map_or("-".to_owned(), format_signed_ms)) }
            @if let Some(interval) = pair.interval() { span.sub { (range(&interval)) } }
            @if let Some(trips) = pair.round_trips() { span.sub { (format_ms(trips.abs())) " round trips" } }
        }
    } }
}

const MAX_NETWORKS: usize = 6;
