//! What visits say in a sentence or two.

use super::on;
use crate::Record;
use crate::figure::count;
use crate::published::{WALK_THROUGH, WALK_THROUGH_RTT_MS};
use crate::sheets::ladders;
use crate::visits::{Pair, browser, page, pairs, path};

/// The visits in sentences, the most important first.
pub(super) fn sentences(record: &Record) -> Vec<String> {
    let mut sentences = Vec::new();
    sentences.extend(main_sentence(&typical(record)));
    sentences.extend(networks(record));
    let cells = record.visit_cells.iter().filter(|cell| cell.visit == "on");
    let summaries = cells.filter_map(|cell| cell.summary.as_ref());
    let (early, visits) =
        summaries.fold((0, 0), |sum, summary| (sum.0 + summary.early, sum.1 + summary.visits));
    if visits > 0 {
        sentences.push(format!(
            "By their packets, {} of {} return visits with 0-RTT on had early data that the server \
             accepted.",
            count(early as f64),
            count(visits as f64)
        ));
    }
    sentences
}

/// The pairs that stand for the run, browser by browser, if early data came about in them: of the
/// smallest page, at the walk-through's round-trip time if it was measured, at the record's first
/// server.
pub(crate) fn typical(record: &Record) -> Vec<Pair<'_>> {
    let tells = |pair: &Pair<'_>| pair.is_early() && pair.medians().is_some();
    let pairs: Vec<Pair<'_>> = pairs(record).into_iter().filter(tells).collect();
    let rank = |pair: &Pair<'_>| {
        let pages = ["small", "resources", "image"];
        let page = pages.iter().position(|page| *page == pair.on.page);
        let server = record.servers.iter().position(|server| server.name == pair.on.server);
        let rtt_ms = pair.on.rtt_ms.max(1e-3);
        let walked = rtt_ms.total_cmp(&WALK_THROUGH_RTT_MS).is_ne();
        let far = ((rtt_ms / 30.0).ln().abs() * 1e6) as u64;
        (page.unwrap_or(pages.len()), walked, far, server.unwrap_or(usize::MAX))
    };
    let Some(best) = pairs.iter().min_by_key(|pair| rank(pair)) else { return Vec::new() };
    let like = best.on;
    let same = |pair: &&Pair<'_>| {
        (&pair.on.server, &pair.on.profile, &pair.on.http, &pair.on.page)
            == (&like.server, &like.profile, &like.http, &like.page)
    };
    pairs.iter().filter(same).cloned().collect()
}

fn main_sentence(pairs: &[Pair<'_>]) -> Option<String> {
    let like = pairs.first()?.on;
    let parts: Vec<String> = pairs
        .iter()
        .filter_map(|pair| {
            let (off, on) = pair.medians()?;
            let who = browser(&pair.on.browser);
            Some(format!("after {} instead of {} ms in {who}", felt(on), felt(off)))
        })
        .collect();
    let trips: Vec<f64> = pairs.iter().filter_map(Pair::round_trips).collect();
    let low = trips.iter().copied().fold(f64::INFINITY, f64::min);
    let high = trips.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let end = match () {
        () if trips.is_empty() => ".".to_owned(),
        // Sooner is less than 0.
        () if format!("{low:.1} {high:.1}") == "-1.0 -1.0" => ": one round trip sooner.".to_owned(),
        () if high < 0.0 && format!("{low:.1}") == format!("{high:.1}") => {
            format!(": {:.1} round trips sooner.", -high)
        }
        () if high < 0.0 => format!(": {:.1} to {:.1} round trips sooner.", -high, -low),
        () => ".".to_owned(),
    };
    let article = if like.page == "image" { "an" } else { "a" };
    Some(format!(
        "{}, 0-RTT brings a returning visitor {article} {} {}{end}",
        on(if like.profile == WALK_THROUGH { "" } else { &like.profile }, like.rtt_ms),
        page(&like.page),
        parts.join(", and "),
    ))
}

/// Milliseconds as people feel them: no decimals from 10 on.
fn felt(ms: f64) -> String {
    if ms.abs() < 10.0 { format!("{ms:.1}") } else { count(ms.round()) }
}

fn networks(record: &Record) -> Option<String> {
    let ladders = ladders(record);
    let ladder = ladders.first()?;
    let early = ladder.pairs.iter().filter(|pair| pair.is_early());
    let percents: Vec<f64> = early.filter_map(Pair::percent).map(|p| -p).collect();
    if percents.is_empty() {
        return None;
    }
    let low = percents.iter().copied().fold(f64::INFINITY, f64::min);
    let high = percents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (first, last) = (ladder.pairs.first()?, ladder.pairs.last()?);
    let range = match format!("{low:.0}") == format!("{high:.0}") {
        true => format!("{high:.0} %"),
        false => format!("{low:.0} to {high:.0} %").replace('-', "\u{2212}"),
    };
    Some(format!(
        "Over {} access networks from {} to {} it saves {range} of a return visit's time.",
        ladder.networks(),
        path(first.on),
        path(last.on),
    ))
}
