//! What a run says in a sentence or two.

mod visits;

use crate::axes::{Axis, network, path, same_but_for};
use crate::figure::milliseconds;
use crate::{Cell, Record};

pub(crate) use visits::typical as typical_visits;

/// The first byte by a full handshake and by 0-RTT, all else the same.
#[derive(Clone, Debug)]
pub(crate) struct Saving<'a> {
    pub early: &'a Cell,
    pub full_ms: f64,
    pub early_ms: f64,
    /// With TFO, where it was measured.
    pub early_tfo_ms: Option<f64>,
    /// Over QUIC, where it was measured beside TCP.
    pub early_quic_ms: Option<f64>,
}

impl Saving<'_> {
    pub(crate) fn saved_ms(&self) -> f64 {
        self.full_ms - self.early_ms
    }

    /// Of the full handshake's time, in percent.
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.saved_ms() / self.full_ms.max(f64::MIN_POSITIVE)
    }
}

/// What 0-RTT saves on each network at the record's first server, from the longest path down: for
/// HTTP where that was measured, for ping-pong otherwise; over TCP where that was.
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
            cells().find(|other| {
                other.kind == kind
                    && (other.tfo, other.token) == (tfo, false)
                    && other.over_quic() == cell.over_quic()
                    && (&other.experiment, &other.server, &other.workload, &other.profile)
                        == (&cell.experiment, &cell.server, &cell.workload, &cell.profile)
                    && (&other.http, &other.group, &other.certificate, other.response_bytes)
                        == (&cell.http, &cell.group, &cell.certificate, cell.response_bytes)
            })
        };
        let p50 = |cell: &Cell| cell.summary.as_ref().map(|summary| summary.first_byte.p50_ms);
        let Some(full) = other("full", false) else { continue };
        let (Some(full_ms), Some(early_ms)) = (p50(full), p50(cell)) else { continue };
        let early_tfo_ms = other("0-RTT", true).and_then(p50);
        let quic = cells().find(|other| {
            let axes = [Axis::Transport, Axis::Http, Axis::Tfo, Axis::Token];
            tcp && other.over_quic() && other.kind == "0-RTT" && same_but_for(other, cell, &axes)
        });
        let early_quic_ms = quic.and_then(p50);
        savings.push(Saving { early: cell, full_ms, early_ms, early_tfo_ms, early_quic_ms });
    }
    savings.sort_by(|a, b| b.early.rtt_ms.total_cmp(&a.early.rtt_ms));
    savings
}

/// The run in sentences, the most important first.
pub(crate) fn sentences(record: &Record) -> Vec<String> {
    let mut sentences = Vec::new();
    let savings = savings(record);
    // The network most like what a visitor has.
    let typical = savings.iter().min_by(|a, b| {
        let far = |saving: &Saving<'_>| (saving.early.rtt_ms.max(1e-3) / 30.0).ln().abs();
        far(a).total_cmp(&far(b))
    });
    if let Some(saving) = typical {
        sentences.push(main_sentence(saving));
    }
    if savings.len() > 1 {
        let percents = savings.iter().map(Saving::percent);
        let low = percents.clone().fold(f64::INFINITY, f64::min);
        let high = percents.fold(f64::NEG_INFINITY, f64::max);
        let (first, last) = (&savings[savings.len() - 1], &savings[0]);
        sentences.push(format!(
            "Over {} networks from {} to {} it saves {low:.0} to {high:.0} % of the time to the \
             first byte.",
            savings.len(),
            path(first.early),
            path(last.early),
        ));
    }
    if !record.replays.is_empty() {
        sentences.push(attack(record));
    }
    sentences.extend(visits::sentences(record));
    sentences
}

fn main_sentence(saving: &Saving<'_>) -> String {
    let trips = saving.saved_ms() / saving.early.rtt_ms.max(f64::MIN_POSITIVE);
    let less = if saving.saved_ms() >= 0.0 { "sooner" } else { "later" };
    let tfo = saving
        .early_tfo_ms
        .map_or(String::new(), |ms| format!(", and after {} with TCP Fast Open", milliseconds(ms)));
    let quic = saving
        .early_quic_ms
        .map_or(String::new(), |ms| format!(", and after {} over QUIC", milliseconds(ms)));
    let trips = match saving.early.counts_in_round_trips() {
        true => format!(" or {:.1} round trips", trips.abs()),
        false => String::new(),
    };
    format!(
        "{}, 0-RTT brings the first byte of a new connection after {} instead of {}: {}{trips} \
         {less}{tfo}{quic}.",
        on(&saving.early.profile, saving.early.rtt_ms),
        milliseconds(saving.early_ms),
        milliseconds(saving.full_ms),
        milliseconds(saving.saved_ms().abs()),
    )
}

/// The network at the start of a sentence.
fn on(profile: &str, rtt_ms: f64) -> String {
    let rtt = format!("{rtt_ms} ms");
    match network(profile, rtt_ms) {
        bare if bare == rtt => format!("At {rtt} round-trip time"),
        _ => format!("On {profile} ({rtt} round-trip time)"),
    }
}

/// Who executed replays.
fn attack(record: &Record) -> String {
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
