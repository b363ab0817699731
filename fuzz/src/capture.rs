//! A capture as bytes, so that a mutated byte changes one thing and leaves the rest a capture.

use etherparse::PacketBuilder;
use firstflight_packets::{Direction, Packet};

/// One thing that an observer is told.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// What it is.
    pub flags: Flags,
    /// Microseconds since the event before it.
    pub gap: u16,
    /// How far its sequence number is behind the sender's first.
    pub seq: u16,
    /// How far its acknowledgement number is behind the other side's first.
    pub ack: u16,
    /// How many bytes of the body are TCP options, 40 at most; or [`UDP`].
    pub options: u8,
    /// Options and payload, a whole frame, or lines of a key log.
    pub body: &'a [u8],
}

/// In the place of the options' length: the body is a UDP payload, and the sequence number is how
/// far the client's port is behind its first, as that of a client that moves.
pub const UDP: u8 = 0xff;

/// An event's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// From the server.
    pub const TO_CLIENT: u8 = 1;
    pub const SYN: u8 = 2;
    pub const ACK: u8 = 4;
    pub const FIN: u8 = 8;
    pub const RST: u8 = 16;
    /// The body is a whole frame.
    pub const FRAME: u8 = 32;
    /// The body is text of a key log.
    pub const SECRETS: u8 = 64;
    /// Dropped by the tap.
    pub const DROPPED: u8 = 128;

    /// Whether a bit is set.
    pub fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Which way it goes.
    pub fn direction(self) -> Direction {
        match self.has(Self::TO_CLIENT) {
            true => Direction::ToClient,
            false => Direction::ToServer,
        }
    }
}

impl<'a> Event<'a> {
    /// The events in any bytes.
    pub fn all(mut bytes: &'a [u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
            let two = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
            let (body, rest) = rest.split_at(rest.len().min(two(8).into()));
            bytes = rest;
            Some(Self {
                flags: Flags(head[0]),
                gap: two(1),
                seq: two(3),
                ack: two(5),
                options: head[7],
                body,
            })
        })
    }

    /// The event as [`Event::all`] reads it.
    pub fn write(&self, to: &mut Vec<u8>) {
        let length = u16::try_from(self.body.len()).expect("a body of less than 64 KiB");
        to.push(self.flags.0);
        to.extend(self.gap.to_be_bytes());
        to.extend(self.seq.to_be_bytes());
        to.extend(self.ack.to_be_bytes());
        to.push(self.options);
        to.extend(length.to_be_bytes());
        to.extend(self.body);
    }

    /// The frame that it is.
    pub fn frame(&self) -> Vec<u8> {
        if self.flags.has(Flags::FRAME) {
            return self.body.to_vec();
        }
        if self.options == UDP {
            return self.datagram();
        }
        let options = self.body.len().min(self.options.min(40).into());
        let (options, payload) = self.body.split_at(options);
        let mut padded = options.to_vec();
        padded.resize(options.len().next_multiple_of(4), 0);

        let to_client = self.flags.has(Flags::TO_CLIENT);
        let (own, other) = if to_client { (SERVER, CLIENT) } else { (CLIENT, SERVER) };
        let mut tcp = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(own.address, other.address, 64)
            .tcp(own.port, other.port, own.first.wrapping_add(self.seq.into()), 65_000)
            .options_raw(&padded)
            .expect("40 bytes of options at most");
        if self.flags.has(Flags::SYN) {
            tcp = tcp.syn();
        }
        if self.flags.has(Flags::ACK) {
            tcp = tcp.ack(other.first.wrapping_add(self.ack.into()));
        }
        if self.flags.has(Flags::FIN) {
            tcp = tcp.fin();
        }
        if self.flags.has(Flags::RST) {
            tcp = tcp.rst();
        }
        let mut frame = Vec::with_capacity(tcp.size(payload.len()));
        // Too long for IPv4: such a frame cannot be.
        let _ = tcp.write(&mut frame, payload);
        frame
    }

    fn datagram(&self) -> Vec<u8> {
        let moved = CLIENT.port.wrapping_add(self.seq);
        let (client, server) = ((CLIENT.address, moved), (SERVER.address, SERVER.port));
        let to_client = self.flags.has(Flags::TO_CLIENT);
        let (from, to) = if to_client { (server, client) } else { (client, server) };
        let udp = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(from.0, to.0, 64).udp(from.1, to.1);
        let mut frame = Vec::with_capacity(udp.size(self.body.len()));
        let _ = udp.write(&mut frame, self.body);
        frame
    }

    /// The packet of `frame` at a time in nanoseconds.
    pub fn packet<'f>(&self, frame: &'f [u8], arrived: u64) -> Packet<'f> {
        let delivered = (!self.flags.has(Flags::DROPPED)).then(|| arrived + DELAY);
        Packet { direction: self.flags.direction(), arrived, delivered, frame }
    }
}

/// One end of the one connection that segments belong to.
struct End {
    address: [u8; 4],
    port: u16,
    first: u32,
}

// Shortly before the end of the numbers, so that they wrap within a seed.
const CLIENT: End = End { address: [10, 0, 0, 1], port: 40_000, first: u32::MAX - 300 };
const SERVER: End = End { address: [10, 0, 0, 2], port: 443, first: 7_000 };
const DELAY: u64 = 10_000_000;
const HEAD: usize = 10;
