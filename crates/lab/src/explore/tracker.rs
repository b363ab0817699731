//! Sorts the packets of a lab that stays up into connections, and describes each as soon as its
//! packets show what it was.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_emulator::{Batch, CapturedPacket, Direction, monotonic_ns, unix_offset_ns};
use firstflight_packets::{FirstResponse, FlowFacts, KeyLog, Observer, TransportFacts};

use super::evidence::{KeyLogReader, LimitedCapture};
use super::{LabDescription, ObservedConnection};
use crate::LabError;
use firstflight_samples::wire_packet;

/// Tracks the connections of a lab by its packets.
pub(super) struct ConnectionTracker {
    networks: Vec<Network>,
    servers: HashMap<u16, String>,
    secrets: KeyLogReader,
    /// Connections that have not been reported yet.
    open: HashMap<Endpoints, Connection>,
    /// When the last connection between these addresses was reported.
    reported: HashMap<Endpoints, u64>,
    capture: Option<LimitedCapture>,
}

struct Network {
    name: String,
    rtt: Duration,
}

/// Client, server, and whether they use UDP.
type Endpoints = (SocketAddr, SocketAddr, bool);

/// A connection from its first packet on.
struct Connection {
    path: usize,
    packets: Vec<CapturedPacket>,
    /// The total length of the packets.
    bytes: usize,
    /// When the last packet was delivered.
    last_ns: u64,
    /// Whether packets arrived since it was last classified.
    updated: bool,
}

impl ConnectionTracker {
    pub(super) fn new(
        description: &LabDescription,
        key_log: PathBuf,
        capture: Option<LimitedCapture>,
    ) -> Self {
        let network = |network: &super::NetworkDescription| Network {
            name: network.name.clone(),
            rtt: Duration::from_secs_f64(network.rtt_ms / 1e3),
        };
        Self {
            networks: description.networks.iter().map(network).collect(),
            servers: description
                .servers
                .iter()
                .map(|server| (server.port, server.name.clone()))
                .collect(),
            secrets: KeyLogReader::new(key_log, MAX_CONNECTIONS),
            open: HashMap::new(),
            reported: HashMap::new(),
            capture,
        }
    }

    /// Adds packets, and returns the connections whose packets show what they were.
    pub(super) fn poll(&mut self, batch: Batch) -> Result<Vec<ObservedConnection>, LabError> {
        if batch.missed > 0 {
            tracing::warn!(packets = batch.missed, "the tap was full and missed packets");
        }
        self.add(batch.packets)?;
        self.secrets.read()?;
        self.report(monotonic_ns(), false)
    }

    /// Returns all remaining connections as far as they went.
    pub(super) fn finish(mut self) -> Result<Vec<ObservedConnection>, LabError> {
        self.secrets.read()?;
        self.report(monotonic_ns(), true)
    }

    /// Adds packets to their connections. Packets of reported connections go straight to the
    /// capture.
    fn add(&mut self, packets: Vec<CapturedPacket>) -> Result<(), LabError> {
        let mut other_packets = Vec::new();
        let mut stored_bytes: usize = self.open.values().map(|connection| connection.bytes).sum();
        for packet in packets {
            let Some(endpoints) = endpoints(&packet) else {
                other_packets.push(packet);
                continue;
            };
            if !self.open.contains_key(&endpoints) {
                let is_new = self
                    .reported
                    .get(&endpoints)
                    .is_none_or(|reported| packet.arrival_ns > *reported);
                if !(is_new && starts_connection(&packet)) || self.open.len() >= MAX_CONNECTIONS {
                    other_packets.push(packet);
                    continue;
                }
            }
            stored_bytes += packet.frame.len();
            if stored_bytes > MAX_BYTES {
                // The connection is reported with a gap.
                stored_bytes -= packet.frame.len();
                other_packets.push(packet);
                continue;
            }
            self.open.entry(endpoints).or_insert_with(|| Connection::new(packet.path)).add(packet);
        }
        match &mut self.capture {
            Some(capture) => capture.add(&other_packets, &[]),
            None => Ok(()),
        }
    }

    /// Returns the connections whose packets show what they were, or all of them.
    fn report(&mut self, now_ns: u64, all: bool) -> Result<Vec<ObservedConnection>, LabError> {
        let (networks, secrets) = (&self.networks, self.secrets.keys());
        let mut classified: Vec<(Endpoints, Connection, FlowFacts)> = Vec::new();
        let mut unreadable: Vec<Connection> = Vec::new();
        let mut open = HashMap::new();
        for (endpoints, mut connection) in self.open.drain() {
            let rtt = networks.get(connection.path).map_or(Duration::ZERO, |network| network.rtt);
            let silent = connection.is_silent(now_ns, rtt) || all;
            if !connection.updated && !silent {
                open.insert(endpoints, connection);
                continue;
            }
            connection.updated = false;
            match connection.classify(secrets) {
                Some(facts) if silent || is_conclusive(&facts) => {
                    classified.push((endpoints, connection, facts))
                }
                None if silent => unreadable.push(connection),
                _ => _ = open.insert(endpoints, connection),
            }
        }
        self.open = open;
        classified.sort_by_key(|(_, _, facts)| facts.started);
        let offset = unix_offset_ns();
        let mut connections = Vec::with_capacity(classified.len());
        for (endpoints, connection, facts) in classified {
            let network = networks.get(connection.path).map_or("", |network| &*network.name);
            let server = self.servers.get(&facts.server.port()).map_or("?", |name| name);
            connections.push(ObservedConnection::new(&facts, network, server, offset));
            self.reported.insert(endpoints, now_ns);
            if let Some(capture) = &mut self.capture {
                let random = facts.tls.as_ref().map(|tls| tls.client_random);
                let lines = random.map_or_else(Vec::new, |random| secrets.lines_for(&random));
                capture.add(&connection.packets, &lines)?;
            }
        }
        if let Some(capture) = &mut self.capture {
            unreadable.iter().try_for_each(|connection| capture.add(&connection.packets, &[]))?;
            capture.flush()?;
        }
        // Once no packet of the reported connection can still arrive, its addresses may be reused.
        self.reported.retain(|_, reported| now_ns.saturating_sub(*reported) < MAX_PACKET_AGE_NS);
        Ok(connections)
    }
}

impl Connection {
    fn new(path: usize) -> Self {
        Self { path, packets: Vec::new(), bytes: 0, last_ns: 0, updated: false }
    }

    fn add(&mut self, packet: CapturedPacket) {
        self.last_ns = self.last_ns.max(packet.delivered_ns);
        self.updated = true;
        self.bytes += packet.frame.len();
        self.packets.push(packet);
    }

    /// Whether no further packets are expected.
    fn is_silent(&self, now_ns: u64, rtt: Duration) -> bool {
        let timeout = SILENCE_TIMEOUT + rtt * 4;
        u128::from(now_ns.saturating_sub(self.last_ns)) > timeout.as_nanos()
            || self.packets.len() > MAX_PACKETS
    }

    /// Classifies its packets with these secrets. Returns `None` if they form no connection.
    fn classify(&self, keys: &KeyLog) -> Option<FlowFacts> {
        let facts = self.observe("")?;
        let random = facts.tls.as_ref().map(|tls| tls.client_random);
        let lines = random.map_or_else(Vec::new, |random| keys.lines_for(&random));
        if lines.is_empty() { Some(facts) } else { self.observe(&lines.join("\n")) }
    }

    fn observe(&self, key_log: &str) -> Option<FlowFacts> {
        let mut observer = Observer::new();
        observer.add_secrets(key_log);
        self.packets.iter().for_each(|packet| observer.packet(&wire_packet(packet)));
        observer.finish().into_iter().next()
    }
}

/// Whether the packets show what a connection was: it has a label and a response, or it has ended.
fn is_conclusive(facts: &FlowFacts) -> bool {
    let has_response =
        matches!(facts.first_response, FirstResponse::Seen { delivered: Some(_), .. });
    let has_ended = match &facts.transport {
        TransportFacts::Tcp(tcp) => {
            tcp.client_rst || tcp.server_rst || (tcp.client_fin && tcp.server_fin)
        }
        TransportFacts::Quic(quic) => quic.is_closed(),
    };
    (has_response && facts.label().is_ok()) || has_ended
}

fn endpoints(packet: &CapturedPacket) -> Option<Endpoints> {
    let (client, server) = wire_packet(packet).endpoints()?;
    Some((client, server, transport(&packet.frame)?.0 == UDP))
}

/// The protocol above IP, and where its header starts. The lab uses no IPv6 extension headers.
fn transport(frame: &[u8]) -> Option<(u8, usize)> {
    let first = *frame.get(IP)?;
    match first >> 4 {
        4 => Some((*frame.get(IP + 9)?, IP + usize::from(first & 0xf) * 4)),
        6 => Some((*frame.get(IP + 6)?, IP + 40)),
        _ => None,
    }
}

/// Whether a packet may start a connection: a SYN, or a long header of QUIC (RFC 9000 section
/// 17.2) from the client.
fn starts_connection(packet: &CapturedPacket) -> bool {
    let frame = &packet.frame;
    let Some((protocol, start)) = transport(frame) else { return false };
    let byte = |offset: usize| frame.get(start + offset).copied().unwrap_or(0);
    packet.direction == Direction::Up
        && match protocol {
            UDP => byte(UDP_HEADER) & 0x80 != 0,
            TCP => byte(TCP_FLAGS) & (SYN | ACK) == SYN,
            _ => false,
        }
}

/// Offsets in an Ethernet frame and in its TCP and UDP headers, and their values.
const IP: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_FLAGS: usize = 13;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const UDP_HEADER: usize = 8;

/// The maximum number of tracked connections. Further ones are not reported.
const MAX_CONNECTIONS: usize = 4096;

/// The maximum size of the packets of all tracked connections.
const MAX_BYTES: usize = 256 << 20;

/// After so many packets a connection is reported even if they do not show what it was.
const MAX_PACKETS: usize = 8192;

/// A connection that is silent for this time and four round trips is reported as far as it went.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longer than any packet stays in the network.
const MAX_PACKET_AGE_NS: u64 = 120_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of this segment or datagram over IPv4 and IPv6, with the lengths in their headers.
    fn frames(protocol: u8, transport: &[u8]) -> [Vec<u8>; 2] {
        let length = transport.len() as u8;
        let ethernet = |ether_type: [u8; 2]| [&[0; 12][..], &ether_type].concat();
        let ipv4 = [&[0x45, 0, 0, 20 + length][..], &[0; 5], &[protocol], &[0; 10]].concat();
        let ipv6 = [&[0x60, 0, 0, 0, 0, length, protocol, 64][..], &[0; 32]].concat();
        [
            [&ethernet([0x08, 0x00])[..], &ipv4, transport].concat(),
            [&ethernet([0x86, 0xdd])[..], &ipv6, transport].concat(),
        ]
    }

    fn packet(direction: Direction, frame: Vec<u8>) -> CapturedPacket {
        CapturedPacket {
            path: 0,
            direction,
            arrival_ns: 1,
            due_ns: 1,
            delivered_ns: 1,
            stalled_ns: 0,
            dropped_by: None,
            length: frame.len(),
            frame: frame.into(),
            altered: None,
        }
    }

    #[test]
    fn only_a_first_packet_starts_a_connection() {
        let tcp = |flags: u8| {
            let mut header = vec![0; 20];
            header[TCP_FLAGS] = flags;
            frames(TCP, &header)
        };
        let quic = |first: u8| frames(UDP, &[0, 0, 0, 0, 0, 10, 0, 0, first, 0]);
        let cases = [
            (tcp(SYN), true),
            (tcp(SYN | 0xc0), true),
            (tcp(SYN | ACK), false),
            (tcp(ACK), false),
            (quic(0xc3), true),
            (quic(0x43), false),
            (frames(1, &[0; 20]), false),
            ([Vec::new(), vec![0; IP + 1]], false),
        ];
        for (frame, expected) in
            cases.into_iter().flat_map(|(frames, expected)| frames.map(|frame| (frame, expected)))
        {
            let hex = format!("{frame:02x?}");
            assert_eq!(starts_connection(&packet(Direction::Up, frame.clone())), expected, "{hex}");
            assert!(!starts_connection(&packet(Direction::Down, frame)), "{hex}");
        }
    }

    #[test]
    fn endpoints_are_read_from_packets_of_ipv4_and_ipv6() {
        for (protocol, is_udp) in [(TCP, false), (UDP, true)] {
            let header = [&[0x9c, 0x40, 0x01, 0xbb, 0, 20][..], &[0; 6], &[0x50], &[0; 7]].concat();
            for (frame, version) in frames(protocol, &header).into_iter().zip([4, 6]) {
                let (client, server, udp) = endpoints(&packet(Direction::Up, frame)).unwrap();
                assert_eq!((client.port(), server.port(), udp), (40_000, 443, is_udp));
                assert_eq!(client.is_ipv4(), version == 4);
            }
        }
    }

    #[test]
    fn the_silence_timeout_includes_round_trips() {
        let mut connection = Connection::new(0);
        connection.add(packet(Direction::Up, Vec::new()));
        let seconds = |seconds: u64| seconds * 1_000_000_000;
        assert!(!connection.is_silent(seconds(2), Duration::ZERO));
        assert!(connection.is_silent(seconds(2) + 2, Duration::ZERO));
        assert!(!connection.is_silent(seconds(4), Duration::from_millis(600)));
        assert!(!connection.is_silent(0, Duration::ZERO), "a clock that goes back");
    }
}
