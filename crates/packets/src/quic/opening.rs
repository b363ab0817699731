//! Opens a connection's packets, level by level.

use std::collections::{BTreeSet, HashSet};

use super::crypto::Handshake;
use super::flow::QuicFlow;
use super::frames::{Frame, frames};
use super::header::{Kind, Part, Protected, parts};
use super::keys::{LongKeys, ShortKeys};
use super::protection::{PacketKeys, Unprotected};
use super::version::Version;
use crate::decrypt::Suite;
use crate::facts::Unknown;
use crate::keylog::SecretLabel;
use crate::{Direction, KeyLog};

/// A packet, and what became of it.
pub(crate) struct Slot<'a> {
    pub(crate) datagram: usize,
    pub(crate) part: Part<'a>,
    pub(crate) opened: Option<Opened>,
}

impl Slot<'_> {
    /// What kind of protected packet it is.
    pub(crate) fn kind(&self) -> Option<Kind> {
        match &self.part {
            Part::Protected(packet) => Some(packet.kind),
            _ => None,
        }
    }
}

/// A packet that was opened.
pub(crate) struct Opened {
    pub(crate) number: u64,
    pub(crate) frames: Vec<u8>,
    /// A packet of this number was there before.
    pub(crate) duplicate: bool,
    /// A later one of its number space was there before.
    pub(crate) late: bool,
}

/// The packets of a connection, with what they say of TLS.
pub(crate) struct Opening<'a> {
    flow: &'a QuicFlow,
    /// In the order of their arrival.
    pub(crate) slots: Vec<Slot<'a>>,
    pub(crate) handshake: Handshake,
    /// Connection IDs that were given out in frames, by the `Direction` in which they lead.
    pub(crate) given_out: [Vec<Vec<u8>>; 2],
    pub(crate) key_updates: [u32; 2],
    largest: [[Option<u64>; 3]; 2],
    numbers: HashSet<(Direction, usize, Option<Version>, u64)>,
    /// Whether there are secrets that may fit, by direction and kind.
    has_keys: [[bool; 4]; 2],
}

/// By `Direction`.
pub(crate) const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

/// The client's first connection IDs whose Initial keys are tried, at most: a Retry or a Version
/// Negotiation makes a second one, and the server's own ID counts as well.
const MAX_INITIAL_IDS: usize = 8;

impl<'a> Opening<'a> {
    /// Opens what `keys` open of the datagrams, which are in the order of their arrival.
    pub(crate) fn new(flow: &'a QuicFlow, keys: &KeyLog) -> Self {
        let datagrams = flow.datagrams.iter().enumerate();
        let slots = datagrams.flat_map(|(datagram, kept)| {
            parts(&kept.payload).map(move |part| Slot { datagram, part, opened: None })
        });
        let mut opening = Self {
            flow,
            slots: slots.collect(),
            handshake: Handshake::default(),
            given_out: [Vec::new(), Vec::new()],
            key_updates: [0; 2],
            largest: [[None; 3]; 2],
            numbers: HashSet::new(),
            has_keys: [[false; 4]; 2],
        };
        opening.initial();
        if let Some(hello) = &opening.handshake.hello {
            let random = hello.random;
            let suite: Vec<_> = opening.handshake.suite().into_iter().collect();
            opening.early(&random, keys);
            for direction in BOTH {
                opening.handshake(direction, &suite, &random, keys);
            }
            for direction in BOTH {
                opening.one_rtt(direction, &suite, &random, keys);
            }
        }
        opening
    }

    /// Why packets of this kind could not be opened, if there are any and none was.
    pub(crate) fn why_closed(&self, direction: Direction, kind: Kind) -> Option<Unknown> {
        let mut slots = self
            .slots
            .iter()
            .filter(|slot| slot.kind() == Some(kind) && self.direction(slot.datagram) == direction);
        if slots.clone().next().is_none() || slots.any(|slot| slot.opened.is_some()) {
            return None;
        }
        Some(match &self.handshake.server_hello {
            None => self.handshake.broken.unwrap_or(Unknown::CaptureGap),
            Some(_) if self.handshake.suite().is_none() => Unknown::CipherSuite,
            Some(_) if self.has_keys[direction as usize][kind as usize] => Unknown::WrongSecrets,
            Some(_) => Unknown::NoSecrets,
        })
    }

    pub(crate) fn direction(&self, datagram: usize) -> Direction {
        self.flow.datagrams[datagram].direction
    }

    fn initial(&mut self) {
        let mut ids: Vec<&[u8]> = Vec::new();
        for slot in &self.slots {
            if let Part::Protected(Protected { kind: Kind::Initial, destination, .. }) = slot.part
                && self.direction(slot.datagram) == Direction::ToServer
                && ids.len() < MAX_INITIAL_IDS
                && !ids.contains(&destination)
            {
                ids.push(destination);
            }
        }
        for direction in BOTH {
            let keys = |id: &&[u8]| Version::ALL.map(|v| PacketKeys::initial(v, id, direction));
            let mut keys = LongKeys {
                candidates: ids.iter().flat_map(keys).flatten().collect(),
                several: true,
            };
            self.long(direction, Kind::Initial, &mut keys);
        }
    }

    fn early(&mut self, random: &[u8; 32], keys: &KeyLog) {
        // The early secret is of the ticket's suite, which a refusing server need not choose.
        let label = SecretLabel::ClientEarly;
        let mut keys = LongKeys::new(&Suite::ALL, keys.secrets(random, label));
        self.long(Direction::ToServer, Kind::ZeroRtt, &mut keys);
    }

    fn handshake(
        &mut self,
        direction: Direction,
        suite: &[Suite],
        random: &[u8; 32],
        keys: &KeyLog,
    ) {
        let label = match direction {
            Direction::ToServer => SecretLabel::ClientHandshake,
            Direction::ToClient => SecretLabel::ServerHandshake,
        };
        let mut keys = LongKeys::new(suite, keys.secrets(random, label));
        self.long(direction, Kind::Handshake, &mut keys);
    }

    /// The version with which a client started again after a Version Negotiation.
    fn begun_again(&self) -> Option<Version> {
        let initial = |slot: &Slot<'_>| match slot.part {
            Part::Protected(packet) if packet.kind == Kind::Initial => packet.version,
            _ => None,
        };
        let negotiated = self.flow.facts.version_negotiations > 0;
        self.slots.iter().rev().find_map(initial).filter(|_| negotiated)
    }

    /// Opens the packets with long headers of one kind.
    fn long(&mut self, direction: Direction, kind: Kind, keys: &mut LongKeys) {
        self.has_keys[direction as usize][kind as usize] = !keys.candidates.is_empty();
        let only = self.begun_again().filter(|_| kind == Kind::Initial);
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            let Part::Protected(packet) = slot.part else { continue };
            let passed_over = only.is_some() && packet.version != only;
            let here = self.direction(slot.datagram) == direction && !passed_over;
            if packet.kind == kind && here {
                let largest = self.largest[direction as usize][kind.space()];
                if let Some(opened) = keys.open(&packet, largest) {
                    self.take_in(index, direction, kind, opened);
                }
            }
        }
    }

    fn one_rtt(&mut self, direction: Direction, suite: &[Suite], random: &[u8; 32], keys: &KeyLog) {
        let label = match direction {
            Direction::ToServer => SecretLabel::ClientApplication,
            Direction::ToClient => SecretLabel::ServerApplication,
        };
        let mut keys = ShortKeys::new(suite, keys.secrets(random, label));
        self.has_keys[direction as usize][Kind::OneRtt as usize] = !keys.candidates.is_empty();
        // The header does not say how long the ID is, and an empty one is not among those known.
        let ids = self.flow.ids[direction as usize].iter();
        let lengths: BTreeSet<usize> = ids.map(Vec::len).chain([0]).collect();
        let mut lengths: Vec<usize> = lengths.into_iter().rev().collect();
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            let Part::Protected(packet) = slot.part else { continue };
            if packet.kind == Kind::OneRtt && self.direction(slot.datagram) == direction {
                let largest = self.largest[direction as usize][Kind::OneRtt.space()];
                if let Some(opened) = keys.open(packet.bytes, &mut lengths, largest) {
                    self.take_in(index, direction, Kind::OneRtt, opened);
                }
            }
        }
        self.key_updates[direction as usize] = keys.updates;
    }

    fn take_in(
        &mut self,
        index: usize,
        direction: Direction,
        kind: Kind,
        Unprotected { number, frames: content, .. }: Unprotected,
    ) {
        let Part::Protected(packet) = self.slots[index].part else { return };
        let datagram = self.slots[index].datagram;
        let largest = &mut self.largest[direction as usize][kind.space()];
        let late = largest.is_some_and(|largest| number < largest);
        *largest = Some(largest.unwrap_or(0).max(number));
        // A client that starts again in another version counts again.
        let version = packet.version.filter(|_| kind == Kind::Initial);
        let duplicate = !self.numbers.insert((direction, kind.space(), version, number));
        if !duplicate {
            let delivered = self.flow.datagrams[datagram].delivered;
            for frame in frames(&content) {
                match frame {
                    Frame::Crypto { offset, data } => {
                        let brought = (datagram, delivered);
                        self.handshake.add(direction, kind, (offset, data), brought);
                    }
                    Frame::NewConnectionId { id } => {
                        // They lead to the one who gives them out.
                        let back = match direction {
                            Direction::ToServer => Direction::ToClient,
                            Direction::ToClient => Direction::ToServer,
                        };
                        self.given_out[back as usize].push(id.to_vec());
                    }
                    _ => {}
                }
            }
        }
        let late = late && !duplicate;
        self.slots[index].opened = Some(Opened { number, frames: content, duplicate, late });
    }
}
