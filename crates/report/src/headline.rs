//! The results of a run in a few sentences.

use crate::axes::{Axis, network, path, same_except};
use crate::format::{count, format_ms_unit};
use crate::published::{WALK_THROUGH, WALK_THROUGH_RTT_MS};
use crate::tables::network_series;
use crate::visits::{VisitPair, browser, page, pairs};
use crate::{Cell, Record, visits};

/// Time to the first byte with a full handshake and with 0-RTT, all else equal.
#[derive(Clone, Debug)]
pub(crate) struct Saving<'a> {
    pub early: &'a Cell,
    /// Whether 0 lies outside the interval of the difference; `None` with too few samples for one.
    pub significant: Option<bool>,
    pub full_ms: f64,
    pub early_ms: f64,
    /// 0-RTT with TCP Fast Open, if measured.
    pub early_tfo_ms: Option<f64>,
    /// 0-RTT over QUIC, if measured beside TCP.
    pub early_quic_ms: Option<f64>,
}

impl Saving<'_> {
    pub(crate) fn saved_ms(&self) -> f64 {
        self.full_ms - self.early_ms
    }

    /// The saving in percent of the full handshake's time.
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.saved_ms() / self.full_ms.max(f64::MIN_POSITIVE)
    }
}

/// What 0-RTT saves on each network at the record's first server, the longest path first: for HTTP
/// if measured, otherwise for ping-pong; over TCP if measured.
pub(crate) fn savings(record: &Record) -> Vec<Saving<'_>> {
    let cells = || record.cells.iter().filter(|cell| !cell.control && cell.tls == "1.3");
    let tcp = cells().any(|cell| cell.kind == "0-RTT" && !cell.over_quic());
    let early =
        || cells().filter(|c| c.kind == "0-RTT" && !c.tfo && !c.token && c.over_quic() != tcp);
    let server = record.servers.first().map(|server| server.name.as_str());
    let server = server.filter(|name| early().any(|cell| cell.server == *name));
    let server = server.or_else(|| early().next().map(|cell| cell.server.as_str()));
    let workload = if early().any(|cell| cell.workload == "get") { "get" } else { "ping-pong" };
    let mut savings: Vec<Saving<'_>> = Vec::new();
    for cell in early().filter(|c| Some(c.server.as_str()) == server && c.workload == workload) {
        if savings.iter().any(|saving| saving.early.profile == cell.profile) {
            continue;
        }
        let other = |kind: &str, tfo: bool| {
            let axes = [Axis::Kind, Axis::Tfo, Axis::Token];
            cells().find(|other| {
                other.kind == kind
                    && (other.tfo, other.token) == (tfo, false)
                    && same_except(other, cell, &axes)
            })
        };
        let p50 = |cell: &Cell| cell.summary.as_ref().map(|summary| summary.first_byte.p50_ms);
        let Some(full) = other("full", false) else { continue };
        let (Some(full_ms), Some(early_ms)) = (p50(full), p50(cell)) else { continue };
        let early_tfo_ms = other("0-RTT", true).and_then(p50);
        let quic = cells().find(|other| {
            let axes = [Axis::Transport, Axis::Http, Axis::Tfo, Axis::Token];
            tcp && other.over_quic() && other.kind == "0-RTT" && same_except(other, cell, &axes)
        });
        let early_quic_ms = quic.and_then(p50);
        let index = |cell: &Cell| record.cells.iter().position(|other| std::ptr::eq(other, cell));
        let pair = (index(full), index(cell));
        let effect =
            record.effects.iter().find(|effect| (Some(effect.from), Some(effect.to)) == pair);
        savings.push(Saving {
            early: cell,
            significant: effect.map(|effect| effect.significant),
            full_ms,
            early_ms,
            early_tfo_ms,
            early_quic_ms,
        });
    }
    savings.sort_by(|a, b| b.early.rtt_ms.total_cmp(&a.early.rtt_ms));
    savings
}

/// The results of a run in sentences, the most important first.
pub(crate) fn sentences(record: &Record) -> Vec<String> {
    let mut sentences = Vec::new();
    let savings = savings(record);
    // The network closest to a typical visitor's.
    let typical = savings.iter().min_by(|a, b| {
        let distance = |saving: &Saving<'_>| (saving.early.rtt_ms.max(1e-3) / 30.0).ln().abs();
        distance(a).total_cmp(&distance(b))
    });
    if let Some(saving) = typical {
        sentences.push(saving_sentence(saving));
    }
    let certain: Vec<_> =
        savings.iter().filter(|saving| saving.significant == Some(true)).collect();
    if certain.len() > 1 {
        let percents = certain.iter().map(|saving| saving.percent());
        let low = percents.clone().fold(f64::INFINITY, f64::min);
        let high = percents.fold(f64::NEG_INFINITY, f64::max);
        let (first, last) = (certain[certain.len() - 1], certain[0]);
        let range = match format!("{low:.0}") == format!("{high:.0}") {
            true => format!("{high:.0} %"),
            false => format!("{low:.0} to {high:.0} %"),
        };
        let networks = match (certain.len(), savings.len()) {
            (all, measured) if all == measured => all.to_string(),
            (some, all) => format!("{some} of {all}"),
        };
        let networks_with =
            |significant| savings.iter().filter(|s| s.significant == significant).count();
        let others = [
            (networks_with(Some(false)), "there is no difference beyond chance"),
            (networks_with(None), "there are too few samples to say"),
        ];
        let others: String = (others.iter().filter(|(networks, _)| *networks > 0))
            .map(|(networks, why)| format!("; on {networks} {why}"))
            .collect();
        sentences.push(format!(
            "Over {networks} networks from {} to {} it saves {range} of the time to the first \
             byte{others}.",
            path(first.early),
            path(last.early),
        ));
    }
    if !record.replays.is_empty() {
        sentences.push(replay_sentence(record));
    }
    sentences.extend(visit_sentences(record));
    sentences
}

fn saving_sentence(saving: &Saving<'_>) -> String {
    let trips = saving.saved_ms() / saving.early.rtt_ms.max(f64::MIN_POSITIVE);
    let less = if saving.saved_ms() >= 0.0 { "sooner" } else { "later" };
    let tfo = saving.early_tfo_ms.map_or(String::new(), |ms| {
        format!(", and after {} with TCP Fast Open", format_ms_unit(ms))
    });
    let quic = saving
        .early_quic_ms
        .map_or(String::new(), |ms| format!(", and after {} over QUIC", format_ms_unit(ms)));
    let trips = match saving.early.counts_in_round_trips() {
        true => format!(" or {:.1} round trips", trips.abs()),
        false => String::new(),
    };
    let difference = format!("{}{trips} {less}", format_ms_unit(saving.saved_ms().abs()));
    let difference = match saving.significant {
        Some(true) => difference,
        Some(false) => "no difference beyond chance".to_owned(),
        None => format!("{difference}, from too few samples to exclude chance"),
    };
    format!(
        "{}, 0-RTT brings the first byte of a new connection after {} instead of {}: {difference}\
         {tfo}{quic}.",
        network_phrase(&saving.early.profile, saving.early.rtt_ms),
        format_ms_unit(saving.early_ms),
        format_ms_unit(saving.full_ms),
    )
}

/// The network as the start of a sentence.
fn network_phrase(profile: &str, rtt_ms: f64) -> String {
    let rtt = format!("{rtt_ms} ms");
    match network(profile, rtt_ms) {
        name if name == rtt => format!("At {rtt} round-trip time"),
        _ => format!("On {profile} ({rtt} round-trip time)"),
    }
}

/// The servers that executed replays.
fn replay_sentence(record: &Record) -> String {
    let parts: Vec<String> = record
        .replays
        .iter()
        .map(|replay| match replay.executed {
            0 => format!("{} executed none of {}", replay.name(), replay.tries),
            all if all == replay.tries => format!("{} executed all {all}", replay.name()),
            some => format!("{} executed {some} of {}", replay.name(), replay.tries),
        })
        .collect();
    format!("Of first flights that an attacker resent, {}.", parts.join(", "))
}

/// The results of visits in sentences, the most important first.
pub(super) fn visit_sentences(record: &Record) -> Vec<String> {
    let mut sentences = Vec::new();
    sentences.extend(visit_saving_sentence(&typical_visits(record)));
    sentences.extend(networks(record));
    let cells = record.visit_cells.iter().filter(|cell| cell.visit == "on");
    let summaries = cells.filter_map(|cell| cell.summary.as_ref());
    let (early, total) =
        summaries.fold((0, 0), |sum, summary| (sum.0 + summary.early, sum.1 + summary.visits));
    if total > 0 {
        sentences.push(format!(
            "By their packets, {} of {} return visits with 0-RTT on had early data that the server \
             accepted.",
            count(early as f64),
            count(total as f64)
        ));
    }
    sentences
}

/// The representative pairs of a run, one for each browser, if their visits had early data: of the
/// smallest page, at the walk-through's round-trip time if measured, at the record's first server.
pub(crate) fn typical_visits(record: &Record) -> Vec<VisitPair<'_>> {
    let is_notable = |pair: &VisitPair<'_>| pair.is_early() && pair.medians().is_some();
    let pairs: Vec<VisitPair<'_>> = pairs(record).into_iter().filter(is_notable).collect();
    let rank = |pair: &VisitPair<'_>| {
        let pages = ["small", "resources", "image"];
        let page = pages.iter().position(|page| *page == pair.on.page);
        let server = record.servers.iter().position(|server| server.name == pair.on.server);
        let rtt_ms = pair.on.rtt_ms.max(1e-3);
        let has_other_rtt = rtt_ms.total_cmp(&WALK_THROUGH_RTT_MS).is_ne();
        let distance = ((rtt_ms / 30.0).ln().abs() * 1e6) as u64;
        (page.unwrap_or(pages.len()), has_other_rtt, distance, server.unwrap_or(usize::MAX))
    };
    let Some(best) = pairs.iter().min_by_key(|pair| rank(pair)) else { return Vec::new() };
    let like = best.on;
    let same = |pair: &&VisitPair<'_>| {
        (&pair.on.server, &pair.on.profile, &pair.on.http, &pair.on.page)
            == (&like.server, &like.profile, &like.http, &like.page)
    };
    pairs.iter().filter(same).cloned().collect()
}

fn visit_saving_sentence(pairs: &[VisitPair<'_>]) -> Option<String> {
    let like = pairs.first()?.on;
    let parts: Vec<String> = pairs
        .iter()
        .filter_map(|pair| {
            let (off, on) = pair.medians()?;
            let who = browser(&pair.on.browser);
            Some(format!("after {} instead of {} ms in {who}", whole_ms(on), whole_ms(off)))
        })
        .collect();
    let trips: Vec<f64> = pairs.iter().filter_map(VisitPair::round_trips).collect();
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
        network_phrase(if like.profile == WALK_THROUGH { "" } else { &like.profile }, like.rtt_ms),
        page(&like.page),
        parts.join(", and "),
    ))
}

/// Milliseconds without decimals from 10 on.
fn whole_ms(ms: f64) -> String {
    if ms.abs() < 10.0 { format!("{ms:.1}") } else { count(ms.round()) }
}

fn networks(record: &Record) -> Option<String> {
    let network_series = network_series(record);
    let series = network_series.first()?;
    let early = series.pairs.iter().filter(|pair| pair.is_early());
    let percents: Vec<f64> = early.filter_map(VisitPair::percent).map(|p| -p).collect();
    if percents.is_empty() {
        return None;
    }
    let low = percents.iter().copied().fold(f64::INFINITY, f64::min);
    let high = percents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (first, last) = (series.pairs.first()?, series.pairs.last()?);
    let range = match format!("{low:.0}") == format!("{high:.0}") {
        true => format!("{high:.0} %"),
        false => format!("{low:.0} to {high:.0} %").replace('-', "\u{2212}"),
    };
    Some(format!(
        "Over {} access networks from {} to {} it saves {range} of a return visit's time.",
        series.networks(),
        visits::path(first.on),
        visits::path(last.on),
    ))
}
