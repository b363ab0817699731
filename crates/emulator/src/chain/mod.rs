//! Chains of cells, one for each direction of each path, and the packets under way in them
//! (sans-IO).
//!
//! A chain is gone through at once, as far as cells keep the order of packets. Behind a cell that
//! does not, a packet waits for its logical time, so that the next cell meets packets in theirs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::cells::{Cell, CellDecision, CellSpec, PacketInCell, Seeds, mix};
use crate::counters::{CellCounters, LaneCounters};

/// A packet that has left its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The lane that it travelled on: twice the path, and one more for the way down.
    pub lane: usize,
    /// When it entered, in nanoseconds of the caller's clock.
    pub arrival_ns: u64,
    /// When it is to be delivered, or was dropped.
    pub due_ns: u64,
    /// The Ethernet frame as it entered.
    pub frame: Box<[u8]>,
    /// The frame to deliver where a cell altered it, and that cell's name.
    pub altered: Option<(&'static str, Box<[u8]>)>,
    /// The cell that dropped it; nothing: it is to be delivered.
    pub dropped_by: Option<&'static str>,
}

/// All chains of a network. It has no clock: every time is given by the caller.
#[derive(Debug)]
pub struct Chains {
    lanes: Vec<Chain>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    sequence: u64,
    bytes: usize,
    seed: u64,
}

impl Chains {
    /// The chains of these paths, each the cells of the way up and of the way down. What is random
    /// in them follows from the seed: the same packets at the same times then meet the same fate.
    pub fn new(paths: &[(&[CellSpec], &[CellSpec])], seed: u64) -> Self {
        let mut chains =
            Self { lanes: Vec::new(), waiting: BinaryHeap::new(), sequence: 0, bytes: 0, seed };
        for cells in paths.iter().flat_map(|(up, down)| [up, down]) {
            let lane = chains.lanes.len();
            chains.lanes.push(Chain::new(cells, seed, lane));
        }
        chains
    }

    /// Takes in a frame that arrived at `arrival_ns`.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn push(&mut self, lane: usize, arrival_ns: u64, frame: Box<[u8]>) {
        let chain = &mut self.lanes[lane];
        chain.counters.arrived += 1;
        chain.counters.arrived_bytes += frame.len() as u64;
        self.bytes += frame.len();
        let generation = chain.generation;
        let exit =
            Exit { lane, arrival_ns, due_ns: arrival_ns, frame, altered: None, dropped_by: None };
        self.advance(Box::new(Underway { exit, stage: 0, generation, reply: None }));
    }

    /// When there is something to do next.
    pub fn next_due(&self) -> Option<u64> {
        self.waiting.peek().map(|waiting| waiting.0.due_ns)
    }

    /// The next packet that is to be delivered or has been dropped at `now_ns`.
    pub fn pop(&mut self, now_ns: u64) -> Option<Exit> {
        while self.next_due()? <= now_ns {
            let Waiting { due_ns, mut packet, .. } = self.waiting.pop()?.0;
            let chain = &mut self.lanes[packet.exit.lane];
            let through = packet.generation != chain.generation
                || chain.is_end(packet.stage)
                || packet.exit.dropped_by.is_some();
            packet.exit.due_ns = due_ns;
            if !through {
                self.advance(packet);
                continue;
            }
            if let Some(reply) = packet.reply {
                self.push(packet.exit.lane ^ 1, due_ns, reply.into());
            }
            self.bytes -= packet.exit.frame.len();
            return Some(packet.exit);
        }
        None
    }

    /// Replaces the cells of a path, for packets that arrive from now on.
    ///
    /// Packets under way keep the times that they have, and later ones do not overtake them.
    ///
    /// # Panics
    /// If there is no such path.
    pub fn replace(&mut self, path: usize, up: &[CellSpec], down: &[CellSpec]) {
        for (lane, cells) in [(2 * path, up), (2 * path + 1, down)] {
            let old = &mut self.lanes[lane];
            let mut new = Chain::new(cells, self.seed, lane);
            new.generation = old.generation + 1;
            new.not_before_ns = old.latest_ns;
            new.latest_ns = old.latest_ns;
            new.counters.continue_from(&old.counters);
            *old = new;
        }
    }

    /// What the cells of a lane have done.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn counters(&self, lane: usize) -> &LaneCounters {
        &self.lanes[lane].counters
    }

    /// To count what becomes of packets that have left.
    pub(crate) fn counters_mut(&mut self, lane: usize) -> &mut LaneCounters {
        &mut self.lanes[lane].counters
    }

    /// How many bytes are under way.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many packets are under way.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no packet is under way.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a packet through its chain as far as it can go now. What is dropped waits as well, so
    /// that all leave in the order of their times.
    fn advance(&mut self, mut packet: Box<Underway>) {
        let due_ns = self.lanes[packet.exit.lane].advance(&mut packet);
        self.sequence += 1;
        self.waiting.push(Reverse(Waiting { due_ns, sequence: self.sequence, packet }));
    }
}

#[derive(Debug)]
struct Chain {
    stages: Vec<(CellSpec, Box<dyn Cell>)>,
    counters: LaneCounters,
    generation: u32,
    /// Whether all cells keep the order of packets.
    ordered: bool,
    /// When the last packet of the cells before these is due.
    not_before_ns: u64,
    latest_ns: u64,
}

impl Chain {
    fn new(cells: &[CellSpec], seed: u64, lane: usize) -> Self {
        let (path_seed, lane_seed) = (mix(seed, PATHS + lane as u64 / 2), mix(seed, lane as u64));
        let build = |(place, spec): (usize, &CellSpec)| {
            let place = place as u64;
            (
                spec.clone(),
                spec.build(Seeds { cell: mix(lane_seed, place), path: mix(path_seed, place) }),
            )
        };
        let stages: Vec<_> = cells.iter().enumerate().map(build).collect();
        let counters = LaneCounters {
            cells: cells.iter().map(|cell| CellCounters::new(cell.name())).collect(),
            ..LaneCounters::default()
        };
        let ordered = stages.iter().all(|(_, cell)| cell.keeps_order());
        Self { stages, counters, generation: 0, ordered, not_before_ns: 0, latest_ns: 0 }
    }

    fn is_end(&self, stage: usize) -> bool {
        stage >= self.stages.len()
    }

    /// Goes on with a packet, and says until when it waits then: to be delivered, to go on, or to
    /// have been dropped.
    fn advance(&mut self, packet: &mut Underway) -> u64 {
        while let Some((_, cell)) = self.stages.get_mut(packet.stage) {
            let counted = &mut self.counters.cells[packet.stage];
            packet.stage += 1;
            let exit = &mut packet.exit;
            let frame = exit.altered.as_ref().map_or(&exit.frame, |altered| &altered.1);
            let mut passage = PacketInCell { at_ns: exit.due_ns, frame };
            let verdict = cell.pass(&mut passage);
            exit.due_ns = passage.at_ns;
            match verdict {
                CellDecision::Pass => {}
                CellDecision::Alter(frame) => {
                    counted.altered += 1;
                    exit.altered = Some((counted.name, frame.into()));
                }
                CellDecision::Drop | CellDecision::Refuse(_) => {
                    counted.dropped += 1;
                    exit.dropped_by = Some(counted.name);
                    if let CellDecision::Refuse(reply) = verdict {
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

#[derive(Debug)]
struct Underway {
    exit: Exit,
    /// The cell that it comes to next.
    stage: usize,
    /// Of the chain that it entered.
    generation: u32,
    /// What goes back to the sender of a dropped packet.
    reply: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Waiting {
    due_ns: u64,
    /// Keeps packets that are due at the same time in the order in which they came.
    sequence: u64,
    /// Boxed, since the heap moves its items.
    packet: Box<Underway>,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due_ns, self.sequence).cmp(&(other.due_ns, other.sequence))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Waiting {}

/// Sets the seeds of paths apart from those of lanes.
const PATHS: u64 = 1 << 32;

#[cfg(test)]
mod tests;
