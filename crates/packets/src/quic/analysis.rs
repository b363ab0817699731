//! Analyzes a QUIC connection from its stored datagrams: handshake, causal depths, response, facts.

use firstflight_wire::{CoalescedPacket, PacketKind};

use super::counts::PacketCounts;
use super::decryption::{DIRECTIONS, DecryptedPackets};
use super::flow::{MAX_ADDRESSES, QuicFlow};
use super::response::QuicResponse;
use super::round_trips::{AntiAmplification, timed_packets};
use crate::facts::{
    EarlyData, EarlyFacts, FirstFlight, FirstResponse, FlowFacts, HandshakeKind, LastResponse,
    QuicFacts, Stall, TlsFacts, TlsVersion, TransportFacts, Unknown,
};
use crate::{Direction, KeyLog, round_trips};

/// The analysis of a connection whose datagrams are in the order of arrival.
pub(crate) struct QuicAnalysis<'a> {
    pub(crate) flow: &'a QuicFlow,
    pub(crate) packets: DecryptedPackets<'a>,
    pub(crate) counts: PacketCounts,
    pub(crate) anti_amplification: AntiAmplification,
    pub(crate) response: Option<QuicResponse>,
    /// The causal depth of each datagram.
    pub(crate) depths: Vec<Option<u32>>,
}

impl<'a> QuicAnalysis<'a> {
    pub(crate) fn new(flow: &'a QuicFlow, keys: &KeyLog) -> Self {
        let packets = DecryptedPackets::new(flow, keys);
        let refused = match &packets.handshake.extensions {
            Some(extensions) => !extensions.early_data,
            None => packets.handshake.retries > 0,
        };
        let counts = PacketCounts::new(flow, &packets, refused);
        let anti_amplification = AntiAmplification::new(flow, &packets, &counts);
        let response = QuicResponse::find(flow, &counts, alpn(&packets));
        let response_number =
            response.as_ref().and_then(|found| counts.contents[found.first].one_rtt_number);
        let finished = packets.handshake.server_finished.and_then(|end| {
            let level = packets.handshake.level(Direction::ToClient, PacketKind::Handshake);
            let datagram = level.stream_bytes.datagrams_of(end - 1..end).next()?;
            Some(flow.datagrams[datagram].arrived)
        });
        let depths = round_trips::depths(timed_packets(
            flow,
            &counts,
            &anti_amplification,
            response_number,
            finished,
        ));
        Self { flow, packets, counts, anti_amplification, response, depths }
    }

    /// The outcome of early data (RFC 8446 section 4.2.10), which is in 0-RTT packets.
    pub(crate) fn early_data(&self) -> EarlyData {
        let handshake = &self.packets.handshake;
        let offered = handshake.hello.as_ref().is_some_and(|hello| hello.early_data);
        if !offered {
            return EarlyData::NotOffered;
        }
        if self.counts.early_packets == 0 {
            return match self.is_incomplete() {
                true => EarlyData::Unknown(Unknown::CaptureGap),
                false => EarlyData::NotOffered,
            };
        }
        if handshake.retries > 0 {
            return EarlyData::Refused;
        }
        let Some(chosen) = &handshake.server_hello else {
            return EarlyData::Unknown(Unknown::NoServerHello);
        };
        match &handshake.extensions {
            _ if !chosen.pre_shared_key => EarlyData::Refused,
            Some(found) if found.early_data => EarlyData::Accepted,
            Some(_) => EarlyData::Refused,
            None => EarlyData::Unknown(self.response_gap().unwrap_or(Unknown::Ended)),
        }
    }

    /// Why the packets do not show the whole response; `None` if they do.
    pub(crate) fn response_gap(&self) -> Option<Unknown> {
        let undecrypted = [
            (Direction::ToClient, PacketKind::Initial),
            (Direction::ToClient, PacketKind::Handshake),
            (Direction::ToClient, PacketKind::OneRtt),
        ];
        let mut undecrypted = undecrypted.into_iter();
        let why = undecrypted
            .find_map(|(direction, kind)| self.packets.undecrypted_reason(direction, kind));
        let gap = self.is_incomplete()
            || self.counts.responses.values().any(|stream_bytes| stream_bytes.has_gap());
        why.or(self.packets.handshake.error).or(gap.then_some(Unknown::CaptureGap))
    }

    /// Whether the capture is missing bytes that were sent.
    fn is_incomplete(&self) -> bool {
        let whole = self.flow.datagrams.iter().all(|datagram| datagram.is_whole());
        self.flow.incomplete_since.is_some() || !whole
    }

    /// The depth and arrival of a datagram, or why its depth is not known.
    pub(crate) fn first_carried(&self, datagram: usize) -> Result<(u32, u64), Unknown> {
        let arrived = self.flow.datagrams[datagram].arrived;
        if self.flow.incomplete_since.is_some_and(|incomplete| incomplete <= arrived) {
            return Err(Unknown::CaptureGap);
        }
        // Without any decrypted packet of the client, its packets cannot be classified.
        for kind in [PacketKind::Handshake, PacketKind::OneRtt] {
            if let Some(why) = self.packets.undecrypted_reason(Direction::ToServer, kind) {
                return Err(why);
            }
        }
        self.depths[datagram].map(|depth| (depth, arrived)).ok_or(Unknown::CaptureGap)
    }
}

/// The negotiated protocol, or the only one that was offered.
fn alpn<'o>(packets: &'o DecryptedPackets<'_>) -> Option<&'o str> {
    let handshake = &packets.handshake;
    if let Some(extensions) = &handshake.extensions {
        return extensions.alpn.as_deref();
    }
    match handshake.hello.as_ref()?.alpn.as_slice() {
        [only] => Some(only),
        _ => None,
    }
}

impl QuicAnalysis<'_> {
    pub(crate) fn facts(&self) -> FlowFacts {
        let flow = self.flow;
        let (first_response, last_response) = self.responses();
        FlowFacts {
            client: flow.client,
            server: flow.server,
            started: flow.started,
            ended: flow.ended,
            transport: TransportFacts::Quic(Box::new(self.quic())),
            tls: self.tls(),
            connected: self.connected(),
            setup_done: self.setup_done(),
            first_response,
            last_response,
            response_bytes: match last_response {
                LastResponse::Seen { .. } => self.response.as_ref().map(|found| found.bytes),
                LastResponse::None => Some(0),
                LastResponse::Unknown(_) => None,
            },
            first_flight: self.first_flight(),
        }
    }

    fn quic(&self) -> QuicFacts {
        let (flow, counts) = (self.flow, &self.counts);
        let mut client_addresses = Vec::new();
        for datagram in &flow.datagrams {
            let new = datagram.direction == Direction::ToServer
                && !client_addresses.contains(&datagram.client);
            if new && client_addresses.len() < MAX_ADDRESSES {
                client_addresses.push(datagram.client);
            }
        }
        QuicFacts {
            version: counts.version,
            retries: counts.retries,
            token: counts.token,
            new_tokens: counts.new_tokens.len() as u32,
            new_token_bytes: counts.new_tokens.last().map(|token| token.len() as u32),
            before_validation: self.anti_amplification.facts(),
            stall: self.stall(),
            client_retransmissions: counts.retransmissions[Direction::ToServer as usize],
            server_retransmissions: counts.retransmissions[Direction::ToClient as usize],
            premature_retransmissions: counts.premature_retransmissions,
            probes: counts.probes,
            out_of_order: counts.out_of_order,
            duplicates: counts.duplicates,
            client_key_updates: self.packets.key_updates[Direction::ToServer as usize],
            server_key_updates: self.packets.key_updates[Direction::ToClient as usize],
            migrations: counts.migrations,
            client_addresses,
            client_closed: counts.closed[Direction::ToServer as usize],
            server_closed: counts.closed[Direction::ToClient as usize],
            unopened: counts.unopened,
            connection_ids: DIRECTIONS.map(|direction| {
                let issued_ids = &self.packets.issued_ids[direction as usize];
                flow.ids[direction as usize].iter().chain(issued_ids).cloned().collect()
            }),
            ..flow.facts.clone()
        }
    }

    fn tls(&self) -> Option<TlsFacts> {
        let handshake = &self.packets.handshake;
        let hello = handshake.hello.as_ref()?;
        let chosen = handshake.server_hello.as_ref();
        let kind = chosen.map(|chosen| match chosen.pre_shared_key {
            true => HandshakeKind::Resumed,
            false => HandshakeKind::Full,
        });
        let undecrypted =
            self.packets.undecrypted_reason(Direction::ToServer, PacketKind::Handshake).is_some();
        let incomplete = self.flow.incomplete_since.is_some();
        let client_finished = match handshake.client_finished {
            true => Some(true),
            false => (!undecrypted && !incomplete && chosen.is_some()).then_some(false),
        };
        Some(TlsFacts {
            version: chosen.and_then(|chosen| TlsVersion::from_wire(chosen.version)),
            cipher_suite: chosen.map(|chosen| chosen.cipher_suite),
            client_random: hello.random,
            server_name: hello.server_name.clone(),
            alpn_offered: hello.alpn.clone(),
            alpn: handshake.extensions.as_ref().and_then(|found| found.alpn.clone()),
            kind,
            key_shares_offered: hello.key_shares.clone(),
            group: chosen.and_then(|chosen| chosen.group),
            certificate: handshake.authentication.certificate,
            signature_scheme: handshake.authentication.signature_scheme,
            hello_retry_requests: handshake.retries,
            early: EarlyFacts {
                outcome: self.early_data(),
                extension: hello.early_data,
                records: self.counts.early_packets,
                wire_bytes: self.counts.early_wire_bytes,
                plain_bytes: self.counts.early_bytes(),
            },
            client_finished,
        })
    }

    fn connected(&self) -> Option<u64> {
        let captured = self
            .packets
            .captured
            .iter()
            .filter(|captured| matches!(captured.packet, CoalescedPacket::Protected(_)));
        let datagrams = captured.map(|captured| &self.flow.datagrams[captured.datagram]);
        let of_server = datagrams.filter(|datagram| datagram.direction == Direction::ToClient);
        of_server.filter_map(|datagram| datagram.delivered).min()
    }

    /// When the ServerHello and the server's Finished, with all bytes before it, had been
    /// delivered.
    fn setup_done(&self) -> Option<u64> {
        let handshake = &self.packets.handshake;
        let level = |kind| &handshake.level(Direction::ToClient, kind).stream_bytes;
        let hello = level(PacketKind::Initial).delivered_up_to(handshake.server_hello_end)?;
        let finished = level(PacketKind::Handshake).delivered_up_to(handshake.server_finished?)?;
        Some(hello.max(finished))
    }

    fn responses(&self) -> (FirstResponse, LastResponse) {
        if self.packets.handshake.hello.is_none() {
            let error = self.packets.handshake.error;
            let gap = self.flow.incomplete_since.is_some().then_some(Unknown::CaptureGap);
            return match error.or(gap) {
                Some(why) => (FirstResponse::Unknown(why), LastResponse::Unknown(why)),
                None => (FirstResponse::None, LastResponse::None),
            };
        }
        let gap = self.response_gap();
        let Some(found) = &self.response else {
            return match gap {
                Some(why) => (FirstResponse::Unknown(why), LastResponse::Unknown(why)),
                None => (FirstResponse::None, LastResponse::None),
            };
        };
        let first = match self.first_carried(found.first) {
            Ok((round_trips, arrived)) => {
                let delivered = self.readable_at(found.first_delivered);
                FirstResponse::Seen { round_trips, arrived, delivered }
            }
            Err(why) => FirstResponse::Unknown(why),
        };
        let last = match (gap, self.first_carried(found.last)) {
            (None, Ok((round_trips, arrived))) => {
                let delivered = self.readable_at(found.last_delivered);
                LastResponse::Seen { round_trips, arrived, delivered }
            }
            (Some(why), _) | (None, Err(why)) => LastResponse::Unknown(why),
        };
        (first, last)
    }

    /// When the client can read what was `delivered`: it decrypts no 1-RTT packets before its
    /// handshake is complete (RFC 9001 section 5.7).
    fn readable_at(&self, delivered: Option<u64>) -> Option<u64> {
        match self.packets.handshake.server_finished {
            Some(_) => Some(delivered?.max(self.setup_done()?)),
            None => delivered,
        }
    }

    fn first_flight(&self) -> FirstFlight {
        let datagrams = &self.flow.datagrams;
        let from_server = datagrams.iter().filter(|d| d.direction == Direction::ToClient);
        let first_response_delivered = from_server.filter_map(|datagram| datagram.delivered).min();
        let flight = datagrams.iter().filter(|datagram| {
            datagram.direction == Direction::ToServer
                && datagram.is_whole()
                && first_response_delivered.is_none_or(|first_response_delivered| {
                    datagram.arrived < first_response_delivered
                })
        });
        FirstFlight::Datagrams(flight.map(|datagram| datagram.payload.to_vec()).collect())
    }

    /// The first dropped datagram whose first byte had not been delivered in another datagram
    /// before.
    fn stall(&self) -> Option<Stall> {
        let all = || self.flow.datagrams.iter().zip(&self.counts.contents);
        let dropped = all().filter(|(datagram, _)| datagram.delivered.is_none());
        let stalls = dropped.filter_map(|(datagram, content)| {
            let (space, range) = content.ranges.first()?;
            let copies = all().filter(|(copy, content)| {
                copy.direction == datagram.direction
                    && content.ranges.iter().any(|(copied_space, copied)| {
                        copied_space.stream == space.stream && copied.contains(&range.start)
                    })
            });
            let recovered = copies.filter_map(|(copy, _)| copy.delivered).min();
            Some(Stall { direction: datagram.direction, dropped: datagram.arrived, recovered })
        });
        let mut held_up = stalls
            .filter(|stall| stall.recovered.is_none_or(|recovered| recovered > stall.dropped));
        held_up.next()
    }
}
