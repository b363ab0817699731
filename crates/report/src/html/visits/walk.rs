//! The walk-through's table beside its published figures.

use maud::{Markup, html};

use super::super::Section;
use super::figures;
use crate::figure::{bare, signed};
use crate::published::{WalkThrough, walk_through as published};
use crate::sheets::{how_many, range, walked};
use crate::visits::{Pair, browser, page};
use crate::{Record, sheets};

pub(in crate::html) fn walk_through(record: &Record) -> Option<Section> {
    let sheet = sheets::walk_through(record)?;
    let pairs = walked(record);
    let visits = how_many(pairs.iter().filter_map(Pair::summaries).flat_map(|(a, b)| [a, b]))?;
    let mut pages: Vec<&str> = pairs.iter().map(|pair| &*pair.on.page).collect();
    pages.dedup();
    let body = html! {
        p { "What a returning visitor waits for at 112 ms round-trip time, 0-RTT off and on. TLS set-up "
            "and total are what the browser says, in ms: median, below it the 95 % interval and what "
            "the packets say of the same. " (visits) ". The published figures were read off Firefox's "
            "network panel by hand, in 2019; it showed the 0 as \u{2212}1." }
        div.scroll tabindex="0" role="region" aria-label=(sheet.title) {
            table.matrix.walk {
                caption.hidden { (sheet.title) }
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
    Some(Section { id: "walk-through", title: sheet.title, short: "Walk-through", body })
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
    crate::figure::count(ms.round())
}

fn signed_whole(ms: f64) -> String {
    whole(ms).replace('-', "\u{2212}")
}

fn row(pair: &Pair<'_>) -> Markup {
    let Some((off, on)) = pair.summaries() else { return html! {} };
    html! { tr {
        th scope="row" { (browser(&pair.on.browser)) }
        td {
            (pair.on.server)
            span.sub { "HTTP/" (pair.on.http) }
            @if let Some(early) = pair.not_all_early() { span.sub { (early) } }
        }
        @for visit in [off, on] { td.n { (figures(visit.tls.as_ref(), visit.wire_tls.as_ref())) } }
        @for visit in [off, on] { td.n { (figures(Some(&visit.total), visit.wire_total.as_ref())) } }
        td.n {
            b.saving { (pair.difference_ms().map_or("-".to_owned(), signed)) }
            @if let Some(interval) = pair.interval() { span.sub { (range(&interval)) } }
            @if let Some(trips) = pair.round_trips() { span.sub { (bare(trips.abs())) " round trips" } }
        }
    } }
}
