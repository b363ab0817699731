//! One TCP connection: what is kept of its packets, and the judgement over them.

use std::mem::size_of;
use std::net::SocketAddr;
use std::ops::Range;

use crate::facts::{FastOpen, TcpFacts};
use crate::judge::Judge;
use crate::packet::Segment;
use crate::reassembly::{Coverage, SegmentOverlap, Stored};
use crate::{Direction, KeyLog, Limits, Packet};

/// A connection while its packets come in. Judging waits until the secrets are there.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) tcp: TcpFacts,
    pub(crate) client: Side,
    pub(crate) server: Side,
    pub(crate) packets: Vec<Stored>,
    /// How many of them do not count.
    bare: usize,
    /// Packets that were not kept at all.
    pub(crate) left_out: u32,
    /// When the first packet came that counts but was not kept.
    pub(crate) blind_from: Option<u64>,
    /// Bytes of memory that its packets take.
    pub(crate) memory: usize,
}

/// One end's sequence space. Positions in it are those of `Stored`.
#[derive(Debug, Default)]
pub(crate) struct Side {
    first_seq: Option<u32>,
    /// The position after the last that was seen.
    high: u64,
    /// The position after the last payload byte that was seen.
    pub(crate) data_end: u64,
    coverage: Coverage,
    /// Payload bytes kept.
    kept: usize,
    /// The position after the FIN.
    fin: Option<u64>,
    fin_acknowledged: bool,
}

impl Side {
    /// The position of `seq`, if it lies near what was seen so far.
    fn position(&self, seq: u32) -> Option<u64> {
        // Well beyond any window, well below the point where 32 bits become ambiguous.
        const NEAR: i64 = 1 << 28;
        let expected = self.first_seq?.wrapping_add(self.high as u32);
        let distance = i64::from(seq.wrapping_sub(expected) as i32);
        if distance.abs() > NEAR {
            return None;
        }
        self.high.checked_add_signed(distance)
    }

    /// Notes a stretch of the sequence space, which may end with a FIN.
    fn take_in(&mut self, stretch: Range<u64>, fin: bool) -> SegmentOverlap {
        self.high = self.high.max(stretch.end);
        if fin {
            self.fin.get_or_insert(stretch.end);
        }
        self.coverage.add(stretch)
    }
}

impl Flow {
    /// A connection that starts with this SYN of its client.
    pub(crate) fn new(arrived: u64) -> Self {
        Self {
            started: arrived,
            ended: arrived,
            tcp: TcpFacts::default(),
            client: Side::default(),
            server: Side::default(),
            packets: Vec::new(),
            bare: 0,
            left_out: 0,
            blind_from: None,
            memory: 0,
        }
    }

    /// Whether this SYN of the client belongs to a later connection of the same addresses.
    pub(crate) fn is_superseded_by(&self, syn: &Segment<'_>) -> bool {
        self.is_closed() || self.client.first_seq != Some(syn.seq)
    }

    /// Reset, or closed and acknowledged by both sides.
    pub(crate) fn is_closed(&self) -> bool {
        let reset = self.tcp.client_rst || self.tcp.server_rst;
        reset || (self.client.fin_acknowledged && self.server.fin_acknowledged)
    }

    /// Takes one segment in; `room` is the memory that may yet be used for it.
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
        if segment.flags.syn {
            self.syn(packet.direction, segment);
        }
        let acknowledged = self.acknowledge(packet.direction, segment);
        self.place(packet, segment, acknowledged, limits, room);
    }

    /// Prepares the connection to be judged, once, with the secrets that are known now.
    pub(crate) fn settle(&mut self, ends: (SocketAddr, SocketAddr), keys: &KeyLog) -> Judge<'_> {
        self.packets.sort_by_key(|packet| packet.arrived);
        self.settle_fast_open();
        Judge::new(self, ends, keys)
    }

    fn count(&mut self, direction: Direction, segment: &Segment<'_>) {
        let tcp = &mut self.tcp;
        let (traffic, fin, rst) = match direction {
            Direction::ToServer => (&mut tcp.to_server, &mut tcp.client_fin, &mut tcp.client_rst),
            Direction::ToClient => (&mut tcp.to_client, &mut tcp.server_fin, &mut tcp.server_rst),
        };
        traffic.packets += 1;
        traffic.wire_bytes += u64::from(segment.frame_len);
        traffic.payload_bytes += u64::from(segment.wire_len);
        *fin |= segment.flags.fin;
        *rst |= segment.flags.rst;
    }

    fn syn(&mut self, direction: Direction, segment: &Segment<'_>) {
        match (direction, segment.ack) {
            (Direction::ToServer, None) => {
                if self.client.first_seq.is_some() {
                    self.tcp.syn_retransmissions += 1;
                } else {
                    self.client.first_seq = Some(segment.seq);
                    self.tcp.client_options = segment.options;
                    self.tcp.fast_open_option = segment.options.fast_open;
                }
                self.tcp.syn_data = self.tcp.syn_data.max(segment.wire_len);
            }
            (Direction::ToClient, Some(ack)) => {
                self.server.first_seq.get_or_insert(segment.seq);
                self.tcp.server_options.get_or_insert(segment.options);
                let data = self.client.first_seq.map(|seq| ack.wrapping_sub(seq.wrapping_add(1)));
                let taken = data.filter(|data| *data <= self.tcp.syn_data).unwrap_or(0);
                let before = self.tcp.syn_data_acknowledged;
                self.tcp.syn_data_acknowledged = before.max(taken);
                if !self.tcp.syn_ack {
                    // What was not taken will come again, and is then no retransmission.
                    self.client.coverage.forget_from(1 + u64::from(taken));
                }
                self.tcp.syn_ack = true;
            }
            _ => {}
        }
    }

    /// The position up to which the segment acknowledges the other direction.
    fn acknowledge(&mut self, direction: Direction, segment: &Segment<'_>) -> Option<u64> {
        let other = match direction {
            Direction::ToServer => &mut self.server,
            Direction::ToClient => &mut self.client,
        };
        let acknowledged = other.position(segment.ack?);
        if let Some(fin) = other.fin {
            other.fin_acknowledged |= acknowledged.is_some_and(|ack| ack >= fin);
        }
        acknowledged
    }

    /// Finds the segment's place in the sequence space, counts it, and keeps what is needed.
    fn place(
        &mut self,
        packet: &Packet<'_>,
        segment: &Segment<'_>,
        acknowledged: Option<u64>,
        limits: &Limits,
        room: usize,
    ) {
        let mut stored = Stored {
            direction: packet.direction,
            arrived: packet.arrived,
            delivered: packet.delivered,
            flags: segment.flags,
            options: segment.flags.syn.then_some(segment.options),
            acknowledged,
            wire_len: segment.wire_len,
            ..Stored::default()
        };
        let (side, retransmissions) = match packet.direction {
            Direction::ToServer => (&mut self.client, &mut self.tcp.client_retransmissions),
            Direction::ToClient => (&mut self.server, &mut self.tcp.server_retransmissions),
        };
        stored.position = match segment.flags.syn {
            true if side.first_seq == Some(segment.seq) => Some(0),
            true => None,
            false => side.position(segment.seq).filter(|start| *start > 0),
        };
        if let Some(start) = stored.position {
            let end = start + u64::from(segment.flags.syn) + u64::from(segment.wire_len);
            let end_with_fin = end + u64::from(segment.flags.fin);
            stored.range = start..end;
            if end_with_fin > start {
                let seen = side.take_in(start..end_with_fin, segment.flags.fin);
                stored.again =
                    matches!(seen, SegmentOverlap::PartlyBefore | SegmentOverlap::Before);
                self.tcp.out_of_order += u32::from(seen == SegmentOverlap::OutOfOrder);
                *retransmissions += u32::from(stored.again);
                side.data_end = side.data_end.max(end);
                let fits = side.kept + segment.payload.len() <= limits.bytes_per_direction;
                if fits && seen != SegmentOverlap::Before {
                    stored.payload = segment.payload.into();
                }
            }
        }
        self.keep(stored, limits, room);
    }

    fn keep(&mut self, packet: Stored, limits: &Limits, room: usize) {
        let of_its_sort = match packet.counts() {
            true => self.packets.len() - self.bare,
            false => self.bare,
        };
        let cost = size_of::<Stored>() + packet.payload.len();
        if of_its_sort >= limits.packets_per_connection || cost > room {
            self.left_out += 1;
            if packet.counts() {
                self.blind_from.get_or_insert(packet.arrived);
            }
            return;
        }
        let side = match packet.direction {
            Direction::ToServer => &mut self.client,
            Direction::ToClient => &mut self.server,
        };
        side.kept += packet.payload.len();
        self.bare += usize::from(!packet.counts());
        self.memory += cost;
        self.packets.push(packet);
    }

    /// Says whether Fast Open was used, and lets SYN data that the server did not take count
    /// only where it is sent again.
    fn settle_fast_open(&mut self) {
        let (sent, taken) = (self.tcp.syn_data, self.tcp.syn_data_acknowledged);
        self.tcp.fast_open = match (sent, taken) {
            (0, _) => FastOpen::Off,
            _ if taken == sent => FastOpen::Used,
            _ => FastOpen::FellBack,
        };
        if !self.tcp.syn_ack {
            return;
        }
        let end = 1 + u64::from(taken);
        let syns = self.packets.iter_mut().filter(|packet| packet.is_syn());
        for syn in syns.filter(|packet| packet.direction == Direction::ToServer) {
            syn.range.end = syn.range.end.min(end);
            let kept = syn.payload.len().min(taken as usize);
            syn.payload = syn.payload[..kept].into();
        }
    }
}
