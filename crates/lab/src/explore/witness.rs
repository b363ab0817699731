//! Sorts the packets of a lab that stays up into connections, and says what each was as soon as it
//! shows.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_emulator::{Batch, CapturedPacket, Direction, monotonic_ns, unix_offset_ns};
use firstflight_packets::{FirstResponse, FlowFacts, KeyLog, Observer, TransportFacts};

use super::capture::CaptureFile;
use super::secrets::Secrets;
use super::{LabDescription, Seen};
use crate::LabError;
use firstflight_samples::wire_packet;

/// Who watches the tap.
pub(super) struct Witness {
    networks: Vec<Network>,
    servers: HashMap<u16, String>,
    secrets: Secrets,
    /// Connections of which nothing was said yet.
    open: HashMap<Ends, Connection>,
    /// When something was said of the last connection between these ends.
    told: HashMap<Ends, u64>,
    capture: Option<CaptureFile>,
}

struct Network {
    name: String,
    rtt: Duration,
}

/// Client, server, and whether they talk over UDP.
type Ends = (SocketAddr, SocketAddr, bool);

/// A connection from its first packet on.
struct Connection {
    path: usize,
    packets: Vec<CapturedPacket>,
    /// Their length together.
    bytes: usize,
    /// When the last of them was delivered.
    last_ns: u64,
    /// Something came since it was looked at.
    news: bool,
}

impl Witness {
    pub(super) fn new(
        sketch: &LabDescription,
        key_log: PathBuf,
        capture: Option<CaptureFile>,
    ) -> Self {
        let network = |network: &super::NetworkDescription| Network {
            name: network.name.clone(),
            rtt: Duration::from_secs_f64(network.rtt_ms / 1e3),
        };
        Self {
            networks: sketch.networks.iter().map(network).collect(),
            servers: sketch.servers.iter().map(|one| (one.port, one.name.clone())).collect(),
            secrets: Secrets::new(key_log, MAX_CONNECTIONS),
            open: HashMap::new(),
            told: HashMap::new(),
            capture,
        }
    }

    /// Takes packets in, and says what shows.
    pub(super) fn look(&mut self, batch: Batch) -> Result<Vec<Seen>, LabError> {
        if batch.missed > 0 {
            tracing::warn!(packets = batch.missed, "the tap was full and missed packets");
        }
        self.take(batch.packets)?;
        self.secrets.read()?;
        self.tell(monotonic_ns(), false)
    }

    /// Says what is left, as far as it went.
    pub(super) fn end(mut self) -> Result<Vec<Seen>, LabError> {
        self.secrets.read()?;
        self.tell(monotonic_ns(), true)
    }

    /// Gives each connection its packets. Those of connections that were told already are written
    /// at once.
    fn take(&mut self, packets: Vec<CapturedPacket>) -> Result<(), LabError> {
        let mut rest = Vec::new();
        let mut held: usize = self.open.values().map(|connection| connection.bytes).sum();
        for packet in packets {
            let Some(ends) = ends(&packet) else {
                rest.push(packet);
                continue;
            };
            if !self.open.contains_key(&ends) {
                let later = self.told.get(&ends).is_none_or(|told| packet.arrival_ns > *told);
                if !(later && opens(&packet)) || self.open.len() >= MAX_CONNECTIONS {
                    rest.push(packet);
                    continue;
                }
            }
            held += packet.frame.len();
            if held > MAX_BYTES {
                // What is missing here is told as a gap.
                held -= packet.frame.len();
                rest.push(packet);
                continue;
            }
            self.open.entry(ends).or_insert_with(|| Connection::new(packet.path)).add(packet);
        }
        match &mut self.capture {
            Some(capture) => capture.add(&rest, &[]),
            None => Ok(()),
        }
    }

    /// Says what has shown by now; of `all` connections where nothing more will come.
    fn tell(&mut self, now_ns: u64, all: bool) -> Result<Vec<Seen>, LabError> {
        let (networks, secrets) = (&self.networks, self.secrets.keys());
        let mut ripe: Vec<(Ends, Connection, FlowFacts)> = Vec::new();
        let mut lost: Vec<Connection> = Vec::new();
        let mut open = HashMap::new();
        for (ends, mut connection) in self.open.drain() {
            let rtt = networks.get(connection.path).map_or(Duration::ZERO, |network| network.rtt);
            let silent = connection.is_silent(now_ns, rtt) || all;
            if !connection.news && !silent {
                open.insert(ends, connection);
                continue;
            }
            connection.news = false;
            match connection.judge(secrets) {
                Some(facts) if silent || shows(&facts) => ripe.push((ends, connection, facts)),
                None if silent => lost.push(connection),
                _ => _ = open.insert(ends, connection),
            }
        }
        self.open = open;
        ripe.sort_by_key(|(_, _, facts)| facts.started);
        let offset = unix_offset_ns();
        let mut seen = Vec::with_capacity(ripe.len());
        for (ends, connection, facts) in ripe {
            let network = networks.get(connection.path).map_or("", |network| &*network.name);
            let server = self.servers.get(&facts.server.port()).map_or("?", |name| name);
            seen.push(Seen::new(&facts, network, server, offset));
            self.told.insert(ends, now_ns);
            if let Some(capture) = &mut self.capture {
                let random = facts.tls.as_ref().map(|tls| tls.client_random);
                let lines = random.map_or_else(Vec::new, |random| secrets.lines_for(&random));
                capture.add(&connection.packets, &lines)?;
            }
        }
        if let Some(capture) = &mut self.capture {
            lost.iter().try_for_each(|connection| capture.add(&connection.packets, &[]))?;
            capture.flush()?;
        }
        // Only packets that are still under way are held against it.
        self.told.retain(|_, told| now_ns.saturating_sub(*told) < UNDER_WAY_NS);
        Ok(seen)
    }
}

impl Connection {
    fn new(path: usize) -> Self {
        Self { path, packets: Vec::new(), bytes: 0, last_ns: 0, news: false }
    }

    fn add(&mut self, packet: CapturedPacket) {
        self.last_ns = self.last_ns.max(packet.delivered_ns);
        self.news = true;
        self.bytes += packet.frame.len();
        self.packets.push(packet);
    }

    /// Whether nothing more is to be waited for.
    fn is_silent(&self, now_ns: u64, rtt: Duration) -> bool {
        let patience = SILENCE + rtt * 4;
        u128::from(now_ns.saturating_sub(self.last_ns)) > patience.as_nanos()
            || self.packets.len() > MAX_PACKETS
    }

    /// What its packets say with these secrets. `None`: they are no connection.
    fn judge(&self, keys: &KeyLog) -> Option<FlowFacts> {
        let facts = self.read("")?;
        let random = facts.tls.as_ref().map(|tls| tls.client_random);
        let lines = random.map_or_else(Vec::new, |random| keys.lines_for(&random));
        if lines.is_empty() { Some(facts) } else { self.read(&lines.join("\n")) }
    }

    fn read(&self, key_log: &str) -> Option<FlowFacts> {
        let mut observer = Observer::new();
        observer.add_secrets(key_log);
        self.packets.iter().for_each(|packet| observer.packet(&wire_packet(packet)));
        observer.finish().into_iter().next()
    }
}

/// Whether a connection shows what it is: it is known and answered, or it is over.
fn shows(facts: &FlowFacts) -> bool {
    let answered = matches!(facts.first_response, FirstResponse::Seen { delivered: Some(_), .. });
    let over = match &facts.transport {
        TransportFacts::Tcp(tcp) => {
            tcp.client_rst || tcp.server_rst || (tcp.client_fin && tcp.server_fin)
        }
        TransportFacts::Quic(quic) => quic.is_closed(),
    };
    (answered && facts.label().is_ok()) || over
}

fn ends(packet: &CapturedPacket) -> Option<Ends> {
    let (client, server) = wire_packet(packet).ends()?;
    Some((client, server, packet.frame.get(PROTOCOL) == Some(&UDP)))
}

/// Whether a packet may start a connection: a SYN, or a long header of QUIC (RFC 9000 section
/// 17.2) from the client.
fn opens(packet: &CapturedPacket) -> bool {
    let frame = &packet.frame;
    let Some(version) = frame.get(IP) else { return false };
    let behind = IP + usize::from(version & 0xf) * 4;
    let of = |offset: usize| frame.get(behind + offset).copied().unwrap_or(0);
    packet.direction == Direction::Up
        && match frame.get(PROTOCOL) {
            Some(&UDP) => of(UDP_HEADER) & 0x80 != 0,
            Some(&TCP) => of(TCP_FLAGS) & (SYN | ACK) == SYN,
            _ => false,
        }
}

/// Offsets in an Ethernet frame with IPv4, in its TCP header, and their values.
const IP: usize = 14;
const PROTOCOL: usize = IP + 9;
const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_FLAGS: usize = 13;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const UDP_HEADER: usize = 8;

/// Connections that are open at a time; of others nothing is said.
const MAX_CONNECTIONS: usize = 4096;

/// Bytes of packets that are held of all of them.
const MAX_BYTES: usize = 256 << 20;

/// A connection that has so many packets and does not show what it is, never will.
const MAX_PACKETS: usize = 8192;

/// A connection that is silent for so long, and four round trips, is told as far as it went.
const SILENCE: Duration = Duration::from_secs(2);

/// Longer than any packet is under way.
const UNDER_WAY_NS: u64 = 120_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(protocol: u8, behind: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; IP + 20];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[IP] = 0x45;
        frame[PROTOCOL] = protocol;
        frame.extend_from_slice(behind);
        frame
    }

    fn packet(direction: Direction, frame: Vec<u8>) -> CapturedPacket {
        CapturedPacket {
            path: 0,
            direction,
            arrival_ns: 1,
            due_ns: 1,
            delivered_ns: 1,
            dropped_by: None,
            length: frame.len(),
            frame: frame.into(),
            altered: None,
        }
    }

    #[test]
    fn a_connection_begins_by_its_first_packet_alone() {
        let tcp = |flags: u8| {
            let mut header = vec![0; 20];
            header[TCP_FLAGS] = flags;
            frame(TCP, &header)
        };
        let quic = |first: u8| frame(UDP, &[0, 0, 0, 0, 0, 0, 0, 0, first, 0]);
        for (frame, expected) in [
            (tcp(SYN), true),
            (tcp(SYN | 0xc0), true),
            (tcp(SYN | ACK), false),
            (tcp(ACK), false),
            (quic(0xc3), true),
            (quic(0x43), false),
            (frame(1, &[0; 20]), false),
            (Vec::new(), false),
            (vec![0; IP + 1], false),
        ] {
            let words = format!("{frame:02x?}");
            assert_eq!(opens(&packet(Direction::Up, frame.clone())), expected, "{words}");
            assert!(!opens(&packet(Direction::Down, frame)), "{words}");
        }
    }

    #[test]
    fn a_silent_connection_is_waited_for_by_its_round_trip() {
        let mut connection = Connection::new(0);
        connection.add(packet(Direction::Up, Vec::new()));
        let seconds = |seconds: u64| seconds * 1_000_000_000;
        assert!(!connection.is_silent(seconds(2), Duration::ZERO));
        assert!(connection.is_silent(seconds(2) + 2, Duration::ZERO));
        assert!(!connection.is_silent(seconds(4), Duration::from_millis(600)));
        assert!(!connection.is_silent(0, Duration::ZERO), "a clock that seems to go back");
    }
}
