//! Finds the packets of each sample, and compares what they show with what was requested.
//!
//! A sample is classified by its packets alone, never by what client or server report.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_emulator::{Batch, CapturedPacket, Direction as LinkDirection};
use firstflight_packets::{
    Direction, FastOpen, FirstResponse, FlowFacts, Label, LabelKind, LabelTransport, LastResponse,
    Observer, Packet, QuicFacts, TlsVersion, TokenOrigin, Trace,
};
use firstflight_report::{Bytes, Sample};
use firstflight_tls::Version;

use crate::{HandshakeKind, RequestedConnection, Slot, Transport};

/// A connection as the client recorded it.
pub struct ClientRecord {
    /// The cell and the block of the sample.
    pub slot: Slot,
    /// When the connect call was made, on the link's clock.
    pub started_ns: u64,
    /// The client's address, by which the packets are found.
    pub local: Option<SocketAddr>,
    /// The client random, by which the packets of a third-party client are found. The times of such
    /// a sample come from its packets, and those in `outcome` are not used.
    pub client_random: Option<Vec<u8>>,
    /// The server's address.
    pub server: SocketAddr,
    /// The client's times, or why the connection failed.
    pub outcome: Result<Times, String>,
}

/// The client's times of one connection, from just before the connect call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Until the handshake was complete.
    pub setup: Option<Duration>,
    /// Until the first byte of the response.
    pub first_byte: Duration,
    /// Until its last byte.
    pub total: Duration,
}

/// A ticket age, in seconds, at which every server that checks freshness refuses early data: most
/// allow 10 s (RFC 8446 section 8.3), BoringSSL 60 s.
pub const STALE_TICKET_AGE_S: u32 = 100;

/// The connections in a batch of packets, by client and server address.
pub struct Flows {
    flows: HashMap<(SocketAddr, SocketAddr), Vec<Flow>>,
    /// The indices in the batch of the packets of each client port.
    by_port: HashMap<u16, Vec<usize>>,
}

/// A connection as its packets show it.
pub struct Flow {
    /// What the connection was.
    pub facts: FlowFacts,
    /// The packets one by one, if the connection was traced.
    pub trace: Option<Trace>,
    /// The largest lateness of a packet, in nanoseconds: how long after its due time the link
    /// delivered it.
    pub lateness_ns: u64,
    /// The part of that lateness in which the machine did not run the link, in nanoseconds.
    pub stalled_ns: u64,
    /// Bytes of IP packets until the handshake was complete, if it was.
    pub handshake_bytes: Option<Bytes>,
    /// Bytes of IP packets until the first byte of the response, or to the end if there was none.
    pub first_byte_bytes: Bytes,
    /// The cell of the link that dropped packets of this connection.
    pub dropped_by: Option<&'static str>,
}

impl Flows {
    /// Sorts the packets of a batch into connections. Those of the clients in `traced` keep a trace
    /// of their packets.
    pub fn new(batch: &Batch, key_log: &str, traced: &HashSet<SocketAddr>) -> Self {
        let mut observer = Observer::new();
        observer.add_secrets(key_log);
        let mut by_port: HashMap<u16, Vec<usize>> = HashMap::new();
        for (index, packet) in batch.packets.iter().enumerate() {
            observer.packet(&wire_packet(packet));
            if let Some(port) = client_port(&packet.frame, packet.direction) {
                by_port.entry(port).or_default().push(index);
            }
        }
        let mut flows: HashMap<_, Vec<Flow>> = HashMap::new();
        for (facts, trace) in observer.finish_traced(|facts| traced.contains(&facts.client)) {
            let indices = by_port.get(&facts.client.port()).into_iter().flatten();
            let packets = indices.map(|index| &batch.packets[*index]);
            let endpoints = (facts.client, facts.server);
            flows.entry(endpoints).or_default().push(Flow::new(facts, trace, packets));
        }
        Self { flows, by_port }
    }

    /// The packets of this connection in the batch.
    pub fn packets<'b>(
        &self,
        batch: &'b Batch,
        flow: &Flow,
    ) -> impl Iterator<Item = &'b CapturedPacket> {
        let indices = self.by_port.get(&flow.facts.client.port()).into_iter().flatten();
        let packets = indices.map(|index| &batch.packets[*index]);
        packets.filter(|packet| flow.facts.contains(&wire_packet(packet)))
    }

    /// The connection of a sample. Ports are reused: of several connections between the same
    /// addresses, the one that started closest to the sample is returned.
    pub fn flow(&self, record: &ClientRecord) -> Option<&Flow> {
        if let Some(random) = &record.client_random {
            let matches = |flow: &&Flow| {
                flow.facts.tls.as_ref().is_some_and(|tls| tls.client_random[..] == random[..])
            };
            return self.flows().find(matches);
        }
        let Some(local) = record.local else {
            // Its handshake never ended, so the client did not report its address.
            let delay = |flow: &&Flow| flow.facts.started.checked_sub(record.started_ns);
            let unfinished = self.flows().filter(|flow| {
                flow.facts.server == record.server
                    && flow.facts.setup_done.is_none()
                    && delay(flow).is_some_and(|delay| delay < MAX_CONNECT_DELAY_NS)
            });
            return unfinished.min_by_key(delay);
        };
        let flows = self.flows.get(&(local, record.server))?;
        flows.iter().min_by_key(|flow| flow.facts.started.abs_diff(record.started_ns))
    }

    /// All connections.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.flows.values().flatten()
    }
}

/// How long after the connect call the first packet may leave: time to build a ClientHello on a busy
/// machine.
const MAX_CONNECT_DELAY_NS: u64 = 100_000_000;

/// The sample of a connection, without a check against its cell. `origin_ns` is the start of the
/// run.
pub fn sample_from_flow(record: &ClientRecord, flow: Option<&Flow>, origin_ns: u64) -> Sample {
    let mut sample = Sample {
        cell: record.slot.cell,
        block: record.slot.block,
        at_ms: milliseconds(record.started_ns.saturating_sub(origin_ns)),
        ..Sample::default()
    };
    if let Some(flow @ Flow { facts, lateness_ns, stalled_ns, .. }) = flow {
        sample.handshake_bytes = flow.handshake_bytes;
        if matches!(facts.first_response, FirstResponse::Seen { .. }) {
            sample.first_byte_bytes = Some(flow.first_byte_bytes);
        }
        sample.lateness_us = *lateness_ns as f64 / 1e3;
        sample.stalled_us = *stalled_ns as f64 / 1e3;
        sample.round_trips = facts.round_trips();
        sample.label = facts.label().ok().map(|label| label.to_string());
        sample.dropped = facts.transport.dropped();
        if let FirstResponse::Seen { delivered: Some(delivered), .. } = facts.first_response {
            // This includes the link's delay both ways: the tap stamps a packet before it delays
            // it, and again when it delivers it.
            sample.wire_ms = Some(milliseconds(delivered.saturating_sub(facts.started)));
        }
        if let LastResponse::Seen { round_trips, delivered, .. } = facts.last_response {
            sample.total_round_trips = Some(round_trips);
            let took = |delivered: u64| milliseconds(delivered.saturating_sub(facts.started));
            sample.wire_total_ms = delivered.map(took);
        }
    }
    if record.client_random.is_some() {
        // Until the link delivered the packet; the client's processing is not included.
        let setup = flow.and_then(|flow| Some((flow.facts.setup_done?, flow.facts.started)));
        sample.setup_ms = setup.map(|(done, started)| milliseconds(done.saturating_sub(started)));
        (sample.time_ms, sample.total_ms) = (sample.wire_ms, sample.wire_total_ms);
    } else if let Ok(times) = &record.outcome {
        sample.setup_ms = times.setup.map(|setup| setup.as_secs_f64() * 1e3);
        sample.time_ms = Some(times.first_byte.as_secs_f64() * 1e3);
        sample.total_ms = Some(times.total.as_secs_f64() * 1e3);
    }
    sample
}

impl Flow {
    /// `packets` includes those of the connection; others are ignored. Copies that the link made
    /// count once.
    fn new<'b>(
        facts: FlowFacts,
        trace: Option<Trace>,
        packets: impl Iterator<Item = &'b CapturedPacket>,
    ) -> Self {
        let first_response = match facts.first_response {
            FirstResponse::Seen { arrived, .. } => arrived,
            FirstResponse::None | FirstResponse::Unknown(_) => facts.ended,
        };
        let setup_done = facts.setup_done;
        let mut flow = Self {
            facts,
            trace,
            lateness_ns: 0,
            stalled_ns: 0,
            handshake_bytes: setup_done.map(|_| Bytes::default()),
            first_byte_bytes: Bytes::default(),
            dropped_by: None,
        };
        let mut counted: HashSet<(u64, LinkDirection, &[u8])> = HashSet::new();
        for packet in packets {
            // A connection on another path may have the same port at the same time.
            if !flow.facts.contains(&wire_packet(packet)) {
                continue;
            }
            if packet.dropped_by.is_some() {
                flow.dropped_by = packet.dropped_by;
                continue;
            }
            if packet.lateness_ns() > flow.lateness_ns {
                (flow.lateness_ns, flow.stalled_ns) = (packet.lateness_ns(), packet.stalled_ns);
            }
            if packet.length <= MAX_ACKNOWLEDGEMENT_BYTES
                || !counted.insert((packet.arrival_ns, packet.direction, &packet.frame[..]))
            {
                continue;
            }
            if packet.arrival_ns <= first_response {
                add(&mut flow.first_byte_bytes, packet);
            }
            if let Some(bytes) = &mut flow.handshake_bytes
                && setup_done.is_some_and(|done| client_time(packet) <= done)
            {
                add(bytes, packet);
            }
        }
        flow
    }

    /// Says how many packets were dropped, and by which cell.
    pub fn dropped_description(&self) -> String {
        let count = self.facts.transport.dropped();
        format!("{count} packets dropped by {}", self.dropped_by.unwrap_or("the link"))
    }
}

/// When the client sent or got a packet.
fn client_time(packet: &CapturedPacket) -> u64 {
    match packet.direction {
        LinkDirection::Up => packet.arrival_ns,
        LinkDirection::Down => packet.delivered_ns,
    }
}

/// Adds the length of an IP packet.
fn add(bytes: &mut Bytes, packet: &CapturedPacket) {
    let length = (packet.length - ETHERNET_HEADER_BYTES) as u64;
    match packet.direction {
        LinkDirection::Up => bytes.up += length,
        LinkDirection::Down => bytes.down += length,
    }
}

/// The label that a connection must have.
pub fn expected_label(requested: &RequestedConnection) -> Label {
    let kind = match requested.kind {
        HandshakeKind::Full => LabelKind::Full,
        HandshakeKind::Resumed => LabelKind::Resumed,
        HandshakeKind::ZeroRtt => LabelKind::EarlyAccepted,
        HandshakeKind::Refused => LabelKind::EarlyRefused,
    };
    let tfo = if requested.tfo { FastOpen::Used } else { FastOpen::Off };
    let transport = match requested.transport {
        Transport::Tcp => LabelTransport::Tcp(tfo),
        Transport::Quic => LabelTransport::Quic,
    };
    Label { version: tls_version(requested.version), kind, transport }
}

/// Describes a connection that is not what was requested. Returns `None` if it is.
pub fn mismatch(facts: &FlowFacts, requested: &RequestedConnection) -> Option<String> {
    mismatch_except_group(facts, requested).or_else(|| {
        let group = facts.tls.as_ref()?.group.filter(|_| requested.version == Version::Tls13)?;
        let (group, label) = (group.to_string(), facts.label().ok()?);
        (group != requested.group.name()).then(|| format!("{label}, group {group}"))
    })
}

/// Like [`mismatch`], but ignores the group of the key exchange.
pub fn mismatch_except_group(facts: &FlowFacts, requested: &RequestedConnection) -> Option<String> {
    let label = match facts.label() {
        Err(why) => return Some(why.to_string()),
        Ok(label) => label,
    };
    if label != expected_label(requested) {
        return Some(label.to_string());
    }
    let tls = facts.tls.as_ref()?;
    if tls.hello_retry_requests > 0 {
        return Some(format!("{label}, after a HelloRetryRequest"));
    }
    if let Some((id, name)) = requested.cipher.iana()
        && tls.cipher_suite != Some(id)
    {
        return Some(format!("{label}, not with {name}"));
    }
    // Only a compressed message hides its certificates.
    let compressed = tls.certificate.is_some_and(|message| message.certificates.is_none());
    if compressed != requested.compression {
        let with = if compressed { "with" } else { "without" };
        return Some(format!("{label}, {with} certificate compression"));
    }
    let mismatch = facts.quic().and_then(|quic| token_mismatch(quic, requested))?;
    Some(format!("{label}, {mismatch}"))
}

/// Describes the address validation of a connection, if it is not what was requested.
fn token_mismatch(quic: &QuicFacts, requested: &RequestedConnection) -> Option<&'static str> {
    let has_token = quic.token.is_some_and(|token| token.origin == TokenOrigin::NewToken);
    match (quic.retries, has_token) {
        (1.., _) => Some("after a Retry"),
        (0, false) if requested.token => Some("without an address token"),
        (0, true) if !requested.token => Some("with an address token"),
        _ => None,
    }
}

/// Converts a TLS version to the type of `firstflight_packets`.
pub fn tls_version(version: Version) -> TlsVersion {
    match version {
        Version::Tls10 => TlsVersion::Tls10,
        Version::Tls11 => TlsVersion::Tls11,
        Version::Tls12 => TlsVersion::Tls12,
        Version::Tls13 => TlsVersion::Tls13,
    }
}

/// Converts a packet of the link to the type of `firstflight_packets`.
pub fn wire_packet(packet: &CapturedPacket) -> Packet<'_> {
    Packet {
        direction: match packet.direction {
            LinkDirection::Up => Direction::ToServer,
            LinkDirection::Down => Direction::ToClient,
        },
        arrived: packet.arrival_ns,
        delivered: packet.dropped_by.is_none().then_some(packet.delivered_ns),
        frame: &packet.frame,
    }
}

/// The client's port in an Ethernet frame that holds IP with TCP or UDP.
pub fn client_port(frame: &[u8], direction: LinkDirection) -> Option<u16> {
    let ip = frame.get(ETHERNET_HEADER_BYTES..)?;
    let header = match ip.first()? >> 4 {
        6 => 40,
        _ => usize::from(ip.first()? & 0xf) * 4,
    };
    let ports = ip.get(header..)?;
    let at = match direction {
        LinkDirection::Up => 0,
        LinkDirection::Down => 2,
    };
    Some(u16::from_be_bytes([*ports.get(at)?, *ports.get(at + 1)?]))
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

const ETHERNET_HEADER_BYTES: usize = 14;

/// The longest frame without payload: Ethernet, IPv4, TCP, time stamps and two SACK blocks.
const MAX_ACKNOWLEDGEMENT_BYTES: usize = ETHERNET_HEADER_BYTES + 20 + 20 + 12 + 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A SYN in IPv4 from port 40,000 of 10.0.PATH.1 to 443 of 10.0.PATH.2, or the other way.
    fn segment(path: usize, direction: LinkDirection, arrival_ns: u64) -> CapturedPacket {
        let (client, server) = ([10, 0, path as u8, 1], [10, 0, path as u8, 2]);
        let (client_port, server_port) = ([0x9c, 0x40], [0x01, 0xbb]);
        let (addresses, ports, flags) = match direction {
            LinkDirection::Up => ([client, server], [client_port, server_port], 0x02),
            LinkDirection::Down => ([server, client], [server_port, client_port], 0x12),
        };
        let ethernet = [&[0; 12][..], &[0x08, 0x00]].concat();
        let ip = [&[0x45, 0, 0, 40][..], &[0; 5], &[6, 0, 0], &addresses.concat()].concat();
        let tcp = [&ports.concat()[..], &[0; 8], &[0x50, flags], &[0; 6]].concat();
        let frame = [ethernet, ip, tcp].concat();
        CapturedPacket {
            path,
            direction,
            arrival_ns,
            due_ns: arrival_ns + 1_000,
            delivered_ns: arrival_ns + 1_000,
            stalled_ns: 0,
            dropped_by: None,
            length: frame.len(),
            frame: frame.into(),
            altered: None,
        }
    }

    /// The connection from port 40,000 over a path.
    fn record(path: u8) -> ClientRecord {
        ClientRecord {
            slot: Slot { cell: 0, block: 0 },
            started_ns: 0,
            local: Some(SocketAddr::from(([10, 0, path, 1], 40_000))),
            client_random: None,
            server: SocketAddr::from(([10, 0, path, 2], 443)),
            outcome: Err("no response".to_owned()),
        }
    }

    #[test]
    fn a_sample_has_the_lateness_of_the_link_and_the_part_caused_by_the_machine() {
        let late = CapturedPacket {
            delivered_ns: 1_502_000,
            stalled_ns: 1_400_000,
            ..segment(0, LinkDirection::Up, 1_000)
        };
        let batch = Batch { packets: vec![late], missed: 0 };
        let flows = Flows::new(&batch, "", &HashSet::new());
        let sample = sample_from_flow(&record(0), flows.flow(&record(0)), 0);
        assert_eq!((sample.lateness_us, sample.stalled_us), (1_500.0, 1_400.0));
    }

    #[test]
    fn a_connection_whose_handshake_never_ended_is_found_by_its_start() {
        let syn = segment(0, LinkDirection::Up, 1_000);
        let lost = CapturedPacket { dropped_by: Some("loss"), ..syn };
        let batch = Batch { packets: vec![lost], missed: 0 };
        let flows = Flows::new(&batch, "", &HashSet::new());
        let failed = |path, started_ns| ClientRecord { local: None, started_ns, ..record(path) };
        let dropped = |record| flows.flow(&record).map(|flow| flow.facts.transport.dropped());
        assert_eq!(dropped(failed(0, 500)), Some(1));
        assert_eq!(dropped(failed(0, 1_500)), None, "it started before");
        assert_eq!(dropped(failed(1, 500)), None, "another server's");
    }

    #[test]
    fn copies_that_the_link_makes_are_counted_once() {
        use LinkDirection::{Down, Up};
        let long = CapturedPacket { length: 114, ..segment(0, Down, 5_000) };
        let copy = CapturedPacket { delivered_ns: 9_000, ..long.clone() };
        let batch = Batch { packets: vec![segment(0, Up, 1_000), long, copy], missed: 0 };
        let flows = Flows::new(&batch, "", &HashSet::new());
        let flow = flows.flow(&record(0)).unwrap();
        assert_eq!(flow.first_byte_bytes.down, 100);
        assert_eq!(flow.facts.transport.to_client().packets, 1);
    }

    #[test]
    fn a_sample_excludes_packets_of_the_same_port_on_another_path() {
        use LinkDirection::{Down, Up};
        let other_segment = |direction, arrival_ns| segment(1, direction, arrival_ns);
        let late = CapturedPacket { delivered_ns: 9_000_000, ..other_segment(Up, 2_000) };
        let long = CapturedPacket { length: 1_514, ..other_segment(Down, 3_000) };
        let dropped = CapturedPacket { dropped_by: Some("loss"), ..other_segment(Down, 4_000) };
        let mut packets = vec![segment(0, Up, 1_000), late, long, dropped];
        packets.push(CapturedPacket { length: 114, ..segment(0, Down, 5_000) });
        let batch = Batch { packets, missed: 0 };
        let flows = Flows::new(&batch, "", &HashSet::new());
        let flow = flows.flow(&record(0)).unwrap();
        assert_eq!((flow.lateness_ns, flow.dropped_by), (0, None));
        assert_eq!((flow.first_byte_bytes.up, flow.first_byte_bytes.down), (0, 100));
        assert_eq!(flows.packets(&batch, flow).count(), 2);
        let other = flows.flow(&record(1)).unwrap();
        assert_eq!((other.lateness_ns, other.dropped_by), (8_997_000, Some("loss")));
        assert_eq!(flows.packets(&batch, other).count(), 3);
    }
}
