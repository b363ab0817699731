//! Reordering: some packets take longer, and later ones overtake them.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Some packets are held back, so that later ones overtake them.
#[derive(Debug, Clone, PartialEq)]
pub struct ReorderSpec {
    /// Share of the packets, from 0 to 1.
    pub probability: f64,
    /// How long.
    pub by: Duration,
}

impl CellSettings for ReorderSpec {
    fn name(&self) -> &'static str {
        "reorder"
    }

    fn fault(&self) -> Option<String> {
        probability_fault(&[self.probability]).or_else(|| delay_fault(self.by))
    }

    fn varies_delay(&self) -> bool {
        true
    }

    fn build(&self, seeds: Seeds) -> Box<dyn Cell> {
        Box::new(Reorder::new(self.probability, nanoseconds(self.by), seeds.cell))
    }
}

impl fmt::Display for ReorderSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reorder {} % by {:?}", percent(self.probability), self.by)
    }
}

use super::{
    Cell, CellDecision, CellSettings, PacketInCell, Seeds, delay_fault, nanoseconds, percent,
    probability_fault,
};

/// Holds a share of the packets back for a while.
#[derive(Debug)]
pub(super) struct Reorder {
    probability: f64,
    by_ns: u64,
    random: StdRng,
}

impl Reorder {
    pub(super) fn new(probability: f64, by_ns: u64, seed: u64) -> Self {
        Self { probability, by_ns, random: StdRng::seed_from_u64(seed) }
    }
}

impl Cell for Reorder {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        if self.random.random_bool(self.probability) {
            packet.at_ns = packet.at_ns.saturating_add(self.by_ns);
        }
        CellDecision::Pass
    }

    fn keeps_order(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::pass;
    use super::*;

    #[test]
    fn a_share_is_held_back_by_the_time_asked_for() {
        let mut cell = Reorder::new(0.1, 5_000, 1);
        let held: Vec<u64> =
            (0..20_000).filter_map(|n| pass(&mut cell, n, 100).map(|out| out - n)).collect();
        assert!(held.iter().all(|by| *by == 0 || *by == 5_000));
        let share = held.iter().filter(|by| **by > 0).count();
        assert!((1_780..2_220).contains(&share), "{share}");
    }
}
