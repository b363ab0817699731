//! Reads a connection from its kept packets: streams, depths, facts.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::client_side::{self, ClientSide};
use crate::facts::{
    EarlyData, EarlyFacts, FirstFlight, FirstResponse, FlowFacts, Kind, LastResponse, Stall,
    TcpFacts, TlsFacts, TlsVersion, TransportFacts, Unknown,
};
use crate::flow::Flow;
use crate::handshake::ClientHello;
use crate::reassembly::{Stored, Stream};
use crate::round_trips::{self, Weight};
use crate::sayings::StreamEvent;
use crate::server_side::ServerSide;
use crate::{Direction, KeyLog};

/// A connection whose packets lie in the order of their arrival.
pub(crate) struct Judge<'a> {
    pub(crate) flow: &'a Flow,
    /// The client's end and the server's.
    pub(crate) ends: (SocketAddr, SocketAddr),
    client: Stream,
    server: Stream,
    /// How many of the client's bytes are its first flight.
    first_flight: usize,
    /// What the two sides say, if the client's bytes start with a ClientHello.
    read: Result<Read, Unknown>,
    /// How deep each packet lies.
    pub(crate) depths: Vec<Option<u32>>,
    /// When all up to a position had been delivered to the client: positions and times, rising.
    delivered: Vec<(u64, u64)>,
}

struct Read {
    hello: ClientHello,
    client: ClientSide,
    server: ServerSide,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(flow: &'a Flow, ends: (SocketAddr, SocketAddr), keys: &KeyLog) -> Self {
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
        let read = client_side::client_hello(&client.bytes).map(|hello| {
            let server = ServerSide::read(&server.bytes, &hello, keys);
            let client = ClientSide::read(&client.bytes, &hello, first_flight, &server, keys);
            Read { hello, client, server }
        });
        let said = read.as_ref().ok().map(|read| &read.server);
        let depths =
            round_trips::depths(packets.iter().map(|packet| packet.step(weight(packet, said))));
        let delivered = delivered(packets);
        Self { flow, ends, client, server, first_flight, read, depths, delivered }
    }

    pub(crate) fn facts(&self) -> FlowFacts {
        let (tls, first_response, last_response) = match &self.read {
            Ok(read) => (
                Some(self.tls(read)),
                self.first_response(&read.server),
                self.last_response(&read.server),
            ),
            Err(Unknown::CaptureGap) if !self.client_gap() => {
                (None, FirstResponse::None, LastResponse::None)
            }
            Err(why) => (None, FirstResponse::Unknown(*why), LastResponse::Unknown(*why)),
        };
        FlowFacts {
            client: self.ends.0,
            server: self.ends.1,
            started: self.flow.started,
            ended: self.flow.ended,
            transport: TransportFacts::Tcp(TcpFacts {
                stall: stall(&self.flow.packets),
                ..self.flow.tcp.clone()
            }),
            tls,
            connected: self.connected(),
            setup_done: self.setup_done(),
            first_response,
            last_response,
            response_bytes: self.response_bytes(last_response),
            first_flight: FirstFlight::Stream(self.client.bytes[..self.first_flight].to_vec()),
        }
    }

    /// What the bytes of a direction say; nothing if they are not TLS.
    pub(crate) fn said(&self, direction: Direction) -> &[StreamEvent] {
        match (&self.read, direction) {
            (Ok(read), Direction::ToServer) => &read.client.said,
            (Ok(read), Direction::ToClient) => &read.server.said,
            (Err(_), _) => &[],
        }
    }

    fn tls(&self, Read { hello, client, server }: &Read) -> TlsFacts {
        let chosen = server.hello.as_ref();
        let extensions = server.encrypted_extensions.as_ref();
        let authentication = &server.authentication;
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
            key_shares_offered: hello.key_shares.clone(),
            group: authentication.group.or_else(|| chosen.and_then(|chosen| chosen.group)),
            certificate: authentication.certificate,
            signature_scheme: authentication.signature_scheme,
            hello_retry_requests: server.retries,
            early: EarlyFacts {
                verdict: self.verdict(hello, client, server),
                extension: hello.early_data,
                records: client.early_records,
                wire_bytes: client.early_wire_bytes,
                plain_bytes: client.early_plain_bytes,
            },
            client_finished: self.client_finished(client, server),
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
            _ => Some(client.finished == Some(true) && server.finished.is_some()),
        }
    }

    fn connected(&self) -> Option<u64> {
        let syn_acks = self.flow.packets.iter().filter(|packet| packet.is_syn());
        syn_acks
            .filter(|packet| packet.direction == Direction::ToClient)
            .filter_map(|packet| packet.delivered)
            .min()
    }

    fn setup_done(&self) -> Option<u64> {
        self.delivered_up_to(self.read.as_ref().ok()?.server.finished?)
    }

    fn first_response(&self, server: &ServerSide) -> FirstResponse {
        let Some(response) = server.response else {
            return self.why_silent(server).map_or(FirstResponse::None, FirstResponse::Unknown);
        };
        let Some((round_trips, arrived)) = self.carrier(response.start) else {
            return FirstResponse::Unknown(Unknown::CaptureGap);
        };
        let position = response.start as u64 + 1;
        let delivered = self
            .flow
            .packets
            .iter()
            .filter(|packet| packet.direction == Direction::ToClient)
            .filter(|packet| packet.range.contains(&position))
            .filter_map(|packet| packet.delivered)
            .min();
        FirstResponse::Seen { round_trips, arrived, delivered }
    }

    fn last_response(&self, server: &ServerSide) -> LastResponse {
        if let Some(why) = self.why_silent(server) {
            return LastResponse::Unknown(why);
        }
        let Some(response) = server.response else {
            return LastResponse::None;
        };
        match self.carrier(response.end - 1) {
            Some((round_trips, arrived)) => {
                let delivered = self.delivered_up_to(response.end);
                LastResponse::Seen { round_trips, arrived, delivered }
            }
            None => LastResponse::Unknown(Unknown::CaptureGap),
        }
    }

    fn response_bytes(&self, last: LastResponse) -> Option<u64> {
        match last {
            LastResponse::Seen { .. } => self.read.as_ref().ok()?.server.response?.bytes,
            LastResponse::None => Some(0),
            LastResponse::Unknown(_) => None,
        }
    }

    /// The depth and arrival of the packet that first carried this byte of the server's stream;
    /// `None` if packets before it were not kept.
    fn carrier(&self, offset: usize) -> Option<(u32, u64)> {
        let index = self.server.packet_at(offset)?;
        let arrived = self.flow.packets[index].arrived;
        let blind = self.flow.blind_from.is_some_and(|blind| blind <= arrived);
        Some((self.depths[index]?, arrived)).filter(|_| !blind)
    }

    /// When the client had got so many bytes of the server's stream.
    fn delivered_up_to(&self, end: usize) -> Option<u64> {
        let position = end as u64 + 1;
        let at = self.delivered.partition_point(|(reach, _)| *reach < position);
        self.delivered.get(at).map(|(_, time)| *time)
    }

    /// Why the server's bytes do not show all of the response, if anything is in the way.
    fn why_silent(&self, server: &ServerSide) -> Option<Unknown> {
        let gap = self.flow.server.data_end > self.server.end() || self.flow.blind_from.is_some();
        server.stopped.or(gap.then_some(Unknown::CaptureGap))
    }

    fn client_gap(&self) -> bool {
        self.flow.client.data_end > self.client.end() || self.flow.blind_from.is_some()
    }
}

/// What a packet does to the count of round trips, as `FirstResponse` and `LastResponse` say.
fn weight(packet: &Stored, server: Option<&ServerSide>) -> Weight {
    if packet.counts() {
        let idle = server.is_some_and(|server| is_idle(packet, server));
        return if idle { Weight::Idle } else { Weight::Cause };
    }
    let response = server.and_then(|server| server.response);
    let acknowledges_response = packet.direction == Direction::ToServer
        && !packet.flags.rst
        && response.zip(packet.acknowledged).is_some_and(|(response, acknowledged)| {
            // Up to the position before it, and the first byte's is 1.
            acknowledged > response.start as u64 + 1
        });
    if acknowledges_response { Weight::Cause } else { Weight::Nothing }
}

/// A packet with nothing but TLS 1.3 tickets, for which no client waits.
fn is_idle(packet: &Stored, server: &ServerSide) -> bool {
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

/// Up to which position, and when, the client had got the server's stream without a hole.
fn delivered(packets: &[Stored]) -> Vec<(u64, u64)> {
    let mut got: Vec<_> = packets
        .iter()
        .filter(|packet| packet.direction == Direction::ToClient && packet.has_data())
        .filter_map(|packet| Some((packet.delivered?, packet.data_start(), packet.range.end)))
        .collect();
    got.sort_unstable();
    let (mut reach, mut steps, mut waiting) = (1, Vec::new(), BTreeSet::new());
    for (time, start, end) in got {
        waiting.insert((start, end));
        let before = reach;
        while let Some(&(start, end)) = waiting.first()
            && start <= reach
        {
            waiting.pop_first();
            reach = reach.max(end);
        }
        if reach > before {
            steps.push((reach, time));
        }
    }
    steps
}

/// The first packet that was dropped before anything delivered had carried its first byte.
fn stall(packets: &[Stored]) -> Option<Stall> {
    let dropped = packets.iter().filter(|packet| packet.counts() && packet.delivered.is_none());
    dropped
        .map(|packet| {
            let copies = packets.iter().filter(|copy| {
                copy.direction == packet.direction && copy.range.contains(&packet.range.start)
            });
            let recovered = copies.filter_map(|copy| copy.delivered).min();
            Stall { direction: packet.direction, dropped: packet.arrived, recovered }
        })
        .find(|stall| stall.recovered.is_none_or(|recovered| recovered > stall.dropped))
}
