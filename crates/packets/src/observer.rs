//! Sorts packets into connections and hands out what each of them was.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;

use crate::flow::Flow;
use crate::packet::{Content, Segment};
use crate::quic::Connections;
use crate::{Direction, FlowFacts, KeyLog, Packet, Trace};

/// How much an [`Observer`] may keep. What does not fit is left out, and the facts say so.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections kept until they are taken; further ones are not looked at.
    pub connections: usize,
    /// Payload bytes kept of each direction of a connection.
    pub bytes_per_direction: usize,
    /// Packets kept of a connection: so many that are SYNs or have payload, and as many others;
    /// over QUIC so many datagrams.
    pub packets_per_connection: usize,
    /// Bytes kept of all connections together.
    pub total_bytes: usize,
    /// Client randoms whose secrets are kept; the oldest are forgotten.
    pub secrets: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1 << 16,
            // A response of 1 MiB, and what comes with it.
            bytes_per_direction: 1 << 21,
            packets_per_connection: 1 << 13,
            total_bytes: 1 << 29,
            secrets: 1 << 17,
        }
    }
}

/// Watches the packets of a tap and judges each TCP connection whose first SYN it saw, and each
/// QUIC connection whose first Initial packet.
///
/// Packets are given in the order in which the tap got or delivered them; frames that are neither
/// TCP nor QUIC, and packets of connections that started earlier, are passed over.
#[derive(Debug)]
pub struct Observer {
    limits: Limits,
    keys: KeyLog,
    flows: HashMap<(SocketAddr, SocketAddr), Flow>,
    /// Connections whose addresses a later one has taken over.
    superseded: Vec<((SocketAddr, SocketAddr), Flow)>,
    quic: Connections,
    /// Of TCP's connections.
    memory: usize,
    not_followed: u64,
}

impl Default for Observer {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer {
    /// An observer with the default limits.
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// An observer with limits of one's own.
    pub fn with_limits(limits: Limits) -> Self {
        Self {
            keys: KeyLog::new(limits.secrets),
            limits,
            flows: HashMap::new(),
            superseded: Vec::new(),
            quic: Connections::default(),
            memory: 0,
            not_followed: 0,
        }
    }

    /// Adds lines of an NSS key log, which must be whole, and says how many held a new secret.
    /// They count for every connection that is taken afterwards.
    pub fn add_secrets(&mut self, key_log: &str) -> usize {
        self.keys.add(key_log)
    }

    /// Takes one packet in.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        match Content::from_frame(packet.frame) {
            Some(Content::Tcp(segment)) => self.segment(packet, &segment),
            Some(Content::Udp(udp)) => {
                let (room, full) = (self.room(), self.is_full());
                let passed_over = self.quic.datagram(packet, &udp, &self.limits, room, full);
                self.not_followed += u64::from(passed_over);
            }
            None => {}
        }
    }

    fn is_full(&self) -> bool {
        self.connections() >= self.limits.connections
    }

    /// Bytes of memory that may yet be used.
    fn room(&self) -> usize {
        self.limits.total_bytes.saturating_sub(self.memory + self.quic.memory)
    }

    fn segment(&mut self, packet: &Packet<'_>, segment: &Segment<'_>) {
        let key = segment.ends(packet.direction);
        let opens = packet.direction == Direction::ToServer
            && segment.flags.syn
            && segment.ack.is_none()
            && !segment.flags.rst;
        let (full, room) = (self.is_full(), self.room());
        let flow = match self.flows.entry(key) {
            Entry::Occupied(known) if opens && known.get().is_superseded_by(segment) => {
                if full {
                    // The old one must not take in what belongs to the new one: both are lost.
                    self.not_followed += 2;
                    self.memory -= known.remove().memory;
                    return;
                }
                let flow = known.into_mut();
                let old = std::mem::replace(flow, Flow::new(packet.arrived));
                self.superseded.push((key, old));
                flow
            }
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if !opens => return,
            Entry::Vacant(_) if full => {
                self.not_followed += 1;
                return;
            }
            Entry::Vacant(free) => free.insert(Flow::new(packet.arrived)),
        };
        let before = flow.memory;
        flow.segment(packet, segment, &self.limits, room);
        self.memory += flow.memory - before;
    }

    /// Connections that are kept, closed ones included.
    pub fn connections(&self) -> usize {
        self.flows.len() + self.superseded.len() + self.quic.len()
    }

    /// Connections that were lost because the limit on them was reached.
    pub fn not_followed(&self) -> u64 {
        self.not_followed
    }

    /// The secrets that were added.
    pub fn key_log(&self) -> &KeyLog {
        &self.keys
    }

    /// Judges the connections that are closed, in the order in which they started, and forgets
    /// them. Their secrets must have been added before; without them a QUIC connection does not
    /// show that it is closed.
    pub fn take_finished(&mut self) -> Vec<FlowFacts> {
        without_traces(self.take_finished_traced(|_| false))
    }

    /// The same, with a trace of each connection for whose facts `wanted` is true.
    pub fn take_finished_traced(
        &mut self,
        wanted: impl FnMut(&FlowFacts) -> bool,
    ) -> Vec<(FlowFacts, Option<Trace>)> {
        self.take(true, wanted)
    }

    /// Judges all connections, open ones as far as they went, and forgets them.
    pub fn finish(&mut self) -> Vec<FlowFacts> {
        without_traces(self.finish_traced(|_| false))
    }

    /// The same, with a trace of each connection for whose facts `wanted` is true.
    pub fn finish_traced(
        &mut self,
        wanted: impl FnMut(&FlowFacts) -> bool,
    ) -> Vec<(FlowFacts, Option<Trace>)> {
        self.take(false, wanted)
    }

    fn take(
        &mut self,
        closed: bool,
        mut wanted: impl FnMut(&FlowFacts) -> bool,
    ) -> Vec<(FlowFacts, Option<Trace>)> {
        let mut taken = std::mem::take(&mut self.superseded);
        taken.extend(self.flows.extract_if(|_, flow| !closed || flow.is_closed()));
        self.memory -= taken.iter().map(|(_, flow)| flow.memory).sum::<usize>();
        let mut judged = self.quic.take(closed, &self.keys, &self.limits, &mut wanted);
        judged.extend(taken.into_iter().map(|(ends, mut flow)| {
            let judge = flow.settle(ends, &self.keys);
            let facts = judge.facts();
            let trace = wanted(&facts).then(|| Trace::new(&judge));
            (facts, trace)
        }));
        judged.sort_by_key(|(facts, _)| (facts.started, facts.client));
        judged
    }
}

fn without_traces(judged: Vec<(FlowFacts, Option<Trace>)>) -> Vec<FlowFacts> {
    judged.into_iter().map(|(facts, _)| facts).collect()
}
