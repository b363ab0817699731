//! One TCP connection: what is kept of its packets, and the judgement over them.

use std::mem::size_of;
use std::net::SocketAddr;

use crate::client_side::{self, ClientSide};
use crate::facts::{
    EarlyData, EarlyFacts, FastOpen, FirstResponse, FlowFacts, Kind, TcpFacts, TlsFacts,
    TlsVersion, Unknown,
};
use crate::handshake::ClientHello;
use crate::packet::Segment;
use crate::reassembly::{Coverage, Seen, Stored, Stream};
use crate::round_trips;
use crate::server_side::ServerSide;
use crate::{Direction, KeyLog, Limits, Packet};

/// A connection while its packets come in. Judging waits until the secrets are there.
#[derive(Debug)]
pub(crate) struct Flow {
    started: u64,
    ended: u64,
    tcp: TcpFacts,
    client: Side,
    server: Side,
    packets: Vec<Stored>,
    /// When the first packet came that counts but was not kept.
    blind_from: Option<u64>,
    /// Bytes of memory that its packets take.
    pub(crate) memory: usize,
}

/// One end's sequence space. Positions in it are those of `Stored`.
#[derive(Debug, Default)]
struct Side {
    first_seq: Option<u32>,
    /// The position after the last that was seen.
    high: u64,
    /// The position after the last payload byte that was seen.
    data_end: u64,
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
}

impl Flow {
    /// A connection that begins with this SYN of its client.
    pub(crate) fn new(arrived: u64) -> Self {
        Self {
            started: arrived,
            ended: arrived,
            tcp: TcpFacts::default(),
            client: Side::default(),
            server: Side::default(),
            packets: Vec::new(),
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
        match packet.direction {
            Direction::ToServer => {
                self.tcp.client_fin |= segment.fin;
                self.tcp.client_rst |= segment.rst;
            }
            Direction::ToClient => {
                self.tcp.server_fin |= segment.fin;
                self.tcp.server_rst |= segment.rst;
            }
        }
        if segment.syn {
            self.syn(packet.direction, segment);
        }
        self.acknowledge(packet.direction, segment);
        self.place(packet, segment, limits, room);
    }

    /// Judges the connection with the secrets that are known now.
    pub(crate) fn judge(
        mut self,
        client: SocketAddr,
        server: SocketAddr,
        keys: &KeyLog,
    ) -> FlowFacts {
        self.packets.sort_by_key(|packet| packet.arrived);
        self.settle_fast_open();
        Judge::new(&self, keys).facts(client, server)
    }

    fn syn(&mut self, direction: Direction, segment: &Segment<'_>) {
        match (direction, segment.ack) {
            (Direction::ToServer, None) => {
                if self.client.first_seq.is_some() {
                    self.tcp.syn_retransmissions += 1;
                } else {
                    self.client.first_seq = Some(segment.seq);
                    self.tcp.fast_open_option = segment.fast_open;
                }
                self.tcp.syn_data = self.tcp.syn_data.max(segment.wire_len);
            }
            (Direction::ToClient, Some(ack)) => {
                self.server.first_seq.get_or_insert(segment.seq);
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

    fn acknowledge(&mut self, direction: Direction, segment: &Segment<'_>) {
        let other = match direction {
            Direction::ToServer => &mut self.server,
            Direction::ToClient => &mut self.client,
        };
        if let (Some(fin), Some(ack)) = (other.fin, segment.ack) {
            other.fin_acknowledged |= other.position(ack).is_some_and(|ack| ack >= fin);
        }
    }

    /// Finds the segment's place in the sequence space, counts it, and keeps what is needed.
    fn place(&mut self, packet: &Packet<'_>, segment: &Segment<'_>, limits: &Limits, room: usize) {
        let (side, retransmissions) = match packet.direction {
            Direction::ToServer => (&mut self.client, &mut self.tcp.client_retransmissions),
            Direction::ToClient => (&mut self.server, &mut self.tcp.server_retransmissions),
        };
        let start = match segment.syn {
            true if side.first_seq == Some(segment.seq) => Some(0),
            true => None,
            false => side.position(segment.seq).filter(|start| *start > 0),
        };
        let Some(start) = start else {
            return;
        };
        let end = start + u64::from(segment.syn) + u64::from(segment.wire_len);
        let end_with_fin = end + u64::from(segment.fin);
        if end_with_fin == start {
            return;
        }
        let seen = side.coverage.add(start..end_with_fin);
        match seen {
            Seen::New => {}
            Seen::OutOfOrder => self.tcp.out_of_order += 1,
            Seen::PartlyBefore | Seen::Before => *retransmissions += 1,
        }
        side.high = side.high.max(end_with_fin);
        side.data_end = side.data_end.max(end);
        if segment.fin {
            side.fin.get_or_insert(end_with_fin);
        }
        if end == start {
            return;
        }
        let fits = side.kept + segment.payload.len() <= limits.bytes_per_direction;
        if !fits && packet.direction == Direction::ToClient {
            // What lies beyond the kept part of the response bears on nothing before it.
            return;
        }
        let keep = fits && seen != Seen::Before;
        let payload = if keep { segment.payload } else { &[] };
        let cost = size_of::<Stored>() + payload.len();
        if self.packets.len() >= limits.packets_per_connection || cost > room {
            self.blind_from.get_or_insert(packet.arrived);
            return;
        }
        side.kept += payload.len();
        self.memory += cost;
        self.packets.push(Stored {
            direction: packet.direction,
            arrived: packet.arrived,
            delivered: packet.delivered,
            range: start..end,
            payload: payload.into(),
        });
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

/// Reads a finished connection.
struct Judge<'a> {
    flow: &'a Flow,
    client: Stream,
    server: Stream,
    /// How many of the client's bytes are its first flight.
    first_flight: usize,
    keys: &'a KeyLog,
}

impl<'a> Judge<'a> {
    fn new(flow: &'a Flow, keys: &'a KeyLog) -> Self {
        let packets = &flow.packets;
        let client = Stream::assemble(packets, Direction::ToServer);
        let server = Stream::assemble(packets, Direction::ToClient);
        let answered = packets
            .iter()
            .filter(|packet| packet.direction == Direction::ToClient && packet.has_data())
            .filter_map(|packet| packet.delivered)
            .min()
            .unwrap_or(u64::MAX);
        let first_flight = client.prefix(|index| packets[index].arrived < answered);
        Self { flow, client, server, first_flight, keys }
    }

    fn facts(&self, client: SocketAddr, server: SocketAddr) -> FlowFacts {
        let hello = client_side::client_hello(&self.client.bytes);
        let (tls, first_response) = match &hello {
            Ok(hello) => {
                let said = ServerSide::read(&self.server.bytes, &hello.random, self.keys);
                (Some(self.tls(hello, &said)), self.first_response(&said))
            }
            Err(Unknown::CaptureGap) if !self.client_gap() => (None, FirstResponse::None),
            Err(why) => (None, FirstResponse::Unknown(*why)),
        };
        FlowFacts {
            client,
            server,
            started: self.flow.started,
            ended: self.flow.ended,
            tcp: self.flow.tcp.clone(),
            tls,
            first_response,
            first_flight: self.client.bytes[..self.first_flight].to_vec(),
        }
    }

    fn tls(&self, hello: &ClientHello, server: &ServerSide) -> TlsFacts {
        let client =
            ClientSide::read(&self.client.bytes, hello, self.first_flight, server, self.keys);
        let chosen = server.hello.as_ref();
        let extensions = server.encrypted_extensions.as_ref();
        let kind = match chosen {
            Some(chosen) if server.version() == Some(TlsVersion::Tls13) => {
                Some(if chosen.pre_shared_key { Kind::Resumed } else { Kind::Full })
            }
            _ => server.legacy_kind,
        };
        let alpn = extensions.and_then(|found| found.alpn.clone());
        TlsFacts {
            version: server.version(),
            cipher_suite: chosen.map(|chosen| chosen.cipher_suite),
            client_random: hello.random,
            server_name: hello.server_name.clone(),
            alpn_offered: hello.alpn.clone(),
            alpn: alpn.or_else(|| chosen.and_then(|chosen| chosen.alpn.clone())),
            kind,
            hello_retry_requests: server.retries,
            early: EarlyFacts {
                verdict: self.verdict(hello, &client, server),
                extension: hello.early_data,
                records: client.early_records,
                wire_bytes: client.early_wire_bytes,
                plain_bytes: client.early_plain_bytes,
            },
            client_finished: self.client_finished(&client, server),
        }
    }

    /// RFC 8446 section 4.2.10: accepted only if the EncryptedExtensions say so. A retry, an
    /// older version or a handshake without the PSK refuses it for all to see.
    fn verdict(&self, hello: &ClientHello, client: &ClientSide, server: &ServerSide) -> EarlyData {
        if !hello.early_data || client.early_records == 0 {
            return EarlyData::NotOffered;
        }
        if server.retries > 0 {
            return EarlyData::Refused;
        }
        let chosen = match (&server.hello, server.version()) {
            (None, _) => return EarlyData::Unknown(Unknown::NoServerHello),
            (Some(_), Some(version)) if version < TlsVersion::Tls13 => return EarlyData::Refused,
            (Some(chosen), _) => chosen,
        };
        if !chosen.pre_shared_key {
            return EarlyData::Refused;
        }
        match &server.encrypted_extensions {
            Some(found) if found.early_data => EarlyData::Accepted,
            Some(_) => EarlyData::Refused,
            None => EarlyData::Unknown(self.why_silent(server).unwrap_or(Unknown::Ended)),
        }
    }

    /// Before TLS 1.3 a Finished cannot be read; both sides' show that the handshake is done.
    fn client_finished(&self, client: &ClientSide, server: &ServerSide) -> Option<bool> {
        match server.version()? {
            TlsVersion::Tls13 => match client.finished {
                Some(false) if self.client_gap() => None,
                seen => seen,
            },
            _ => Some(client.finished == Some(true) && server.legacy_finished),
        }
    }

    fn first_response(&self, server: &ServerSide) -> FirstResponse {
        let Some(offset) = server.response else {
            return self.why_silent(server).map_or(FirstResponse::None, FirstResponse::Unknown);
        };
        let packets = &self.flow.packets;
        let Some(index) = self.server.packet_at(offset) else {
            return FirstResponse::Unknown(Unknown::CaptureGap);
        };
        let arrived = packets[index].arrived;
        if self.flow.blind_from.is_some_and(|blind| blind <= arrived) {
            return FirstResponse::Unknown(Unknown::CaptureGap);
        }
        let position = offset as u64 + 1;
        let delivered = packets
            .iter()
            .filter(|packet| packet.direction == Direction::ToClient)
            .filter(|packet| packet.range.contains(&position))
            .filter_map(|packet| packet.delivered)
            .min();
        let depths = round_trips::depths(packets, |index| self.is_idle(&packets[index], server));
        FirstResponse::Seen { round_trips: depths[index], arrived, delivered }
    }

    /// Why the server's bytes do not show a response, if not because there is none.
    fn why_silent(&self, server: &ServerSide) -> Option<Unknown> {
        let gap = self.flow.server.data_end > self.server.end() || self.flow.blind_from.is_some();
        server.stopped.or(gap.then_some(Unknown::CaptureGap))
    }

    fn client_gap(&self) -> bool {
        self.flow.client.data_end > self.client.end() || self.flow.blind_from.is_some()
    }

    /// A packet with nothing but TLS 1.3 tickets, for which no client waits.
    fn is_idle(&self, packet: &Stored, server: &ServerSide) -> bool {
        if packet.direction != Direction::ToClient || packet.is_syn() || !packet.has_data() {
            return false;
        }
        let mut at = packet.range.start - 1;
        for ticket in &server.tickets {
            if (ticket.start as u64..ticket.end as u64).contains(&at) {
                at = ticket.end as u64;
            }
        }
        at >= packet.range.end - 1
    }
}
