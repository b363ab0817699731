//! Random loss: each packet by itself.

use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Loss of each packet by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct LossSpec {
    /// From 0 to 1.
    pub probability: f64,
}

impl CellSettings for LossSpec {
    fn name(&self) -> &'static str {
        "loss"
    }

    fn fault(&self) -> Option<String> {
        probability_fault(&[self.probability])
    }

    fn build(&self, seeds: Seeds) -> Box<dyn Cell> {
        Box::new(Loss::new(self.probability, seeds.cell))
    }
}

impl fmt::Display for LossSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loss {} %", percent(self.probability))
    }
}

use super::{Cell, CellDecision, CellSettings, PacketInCell, Seeds, percent, probability_fault};

/// Drops each packet with the same probability, whatever became of those before.
#[derive(Debug)]
pub(super) struct Loss {
    probability: f64,
    random: StdRng,
}

impl Loss {
    pub(super) fn new(probability: f64, seed: u64) -> Self {
        Self { probability, random: StdRng::seed_from_u64(seed) }
    }
}

impl Cell for Loss {
    fn pass(&mut self, _: &mut PacketInCell<'_>) -> CellDecision {
        if self.random.random_bool(self.probability) {
            CellDecision::Drop
        } else {
            CellDecision::Pass
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::pass;
    use super::*;

    fn fates(probability: f64, seed: u64) -> Vec<bool> {
        let mut cell = Loss::new(probability, seed);
        (0..50_000).map(|n| pass(&mut cell, n, 100).is_some()).collect()
    }

    #[test]
    fn as_many_are_lost_as_asked_for_and_the_same_ones_again() {
        let lost = fates(0.02, 1).iter().filter(|passed| !**passed).count();
        // Five standard deviations around 1,000.
        assert!((843..1_157).contains(&lost), "{lost}");
        assert_eq!(fates(0.02, 1), fates(0.02, 1));
        assert_ne!(fates(0.02, 1), fates(0.02, 2));
        assert!(fates(0.0, 1).iter().all(|passed| *passed));
        assert!(!fates(1.0, 1).iter().any(|passed| *passed));
    }
}
