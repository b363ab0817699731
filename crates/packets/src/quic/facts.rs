//! The facts of a connection that was judged.

use super::header::{Kind, Part};
use super::judge::Judge;
use super::opening::BOTH;
use crate::Direction;
use crate::facts::{
    EarlyFacts, FirstFlight, FirstResponse, FlowFacts, Kind as HandshakeKind, LastResponse,
    QuicFacts, Stall, TlsFacts, TlsVersion, TransportFacts, Unknown,
};

impl Judge<'_> {
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
        let (flow, tally) = (self.flow, &self.tally);
        let mut client_addresses = Vec::new();
        for datagram in &flow.datagrams {
            let new = datagram.direction == Direction::ToServer
                && !client_addresses.contains(&datagram.client);
            // Any NAT may be between; but an attacker who makes them up shall not fill memory.
            if new && client_addresses.len() < MAX_ADDRESSES {
                client_addresses.push(datagram.client);
            }
        }
        QuicFacts {
            version: tally.version,
            retries: tally.retries,
            token: tally.token,
            new_tokens: tally.new_tokens.len() as u32,
            new_token_bytes: tally.new_tokens.last().map(|token| token.len() as u32),
            before_validation: self.credit.facts(),
            stall: self.stall(),
            client_retransmissions: tally.retransmissions[Direction::ToServer as usize],
            server_retransmissions: tally.retransmissions[Direction::ToClient as usize],
            probes: tally.probes,
            out_of_order: tally.out_of_order,
            duplicates: tally.duplicates,
            client_key_updates: self.opening.key_updates[Direction::ToServer as usize],
            server_key_updates: self.opening.key_updates[Direction::ToClient as usize],
            migrations: tally.migrations,
            client_addresses,
            client_closed: tally.closed[Direction::ToServer as usize],
            server_closed: tally.closed[Direction::ToClient as usize],
            unopened: tally.unopened,
            connection_ids: BOTH.map(|direction| {
                let given_out = &self.opening.given_out[direction as usize];
                flow.ids[direction as usize].iter().chain(given_out).cloned().collect()
            }),
            ..flow.facts.clone()
        }
    }

    fn tls(&self) -> Option<TlsFacts> {
        let handshake = &self.opening.handshake;
        let hello = handshake.hello.as_ref()?;
        let chosen = handshake.server_hello.as_ref();
        let kind = chosen.map(|chosen| match chosen.pre_shared_key {
            true => HandshakeKind::Resumed,
            false => HandshakeKind::Full,
        });
        let closed = self.opening.why_closed(Direction::ToServer, Kind::Handshake).is_some();
        let blind = self.flow.blind_from.is_some();
        let client_finished = match handshake.client_finished {
            true => Some(true),
            false => (!closed && !blind && chosen.is_some()).then_some(false),
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
                verdict: self.verdict(),
                extension: hello.early_data,
                records: self.tally.early_packets,
                wire_bytes: self.tally.early_wire_bytes,
                plain_bytes: self.tally.early_bytes(),
            },
            client_finished,
        })
    }

    fn connected(&self) -> Option<u64> {
        let slots =
            self.opening.slots.iter().filter(|slot| matches!(slot.part, Part::Protected(_)));
        let datagrams = slots.map(|slot| &self.flow.datagrams[slot.datagram]);
        let of_server = datagrams.filter(|datagram| datagram.direction == Direction::ToClient);
        of_server.filter_map(|datagram| datagram.delivered).min()
    }

    /// When the client had the ServerHello, and the server's Finished with all before it.
    fn setup_done(&self) -> Option<u64> {
        let handshake = &self.opening.handshake;
        let level = |kind| &handshake.level(Direction::ToClient, kind).pieces;
        let hello = level(Kind::Initial).delivered_up_to(handshake.server_hello_end)?;
        let finished = level(Kind::Handshake).delivered_up_to(handshake.server_finished?)?;
        Some(hello.max(finished))
    }

    fn responses(&self) -> (FirstResponse, LastResponse) {
        if self.opening.handshake.hello.is_none() {
            let broken = self.opening.handshake.broken;
            let gap = self.flow.blind_from.is_some().then_some(Unknown::CaptureGap);
            return match broken.or(gap) {
                Some(why) => (FirstResponse::Unknown(why), LastResponse::Unknown(why)),
                None => (FirstResponse::None, LastResponse::None),
            };
        }
        let silent = self.why_silent();
        let Some(found) = &self.response else {
            return match silent {
                Some(why) => (FirstResponse::Unknown(why), LastResponse::Unknown(why)),
                None => (FirstResponse::None, LastResponse::None),
            };
        };
        let first = match self.carrier(found.first) {
            Ok((round_trips, arrived)) => {
                let delivered = found.first_delivered;
                FirstResponse::Seen { round_trips, arrived, delivered }
            }
            Err(why) => FirstResponse::Unknown(why),
        };
        let last = match (silent, self.carrier(found.last)) {
            (None, Ok((round_trips, arrived))) => {
                let delivered = found.last_delivered;
                LastResponse::Seen { round_trips, arrived, delivered }
            }
            (Some(why), _) | (None, Err(why)) => LastResponse::Unknown(why),
        };
        (first, last)
    }

    fn first_flight(&self) -> FirstFlight {
        let datagrams = &self.flow.datagrams;
        let from_server = datagrams.iter().filter(|d| d.direction == Direction::ToClient);
        let answered = from_server.filter_map(|datagram| datagram.delivered).min();
        let flight = datagrams.iter().filter(|datagram| {
            datagram.direction == Direction::ToServer
                && datagram.is_whole()
                && answered.is_none_or(|answered| datagram.arrived < answered)
        });
        FirstFlight::Datagrams(flight.map(|datagram| datagram.payload.to_vec()).collect())
    }

    /// The first datagram that was dropped before anything delivered had carried its first byte.
    fn stall(&self) -> Option<Stall> {
        let all = || self.flow.datagrams.iter().zip(&self.tally.loads);
        let dropped = all().filter(|(datagram, _)| datagram.delivered.is_none());
        let stalls = dropped.filter_map(|(datagram, load)| {
            let (space, range) = load.ranges.first()?;
            let copies = all().filter(|(copy, load)| {
                copy.direction == datagram.direction
                    && load
                        .ranges
                        .iter()
                        .any(|(of, copied)| of.of == space.of && copied.contains(&range.start))
            });
            let recovered = copies.filter_map(|(copy, _)| copy.delivered).min();
            Some(Stall { direction: datagram.direction, dropped: datagram.arrived, recovered })
        });
        let mut held_up = stalls
            .filter(|stall| stall.recovered.is_none_or(|recovered| recovered > stall.dropped));
        held_up.next()
    }
}

const MAX_ADDRESSES: usize = 64;
