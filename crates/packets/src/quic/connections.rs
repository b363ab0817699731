//! Assigns datagrams to connections by addresses and connection IDs (RFC 9000 section 5.2).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use firstflight_wire::{LongHeader, LongType, is_long};

use super::analysis::QuicAnalysis;
use super::decryption::DIRECTIONS;
use super::flow::{Datagram, MAX_ADDRESSES, QuicFlow};
use crate::facts::{FlowFacts, QuicFacts};
use crate::packet::Udp;
use crate::{Direction, KeyLog, Limits, Packet, Trace};

type Endpoints = (SocketAddr, SocketAddr);
type ConnectionNumber = u64;

/// The stored QUIC connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    flows: BTreeMap<ConnectionNumber, QuicFlow>,
    /// The number of the next connection.
    next_number: ConnectionNumber,
    /// The connections between two endpoints, the newest last.
    by_endpoints: HashMap<Endpoints, Vec<ConnectionNumber>>,
    /// By destination connection ID and endpoints. A client's connection ID, and the ID that the
    /// client chose for the server's first packets, are unique only together with the endpoints.
    by_id: HashMap<(Endpoints, Direction, Vec<u8>), ConnectionNumber>,
    /// By a connection ID that the server issued, for any address of the client.
    by_server_id: HashMap<(SocketAddr, Vec<u8>), ConnectionNumber>,
    /// The lengths of the connection IDs that each server issues.
    id_lengths: HashMap<SocketAddr, BTreeSet<usize>>,
    /// Datagrams with short headers whose connection IDs were issued in packets that are not
    /// decrypted yet, with their server.
    unmatched: Vec<(SocketAddr, Datagram)>,
    /// Bytes of memory of all datagrams.
    pub(crate) memory: usize,
}

/// Datagrams stored without a connection, at most.
const MAX_UNMATCHED_DATAGRAMS: usize = 4096;

/// Rounds in which a connection claims unmatched datagrams, at most.
const MAX_MATCHING_ROUNDS: usize = 8;

/// The connection that a datagram belongs to.
enum Assignment {
    Known(ConnectionNumber),
    New,
    Unmatched,
    Ignored,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Adds a datagram if `memory_left` suffices. Returns whether it was ignored because it starts
    /// a connection and the limit on connections is reached (`full`).
    pub(crate) fn datagram(
        &mut self,
        packet: &Packet<'_>,
        udp: &Udp<'_>,
        limits: &Limits,
        memory_left: usize,
        full: bool,
    ) -> bool {
        let endpoints = udp.endpoints(packet.direction);
        let long = LongHeader::read(udp.payload);
        let number = match self.assign(packet.direction, endpoints, udp, long.as_ref()) {
            Assignment::Known(number) => number,
            Assignment::New if full => return true,
            Assignment::New => {
                let number = self.next_number;
                self.next_number += 1;
                self.flows.insert(number, QuicFlow::new(endpoints.0, endpoints.1, packet.arrived));
                number
            }
            Assignment::Unmatched => {
                let datagram = Datagram::new(packet, udp);
                let memory = datagram.memory();
                if self.unmatched.len() < MAX_UNMATCHED_DATAGRAMS && memory <= memory_left {
                    self.unmatched.push((endpoints.1, datagram));
                    self.memory += memory;
                }
                return false;
            }
            Assignment::Ignored => return false,
        };
        self.index(number, packet, endpoints, long.as_ref());
        if let Some(flow) = self.flows.get_mut(&number) {
            let before = flow.memory;
            flow.add(Datagram::new(packet, udp), limits, memory_left);
            self.memory += flow.memory - before;
        }
        false
    }

    fn assign(
        &self,
        direction: Direction,
        endpoints: Endpoints,
        udp: &Udp<'_>,
        long: Option<&LongHeader<'_>>,
    ) -> Assignment {
        let candidates = self.by_endpoints.get(&endpoints).map(Vec::as_slice).unwrap_or_default();
        let Some(long) = long else {
            if udp.payload.first().is_none_or(|first| is_long(*first)) {
                return Assignment::Ignored;
            }
            return self.assign_short_header(direction, endpoints, &udp.payload[1..], candidates);
        };
        let id = (endpoints, direction, long.destination.to_vec());
        if let Some(number) = self.by_id.get(&id) {
            return Assignment::Known(*number);
        }
        match direction {
            Direction::ToClient => match (long.destination, candidates) {
                (&[], [.., newest]) => Assignment::Known(*newest),
                _ => self.assign_server_packet(endpoints, long, candidates),
            },
            Direction::ToServer if starts_connection(long, udp) => {
                // After a Version Negotiation a client may start again under another ID.
                let restarted = candidates.last().filter(|number| {
                    let flow = self.flows.get(number);
                    flow.is_some_and(|flow| {
                        flow.facts.version_negotiations > 0 && !flow.server_responded
                    })
                });
                restarted.map_or(Assignment::New, |number| Assignment::Known(*number))
            }
            Direction::ToServer => {
                let id = (endpoints.1, long.destination.to_vec());
                self.by_server_id
                    .get(&id)
                    .map_or(Assignment::Ignored, |number| Assignment::Known(*number))
            }
        }
    }

    /// Assigns a server's packet with an unknown destination ID. A server may use an ID that the
    /// client issued in its early data (RFC 9000 section 7.2), as quinn does with Firefox. Then the
    /// source ID identifies the connection, or the only connection that waits for the server.
    fn assign_server_packet(
        &self,
        endpoints: Endpoints,
        long: &LongHeader<'_>,
        candidates: &[ConnectionNumber],
    ) -> Assignment {
        let matches = (endpoints, Direction::ToServer, long.source.to_vec());
        if let Some(number) = self.by_id.get(&matches) {
            return Assignment::Known(*number);
        }
        let waits_for_server = |number: &&ConnectionNumber| {
            self.flows.get(number).is_some_and(|flow| !flow.server_responded)
        };
        let mut waiting = candidates.iter().filter(waits_for_server);
        match (waiting.next(), waiting.next(), long.long_type()) {
            (Some(only), None, Some(LongType::Initial)) => Assignment::Known(*only),
            _ => Assignment::Ignored,
        }
    }

    /// Short headers do not say how long their connection ID is.
    fn assign_short_header(
        &self,
        direction: Direction,
        endpoints: Endpoints,
        after_first_byte: &[u8],
        candidates: &[ConnectionNumber],
    ) -> Assignment {
        if direction == Direction::ToServer {
            for len in self.id_lengths.get(&endpoints.1).into_iter().flatten() {
                let id = after_first_byte.get(..*len).map(|id| (endpoints.1, id.to_vec()));
                if let Some(number) = id.and_then(|id| self.by_server_id.get(&id)) {
                    return Assignment::Known(*number);
                }
            }
        }
        match candidates {
            // The client may have migrated.
            [] if self.id_lengths.contains_key(&endpoints.1) => Assignment::Unmatched,
            [] => Assignment::Ignored,
            [only] => Assignment::Known(*only),
            several => {
                let newest = |has: &dyn Fn(&BTreeSet<Vec<u8>>) -> bool| {
                    several.iter().rev().copied().find(|number| {
                        let flow = self.flows.get(number);
                        flow.is_some_and(|flow| has(&flow.ids[direction as usize]))
                    })
                };
                newest(&|ids| ids.iter().any(|id| after_first_byte.starts_with(id)))
                    // A client without IDs has one connection at a time.
                    .or_else(|| newest(&BTreeSet::is_empty))
                    .map_or(Assignment::Unmatched, Assignment::Known)
            }
        }
    }

    /// Indexes the connection by the endpoints and connection IDs of this packet.
    fn index(
        &mut self,
        number: ConnectionNumber,
        packet: &Packet<'_>,
        endpoints: Endpoints,
        long: Option<&LongHeader<'_>>,
    ) {
        let Some(flow) = self.flows.get_mut(&number) else { return };
        let known =
            self.by_endpoints.get(&endpoints).is_some_and(|numbers| numbers.contains(&number));
        if !known && flow.indexed_addresses < MAX_ADDRESSES {
            flow.indexed_addresses += 1;
            self.by_endpoints.entry(endpoints).or_default().push(number);
        }
        let Some(long) = long else { return };
        if packet.direction == Direction::ToServer {
            // A client changes the ID that it chose at most once.
            if flow.add_connection_id(Direction::ToServer, long.destination) {
                let id = (endpoints, Direction::ToServer, long.destination.to_vec());
                self.by_id.entry(id).or_insert(number);
            }
            if flow.add_connection_id(Direction::ToClient, long.source) {
                let id = (endpoints, Direction::ToClient, long.source.to_vec());
                self.by_id.insert(id, number);
            }
            return;
        }
        match long.long_type() {
            // The source ID of a Version Negotiation is the ID that the client chose.
            None if long.version == 0 => {
                flow.facts.version_negotiations += u32::from(packet.delivered.is_some());
            }
            None => {}
            Some(kind) => {
                flow.server_responded |= kind != LongType::Retry;
                if flow.add_connection_id(Direction::ToClient, long.destination) {
                    let id = (endpoints, Direction::ToClient, long.destination.to_vec());
                    self.by_id.entry(id).or_insert(number);
                }
                if flow.add_connection_id(Direction::ToServer, long.source) {
                    self.by_id
                        .insert((endpoints, Direction::ToServer, long.source.to_vec()), number);
                    self.index_server_id(number, endpoints.1, long.source);
                }
            }
        }
    }

    fn index_server_id(&mut self, number: ConnectionNumber, server: SocketAddr, id: &[u8]) {
        self.id_lengths.entry(server).or_default().insert(id.len());
        self.by_server_id.entry((server, id.to_vec())).or_insert(number);
    }

    /// Removes the connections and returns their facts. With `closed`, only those with a
    /// CONNECTION_CLOSE.
    pub(crate) fn take(
        &mut self,
        closed: bool,
        keys: &KeyLog,
        limits: &Limits,
        wants_trace: &mut dyn FnMut(&FlowFacts) -> bool,
    ) -> Vec<(FlowFacts, Option<Trace>)> {
        let mut analyzed = Vec::new();
        for number in self.flows.keys().copied().collect::<Vec<_>>() {
            let Some(mut flow) = self.flows.remove(&number) else { continue };
            let has_new_datagrams = flow.checked_datagrams < flow.datagrams.len();
            if !closed || has_new_datagrams {
                let analysis = self.analyze(number, &mut flow, keys, limits);
                let facts = analysis.facts();
                if !closed || facts.quic().is_some_and(QuicFacts::is_closed) {
                    let trace = wants_trace(&facts).then(|| analysis.trace());
                    analyzed.push((facts, trace));
                    continue;
                }
                flow.checked_datagrams = flow.datagrams.len();
            }
            self.flows.insert(number, flow);
        }
        self.remove_stale_entries();
        analyzed
    }

    /// Analyzes a connection, together with unmatched datagrams that have its connection IDs.
    fn analyze<'f>(
        &mut self,
        number: ConnectionNumber,
        flow: &'f mut QuicFlow,
        keys: &KeyLog,
        limits: &Limits,
    ) -> QuicAnalysis<'f> {
        flow.put_in_order();
        if !self.unmatched.is_empty() {
            // Each round may decrypt packets that issue further IDs.
            for _ in 0..MAX_MATCHING_ROUNDS {
                let issued = QuicAnalysis::new(flow, keys).packets.issued_ids;
                for (direction, ids) in DIRECTIONS.into_iter().zip(issued) {
                    for id in ids {
                        if flow.add_connection_id(direction, &id)
                            && direction == Direction::ToServer
                        {
                            self.index_server_id(number, flow.server, &id);
                        }
                    }
                }
                if !self.claim_unmatched(flow, limits) {
                    break;
                }
                flow.put_in_order();
            }
        }
        QuicAnalysis::new(flow, keys)
    }

    /// Adds the unmatched datagrams with the connection's IDs. Returns whether there were any.
    fn claim_unmatched(&mut self, flow: &mut QuicFlow, limits: &Limits) -> bool {
        let before = self.unmatched.len();
        let mut addresses: BTreeSet<_> =
            flow.datagrams.iter().map(|datagram| datagram.client).collect();
        self.unmatched.retain(|(server, datagram)| {
            let after_first_byte = datagram.payload.get(1..).unwrap_or_default();
            let ids = &flow.ids[datagram.direction as usize];
            let has_id = ids.iter().any(|id| after_first_byte.starts_with(id))
                || (ids.is_empty() && addresses.contains(&datagram.client));
            let matches = *server == flow.server && has_id;
            if matches {
                addresses.insert(datagram.client);
                flow.add(datagram.clone(), limits, usize::MAX);
            }
            !matches
        });
        self.unmatched.len() < before
    }

    /// Removes the index entries of removed connections.
    fn remove_stale_entries(&mut self) {
        let flows = &self.flows;
        if flows.is_empty() {
            self.unmatched.clear();
            self.id_lengths.clear();
        }
        self.by_endpoints.retain(|_, numbers| {
            numbers.retain(|number| flows.contains_key(number));
            !numbers.is_empty()
        });
        self.by_id.retain(|_, number| flows.contains_key(number));
        self.by_server_id.retain(|_, number| flows.contains_key(number));
        self.memory = flows.values().map(|flow| flow.memory).sum::<usize>()
            + self.unmatched.iter().map(|(_, datagram)| datagram.memory()).sum::<usize>();
    }
}

/// Whether a client's packet starts a connection: an Initial packet, early data that overtook it,
/// or a packet of an unknown version with the minimum length of a first one (RFC 9000 section
/// 14.1).
fn starts_connection(long: &LongHeader<'_>, udp: &Udp<'_>) -> bool {
    const MIN_INITIAL_BYTES: u32 = 1200;
    match long.long_type() {
        Some(LongType::Initial | LongType::ZeroRtt) => true,
        Some(LongType::Handshake | LongType::Retry) => false,
        None => long.version != 0 && udp.wire_len >= MIN_INITIAL_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Content;
    use crate::quic::tests::udp_frame;

    fn add(connections: &mut Connections, direction: Direction, port: u16, payload: &[u8]) {
        let frame = udp_frame(direction, port, payload);
        let Some(Content::Udp(udp)) = Content::from_frame(&frame) else { panic!("no UDP") };
        let (arrived, delivered) = (port.into(), Some(port.into()));
        let packet = Packet { direction, arrived, delivered, frame: &frame };
        connections.datagram(&packet, &udp, &Limits::default(), usize::MAX, false);
    }

    #[test]
    fn forged_source_addresses_do_not_grow_the_index() {
        let mut connections = Connections::default();
        let long = |to: &[u8], from: &[u8]| {
            let ids = [&[to.len() as u8][..], to, &[from.len() as u8], from].concat();
            [&[0xc3, 0, 0, 0, 1][..], &ids].concat()
        };
        let (first, client, server) = ([3; 8], [1; 4], [2; 4]);
        add(&mut connections, Direction::ToServer, 40_000, &long(&first, &client));
        add(&mut connections, Direction::ToClient, 40_000, &long(&client, &server));
        for port in 1..1_000 {
            let short = [&[0x40][..], &server, &[0; 20]].concat();
            add(&mut connections, Direction::ToServer, port, &short);
        }
        assert_eq!(connections.by_endpoints.len(), MAX_ADDRESSES);
        let flows: Vec<_> = connections.flows.values().collect();
        assert_eq!((flows.len(), flows[0].datagrams.len()), (1, 2 + 999));
    }
}
