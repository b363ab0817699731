//! Writes the bytes of an audit to a file that packet analyzers can decrypt.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use etherparse::PacketBuilder;
use firstflight_packets::Direction;
use firstflight_packets::pcapng::{Metadata, Writer};

use crate::recorder::{Piece, Recording};

/// A capture of what an audit sends and receives: pcapng, with the TLS secrets in front of each
/// connection. The bytes are taken at the sockets, which needs no privileges: Ethernet, IP, TCP and
/// UDP headers are made up, and packets without data are missing.
pub struct Capture {
    writer: Writer<Box<dyn Write>>,
    start: Duration,
    is_over_quic: bool,
}

impl Capture {
    /// Starts a file. `start` is the time from 1970 to the start of the audit.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn new(out: Box<dyn Write>, start: Duration, is_over_quic: bool) -> io::Result<Self> {
        let metadata = Metadata {
            application: "firstflight audit".to_owned(),
            comment:
                "Bytes as they were written to sockets and read from them, with made-up headers"
                    .to_owned(),
            ..Metadata::default()
        };
        Ok(Self { writer: Writer::new(out, &metadata)?, start, is_over_quic })
    }

    /// Adds the connections of a check, one after the other.
    pub(crate) fn add(&mut self, check: &str, connections: &[Recording]) -> io::Result<()> {
        for (number, connection) in connections.iter().enumerate() {
            self.writer.secrets(&connection.key_log)?;
            let digest = connection.summary().first_flight_sha256;
            let comment = format!(
                "{check}, connection {} of {}; SHA-256 of its first flight: {digest}",
                number + 1,
                connections.len()
            );
            self.connection(connection, &comment)?;
        }
        self.writer.flush()
    }

    fn connection(&mut self, connection: &Recording, comment: &str) -> io::Result<()> {
        let mut frames = Frames::new(connection, self.is_over_quic);
        let mut comment = comment;
        for piece in &connection.pieces {
            let (time, direction) = (self.time(piece.at), direction(piece.from_server));
            // The recorder may have kept no bytes; the frame is then truncated.
            let missing = (piece.len - piece.bytes.len()) as u32;
            for frame in frames.data(piece)? {
                let len = frame.len() as u32 + missing;
                self.writer.packet(time, direction, &frame, len, comment)?;
                comment = "";
            }
        }
        if let Some(at) = connection.ended.filter(|_| !self.is_over_quic) {
            let frame = frames.frame(true, &[], true)?;
            let len = frame.len() as u32;
            self.writer.packet(self.time(at), Direction::ToClient, &frame, len, comment)?;
        }
        Ok(())
    }

    /// Nanoseconds since 1970.
    fn time(&self, at: Duration) -> u64 {
        (self.start + at).as_nanos() as u64
    }
}

fn direction(from_server: bool) -> Direction {
    if from_server { Direction::ToClient } else { Direction::ToServer }
}

/// Builds the frames of a connection.
struct Frames {
    client: SocketAddr,
    server: SocketAddr,
    is_over_quic: bool,
    /// The next sequence numbers of the client and of the server.
    next: [u32; 2],
}

impl Frames {
    fn new(connection: &Recording, is_over_quic: bool) -> Self {
        let simulated = |last| SocketAddr::from((Ipv4Addr::new(192, 0, 2, last), 443));
        Self {
            client: connection.local.unwrap_or(simulated(1)),
            server: connection.remote.unwrap_or(simulated(2)),
            is_over_quic,
            next: [1, 1],
        }
    }

    fn data(&mut self, piece: &Piece) -> io::Result<Vec<Vec<u8>>> {
        let size = if self.is_over_quic { usize::MAX } else { MAX_SEGMENT };
        let mut chunks: Vec<&[u8]> = piece.bytes.chunks(size).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let mut frames = Vec::new();
        for chunk in chunks {
            frames.push(self.frame(piece.from_server, chunk, false)?);
            self.advance(piece.from_server, chunk.len());
        }
        self.advance(piece.from_server, piece.len - piece.bytes.len());
        Ok(frames)
    }

    fn advance(&mut self, from_server: bool, len: usize) {
        let next = &mut self.next[usize::from(from_server)];
        *next = next.wrapping_add(len as u32);
    }

    fn frame(&self, from_server: bool, payload: &[u8], fin: bool) -> io::Result<Vec<u8>> {
        let (from, to) = match from_server {
            false => (self.client, self.server),
            true => (self.server, self.client),
        };
        let ethernet = match from_server {
            false => PacketBuilder::ethernet2(CLIENT_MAC, SERVER_MAC),
            true => PacketBuilder::ethernet2(SERVER_MAC, CLIENT_MAC),
        };
        let ip = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
            (from, to) => ethernet.ipv6(to_ipv6(from), to_ipv6(to), 64),
        };
        let mut frame = Vec::new();
        let written = match self.is_over_quic {
            true => ip.udp(from.port(), to.port()).write(&mut frame, payload),
            false => {
                let at = usize::from(from_server);
                let (seq, ack) = (self.next[at], self.next[1 - at]);
                let tcp = ip.tcp(from.port(), to.port(), seq, WINDOW).ack(ack);
                let tcp = if fin { tcp.fin() } else { tcp.psh() };
                tcp.write(&mut frame, payload)
            }
        };
        written.map_err(io::Error::other)?;
        Ok(frame)
    }
}

fn to_ipv6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Locally administered addresses.
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const WINDOW: u16 = u16::MAX;
/// Larger than any TLS record, and small enough for an IP packet.
const MAX_SEGMENT: usize = 32 * 1024;
