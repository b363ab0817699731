//! Classifies visits by their packets.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use firstflight_emulator::{CapturedPacket, Tap};
use firstflight_packets::{
    Direction, EarlyData, Event, FirstResponse, FlowFacts, LabelKind, LastResponse, Observer, Part,
    Trace,
};
use firstflight_report::VisitPackets;

use firstflight_samples::wire_packet;

/// Sorts the packets of the tap by path, for the workers.
pub(crate) struct PacketSorter<'a> {
    tap: &'a Tap,
    pending: Mutex<PendingPackets>,
}

struct PendingPackets {
    paths: Vec<Vec<CapturedPacket>>,
    /// The number of packets of all paths that the tap could not store.
    missed: u64,
}

impl<'a> PacketSorter<'a> {
    pub(crate) fn new(tap: &'a Tap, paths: usize) -> Self {
        let pending = PendingPackets { paths: vec![Vec::new(); paths], missed: 0 };
        Self { tap, pending: Mutex::new(pending) }
    }

    /// Takes the pending packets of a path. Also returns how many packets of all paths the tap has
    /// missed since the start.
    pub(crate) fn take(&self, path: usize) -> (Vec<CapturedPacket>, u64) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = self.tap.take();
        pending.missed += batch.missed;
        for packet in batch.packets {
            if let Some(queue) = pending.paths.get_mut(packet.path) {
                queue.push(packet);
            }
        }
        let missed = pending.missed;
        (pending.paths.get_mut(path).map(std::mem::take).unwrap_or_default(), missed)
    }
}

/// A visit as its packets show it.
pub(crate) struct ObservedVisit {
    /// The description for the record.
    pub packets: VisitPackets,
    /// The handshake of the page's connection. `None` if no new connection carried the page, or its
    /// packets do not show the handshake.
    pub kind: Option<LabelKind>,
    /// Why the connection has no label.
    pub unlabelled: Option<String>,
    /// The greatest delay of a packet beyond what its path emulates, in milliseconds.
    pub late_ms: f64,
    /// Packets that the tap missed during the visit.
    pub missed: u64,
    /// The protocol of the page's connection.
    pub alpn: Option<String>,
}

/// Classifies the packets of a visit to `server`. `key_log` holds the secrets of its connections.
/// Returns `None` if there are no packets.
pub(crate) fn observe(
    packets: &[CapturedPacket],
    key_log: &str,
    server: SocketAddr,
) -> Option<ObservedVisit> {
    let mut observer = Observer::new();
    observer.add_secrets(key_log);
    for packet in packets {
        observer.packet(&wire_packet(packet));
    }
    let is_to_server = |facts: &FlowFacts| facts.server == server;
    let flows = observer.finish_traced(is_to_server);
    let flows: Vec<(FlowFacts, Trace)> =
        flows.into_iter().filter_map(|(facts, trace)| Some((facts, trace?))).collect();
    if packets.is_empty() {
        return None;
    }
    let late_ns = packets.iter().map(CapturedPacket::lateness_ns).max().unwrap_or_default();
    let mut observed = ObservedVisit {
        packets: VisitPackets {
            label: "none".to_owned(),
            detail: "no new connection carried the page".to_owned(),
            connections: flows.len(),
            early_connections: flows.iter().filter(|(facts, _)| accepted_early_data(facts)).count(),
            ..VisitPackets::default()
        },
        kind: None,
        unlabelled: None,
        late_ms: late_ns as f64 / 1e6,
        missed: 0,
        alpn: None,
    };
    let first_response = |(facts, _): &&(FlowFacts, Trace)| match facts.first_response {
        FirstResponse::Seen { arrived, .. } => arrived,
        FirstResponse::None | FirstResponse::Unknown(_) => u64::MAX,
    };
    if let Some((facts, trace)) = flows.iter().min_by_key(first_response) {
        describe(&mut observed, facts, trace);
    }
    Some(observed)
}

fn accepted_early_data(facts: &FlowFacts) -> bool {
    facts.tls.as_ref().is_some_and(|tls| tls.early.outcome == EarlyData::Accepted)
}

/// Describes the page's connection.
fn describe(observed: &mut ObservedVisit, facts: &FlowFacts, trace: &Trace) {
    let since = |at: u64| at.saturating_sub(facts.started) as f64 / 1e6;
    let packets = &mut observed.packets;
    match facts.label() {
        Ok(label) => {
            packets.label = label_name(label.kind).to_owned();
            packets.detail = label.to_string();
            observed.kind = Some(label.kind);
        }
        Err(why) => {
            packets.label = "unknown".to_owned();
            packets.detail = why.to_string();
            observed.unlabelled = Some(why.to_string());
        }
    }
    if let Some(tls) = &facts.tls {
        packets.early_bytes = tls.early.plain_bytes.unwrap_or_default() as usize;
        packets.group = tls.group.map(|group| group.to_string());
        observed.alpn = tls.alpn.clone();
    }
    packets.tls_ms = request_sent_at(facts, trace)
        .zip(earliest_without_tls(facts))
        .map(|(sent, earliest)| sent.saturating_sub(earliest) as f64 / 1e6);
    if let FirstResponse::Seen { round_trips, delivered, .. } = facts.first_response {
        packets.round_trips = Some(round_trips);
        packets.first_byte_ms = delivered.map(since);
    }
    if let LastResponse::Seen { delivered, .. } = facts.last_response {
        packets.last_byte_ms = delivered.map(since);
    }
    packets.tickets = Some(ticket_count(trace));
}

/// The name of a label's kind in the record.
fn label_name(kind: LabelKind) -> &'static str {
    match kind {
        LabelKind::Full => "full",
        LabelKind::Resumed => "resumed",
        LabelKind::EarlyAccepted => "0-RTT",
        LabelKind::EarlyRefused => "refused",
    }
}

/// When a request could have been sent without TLS: over TCP when the SYN-ACK arrived, over QUIC at
/// the start, since QUIC has no other handshake.
fn earliest_without_tls(facts: &FlowFacts) -> Option<u64> {
    match facts.tcp() {
        Some(_) => facts.connected,
        None => Some(facts.started),
    }
}

/// When the client first sent application data that the server accepted. If it cannot be decrypted,
/// when it could have been sent.
fn request_sent_at(facts: &FlowFacts, trace: &Trace) -> Option<u64> {
    let early = accepted_early_data(facts);
    let is_request = |event: &Event| match *event {
        Event::EarlyData { .. } => early,
        Event::ApplicationData { .. } => true,
        // A client-initiated bidirectional stream (RFC 9000 section 2.1).
        Event::Stream { id, early: in_zero_rtt, .. } => {
            id.is_multiple_of(4) && (early || !in_zero_rtt)
        }
        _ => false,
    };
    let sent = trace.packets.iter().find(|packet| {
        packet.direction == Direction::ToServer
            && packet.carries.iter().any(|carried| is_request(&carried.event))
    });
    sent.map(|packet| packet.arrived).or(facts.setup_done)
}

/// The number of session tickets that the server sent.
fn ticket_count(trace: &Trace) -> usize {
    let sent = trace
        .packets
        .iter()
        .filter(|packet| packet.direction == Direction::ToClient && !packet.retransmission);
    let carried = sent.flat_map(|packet| &packet.carries);
    let is_start = |part| matches!(part, Part::Whole | Part::First);
    carried
        .filter(|carried| carried.event == Event::NewSessionTicket && is_start(carried.part))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_packets_there_is_no_observed_visit() {
        assert!(observe(&[], "", SocketAddr::from(([10, 77, 1, 2], 443))).is_none());
    }
}
