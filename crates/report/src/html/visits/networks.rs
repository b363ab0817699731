//! What a returning visitor gains on each access network, in one drawing.

use maud::{Markup, html};

use super::super::{Section, folded, panels};
use crate::drawing::{LadderChart, Rung, RungGroup, Spot};
use crate::figure::milliseconds;
use crate::sheets::{self, Ladder, ladders, percent};
use crate::visits::{Pair, browser, class, networks as networks_of, path};
use crate::{Figures, Record};

pub(in crate::html) fn networks(record: &Record) -> Option<Section> {
    let sheet = sheets::returning(record)?;
    let drawings: Vec<(String, Markup)> = ladders(record)
        .iter()
        .take(MAX_NETWORKS)
        .enumerate()
        .map(|(place, ladder)| (ladder.heading.clone(), draw(record, ladder, place)))
        .collect();
    let body = html! {
        p { "A return visit from the start of the navigation to the last byte (for a page with "
            "subresources, to the load event): medians with their 95 % intervals. The axis is "
            "logarithmic, so equal lengths are equal shares of the time." }
        ul.legend aria-label="Legend" {
            li { span class=(format!("dot ring {}", class("off"))) {} "0-RTT off" }
            li { span class=(format!("dot {}", class("on"))) {} "0-RTT on" }
        }
        @match drawings.as_slice() {
            [(caption, drawing)] => figure.alone { figcaption { (caption) } (drawing) }
            several => (panels(several))
        }
        (folded("The drawing as a table", std::slice::from_ref(&sheet)))
    };
    Some(Section { id: "networks", title: sheet.title, short: "Networks", body })
}

fn draw(record: &Record, ladder: &Ladder<'_>, place: usize) -> Markup {
    let group = |network: &str| {
        let pairs: Vec<&Pair<'_>> =
            ladder.pairs.iter().filter(|pair| pair.on.profile == network).collect();
        let name = path(pairs.first()?.on);
        Some(RungGroup { name, rungs: pairs.into_iter().filter_map(rung).collect() })
    };
    let groups: Vec<RungGroup> = networks_of(record).into_iter().filter_map(group).collect();
    let title = format!("Return visits, {}", ladder.heading);
    LadderChart {
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

fn rung(pair: &Pair<'_>) -> Option<Rung> {
    let (off, on) = pair.summaries()?;
    let felt = |summary: &crate::VisitSummary| {
        let load = summary.load.as_ref().filter(|_| pair.on.has_subresources());
        spot(load.unwrap_or(&summary.total))
    };
    let share = pair.percent().map_or(String::new(), |share| format!(" ({} %)", percent(share)));
    let saved = pair.difference_ms()?;
    let between = match saved.abs() >= 100.0 {
        true => format!("{saved:.0} ms"),
        false => format!("{saved:.1} ms"),
    };
    Some(Rung {
        name: browser(&pair.on.browser).to_owned(),
        from: felt(off),
        to: felt(on),
        between: between.replace('-', "\u{2212}"),
        hint: format!("{} less{share}", milliseconds(-saved)),
    })
}

fn spot(figures: &Figures) -> Spot {
    Spot { value: figures.p50_ms, interval: figures.p50_interval_ms }
}

const MAX_NETWORKS: usize = 6;
