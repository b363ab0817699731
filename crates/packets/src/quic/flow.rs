//! One QUIC connection: what is kept of its datagrams.

use std::collections::BTreeSet;
use std::mem::size_of;
use std::net::SocketAddr;

use crate::facts::{QuicFacts, Traffic};
use crate::packet::Udp;
use crate::{Direction, Limits, Packet};

/// A datagram as the tap saw it.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) direction: Direction,
    pub(crate) arrived: u64,
    pub(crate) delivered: Option<u64>,
    /// The client's end, which migrates.
    pub(crate) client: SocketAddr,
    /// The UDP payload's length on the wire; more than `payload` holds if the capture cut it.
    pub(crate) wire_len: u32,
    pub(crate) payload: Box<[u8]>,
}

impl Datagram {
    pub(crate) fn new(packet: &Packet<'_>, udp: &Udp<'_>) -> Self {
        Self {
            direction: packet.direction,
            arrived: packet.arrived,
            delivered: packet.delivered,
            client: udp.ends(packet.direction).0,
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

/// A connection while its datagrams come in.
#[derive(Debug)]
pub(crate) struct QuicFlow {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) started: u64,
    pub(crate) ended: u64,
    /// What does not need the secrets.
    pub(crate) facts: QuicFacts,
    pub(crate) datagrams: Vec<Datagram>,
    /// Datagrams that were not kept at all.
    pub(crate) left_out: u32,
    /// When the first of them came.
    pub(crate) blind_from: Option<u64>,
    /// Bytes of memory that its datagrams take.
    pub(crate) memory: usize,
    kept: [usize; 2],
    /// The connection IDs that lead to each side, by `Direction`.
    pub(crate) ids: [BTreeSet<Vec<u8>>; 2],
    /// Whether anything but Version Negotiation and Retry came from the server.
    pub(crate) answered: bool,
    /// How many datagrams it had when it was last looked whether it is closed.
    pub(crate) looked_at: usize,
}

/// Connection IDs of one side, at most. An endpoint is asked to store eight (RFC 9000 section
/// 18.2 lets it choose).
const MAX_IDS: usize = 256;

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
            blind_from: None,
            memory: 0,
            kept: [0; 2],
            ids: [BTreeSet::new(), BTreeSet::new()],
            answered: false,
            looked_at: 0,
        }
    }

    /// Notes a connection ID that leads to the side towards which `direction` points, and says
    /// whether it is new.
    pub(crate) fn learn(&mut self, direction: Direction, id: &[u8]) -> bool {
        let ids = &mut self.ids[direction as usize];
        !id.is_empty() && ids.len() < MAX_IDS && ids.insert(id.to_vec())
    }

    /// Takes a datagram in whose frame was `frame_len` long; `room` is the memory that may yet be
    /// used for it.
    pub(crate) fn add(&mut self, datagram: Datagram, frame_len: u32, limits: &Limits, room: usize) {
        self.started = self.started.min(datagram.arrived);
        self.ended = self.ended.max(datagram.arrived);
        let facts = &mut self.facts;
        let (traffic, largest) = match datagram.direction {
            Direction::ToServer => (&mut facts.to_server, &mut facts.largest_to_server),
            Direction::ToClient => (&mut facts.to_client, &mut facts.largest_to_client),
        };
        *traffic = Traffic {
            packets: traffic.packets + 1,
            wire_bytes: traffic.wire_bytes + u64::from(frame_len),
            payload_bytes: traffic.payload_bytes + u64::from(datagram.wire_len),
        };
        *largest = (*largest).max(datagram.wire_len);
        facts.dropped += u32::from(datagram.delivered.is_none());
        let kept = &mut self.kept[datagram.direction as usize];
        let memory = datagram.memory();
        if self.datagrams.len() >= limits.packets_per_connection
            || *kept + datagram.payload.len() > limits.bytes_per_direction
            || memory > room
        {
            self.left_out += 1;
            self.blind_from.get_or_insert(datagram.arrived);
            return;
        }
        *kept += datagram.payload.len();
        self.memory += memory;
        self.datagrams.push(datagram);
    }
}
