//! Groups packets into connections and returns the facts of each.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;

use crate::packet::{Content, Segment};
use crate::quic::Connections;
use crate::tcp::TcpFlow;
use crate::{Direction, FlowFacts, KeyLog, Packet, Trace};

/// Limits of what an [`Observer`] stores. Facts that would need more become `Unknown`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections stored until they are taken; further ones are ignored.
    pub connections: usize,
    /// Payload bytes stored of each direction of a connection.
    pub bytes_per_direction: usize,
    /// Packets stored of a connection: this many that are SYNs or have payload, and as many others;
    /// over QUIC this many datagrams. Retransmissions over TCP and packets out of order are counted
    /// among these only.
    pub packets_per_connection: usize,
    /// Bytes stored of all connections together.
    pub total_bytes: usize,
    /// Client randoms whose secrets are stored; the oldest are removed first.
    pub secrets: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1 << 16,
            // A response of 1 MiB with its overhead.
            bytes_per_direction: 1 << 21,
            packets_per_connection: 1 << 13,
            total_bytes: 1 << 29,
            secrets: 1 << 17,
        }
    }
}

/// Observes the packets of a tap. Analyzes each TCP connection whose first SYN it saw, and each
/// QUIC connection whose first Initial packet it saw. Pass packets in the order in which the tap
/// received them, or in which it delivered or dropped them. Frames that are neither TCP nor QUIC,
/// and packets of connections that started earlier, are ignored.
#[derive(Debug)]
pub struct Observer {
    limits: Limits,
    keys: KeyLog,
    flows: HashMap<(SocketAddr, SocketAddr), TcpFlow>,
    /// Connections whose endpoints a later connection reuses.
    superseded: Vec<((SocketAddr, SocketAddr), TcpFlow)>,
    quic: Connections,
    /// Bytes of memory of the TCP connections.
    memory: usize,
    untracked: u64,
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

    /// An observer with the given limits.
    pub fn with_limits(limits: Limits) -> Self {
        Self {
            keys: KeyLog::new(limits.secrets),
            limits,
            flows: HashMap::new(),
            superseded: Vec::new(),
            quic: Connections::default(),
            memory: 0,
            untracked: 0,
        }
    }

    /// Adds whole lines of an NSS key log. Returns how many of them held a new secret. They are
    /// used for connections that are taken afterwards.
    pub fn add_secrets(&mut self, key_log: &str) -> usize {
        self.keys.add(key_log)
    }

    /// Adds one packet.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        match Content::from_frame(packet.frame) {
            Some(Content::Tcp(segment)) => self.segment(packet, &segment),
            Some(Content::Udp(udp)) => {
                let (room, full) = (self.room(), self.is_full());
                let ignored = self.quic.datagram(packet, &udp, &self.limits, room, full);
                self.untracked += u64::from(ignored);
            }
            None => {}
        }
    }

    fn is_full(&self) -> bool {
        self.connections() >= self.limits.connections
    }

    /// Bytes of memory that are left.
    fn room(&self) -> usize {
        self.limits.total_bytes.saturating_sub(self.memory + self.quic.memory)
    }

    fn segment(&mut self, packet: &Packet<'_>, segment: &Segment<'_>) {
        let key = segment.endpoints(packet.direction);
        let is_syn = packet.direction == Direction::ToServer
            && segment.flags.syn
            && segment.ack.is_none()
            && !segment.flags.rst;
        let (full, room) = (self.is_full(), self.room());
        let flow = match self.flows.entry(key) {
            Entry::Occupied(known) if is_syn && known.get().is_superseded_by(segment) => {
                if full {
                    // Packets of the new connection must not be added to the old one: drop both.
                    self.untracked += 2;
                    self.memory -= known.remove().memory;
                    return;
                }
                let flow = known.into_mut();
                let old = std::mem::replace(flow, TcpFlow::new(packet.arrived));
                self.superseded.push((key, old));
                flow
            }
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if !is_syn => return,
            Entry::Vacant(_) if full => {
                self.untracked += 1;
                return;
            }
            Entry::Vacant(free) => free.insert(TcpFlow::new(packet.arrived)),
        };
        let before = flow.memory;
        flow.segment(packet, segment, &self.limits, room);
        self.memory += flow.memory - before;
    }

    /// Connections that are stored, closed ones included.
    pub fn connections(&self) -> usize {
        self.flows.len() + self.superseded.len() + self.quic.len()
    }

    /// Connections that were ignored because [`Limits::connections`] was reached.
    pub fn untracked(&self) -> u64 {
        self.untracked
    }

    /// The secrets that were added.
    pub fn key_log(&self) -> &KeyLog {
        &self.keys
    }

    /// Removes the closed connections and returns their facts, in the order in which they started.
    /// Add their secrets before: without them a QUIC connection does not show that it is closed.
    pub fn take_finished(&mut self) -> Vec<FlowFacts> {
        without_traces(self.take_finished_traced(|_| false))
    }

    /// Like [`Observer::take_finished`], with a trace of each connection for which `wants_trace`
    /// returns true.
    pub fn take_finished_traced(
        &mut self,
        wants_trace: impl FnMut(&FlowFacts) -> bool,
    ) -> Vec<(FlowFacts, Option<Trace>)> {
        self.take(true, wants_trace)
    }

    /// Removes all connections, including open ones, and returns their facts.
    pub fn finish(&mut self) -> Vec<FlowFacts> {
        without_traces(self.finish_traced(|_| false))
    }

    /// Like [`Observer::finish`], with a trace of each connection for which `wants_trace` returns
    /// true.
    pub fn finish_traced(
        &mut self,
        wants_trace: impl FnMut(&FlowFacts) -> bool,
    ) -> Vec<(FlowFacts, Option<Trace>)> {
        self.take(false, wants_trace)
    }

    fn take(
        &mut self,
        closed: bool,
        mut wants_trace: impl FnMut(&FlowFacts) -> bool,
    ) -> Vec<(FlowFacts, Option<Trace>)> {
        let mut taken = std::mem::take(&mut self.superseded);
        taken.extend(self.flows.extract_if(|_, flow| !closed || flow.is_closed()));
        self.memory -= taken.iter().map(|(_, flow)| flow.memory).sum::<usize>();
        let mut analyzed = self.quic.take(closed, &self.keys, &self.limits, &mut wants_trace);
        analyzed.extend(taken.into_iter().map(|(endpoints, mut flow)| {
            let analysis = flow.analyze(endpoints, &self.keys);
            let facts = analysis.facts();
            let trace = wants_trace(&facts).then(|| Trace::new(&analysis));
            (facts, trace)
        }));
        analyzed.sort_by_key(|(facts, _)| (facts.started, facts.client));
        analyzed
    }
}

fn without_traces(analyzed: Vec<(FlowFacts, Option<Trace>)>) -> Vec<FlowFacts> {
    analyzed.into_iter().map(|(facts, _)| facts).collect()
}
