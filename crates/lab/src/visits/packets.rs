//! What the packets of a visit show.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use firstflight_emulator::{CapturedPacket, Tap};
use firstflight_packets::{
    Direction, EarlyData, Event, FirstResponse, FlowFacts, LabelKind, LastResponse, Observer, Part,
    Trace,
};
use firstflight_report::VisitPackets;

use firstflight_samples::wire_packet;

/// The packets of the tap, for those who watch a path each.
pub(crate) struct Sorter<'a> {
    tap: &'a Tap,
    waiting: Mutex<Waiting>,
}

struct Waiting {
    paths: Vec<Vec<CapturedPacket>>,
    /// Packets that the tap did not keep; whose they were nobody knows.
    missed: u64,
}

impl<'a> Sorter<'a> {
    pub(crate) fn new(tap: &'a Tap, paths: usize) -> Self {
        Self { tap, waiting: Mutex::new(Waiting { paths: vec![Vec::new(); paths], missed: 0 }) }
    }

    /// All packets of a path that nobody has taken yet, and how many of all paths the tap has
    /// missed since the start.
    pub(crate) fn take(&self, path: usize) -> (Vec<CapturedPacket>, u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = self.tap.take();
        waiting.missed += batch.missed;
        for packet in batch.packets {
            if let Some(queue) = waiting.paths.get_mut(packet.path) {
                queue.push(packet);
            }
        }
        let missed = waiting.missed;
        (waiting.paths.get_mut(path).map(std::mem::take).unwrap_or_default(), missed)
    }
}

/// What was seen of a visit.
pub(crate) struct Seen {
    /// What goes into the record.
    pub packets: VisitPackets,
    /// What the page's connection was; `None`: no connection brought it, or it cannot be told.
    pub kind: Option<LabelKind>,
    /// Why it has no label.
    pub unlabelled: Option<String>,
    /// The latest delivery of a packet, in milliseconds.
    pub late_ms: f64,
    /// Packets that the tap missed meanwhile.
    pub missed: u64,
    /// The protocol that the page's connection agreed on.
    pub alpn: Option<String>,
}

/// Reads the packets of a visit to `server`; `key_log` has the secrets of its connections. `None`
/// if there are none.
pub(crate) fn read(packets: &[CapturedPacket], key_log: &str, server: SocketAddr) -> Option<Seen> {
    let mut observer = Observer::new();
    observer.add_secrets(key_log);
    for packet in packets {
        observer.packet(&wire_packet(packet));
    }
    let to_it = |facts: &FlowFacts| facts.server == server;
    let flows = observer.finish_traced(to_it);
    let flows: Vec<(FlowFacts, Trace)> =
        flows.into_iter().filter_map(|(facts, trace)| Some((facts, trace?))).collect();
    if packets.is_empty() {
        return None;
    }
    let late_ns = packets.iter().map(CapturedPacket::lateness_ns).max().unwrap_or_default();
    let mut seen = Seen {
        packets: VisitPackets {
            label: "none".to_owned(),
            detail: "no connection was begun that brought the page".to_owned(),
            connections: flows.len(),
            early_connections: flows.iter().filter(|(facts, _)| took_early(facts)).count(),
            ..VisitPackets::default()
        },
        kind: None,
        unlabelled: None,
        late_ms: late_ns as f64 / 1e6,
        missed: 0,
        alpn: None,
    };
    let answered = |(facts, _): &&(FlowFacts, Trace)| match facts.first_response {
        FirstResponse::Seen { arrived, .. } => arrived,
        FirstResponse::None | FirstResponse::Unknown(_) => u64::MAX,
    };
    if let Some((facts, trace)) = flows.iter().min_by_key(answered) {
        describe(&mut seen, facts, trace);
    }
    Some(seen)
}

fn took_early(facts: &FlowFacts) -> bool {
    facts.tls.as_ref().is_some_and(|tls| tls.early.verdict == EarlyData::Accepted)
}

/// Fills in what the page's connection shows.
fn describe(seen: &mut Seen, facts: &FlowFacts, trace: &Trace) {
    let since = |at: u64| at.saturating_sub(facts.started) as f64 / 1e6;
    let packets = &mut seen.packets;
    match facts.label() {
        Ok(label) => {
            packets.label = word(label.kind).to_owned();
            packets.detail = label.to_string();
            seen.kind = Some(label.kind);
        }
        Err(why) => {
            packets.label = "unknown".to_owned();
            packets.detail = why.to_string();
            seen.unlabelled = Some(why.to_string());
        }
    }
    if let Some(tls) = &facts.tls {
        packets.early_bytes = tls.early.plain_bytes.unwrap_or_default() as usize;
        packets.group = tls.group.map(|group| group.to_string());
        seen.alpn = tls.alpn.clone();
    }
    packets.tls_ms = asked_at(facts, trace)
        .zip(without_tls(facts))
        .map(|(asked, least)| asked.saturating_sub(least) as f64 / 1e6);
    if let FirstResponse::Seen { round_trips, delivered, .. } = facts.first_response {
        packets.round_trips = Some(round_trips);
        packets.first_byte_ms = delivered.map(since);
    }
    if let LastResponse::Seen { delivered, .. } = facts.last_response {
        packets.last_byte_ms = delivered.map(since);
    }
    packets.tickets = Some(tickets(trace));
}

/// A label's kind as the record has it.
fn word(kind: LabelKind) -> &'static str {
    match kind {
        LabelKind::Full => "full",
        LabelKind::Resumed => "resumed",
        LabelKind::EarlyAccepted => "0-RTT",
        LabelKind::EarlyRefused => "refused",
    }
}

/// When a request could have left if there were no TLS: over TCP when the SYN-ACK had come, over
/// QUIC, which has no handshake but TLS's, at the start.
fn without_tls(facts: &FlowFacts) -> Option<u64> {
    match facts.tcp() {
        Some(_) => facts.connected,
        None => Some(facts.started),
    }
}

/// When the client first sent application data that the server took. Where nothing of it can be
/// read, when it could have.
fn asked_at(facts: &FlowFacts, trace: &Trace) -> Option<u64> {
    let early = took_early(facts);
    let asks = |event: &Event| match *event {
        Event::EarlyData { .. } => early,
        Event::ApplicationData { .. } => true,
        // A stream of a request (RFC 9000 section 2.1).
        Event::Stream { id, early: in_zero_rtt, .. } => {
            id.is_multiple_of(4) && (early || !in_zero_rtt)
        }
        _ => false,
    };
    let sent = trace.packets.iter().find(|packet| {
        packet.direction == Direction::ToServer
            && packet.carries.iter().any(|carried| asks(&carried.event))
    });
    sent.map(|packet| packet.arrived).or(facts.setup_done)
}

/// Session tickets that the server sent.
fn tickets(trace: &Trace) -> usize {
    let sent = trace
        .packets
        .iter()
        .filter(|packet| packet.direction == Direction::ToClient && !packet.retransmission);
    let carried = sent.flat_map(|packet| &packet.carries);
    let is_one = |part| matches!(part, Part::Whole | Part::First);
    carried
        .filter(|carried| carried.event == Event::NewSessionTicket && is_one(carried.part))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_from_nothing() {
        assert!(read(&[], "", SocketAddr::from(([10, 77, 1, 2], 443))).is_none());
    }
}
