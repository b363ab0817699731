//! A QUIC connection and its stored datagrams.

use std::collections::BTreeSet;
use std::mem::size_of;
use std::net::SocketAddr;

use crate::copies::{TapPacket, sort_and_remove_copies};
use crate::facts::{QuicFacts, Traffic};
use crate::packet::Udp;
use crate::{Direction, Limits, Packet};

/// A datagram as seen at the tap.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) direction: Direction,
    pub(crate) arrived: u64,
    pub(crate) delivered: Option<u64>,
    /// The client's endpoint, which may migrate.
    pub(crate) client: SocketAddr,
    /// The frame's length on the wire.
    pub(crate) frame_len: u32,
    /// The UDP payload's length on the wire: more than `payload` if the capture truncated it.
    pub(crate) wire_len: u32,
    pub(crate) payload: Box<[u8]>,
}

impl Datagram {
    pub(crate) fn new(packet: &Packet<'_>, udp: &Udp<'_>) -> Self {
        Self {
            direction: packet.direction,
            arrived: packet.arrived,
            delivered: packet.delivered,
            client: udp.endpoints(packet.direction).0,
            frame_len: udp.frame_len,
            wire_len: udp.wire_len,
            payload: udp.payload.into(),
        }
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.payload.len()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.payload.len() as u64 == u64::from(self.wire_len)
    }
}

impl TapPacket for Datagram {
    fn arrived(&self) -> u64 {
        self.arrived
    }

    fn delivered(&mut self) -> &mut Option<u64> {
        &mut self.delivered
    }

    fn equals(&self, other: &Self) -> bool {
        let header = |datagram: &Self| (datagram.direction, datagram.client, datagram.wire_len);
        header(self) == header(other) && self.payload == other.payload
    }
}

/// A connection while its datagrams arrive.
#[derive(Debug)]
pub(crate) struct QuicFlow {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) started: u64,
    pub(crate) ended: u64,
    /// The facts that need no secrets.
    pub(crate) facts: QuicFacts,
    pub(crate) datagrams: Vec<Datagram>,
    /// Datagrams that were not stored.
    pub(crate) left_out: u32,
    /// When the first datagram that was not stored arrived.
    pub(crate) incomplete_since: Option<u64>,
    /// Bytes of memory of the stored datagrams.
    pub(crate) memory: usize,
    /// The stored payload bytes of each direction, indexed by `Direction`.
    stored_bytes: [usize; 2],
    /// The destination connection IDs of each direction, indexed by `Direction`.
    pub(crate) ids: [BTreeSet<Vec<u8>>; 2],
    /// The number of client addresses by which datagrams are assigned to this connection, at most
    /// [`MAX_ADDRESSES`].
    pub(crate) indexed_addresses: usize,
    /// Whether the server sent anything but Version Negotiation and Retry.
    pub(crate) server_responded: bool,
    /// The number of datagrams when the connection was last checked for a close.
    pub(crate) checked_datagrams: usize,
}

/// Connection IDs stored of one side, at most. Endpoints choose how many they accept (RFC 9000
/// section 18.2); eight are common.
const MAX_IDS: usize = 256;

/// Addresses stored of a client, at most: an attacker can forge source addresses.
pub(crate) const MAX_ADDRESSES: usize = 64;

impl QuicFlow {
    pub(crate) fn new(client: SocketAddr, server: SocketAddr, started: u64) -> Self {
        Self {
            client,
            server,
            started,
            ended: started,
            facts: QuicFacts::default(),
            datagrams: Vec::new(),
            left_out: 0,
            incomplete_since: None,
            memory: 0,
            stored_bytes: [0; 2],
            ids: [BTreeSet::new(), BTreeSet::new()],
            indexed_addresses: 0,
            server_responded: false,
            checked_datagrams: 0,
        }
    }

    /// Adds a destination connection ID of packets in `direction`. Returns whether it is new.
    pub(crate) fn add_connection_id(&mut self, direction: Direction, id: &[u8]) -> bool {
        let ids = &mut self.ids[direction as usize];
        !id.is_empty() && ids.len() < MAX_IDS && ids.insert(id.to_vec())
    }

    /// Adds a datagram. `room` is the memory that is left.
    pub(crate) fn add(&mut self, datagram: Datagram, limits: &Limits, room: usize) {
        self.started = self.started.min(datagram.arrived);
        self.ended = self.ended.max(datagram.arrived);
        let largest = match datagram.direction {
            Direction::ToServer => &mut self.facts.largest_to_server,
            Direction::ToClient => &mut self.facts.largest_to_client,
        };
        *largest = (*largest).max(datagram.wire_len);
        self.traffic(datagram.direction).add(datagram.frame_len, datagram.wire_len);
        self.facts.dropped += u32::from(datagram.delivered.is_none());
        let stored_bytes = &mut self.stored_bytes[datagram.direction as usize];
        let memory = datagram.memory();
        if self.datagrams.len() >= limits.packets_per_connection
            || *stored_bytes + datagram.payload.len() > limits.bytes_per_direction
            || memory > room
        {
            self.left_out += 1;
            self.incomplete_since.get_or_insert(datagram.arrived);
            return;
        }
        *stored_bytes += datagram.payload.len();
        self.memory += memory;
        self.datagrams.push(datagram);
    }

    /// Puts the datagrams in the order of arrival, without the path's copies.
    pub(crate) fn put_in_order(&mut self) {
        for copy in sort_and_remove_copies(&mut self.datagrams) {
            self.traffic(copy.direction).remove(copy.frame_len, copy.wire_len);
            self.facts.dropped -= u32::from(copy.delivered.is_none());
            self.stored_bytes[copy.direction as usize] -= copy.payload.len();
            self.memory -= copy.memory();
        }
    }

    fn traffic(&mut self, direction: Direction) -> &mut Traffic {
        match direction {
            Direction::ToServer => &mut self.facts.to_server,
            Direction::ToClient => &mut self.facts.to_client,
        }
    }
}
