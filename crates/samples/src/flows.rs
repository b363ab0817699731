//! Finds the packets of each sample, and compares what they show with what was requested.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use firstflight_emulator::{Batch, CapturedPacket, Direction as Way};
use firstflight_packets::{
    Direction, FastOpen, FirstResponse, FlowFacts, Label, LabelKind, LabelTransport, LastResponse,
    Observer, Packet, QuicFacts, TlsVersion, TokenOrigin, Trace,
};
use firstflight_report::Sample;
use firstflight_tls::Version;

use crate::{ClientRecord, Kind, RequestedConnection, Transport};

/// The connections of a stretch of a run, by their two ends.
pub struct Flows {
    flows: HashMap<(SocketAddr, SocketAddr), Vec<Flow>>,
    /// Where the packets of a client's port are in the batch.
    by_port: HashMap<u16, Vec<usize>>,
}

/// A connection and what its packets show.
pub struct Flow {
    /// What the packets show.
    pub facts: FlowFacts,
    /// Packet by packet, where that was wanted.
    pub trace: Option<Trace>,
    /// The latest delivery among its packets, in nanoseconds.
    pub lateness_ns: u64,
    /// Bytes of IP packets on the way to the first byte of the response.
    pub bytes: Bytes,
    /// What dropped packets of it, by the link's own word.
    pub dropped_by: Option<&'static str>,
}

/// Bytes of the packets that carried something, acknowledgements left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// To the server.
    pub up: u64,
    /// To the client.
    pub down: u64,
}

impl Flows {
    /// Reads the packets of a stretch. Connections of the samples in `traced` keep their packets'
    /// story.
    pub fn new(batch: &Batch, key_log: &str, traced: &HashSet<SocketAddr>) -> Self {
        let mut observer = Observer::new();
        observer.add_secrets(key_log);
        let mut by_port: HashMap<u16, Vec<usize>> = HashMap::new();
        for (place, packet) in batch.packets.iter().enumerate() {
            observer.packet(&wire_packet(packet));
            if let Some(port) = client_port(&packet.frame, packet.direction) {
                by_port.entry(port).or_default().push(place);
            }
        }
        let mut flows: HashMap<_, Vec<Flow>> = HashMap::new();
        for (facts, trace) in observer.finish_traced(|facts| traced.contains(&facts.client)) {
            let places = by_port.get(&facts.client.port()).into_iter().flatten();
            let packets = places.map(|place| &batch.packets[*place]);
            let ends = (facts.client, facts.server);
            flows.entry(ends).or_default().push(Flow::new(facts, trace, packets));
        }
        Self { flows, by_port }
    }

    /// The packets of the batch that have this connection's port.
    pub fn packets<'b>(
        &self,
        batch: &'b Batch,
        flow: &Flow,
    ) -> impl Iterator<Item = &'b CapturedPacket> {
        let places = self.by_port.get(&flow.facts.client.port()).into_iter().flatten();
        places.map(|place| &batch.packets[*place])
    }

    /// The connection of a sample: that between its ends which started when it did, for ports come
    /// back.
    pub fn flow(&self, taken: &ClientRecord) -> Option<&Flow> {
        if let Some(random) = &taken.client_random {
            let is_it = |flow: &&Flow| {
                flow.facts.tls.as_ref().is_some_and(|tls| tls.client_random[..] == random[..])
            };
            return self.flows().find(is_it);
        }
        let flows = self.flows.get(&(taken.local?, taken.server))?;
        flows.iter().min_by_key(|flow| flow.facts.started.abs_diff(taken.began_ns))
    }

    /// All connections.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.flows.values().flatten()
    }
}

/// What times and packets say, before it is held against anything.
pub fn described(taken: &ClientRecord, flow: Option<&Flow>, origin_ns: u64) -> Sample {
    let mut sample = Sample {
        cell: taken.slot.cell,
        block: taken.slot.block,
        at_ms: milliseconds(taken.began_ns.saturating_sub(origin_ns)),
        ..Sample::default()
    };
    if let Some(Flow { facts, lateness_ns, .. }) = flow {
        sample.lateness_us = *lateness_ns as f64 / 1e3;
        sample.round_trips = facts.round_trips();
        sample.label = facts.label().ok().map(|label| label.to_string());
        sample.dropped = facts.transport.dropped();
        if let FirstResponse::Seen { delivered: Some(delivered), .. } = facts.first_response {
            // Both delays lie between these moments: the tap stamps a packet before it delays it,
            // and again when it hands it over.
            sample.wire_ms = Some(milliseconds(delivered.saturating_sub(facts.started)));
        }
        if let LastResponse::Seen { round_trips, delivered, .. } = facts.last_response {
            sample.total_round_trips = Some(round_trips);
            let took = |delivered: u64| milliseconds(delivered.saturating_sub(facts.started));
            sample.wire_total_ms = delivered.map(took);
        }
    }
    if taken.client_random.is_some() {
        // To the delivery by the link: what the client then does is not in it.
        let setup = flow.and_then(|flow| Some((flow.facts.setup_done?, flow.facts.started)));
        sample.setup_ms = setup.map(|(done, started)| milliseconds(done.saturating_sub(started)));
        (sample.time_ms, sample.total_ms) = (sample.wire_ms, sample.wire_total_ms);
    } else if let Ok(times) = &taken.outcome {
        sample.setup_ms = times.setup.map(|setup| setup.as_secs_f64() * 1e3);
        sample.time_ms = Some(times.first_byte.as_secs_f64() * 1e3);
        sample.total_ms = Some(times.total.as_secs_f64() * 1e3);
    }
    sample
}

impl Flow {
    fn new<'b>(
        facts: FlowFacts,
        trace: Option<Trace>,
        packets: impl Iterator<Item = &'b CapturedPacket>,
    ) -> Self {
        let during = facts.started..=facts.ended.max(facts.started);
        let answered = match facts.first_response {
            FirstResponse::Seen { arrived, .. } => arrived,
            FirstResponse::None | FirstResponse::Unknown(_) => facts.ended,
        };
        let mut flow =
            Self { facts, trace, lateness_ns: 0, bytes: Bytes::default(), dropped_by: None };
        for packet in packets.filter(|packet| during.contains(&packet.arrival_ns)) {
            if packet.dropped_by.is_some() {
                flow.dropped_by = packet.dropped_by;
                continue;
            }
            flow.lateness_ns = flow.lateness_ns.max(packet.lateness_ns());
            if packet.arrival_ns <= answered && packet.length > BARE_ACKNOWLEDGEMENT {
                let bytes = (packet.length - ETHERNET) as u64;
                match packet.direction {
                    Way::Up => flow.bytes.up += bytes,
                    Way::Down => flow.bytes.down += bytes,
                }
            }
        }
        flow
    }

    /// How many packets were dropped, and by what, in words.
    pub fn dropped(&self) -> String {
        let count = self.facts.transport.dropped();
        format!("{count} packets dropped by {}", self.dropped_by.unwrap_or("the link"))
    }
}

/// The label that a connection has to have.
pub fn wanted(asked: &RequestedConnection) -> Label {
    let kind = match asked.kind {
        Kind::Full => LabelKind::Full,
        Kind::Resumed => LabelKind::Resumed,
        Kind::ZeroRtt => LabelKind::EarlyAccepted,
        Kind::Refused => LabelKind::EarlyRefused,
    };
    let tfo = if asked.tfo { FastOpen::Used } else { FastOpen::Off };
    let transport = match asked.transport {
        Transport::Tcp => LabelTransport::Tcp(tfo),
        Transport::Quic => LabelTransport::Quic,
    };
    Label { version: tls_version(asked.version), kind, transport }
}

/// What a connection is instead of what was requested; `None`: it is what was requested.
pub fn wrong(facts: &FlowFacts, asked: &RequestedConnection) -> Option<String> {
    wrong_but_for_group(facts, asked).or_else(|| {
        let group = facts.tls.as_ref()?.group.filter(|_| asked.version == Version::Tls13)?;
        let (group, label) = (group.to_string(), facts.label().ok()?);
        (group != asked.group.name()).then(|| format!("{label}, group {group}"))
    })
}

/// The same, whatever the group of the key exchange.
pub fn wrong_but_for_group(facts: &FlowFacts, asked: &RequestedConnection) -> Option<String> {
    let label = match facts.label() {
        Err(why) => return Some(why.to_string()),
        Ok(label) => label,
    };
    if label != wanted(asked) {
        return Some(label.to_string());
    }
    let tls = facts.tls.as_ref()?;
    if tls.hello_retry_requests > 0 {
        return Some(format!("{label}, after a HelloRetryRequest"));
    }
    let wrong = facts.quic().and_then(|quic| wrong_token(quic, asked))?;
    Some(format!("{label}, {wrong}"))
}

/// How a connection showed its address, if that is not what was requested.
fn wrong_token(quic: &QuicFacts, asked: &RequestedConnection) -> Option<&'static str> {
    let brought = quic.token.is_some_and(|token| token.origin == TokenOrigin::NewToken);
    match (quic.retries, brought) {
        (1.., _) => Some("after a Retry"),
        (0, false) if asked.token => Some("without an address token"),
        (0, true) if !asked.token => Some("with an address token"),
        _ => None,
    }
}

/// A version in the terms of the packets.
pub fn tls_version(version: Version) -> TlsVersion {
    match version {
        Version::Tls10 => TlsVersion::Tls10,
        Version::Tls11 => TlsVersion::Tls11,
        Version::Tls12 => TlsVersion::Tls12,
        Version::Tls13 => TlsVersion::Tls13,
    }
}

/// A packet of the link in the terms of the judge.
pub fn wire_packet(packet: &CapturedPacket) -> Packet<'_> {
    Packet {
        direction: match packet.direction {
            Way::Up => Direction::ToServer,
            Way::Down => Direction::ToClient,
        },
        arrived: packet.arrival_ns,
        delivered: packet.dropped_by.is_none().then_some(packet.delivered_ns),
        frame: &packet.frame,
    }
}

/// The client's port in an Ethernet frame with IP and TCP in it.
pub fn client_port(frame: &[u8], way: Way) -> Option<u16> {
    let ip = frame.get(ETHERNET..)?;
    let header = match ip.first()? >> 4 {
        6 => 40,
        _ => usize::from(ip.first()? & 0xf) * 4,
    };
    let tcp = ip.get(header..)?;
    let at = match way {
        Way::Up => 0,
        Way::Down => 2,
    };
    Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]))
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

const ETHERNET: usize = 14;

/// An Ethernet frame with IPv4, TCP, time stamps and two blocks of SACK, and no payload.
const BARE_ACKNOWLEDGEMENT: usize = ETHERNET + 20 + 20 + 12 + 20;
