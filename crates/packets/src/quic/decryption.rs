//! Decrypts a connection's packets, one encryption level after the other.

use std::collections::{BTreeSet, HashSet};

use firstflight_wire::{
    CoalescedPacket, Frame, PacketKeys, PacketKind, Protected, Suite, Unprotected, Version,
    coalesced_packets, frames,
};

use super::flow::QuicFlow;
use super::handshake::Handshake;
use super::protection::{LongHeaderKeys, ShortHeaderKeys};
use crate::facts::Unknown;
use crate::keylog::SecretLabel;
use crate::{Direction, KeyLog};

/// A captured packet, and its content if it was decrypted.
pub(crate) struct CapturedPacket<'a> {
    pub(crate) datagram: usize,
    pub(crate) packet: CoalescedPacket<'a>,
    pub(crate) opened: Option<Opened>,
}

impl CapturedPacket<'_> {
    /// Its kind. Returns `None` if it is not a protected packet.
    pub(crate) fn kind(&self) -> Option<PacketKind> {
        match &self.packet {
            CoalescedPacket::Protected(packet) => Some(packet.kind),
            _ => None,
        }
    }
}

/// The content of a decrypted packet.
pub(crate) struct Opened {
    pub(crate) number: u64,
    pub(crate) frames: Vec<u8>,
    /// Whether a packet with this number arrived before.
    pub(crate) duplicate: bool,
    /// Whether a later packet of its number space arrived before.
    pub(crate) late: bool,
}

/// The packets of a connection, decrypted as far as possible, with their TLS handshake.
pub(crate) struct DecryptedPackets<'a> {
    flow: &'a QuicFlow,
    /// In the order of arrival.
    pub(crate) captured: Vec<CapturedPacket<'a>>,
    pub(crate) handshake: Handshake,
    /// Connection IDs issued in frames, indexed by the `Direction` of the packets that use them.
    pub(crate) issued_ids: [Vec<Vec<u8>>; 2],
    pub(crate) key_updates: [u32; 2],
    largest: [[Option<u64>; 3]; 2],
    numbers: HashSet<(Direction, usize, Option<Version>, u64)>,
    /// Whether there are candidate secrets, by direction and kind.
    has_keys: [[bool; 4]; 2],
}

/// The directions in index order.
pub(crate) const DIRECTIONS: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

/// Connection IDs for which Initial keys are derived, at most. The client's first ID, a second one
/// after Retry or Version Negotiation, and the server's own ID occur.
const MAX_INITIAL_IDS: usize = 8;

impl<'a> DecryptedPackets<'a> {
    /// Decrypts the datagrams, which are in the order of arrival, as far as `keys` permit.
    pub(crate) fn new(flow: &'a QuicFlow, keys: &KeyLog) -> Self {
        let datagrams = flow.datagrams.iter().enumerate();
        let captured = datagrams.flat_map(|(index, datagram)| {
            coalesced_packets(&datagram.payload).map(move |packet| CapturedPacket {
                datagram: index,
                packet,
                opened: None,
            })
        });
        let mut packets = Self {
            flow,
            captured: captured.collect(),
            handshake: Handshake::default(),
            issued_ids: [Vec::new(), Vec::new()],
            key_updates: [0; 2],
            largest: [[None; 3]; 2],
            numbers: HashSet::new(),
            has_keys: [[false; 4]; 2],
        };
        packets.open_initial();
        if let Some(hello) = &packets.handshake.hello {
            let random = hello.random;
            let suites: Vec<_> = packets.handshake.suite().into_iter().collect();
            packets.open_early(&random, keys);
            for direction in DIRECTIONS {
                packets.open_handshake(direction, &suites, &random, keys);
            }
            for direction in DIRECTIONS {
                packets.open_one_rtt(direction, &suites, &random, keys);
            }
        }
        packets
    }

    /// Why no packet of this kind was decrypted. Returns `None` if there is none, or if one was.
    pub(crate) fn undecrypted_reason(
        &self,
        direction: Direction,
        kind: PacketKind,
    ) -> Option<Unknown> {
        let mut captured = self.captured.iter().filter(|captured| {
            captured.kind() == Some(kind) && self.direction(captured.datagram) == direction
        });
        if captured.clone().next().is_none() || captured.any(|captured| captured.opened.is_some()) {
            return None;
        }
        Some(match &self.handshake.server_hello {
            None => self.handshake.error.unwrap_or(Unknown::CaptureGap),
            Some(_) if self.handshake.suite().is_none() => Unknown::CipherSuite,
            Some(_) if self.has_keys[direction as usize][kind as usize] => Unknown::WrongSecrets,
            Some(_) => Unknown::NoSecrets,
        })
    }

    pub(crate) fn direction(&self, datagram: usize) -> Direction {
        self.flow.datagrams[datagram].direction
    }

    fn open_initial(&mut self) {
        let mut ids: Vec<&[u8]> = Vec::new();
        for captured in &self.captured {
            if let CoalescedPacket::Protected(Protected {
                kind: PacketKind::Initial,
                destination,
                ..
            }) = captured.packet
                && self.direction(captured.datagram) == Direction::ToServer
                && ids.len() < MAX_INITIAL_IDS
                && !ids.contains(&destination)
            {
                ids.push(destination);
            }
        }
        for direction in DIRECTIONS {
            let sender = direction.sender();
            let keys = |id: &&[u8]| Version::ALL.map(|v| PacketKeys::initial(v, id, sender));
            let mut keys = LongHeaderKeys {
                candidates: ids.iter().flat_map(keys).flatten().collect(),
                multiple: true,
            };
            self.open_long_headers(direction, PacketKind::Initial, &mut keys);
        }
    }

    fn open_early(&mut self, random: &[u8; 32], keys: &KeyLog) {
        // Early data uses the ticket's suite, which a server that refuses it may not choose.
        let label = SecretLabel::ClientEarly;
        let mut keys = LongHeaderKeys::new(&Suite::ALL, keys.secrets(random, label));
        self.open_long_headers(Direction::ToServer, PacketKind::ZeroRtt, &mut keys);
    }

    fn open_handshake(
        &mut self,
        direction: Direction,
        suites: &[Suite],
        random: &[u8; 32],
        keys: &KeyLog,
    ) {
        let label = match direction {
            Direction::ToServer => SecretLabel::ClientHandshake,
            Direction::ToClient => SecretLabel::ServerHandshake,
        };
        let mut keys = LongHeaderKeys::new(suites, keys.secrets(random, label));
        self.open_long_headers(direction, PacketKind::Handshake, &mut keys);
    }

    /// The version with which a client restarted after a Version Negotiation.
    fn restart_version(&self) -> Option<Version> {
        let initial_version = |captured: &CapturedPacket<'_>| match captured.packet {
            CoalescedPacket::Protected(packet) if packet.kind == PacketKind::Initial => {
                packet.version
            }
            _ => None,
        };
        let negotiated = self.flow.facts.version_negotiations > 0;
        self.captured.iter().rev().find_map(initial_version).filter(|_| negotiated)
    }

    /// Decrypts the packets with long headers of one kind.
    fn open_long_headers(
        &mut self,
        direction: Direction,
        kind: PacketKind,
        keys: &mut LongHeaderKeys,
    ) {
        self.has_keys[direction as usize][kind as usize] = !keys.candidates.is_empty();
        let restarted_version = self.restart_version().filter(|_| kind == PacketKind::Initial);
        for index in 0..self.captured.len() {
            let captured = &self.captured[index];
            let CoalescedPacket::Protected(packet) = captured.packet else { continue };
            let ignored = restarted_version.is_some() && packet.version != restarted_version;
            let matches = self.direction(captured.datagram) == direction && !ignored;
            if packet.kind == kind && matches {
                let largest = self.largest[direction as usize][kind.space()];
                if let Some(opened) = keys.open(&packet, largest) {
                    self.record_opened(index, direction, kind, opened);
                }
            }
        }
    }

    fn open_one_rtt(
        &mut self,
        direction: Direction,
        suites: &[Suite],
        random: &[u8; 32],
        keys: &KeyLog,
    ) {
        let label = match direction {
            Direction::ToServer => SecretLabel::ClientApplication,
            Direction::ToClient => SecretLabel::ServerApplication,
        };
        let mut keys = ShortHeaderKeys::new(suites, keys.secrets(random, label));
        self.has_keys[direction as usize][PacketKind::OneRtt as usize] =
            !keys.candidates.is_empty();
        // Short headers do not state the length of the ID, and `ids` has no empty ones.
        let ids = self.flow.ids[direction as usize].iter();
        let lengths: BTreeSet<usize> = ids.map(Vec::len).chain([0]).collect();
        let mut lengths: Vec<usize> = lengths.into_iter().rev().collect();
        for index in 0..self.captured.len() {
            let captured = &self.captured[index];
            let CoalescedPacket::Protected(packet) = captured.packet else { continue };
            if packet.kind == PacketKind::OneRtt && self.direction(captured.datagram) == direction {
                let largest = self.largest[direction as usize][PacketKind::OneRtt.space()];
                if let Some(opened) = keys.open(packet.bytes, &mut lengths, largest) {
                    self.record_opened(index, direction, PacketKind::OneRtt, opened);
                }
            }
        }
        self.key_updates[direction as usize] = keys.updates;
    }

    fn record_opened(
        &mut self,
        index: usize,
        direction: Direction,
        kind: PacketKind,
        Unprotected { number, frames: content, .. }: Unprotected,
    ) {
        let CoalescedPacket::Protected(packet) = self.captured[index].packet else { return };
        let datagram = self.captured[index].datagram;
        let largest = &mut self.largest[direction as usize][kind.space()];
        let late = largest.is_some_and(|largest| number < largest);
        *largest = Some(largest.unwrap_or(0).max(number));
        // A client that restarts in another version restarts its packet numbers.
        let version = packet.version.filter(|_| kind == PacketKind::Initial);
        let duplicate = !self.numbers.insert((direction, kind.space(), version, number));
        if !duplicate {
            let delivered = self.flow.datagrams[datagram].delivered;
            for frame in frames(&content) {
                match frame {
                    Frame::Crypto { offset, data } => {
                        let datagram = (datagram, delivered);
                        self.handshake.add(direction, kind, (offset, data), datagram);
                    }
                    Frame::NewConnectionId { id } => {
                        // Packets towards the issuer use the ID.
                        let opposite = match direction {
                            Direction::ToServer => Direction::ToClient,
                            Direction::ToClient => Direction::ToServer,
                        };
                        self.issued_ids[opposite as usize].push(id.to_vec());
                    }
                    _ => {}
                }
            }
        }
        let late = late && !duplicate;
        self.captured[index].opened = Some(Opened { number, frames: content, duplicate, late });
    }
}
