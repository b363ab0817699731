//! Chains of cells, one for each channel (one direction of one path), and the packets in transit.
//! Without I/O and without a clock.
//!
//! A packet passes its chain immediately, as long as the cells keep the order of packets. Behind a
//! cell that reorders, it waits for its logical time, so that the next cell gets packets in their new
//! order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::cells::{Cell, CellDecision, CellSpec, PacketInCell, Seeds, mix};
use crate::path::{CellCounters, ChannelCounters};

/// A packet that has left its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessedPacket {
    /// The index of the channel: twice the path, plus one for the direction down.
    pub channel: usize,
    /// When it arrived, in nanoseconds of the caller's clock.
    pub arrival_ns: u64,
    /// When it is to be delivered, or was dropped.
    pub due_ns: u64,
    /// The Ethernet frame as it arrived.
    pub frame: Box<[u8]>,
    /// The frame to deliver if a cell altered it, with that cell's name.
    pub altered: Option<(&'static str, Box<[u8]>)>,
    /// The cell that dropped it, if any.
    pub dropped_by: Option<&'static str>,
}

/// All chains of a network. All times are arguments.
#[derive(Debug)]
pub struct Chains {
    channels: Vec<Chain>,
    waiting: BinaryHeap<Reverse<QueuedPacket>>,
    sequence: u64,
    bytes: usize,
    seed: u64,
}

impl Chains {
    /// Creates the chains of these paths, each with the cells of the directions up and down. All
    /// randomness follows from the seed: the same packets at the same times have the same outcome.
    pub fn new(paths: &[(&[CellSpec], &[CellSpec])], seed: u64) -> Self {
        let mut chains =
            Self { channels: Vec::new(), waiting: BinaryHeap::new(), sequence: 0, bytes: 0, seed };
        for cells in paths.iter().flat_map(|(up, down)| [up, down]) {
            let channel = chains.channels.len();
            chains.channels.push(Chain::new(cells, seed, channel));
        }
        chains
    }

    /// Accepts a frame that arrived at `arrival_ns`.
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn push(&mut self, channel: usize, arrival_ns: u64, frame: Box<[u8]>) {
        let chain = &mut self.channels[channel];
        chain.counters.arrived += 1;
        chain.counters.arrived_bytes += frame.len() as u64;
        self.bytes += frame.len();
        let generation = chain.generation;
        let exit = ProcessedPacket {
            channel,
            arrival_ns,
            due_ns: arrival_ns,
            frame,
            altered: None,
            dropped_by: None,
        };
        self.advance(Box::new(PacketInTransit {
            exit,
            stage: 0,
            generation,
            reply: None,
            copies: Vec::new(),
        }));
    }

    /// When the next packet is due.
    pub fn next_due(&self) -> Option<u64> {
        self.waiting.peek().map(|waiting| waiting.0.due_ns)
    }

    /// Removes the next packet that is to be delivered or has been dropped at `now_ns`.
    pub fn pop(&mut self, now_ns: u64) -> Option<ProcessedPacket> {
        while self.next_due()? <= now_ns {
            let QueuedPacket { due_ns, mut packet, .. } = self.waiting.pop()?.0;
            let chain = &mut self.channels[packet.exit.channel];
            let is_finished = packet.generation != chain.generation
                || chain.is_end(packet.stage)
                || packet.exit.dropped_by.is_some();
            packet.exit.due_ns = due_ns;
            if !is_finished {
                self.advance(packet);
                continue;
            }
            if let Some(reply) = packet.reply {
                self.push(packet.exit.channel ^ 1, due_ns, reply.into());
            }
            self.bytes -= packet.exit.frame.len();
            return Some(packet.exit);
        }
        None
    }

    /// Replaces the cells of a path, for packets that arrive from now on.
    ///
    /// Packets in transit keep their times, and later ones do not overtake them.
    ///
    /// # Panics
    /// If there is no such path.
    pub fn replace(&mut self, path: usize, up: &[CellSpec], down: &[CellSpec]) {
        for (channel, cells) in [(2 * path, up), (2 * path + 1, down)] {
            let old = &mut self.channels[channel];
            let mut new = Chain::new(cells, self.seed, channel);
            new.generation = old.generation + 1;
            new.not_before_ns = old.latest_ns;
            new.latest_ns = old.latest_ns;
            new.counters.continue_from(&old.counters);
            *old = new;
        }
    }

    /// The counters of a channel.
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn counters(&self, channel: usize) -> &ChannelCounters {
        &self.channels[channel].counters
    }

    /// The counters of a channel, for counting packets that have left it.
    pub(crate) fn counters_mut(&mut self, channel: usize) -> &mut ChannelCounters {
        &mut self.channels[channel].counters
    }

    /// The number of bytes in transit.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of packets in transit.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no packet is in transit.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Advances a packet through its chain as far as possible. Dropped packets are queued as well,
    /// so that all leave in the order of their times.
    fn advance(&mut self, packet: Box<PacketInTransit>) {
        let mut packets = VecDeque::from([packet]);
        while let Some(mut packet) = packets.pop_front() {
            let due_ns = self.channels[packet.exit.channel].advance(&mut packet);
            for copy in packet.copies.drain(..) {
                self.bytes += copy.exit.frame.len();
                packets.push_back(Box::new(copy));
            }
            self.sequence += 1;
            self.waiting.push(Reverse(QueuedPacket { due_ns, sequence: self.sequence, packet }));
        }
    }
}

#[derive(Debug)]
struct Chain {
    stages: Vec<(CellSpec, Box<dyn Cell>)>,
    counters: ChannelCounters,
    generation: u32,
    /// Whether all cells keep the order of packets.
    ordered: bool,
    /// When the last packet of the replaced cells is due.
    not_before_ns: u64,
    /// When the last packet so far is due.
    latest_ns: u64,
}

impl Chain {
    fn new(cells: &[CellSpec], seed: u64, channel: usize) -> Self {
        let (path_seed, channel_seed) =
            (mix(seed, PATH_SEED_OFFSET + channel as u64 / 2), mix(seed, channel as u64));
        let build = |(place, spec): (usize, &CellSpec)| {
            let cell = mix(channel_seed, place as u64);
            let path = shared_seed_parts(cells, place).into_iter().fold(path_seed, mix);
            (spec.clone(), spec.build(Seeds { cell, path }))
        };
        let stages: Vec<_> = cells.iter().enumerate().map(build).collect();
        let counters = ChannelCounters {
            cells: cells.iter().map(|cell| CellCounters::new(cell.name())).collect(),
            ..ChannelCounters::default()
        };
        let ordered = stages.iter().all(|(_, cell)| cell.keeps_order());
        Self { stages, counters, generation: 0, ordered, not_before_ns: 0, latest_ns: 0 }
    }

    fn is_end(&self, stage: usize) -> bool {
        stage >= self.stages.len()
    }

    /// Advances a packet. Returns the time at which it is to be delivered, to continue, or to be
    /// reported as dropped.
    fn advance(&mut self, packet: &mut PacketInTransit) -> u64 {
        while let Some((_, cell)) = self.stages.get_mut(packet.stage) {
            let counted = &mut self.counters.cells[packet.stage];
            packet.stage += 1;
            let exit = &mut packet.exit;
            let frame = exit.altered.as_ref().map_or(&exit.frame, |altered| &altered.1);
            let mut in_cell = PacketInCell { at_ns: exit.due_ns, frame };
            let decision = cell.pass(&mut in_cell);
            exit.due_ns = in_cell.at_ns;
            match decision {
                CellDecision::Pass => {}
                CellDecision::Duplicate => packet.copies.push(PacketInTransit {
                    exit: packet.exit.clone(),
                    copies: Vec::new(),
                    reply: None,
                    ..*packet
                }),
                CellDecision::Alter(frame) => {
                    counted.altered += 1;
                    exit.altered = Some((counted.name, frame.into()));
                }
                CellDecision::Drop | CellDecision::Refuse(_) => {
                    counted.dropped += 1;
                    exit.dropped_by = Some(counted.name);
                    if let CellDecision::Refuse(reply) = decision {
                        packet.reply = Some(reply);
                    }
                    return packet.exit.due_ns;
                }
            }
            counted.passed += 1;
            if !cell.keeps_order() && !self.is_end(packet.stage) {
                return packet.exit.due_ns;
            }
        }
        let mut due_ns = packet.exit.due_ns.max(self.not_before_ns);
        if self.ordered {
            due_ns = due_ns.max(self.latest_ns);
        }
        self.latest_ns = self.latest_ns.max(due_ns);
        due_ns
    }
}

/// Identifies the reconfiguration cell at `place` in the same way for both directions of a path: by
/// its period, and its rank among the cells with the same period. Its place does not identify it:
/// each direction may have other cells, and the order of a network and its addition is opposite.
fn shared_seed_parts(cells: &[CellSpec], place: usize) -> [u64; 2] {
    let key = |place: usize| match &cells[place] {
        CellSpec::Reconfiguration(spec) => {
            Some((spec.period, spec.distribution.to_string(), spec.outage, place))
        }
        _ => None,
    };
    let Some(own) = key(place) else { return [0; 2] };
    let others = (0..cells.len()).filter_map(key);
    let rank = others.filter(|other| other.0 == own.0 && *other < own).count();
    [own.0.as_nanos() as u64, rank as u64]
}

#[derive(Debug)]
struct PacketInTransit {
    exit: ProcessedPacket,
    /// The index of the next cell.
    stage: usize,
    /// The generation of the chain that it entered.
    generation: u32,
    /// The frame for the sender of a dropped packet.
    reply: Option<Vec<u8>>,
    /// Copies that continue with the next cell, behind the packet.
    copies: Vec<PacketInTransit>,
}

#[derive(Debug)]
struct QueuedPacket {
    due_ns: u64,
    /// Keeps packets with equal due times in the order of their arrival.
    sequence: u64,
    /// Boxed, because the heap moves its items.
    packet: Box<PacketInTransit>,
}

impl Ord for QueuedPacket {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due_ns, self.sequence).cmp(&(other.due_ns, other.sequence))
    }
}

impl PartialOrd for QueuedPacket {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for QueuedPacket {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for QueuedPacket {}

/// Separates the seeds of paths from those of channels.
const PATH_SEED_OFFSET: u64 = 1 << 32;

#[cfg(test)]
mod tests;
