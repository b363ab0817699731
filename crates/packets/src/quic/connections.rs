//! Sorts datagrams into connections, by addresses and connection IDs (RFC 9000 section 5.2).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use super::flow::{Datagram, QuicFlow};
use super::header::{Long, is_long};
use super::judge::Judge;
use super::opening::BOTH;
use super::version::LongType;
use crate::facts::{FlowFacts, QuicFacts};
use crate::packet::Udp;
use crate::{Direction, KeyLog, Limits, Packet, Trace};

type Ends = (SocketAddr, SocketAddr);
type Number = u64;

/// All QUIC connections that are kept.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    flows: BTreeMap<Number, QuicFlow>,
    /// How many there ever were: the next one's number.
    begun: Number,
    /// The connections between two addresses, the newest last.
    by_ends: HashMap<Ends, Vec<Number>>,
    /// By the receiver's connection ID. A client's is its own affair, so it counts together with
    /// the addresses; so does the one that the client made up for the server.
    by_id: HashMap<(Ends, Direction, Vec<u8>), Number>,
    /// By a connection ID that the server gave out, wherever the client is.
    by_server_id: HashMap<(SocketAddr, Vec<u8>), Number>,
    /// The lengths of the connection IDs that each server gives out.
    lengths: HashMap<SocketAddr, BTreeSet<usize>>,
    /// Short headers with connection IDs that only opened packets can tell, to or from a server.
    strays: Vec<(SocketAddr, Datagram, u32)>,
    /// Bytes of memory that all of them take.
    pub(crate) memory: usize,
}

/// Strays that are kept, at most.
const MAX_STRAYS: usize = 4096;

/// How often a connection looks for its strays.
const MAX_ROUNDS: usize = 8;

/// Where a datagram belongs.
enum Place {
    Known(Number),
    Begins,
    Stray,
    Nowhere,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Takes a datagram in, into so much `room`. Says whether it was passed over because it starts
    /// a connection and they are `full`.
    pub(crate) fn datagram(
        &mut self,
        packet: &Packet<'_>,
        udp: &Udp<'_>,
        limits: &Limits,
        room: usize,
        full: bool,
    ) -> bool {
        let ends = udp.ends(packet.direction);
        let long = Long::read(udp.payload);
        let number = match self.place(packet.direction, ends, udp, long.as_ref()) {
            Place::Known(number) => number,
            Place::Begins if full => return true,
            Place::Begins => {
                let number = self.begun;
                self.begun += 1;
                self.flows.insert(number, QuicFlow::new(ends.0, ends.1, packet.arrived));
                number
            }
            Place::Stray => {
                let datagram = Datagram::new(packet, udp);
                let memory = datagram.memory();
                if self.strays.len() < MAX_STRAYS && memory <= room {
                    self.strays.push((ends.1, datagram, udp.frame_len));
                    self.memory += memory;
                }
                return false;
            }
            Place::Nowhere => return false,
        };
        self.note(number, packet.direction, ends, long.as_ref());
        if let Some(flow) = self.flows.get_mut(&number) {
            let before = flow.memory;
            flow.add(Datagram::new(packet, udp), udp.frame_len, limits, room);
            self.memory += flow.memory - before;
        }
        false
    }

    fn place(
        &self,
        direction: Direction,
        ends: Ends,
        udp: &Udp<'_>,
        long: Option<&Long<'_>>,
    ) -> Place {
        let between = self.by_ends.get(&ends).map(Vec::as_slice).unwrap_or_default();
        let Some(long) = long else {
            if udp.payload.first().is_none_or(|first| is_long(*first)) {
                return Place::Nowhere;
            }
            return self.place_short(direction, ends, &udp.payload[1..], between);
        };
        let id = (ends, direction, long.destination.to_vec());
        if let Some(number) = self.by_id.get(&id) {
            return Place::Known(*number);
        }
        match direction {
            Direction::ToClient => match (long.destination, between) {
                (&[], [.., newest]) => Place::Known(*newest),
                _ => self.place_answer(ends, long, between),
            },
            Direction::ToServer if begins(long, udp) => {
                // After a Version Negotiation a client may start again under another ID.
                let again = between.last().filter(|number| {
                    let flow = self.flows.get(number);
                    flow.is_some_and(|flow| flow.facts.version_negotiations > 0 && !flow.answered)
                });
                again.map_or(Place::Begins, |number| Place::Known(*number))
            }
            Direction::ToServer => {
                let id = (ends.1, long.destination.to_vec());
                self.by_server_id.get(&id).map_or(Place::Nowhere, |number| Place::Known(*number))
            }
        }
    }

    /// A server may answer to an ID that the client gave out in its early data (RFC 9000 section
    /// 7.2), as quinn does with Firefox: then its own ID tells, or that one client alone waits.
    fn place_answer(&self, ends: Ends, long: &Long<'_>, between: &[Number]) -> Place {
        let own = (ends, Direction::ToServer, long.source.to_vec());
        if let Some(number) = self.by_id.get(&own) {
            return Place::Known(*number);
        }
        let waits = |number: &&Number| self.flows.get(number).is_some_and(|flow| !flow.answered);
        let mut waiting = between.iter().filter(waits);
        match (waiting.next(), waiting.next(), long.long_type()) {
            (Some(only), None, Some(LongType::Initial)) => Place::Known(*only),
            _ => Place::Nowhere,
        }
    }

    /// Short headers do not say how long their connection ID is.
    fn place_short(
        &self,
        direction: Direction,
        ends: Ends,
        behind: &[u8],
        between: &[Number],
    ) -> Place {
        if direction == Direction::ToServer {
            for len in self.lengths.get(&ends.1).into_iter().flatten() {
                let id = behind.get(..*len).map(|id| (ends.1, id.to_vec()));
                if let Some(number) = id.and_then(|id| self.by_server_id.get(&id)) {
                    return Place::Known(*number);
                }
            }
        }
        match between {
            // A client that has moved.
            [] if self.lengths.contains_key(&ends.1) => Place::Stray,
            [] => Place::Nowhere,
            [only] => Place::Known(*only),
            several => {
                let newest = |has: &dyn Fn(&BTreeSet<Vec<u8>>) -> bool| {
                    several.iter().rev().copied().find(|number| {
                        let flow = self.flows.get(number);
                        flow.is_some_and(|flow| has(&flow.ids[direction as usize]))
                    })
                };
                newest(&|ids| ids.iter().any(|id| behind.starts_with(id)))
                    // A client without IDs has one connection at a time.
                    .or_else(|| newest(&BTreeSet::is_empty))
                    .map_or(Place::Stray, Place::Known)
            }
        }
    }

    /// Notes by what the connection can be found from now on.
    fn note(&mut self, number: Number, direction: Direction, ends: Ends, long: Option<&Long<'_>>) {
        let between = self.by_ends.entry(ends).or_default();
        if !between.contains(&number) {
            between.push(number);
        }
        let Some((flow, long)) = self.flows.get_mut(&number).zip(long) else { return };
        if direction == Direction::ToServer {
            // At most a few: a client changes the ID that it made up once, if ever.
            if flow.learn(Direction::ToServer, long.destination) {
                let id = (ends, Direction::ToServer, long.destination.to_vec());
                self.by_id.entry(id).or_insert(number);
            }
            if flow.learn(Direction::ToClient, long.source) {
                let id = (ends, Direction::ToClient, long.source.to_vec());
                self.by_id.insert(id, number);
            }
            return;
        }
        match long.long_type() {
            // Its source is the ID that the client made up.
            None if long.version == 0 => flow.facts.version_negotiations += 1,
            None => {}
            Some(kind) => {
                flow.answered |= kind != LongType::Retry;
                if flow.learn(Direction::ToClient, long.destination) {
                    let id = (ends, Direction::ToClient, long.destination.to_vec());
                    self.by_id.entry(id).or_insert(number);
                }
                if flow.learn(Direction::ToServer, long.source) {
                    self.by_id.insert((ends, Direction::ToServer, long.source.to_vec()), number);
                    self.given_out(number, ends.1, long.source);
                }
            }
        }
    }

    fn given_out(&mut self, number: Number, server: SocketAddr, id: &[u8]) {
        self.lengths.entry(server).or_default().insert(id.len());
        self.by_server_id.entry((server, id.to_vec())).or_insert(number);
    }

    /// Judges the connections that are wanted, as far as they went, and forgets them; `closed`:
    /// only those that showed a CONNECTION_CLOSE.
    pub(crate) fn take(
        &mut self,
        closed: bool,
        keys: &KeyLog,
        limits: &Limits,
        wanted: &mut dyn FnMut(&FlowFacts) -> bool,
    ) -> Vec<(FlowFacts, Option<Trace>)> {
        let mut judged = Vec::new();
        for number in self.flows.keys().copied().collect::<Vec<_>>() {
            let Some(mut flow) = self.flows.remove(&number) else { continue };
            let news = flow.looked_at < flow.datagrams.len();
            if !closed || news {
                let judge = self.settle(number, &mut flow, keys, limits);
                let facts = judge.facts();
                if !closed || facts.quic().is_some_and(QuicFacts::is_closed) {
                    let trace = wanted(&facts).then(|| judge.trace());
                    judged.push((facts, trace));
                    continue;
                }
                flow.looked_at = flow.datagrams.len();
            }
            self.flows.insert(number, flow);
        }
        self.forget();
        judged
    }

    /// Judges a connection, with the strays that its opened packets lay claim to.
    fn settle<'f>(
        &mut self,
        number: Number,
        flow: &'f mut QuicFlow,
        keys: &KeyLog,
        limits: &Limits,
    ) -> Judge<'f> {
        flow.datagrams.sort_by_key(|datagram| datagram.arrived);
        if !self.strays.is_empty() {
            // Each round may open packets that give out further IDs.
            for _ in 0..MAX_ROUNDS {
                let given = Judge::new(flow, keys).opening.given_out;
                for (direction, ids) in BOTH.into_iter().zip(given) {
                    for id in ids {
                        if flow.learn(direction, &id) && direction == Direction::ToServer {
                            self.given_out(number, flow.server, &id);
                        }
                    }
                }
                if !self.adopt(flow, limits) {
                    break;
                }
                flow.datagrams.sort_by_key(|datagram| datagram.arrived);
            }
        }
        Judge::new(flow, keys)
    }

    /// Gives a connection the strays that have its connection IDs, and says whether there are any.
    fn adopt(&mut self, flow: &mut QuicFlow, limits: &Limits) -> bool {
        let before = self.strays.len();
        let mut addresses: BTreeSet<_> = flow.datagrams.iter().map(|kept| kept.client).collect();
        self.strays.retain(|(server, datagram, frame_len)| {
            let behind = datagram.payload.get(1..).unwrap_or_default();
            let ids = &flow.ids[datagram.direction as usize];
            let leads = ids.iter().any(|id| behind.starts_with(id))
                || (ids.is_empty() && addresses.contains(&datagram.client));
            let own = *server == flow.server && leads;
            if own {
                addresses.insert(datagram.client);
                flow.add(datagram.clone(), *frame_len, limits, usize::MAX);
            }
            !own
        });
        self.strays.len() < before
    }

    /// Lets go of what led to connections that are gone.
    fn forget(&mut self) {
        let flows = &self.flows;
        if flows.is_empty() {
            self.strays.clear();
            self.lengths.clear();
        }
        self.by_ends.retain(|_, numbers| {
            numbers.retain(|number| flows.contains_key(number));
            !numbers.is_empty()
        });
        self.by_id.retain(|_, number| flows.contains_key(number));
        self.by_server_id.retain(|_, number| flows.contains_key(number));
        self.memory = flows.values().map(|flow| flow.memory).sum::<usize>()
            + self.strays.iter().map(|(_, stray, _)| stray.memory()).sum::<usize>();
    }
}

/// Whether a client's packet starts a connection: an Initial packet, or early data that overtook
/// it, or one of an unknown version that is as long as a first one has to be (RFC 9000 section
/// 14.1).
fn begins(long: &Long<'_>, udp: &Udp<'_>) -> bool {
    const MIN_INITIAL_BYTES: u32 = 1200;
    match long.long_type() {
        Some(LongType::Initial | LongType::ZeroRtt) => true,
        Some(LongType::Handshake | LongType::Retry) => false,
        None => long.version != 0 && udp.wire_len >= MIN_INITIAL_BYTES,
    }
}
