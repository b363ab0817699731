//! Analyzes a TCP connection from its stored packets: streams, causal depths, facts.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::TcpFlow;
use crate::event::StreamEvent;
use crate::facts::{
    EarlyData, EarlyFacts, FirstFlight, FirstResponse, FlowFacts, HandshakeKind, LastResponse,
    Stall, TcpFacts, TlsFacts, TlsVersion, TransportFacts, Unknown,
};
use crate::reassembly::{StoredSegment, Stream};
use crate::round_trips::{self, Causality};
use crate::tls::client::{self, ClientStream};
use crate::tls::handshake::ClientHello;
use crate::tls::server::ServerStream;
use crate::{Direction, KeyLog};

/// The analysis of a connection whose packets are in the order of arrival.
pub(crate) struct TcpAnalysis<'a> {
    pub(crate) flow: &'a TcpFlow,
    /// The client's and the server's endpoint.
    pub(crate) endpoints: (SocketAddr, SocketAddr),
    client: Stream,
    server: Stream,
    /// The length of the client's first flight in bytes.
    first_flight: usize,
    /// The TLS streams of both sides, if the client's bytes start with a ClientHello.
    streams: Result<TlsStreams, Unknown>,
    /// The causal depth of each packet.
    pub(crate) depths: Vec<Option<u32>>,
    /// Ascending positions of the server's stream, each with the time when the stream up to there
    /// had been delivered to the client.
    delivered: Vec<(u64, u64)>,
}

struct TlsStreams {
    hello: ClientHello,
    client: ClientStream,
    server: ServerStream,
}

impl<'a> TcpAnalysis<'a> {
    pub(crate) fn new(
        flow: &'a TcpFlow,
        endpoints: (SocketAddr, SocketAddr),
        keys: &KeyLog,
    ) -> Self {
        let packets = &flow.packets;
        let client = Stream::assemble(packets, Direction::ToServer);
        let server = Stream::assemble(packets, Direction::ToClient);
        let open_at = open_at(packets);
        let first_response_delivered =
            data_to_client(packets, open_at).map(|(time, _)| time).min().unwrap_or(u64::MAX);
        let first_flight = client.prefix(|index| packets[index].arrived < first_response_delivered);
        let streams = client::client_hello(&client.bytes).map(|hello| {
            let server = ServerStream::read(&server.bytes, &hello, keys);
            let client = ClientStream::read(&client.bytes, &hello, first_flight, &server, keys);
            TlsStreams { hello, client, server }
        });
        let server_stream = streams.as_ref().ok().map(|streams| &streams.server);
        let depths = round_trips::depths(
            packets.iter().map(|packet| packet.timed_packet(causality(packet, server_stream))),
        );
        let delivered = delivered(packets, open_at);
        Self { flow, endpoints, client, server, first_flight, streams, depths, delivered }
    }

    pub(crate) fn facts(&self) -> FlowFacts {
        let (tls, first_response, last_response) = match &self.streams {
            Ok(streams) => (
                Some(self.tls(streams)),
                self.first_response(&streams.server),
                self.last_response(&streams.server),
            ),
            Err(Unknown::CaptureGap) if !self.client_gap() => {
                (None, FirstResponse::None, LastResponse::None)
            }
            Err(why) => (None, FirstResponse::Unknown(*why), LastResponse::Unknown(*why)),
        };
        FlowFacts {
            client: self.endpoints.0,
            server: self.endpoints.1,
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

    /// The TLS events of a direction; empty if its bytes are not TLS.
    pub(crate) fn events(&self, direction: Direction) -> &[StreamEvent] {
        match (&self.streams, direction) {
            (Ok(streams), Direction::ToServer) => &streams.client.events,
            (Ok(streams), Direction::ToClient) => &streams.server.events,
            (Err(_), _) => &[],
        }
    }

    fn tls(&self, TlsStreams { hello, client, server }: &TlsStreams) -> TlsFacts {
        let server_hello = server.hello.as_ref();
        let extensions = server.encrypted_extensions.as_ref();
        let authentication = &server.authentication;
        let kind = match server_hello {
            Some(server_hello) if server.version() == Some(TlsVersion::Tls13) => {
                Some(if server_hello.pre_shared_key {
                    HandshakeKind::Resumed
                } else {
                    HandshakeKind::Full
                })
            }
            _ => server.legacy_kind,
        };
        let alpn = extensions.and_then(|found| found.alpn.clone());
        TlsFacts {
            version: server.version(),
            cipher_suite: server_hello.map(|server_hello| server_hello.cipher_suite),
            client_random: hello.random,
            server_name: hello.server_name.clone(),
            alpn_offered: hello.alpn.clone(),
            alpn: alpn.or_else(|| server_hello.and_then(|server_hello| server_hello.alpn.clone())),
            kind,
            key_shares_offered: hello.key_shares.clone(),
            group: authentication
                .group
                .or_else(|| server_hello.and_then(|server_hello| server_hello.group)),
            certificate: authentication.certificate,
            signature_scheme: authentication.signature_scheme,
            hello_retry_requests: server.retries,
            early: EarlyFacts {
                outcome: self.early_data(hello, client, server),
                extension: hello.early_data,
                records: client.early_records,
                wire_bytes: client.early_wire_bytes,
                plain_bytes: client.early_plain_bytes,
            },
            client_finished: self.client_finished(client, server),
        }
    }

    /// RFC 8446 section 4.2.10: early data is accepted only if the EncryptedExtensions say so. A
    /// HelloRetryRequest, an older version or a handshake without the PSK refuses it visibly.
    fn early_data(
        &self,
        hello: &ClientHello,
        client: &ClientStream,
        server: &ServerStream,
    ) -> EarlyData {
        if !hello.early_data || client.early_records == 0 {
            return EarlyData::NotOffered;
        }
        if server.retries > 0 {
            return EarlyData::Refused;
        }
        let server_hello = match (&server.hello, server.version()) {
            (None, _) => return EarlyData::Unknown(Unknown::NoServerHello),
            (Some(_), Some(version)) if version < TlsVersion::Tls13 => return EarlyData::Refused,
            (Some(server_hello), _) => server_hello,
        };
        if !server_hello.pre_shared_key {
            return EarlyData::Refused;
        }
        match &server.encrypted_extensions {
            Some(found) if found.early_data => EarlyData::Accepted,
            Some(_) => EarlyData::Refused,
            None => EarlyData::Unknown(self.response_gap(server).unwrap_or(Unknown::Ended)),
        }
    }

    /// Before TLS 1.3 the Finished messages are encrypted; one of each side completes the
    /// handshake.
    fn client_finished(&self, client: &ClientStream, server: &ServerStream) -> Option<bool> {
        match server.version()? {
            TlsVersion::Tls13 => match client.finished {
                Some(false) if self.client_gap() => None,
                seen => seen,
            },
            _ => Some(client.finished == Some(true) && server.finished.is_some()),
        }
    }

    fn connected(&self) -> Option<u64> {
        syn_acks(&self.flow.packets).filter_map(|packet| packet.delivered).min()
    }

    fn setup_done(&self) -> Option<u64> {
        self.delivered_up_to(self.streams.as_ref().ok()?.server.finished?)
    }

    fn first_response(&self, server: &ServerStream) -> FirstResponse {
        let Some(response) = server.response else {
            return self.response_gap(server).map_or(FirstResponse::None, FirstResponse::Unknown);
        };
        let Some((round_trips, arrived)) = self.first_carried(response.start) else {
            return FirstResponse::Unknown(Unknown::CaptureGap);
        };
        let delivered = self.delivered_up_to(response.start + 1);
        FirstResponse::Seen { round_trips, arrived, delivered }
    }

    fn last_response(&self, server: &ServerStream) -> LastResponse {
        if let Some(why) = self.response_gap(server) {
            return LastResponse::Unknown(why);
        }
        let Some(response) = server.response else {
            return LastResponse::None;
        };
        match self.first_carried(response.end - 1) {
            Some((round_trips, arrived)) => {
                let delivered = self.delivered_up_to(response.end);
                LastResponse::Seen { round_trips, arrived, delivered }
            }
            None => LastResponse::Unknown(Unknown::CaptureGap),
        }
    }

    fn response_bytes(&self, last: LastResponse) -> Option<u64> {
        match last {
            LastResponse::Seen { .. } => self.streams.as_ref().ok()?.server.response?.bytes,
            LastResponse::None => Some(0),
            LastResponse::Unknown(_) => None,
        }
    }

    /// The depth and arrival of the packet that first carried this byte of the server's stream.
    /// Returns `None` if packets before it were not stored.
    fn first_carried(&self, offset: usize) -> Option<(u32, u64)> {
        let index = self.server.packet_at(offset)?;
        let arrived = self.flow.packets[index].arrived;
        let incomplete = self.flow.incomplete_since.is_some_and(|incomplete| incomplete <= arrived);
        Some((self.depths[index]?, arrived)).filter(|_| !incomplete)
    }

    /// When the server's stream up to `end` had been delivered.
    fn delivered_up_to(&self, end: usize) -> Option<u64> {
        let position = end as u64 + 1;
        let at = self.delivered.partition_point(|(reach, _)| *reach < position);
        self.delivered.get(at).map(|(_, time)| *time)
    }

    /// Why the server's bytes do not show the whole response; `None` if they do.
    fn response_gap(&self, server: &ServerStream) -> Option<Unknown> {
        let gap =
            self.flow.server.data_end > self.server.end() || self.flow.incomplete_since.is_some();
        server.stopped.or(gap.then_some(Unknown::CaptureGap))
    }

    fn client_gap(&self) -> bool {
        self.flow.client.data_end > self.client.end() || self.flow.incomplete_since.is_some()
    }
}

/// How a packet affects the count of round trips, by the rules at `FirstResponse` and
/// `LastResponse`.
fn causality(packet: &StoredSegment, server: Option<&ServerStream>) -> Causality {
    if packet.has_data_or_syn() {
        let only_tickets = server.is_some_and(|server| is_only_tickets(packet, server));
        return if only_tickets { Causality::NoCause } else { Causality::Cause };
    }
    let response = server.and_then(|server| server.response);
    let acknowledges_response = packet.direction == Direction::ToServer
        && !packet.flags.rst
        && response.zip(packet.acknowledged).is_some_and(|(response, acknowledged)| {
            // The first byte has position 1, and positions before the number are acknowledged.
            acknowledged > response.start as u64 + 1
        });
    if acknowledges_response { Causality::Cause } else { Causality::Uncounted }
}

/// Whether a packet carries only TLS 1.3 tickets, for which no client waits.
fn is_only_tickets(packet: &StoredSegment, server: &ServerStream) -> bool {
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

fn syn_acks(packets: &[StoredSegment]) -> impl Iterator<Item = &StoredSegment> {
    packets.iter().filter(|packet| packet.direction == Direction::ToClient && packet.is_syn())
}

/// From when the client accepts data: it discards data before a SYN-ACK (RFC 9293 section
/// 3.10.7.3). Returns 0 if the capture has no SYN-ACK.
fn open_at(packets: &[StoredSegment]) -> u64 {
    let delivered = syn_acks(packets).map(|packet| packet.delivered.unwrap_or(u64::MAX));
    delivered.min().unwrap_or(0)
}

/// The server's packets with payload that the client accepted, with their times of delivery.
fn data_to_client(
    packets: &[StoredSegment],
    open_at: u64,
) -> impl Iterator<Item = (u64, &StoredSegment)> {
    packets
        .iter()
        .filter(|packet| packet.direction == Direction::ToClient && packet.has_data())
        .filter_map(|packet| Some((packet.delivered?, packet)))
        .filter(move |(delivered, _)| *delivered >= open_at)
}

/// The positions up to which the server's stream had been delivered without gaps, and when.
fn delivered(packets: &[StoredSegment], open_at: u64) -> Vec<(u64, u64)> {
    let mut deliveries: Vec<_> = data_to_client(packets, open_at)
        .map(|(time, packet)| (time, packet.data_start(), packet.range.end))
        .collect();
    deliveries.sort_unstable();
    let (mut reach, mut steps, mut waiting) = (1, Vec::new(), BTreeSet::new());
    for (time, start, end) in deliveries {
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

/// The first dropped packet whose first byte had not been delivered in another packet before.
fn stall(packets: &[StoredSegment]) -> Option<Stall> {
    let dropped =
        packets.iter().filter(|packet| packet.has_data_or_syn() && packet.delivered.is_none());
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
