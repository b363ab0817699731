//! TCP connections: their stored segments and transport facts.

mod analysis;

use std::collections::HashMap;
use std::mem::size_of;
use std::net::SocketAddr;
use std::ops::Range;

use crate::copies::sort_and_remove_copies;
use crate::facts::{FastOpen, TcpFacts};
use crate::packet::Segment;
use crate::reassembly::{Coverage, Overlap, StoredSegment};
use crate::{Direction, KeyLog, Limits, Packet};

pub(crate) use analysis::TcpAnalysis;

/// A connection while its packets arrive. It is analyzed later, when the secrets are known and all
/// packets can be put in the order of arrival: the tap reports a dropped packet at once, and others
/// when it delivers them.
#[derive(Debug)]
pub(crate) struct TcpFlow {
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) tcp: TcpFacts,
    pub(crate) client: SequenceSpace,
    pub(crate) server: SequenceSpace,
    pub(crate) packets: Vec<StoredSegment>,
    /// Stored packets with neither data nor SYN.
    without_data_or_syn: usize,
    /// Packets that were not stored.
    pub(crate) left_out: u32,
    /// When the first packet with data or SYN arrived that was not stored.
    pub(crate) incomplete_since: Option<u64>,
    /// Bytes of memory of the stored packets.
    pub(crate) memory: usize,
}

/// The sequence space of one side. Positions are those of `StoredSegment`.
#[derive(Debug, Default)]
pub(crate) struct SequenceSpace {
    first_seq: Option<u32>,
    /// The position after the last one seen.
    high: u64,
    /// The position after the last payload byte seen.
    pub(crate) data_end: u64,
    coverage: Coverage,
    /// Payload bytes stored.
    stored_bytes: usize,
    /// Which packet has the payload with this sequence number and length.
    stored: HashMap<(u32, u32), usize>,
    /// The position after the FIN.
    fin: Option<u64>,
    fin_acknowledged: bool,
}

impl SequenceSpace {
    /// A sequence space with the same first sequence number and no packets.
    fn restarted(&self) -> Self {
        Self { first_seq: self.first_seq, ..Self::default() }
    }

    /// Where a segment with this sequence number starts. Returns `None` if it is far from the
    /// positions seen so far.
    fn start(&self, seq: u32, syn: bool) -> Option<u64> {
        match syn {
            true => (self.first_seq == Some(seq)).then_some(0),
            false => self.position(seq).filter(|start| *start > 0),
        }
    }

    /// The position of `seq`. Returns `None` if it is far from the positions seen so far.
    fn position(&self, seq: u32) -> Option<u64> {
        // Larger than any window, smaller than half the 32-bit space.
        const NEAR: i64 = 1 << 28;
        let expected = self.first_seq?.wrapping_add(self.high as u32);
        let distance = i64::from(seq.wrapping_sub(expected) as i32);
        if distance.abs() > NEAR {
            return None;
        }
        self.high.checked_add_signed(distance)
    }

    /// Adds a range of the sequence space, which is not empty.
    fn record(&mut self, range: Range<u64>) -> Overlap {
        self.high = self.high.max(range.end);
        self.coverage.add(range)
    }
}

impl TcpFlow {
    /// A connection whose client's SYN arrived at this time.
    pub(crate) fn new(arrived: u64) -> Self {
        Self {
            started: arrived,
            ended: arrived,
            tcp: TcpFacts::default(),
            client: SequenceSpace::default(),
            server: SequenceSpace::default(),
            packets: Vec::new(),
            without_data_or_syn: 0,
            left_out: 0,
            incomplete_since: None,
            memory: 0,
        }
    }

    /// Whether this SYN of the client starts a new connection with the same endpoints.
    pub(crate) fn is_superseded_by(&self, syn: &Segment<'_>) -> bool {
        self.is_closed() || self.client.first_seq != Some(syn.seq)
    }

    /// Whether the connection was reset, or both FINs were acknowledged.
    pub(crate) fn is_closed(&self) -> bool {
        let reset = self.tcp.client_rst || self.tcp.server_rst;
        reset || (self.client.fin_acknowledged && self.server.fin_acknowledged)
    }

    /// Adds a segment. `room` is the memory that is left, in bytes.
    pub(crate) fn segment(
        &mut self,
        packet: &Packet<'_>,
        segment: &Segment<'_>,
        limits: &Limits,
        room: usize,
    ) {
        self.started = self.started.min(packet.arrived);
        self.ended = self.ended.max(packet.arrived);
        self.tcp.dropped += u32::from(packet.delivered.is_none());
        self.count(packet.direction, segment);
        self.track_sequence_numbers(packet.direction, segment);
        self.store(packet, segment, limits, room);
    }

    /// Analyzes the connection with the secrets known so far. Call it once.
    pub(crate) fn analyze(
        &mut self,
        endpoints: (SocketAddr, SocketAddr),
        keys: &KeyLog,
    ) -> TcpAnalysis<'_> {
        for copy in sort_and_remove_copies(&mut self.packets) {
            let traffic = match copy.direction {
                Direction::ToServer => &mut self.tcp.to_server,
                Direction::ToClient => &mut self.tcp.to_client,
            };
            traffic.remove(copy.frame_len, copy.wire_len);
            self.tcp.dropped -= u32::from(copy.delivered.is_none());
        }
        self.locate_all();
        self.resolve_fast_open();
        TcpAnalysis::new(self, endpoints, keys)
    }

    fn count(&mut self, direction: Direction, segment: &Segment<'_>) {
        let tcp = &mut self.tcp;
        let (traffic, fin, rst) = match direction {
            Direction::ToServer => (&mut tcp.to_server, &mut tcp.client_fin, &mut tcp.client_rst),
            Direction::ToClient => (&mut tcp.to_client, &mut tcp.server_fin, &mut tcp.server_rst),
        };
        traffic.add(segment.frame_len, segment.wire_len);
        *fin |= segment.flags.fin;
        *rst |= segment.flags.rst;
    }

    /// Tracks the sequence numbers, to know when the connection is closed.
    fn track_sequence_numbers(&mut self, direction: Direction, segment: &Segment<'_>) {
        let (side, other) = match direction {
            Direction::ToServer => (&mut self.client, &mut self.server),
            Direction::ToClient => (&mut self.server, &mut self.client),
        };
        if segment.flags.syn && segment.ack.is_some() == (direction == Direction::ToClient) {
            side.first_seq.get_or_insert(segment.seq);
        }
        if let (Some(fin), Some(ack)) = (other.fin, segment.ack) {
            other.fin_acknowledged |= other.position(ack).is_some_and(|ack| ack >= fin);
        }
        if let Some(start) = side.start(segment.seq, segment.flags.syn) {
            let end = start
                + u64::from(segment.flags.syn)
                + u64::from(segment.wire_len)
                + u64::from(segment.flags.fin);
            side.high = side.high.max(end);
            if segment.flags.fin {
                side.fin.get_or_insert(end);
            }
        }
    }

    fn store(&mut self, packet: &Packet<'_>, segment: &Segment<'_>, limits: &Limits, room: usize) {
        let side = match packet.direction {
            Direction::ToServer => &mut self.client,
            Direction::ToClient => &mut self.server,
        };
        // If a payload is sent again, only the copy that arrived first is stored.
        let key = (segment.seq, segment.wire_len);
        let known = side.stored.get(&key).copied().filter(|index| {
            !segment.flags.syn && *self.packets[*index].payload == *segment.payload
        });
        let fits = side.stored_bytes + segment.payload.len() <= limits.bytes_per_direction;
        let payload = if fits && known.is_none() { segment.payload } else { &[] };
        let has_data_or_syn = segment.flags.syn || segment.wire_len > 0;
        let same_kind = match has_data_or_syn {
            true => self.packets.len() - self.without_data_or_syn,
            false => self.without_data_or_syn,
        };
        let memory = size_of::<StoredSegment>() + size_of::<((u32, u32), usize)>() + payload.len();
        if same_kind >= limits.packets_per_connection || memory > room {
            self.left_out += 1;
            if has_data_or_syn {
                self.incomplete_since.get_or_insert(packet.arrived);
            }
            return;
        }
        side.stored_bytes += payload.len();
        let mut payload: Box<[u8]> = payload.into();
        if let Some(index) = known.filter(|index| packet.arrived < self.packets[*index].arrived) {
            payload = std::mem::take(&mut self.packets[index].payload);
        }
        if !payload.is_empty() && !segment.flags.syn {
            side.stored.insert(key, self.packets.len());
        }
        self.without_data_or_syn += usize::from(!has_data_or_syn);
        self.memory += memory;
        self.packets.push(StoredSegment {
            direction: packet.direction,
            arrived: packet.arrived,
            delivered: packet.delivered,
            flags: segment.flags,
            options: segment.flags.syn.then_some(segment.options),
            seq: segment.seq,
            ack: segment.ack,
            frame_len: segment.frame_len,
            wire_len: segment.wire_len,
            payload,
            ..StoredSegment::default()
        });
    }

    /// Locates all packets, which are in the order of arrival, in the sequence spaces, and counts
    /// what depends on their order.
    fn locate_all(&mut self) {
        (self.client, self.server) = (self.client.restarted(), self.server.restarted());
        let mut packets = std::mem::take(&mut self.packets);
        for packet in &mut packets {
            if packet.flags.syn {
                self.syn(packet);
            }
            let other = match packet.direction {
                Direction::ToServer => &self.server,
                Direction::ToClient => &self.client,
            };
            packet.acknowledged = packet.ack.and_then(|ack| other.position(ack));
            self.locate(packet);
        }
        self.packets = packets;
    }

    fn syn(&mut self, packet: &StoredSegment) {
        let options = packet.options.unwrap_or_default();
        match (packet.direction, packet.ack) {
            (Direction::ToServer, None) => {
                if self.client.high > 0 {
                    self.tcp.syn_retransmissions += 1;
                } else {
                    self.tcp.client_options = options;
                    self.tcp.fast_open_option = options.fast_open;
                }
                self.tcp.syn_data = self.tcp.syn_data.max(packet.wire_len);
            }
            (Direction::ToClient, Some(ack)) => {
                self.tcp.server_options.get_or_insert(options);
                let data = self.client.first_seq.map(|seq| ack.wrapping_sub(seq.wrapping_add(1)));
                let accepted = data.filter(|data| *data <= self.tcp.syn_data).unwrap_or(0);
                let before = self.tcp.syn_data_acknowledged;
                self.tcp.syn_data_acknowledged = before.max(accepted);
                if !self.tcp.syn_ack {
                    // Data that was not accepted is sent again, which is not a retransmission.
                    self.client.coverage.forget_from(1 + u64::from(accepted));
                }
                self.tcp.syn_ack = true;
            }
            _ => {}
        }
    }

    /// Locates a packet in its side's sequence space, and counts it if it repeats others.
    fn locate(&mut self, packet: &mut StoredSegment) {
        let (side, retransmissions) = match packet.direction {
            Direction::ToServer => (&mut self.client, &mut self.tcp.client_retransmissions),
            Direction::ToClient => (&mut self.server, &mut self.tcp.server_retransmissions),
        };
        packet.position = side.start(packet.seq, packet.flags.syn);
        let Some(start) = packet.position else { return };
        let end = start + u64::from(packet.flags.syn) + u64::from(packet.wire_len);
        let end_with_fin = end + u64::from(packet.flags.fin);
        packet.range = start..end;
        if end_with_fin > start {
            let overlap = side.record(start..end_with_fin);
            packet.retransmission = matches!(overlap, Overlap::PartlyRepeated | Overlap::Repeated);
            self.tcp.out_of_order += u32::from(overlap == Overlap::OutOfOrder);
            *retransmissions += u32::from(packet.retransmission);
            side.data_end = side.data_end.max(end);
        }
    }

    /// Determines whether Fast Open was used. SYN data that the server did not accept is removed,
    /// so it counts only where it is sent again.
    fn resolve_fast_open(&mut self) {
        let (sent, accepted) = (self.tcp.syn_data, self.tcp.syn_data_acknowledged);
        self.tcp.fast_open = match (sent, accepted) {
            (0, _) => FastOpen::Off,
            _ if accepted == sent => FastOpen::Used,
            _ => FastOpen::FellBack,
        };
        if !self.tcp.syn_ack {
            return;
        }
        let end = 1 + u64::from(accepted);
        let syns = self.packets.iter_mut().filter(|packet| packet.is_syn());
        for syn in syns.filter(|packet| packet.direction == Direction::ToServer) {
            syn.range.end = syn.range.end.min(end);
            let stored_bytes = syn.payload.len().min(accepted as usize);
            syn.payload = syn.payload[..stored_bytes].into();
        }
    }
}
