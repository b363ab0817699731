//! Duplicated packets.

use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Cell, CellDecision, CellSettings, PacketInCell, Seeds, percent, probability_fault};

/// Duplicates some packets. Later cells treat a packet and its copy independently.
#[derive(Debug, Clone, PartialEq)]
pub struct DuplicateSpec {
    /// From 0 to 1.
    pub probability: f64,
}

impl CellSettings for DuplicateSpec {
    fn name(&self) -> &'static str {
        "duplicate"
    }

    fn fault(&self) -> Option<String> {
        probability_fault(&[self.probability])
    }

    fn build(&self, seeds: Seeds) -> Box<dyn Cell> {
        let random = StdRng::seed_from_u64(seeds.cell);
        Box::new(Duplicate { probability: self.probability, random })
    }
}

impl fmt::Display for DuplicateSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "duplicate {} %", percent(self.probability))
    }
}

/// Duplicates each packet with the same probability.
#[derive(Debug)]
struct Duplicate {
    probability: f64,
    random: StdRng,
}

impl Cell for Duplicate {
    fn pass(&mut self, _: &mut PacketInCell<'_>) -> CellDecision {
        if self.random.random_bool(self.probability) {
            CellDecision::Duplicate
        } else {
            CellDecision::Pass
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_packets_is_duplicated() {
        let spec = DuplicateSpec { probability: 0.2 };
        let mut cell = spec.build(Seeds { cell: 7, path: 0 });
        let frame = [0; 64];
        let duplicated = (0..50_000)
            .filter(|at_ns| {
                let mut packet = PacketInCell { at_ns: *at_ns, frame: &frame };
                cell.pass(&mut packet) == CellDecision::Duplicate
            })
            .count();
        assert!((9_500..10_500).contains(&duplicated), "{duplicated}");
        assert_eq!(spec.to_string(), "duplicate 20 %");
        assert!(DuplicateSpec { probability: 1.1 }.fault().is_some());
    }
}
