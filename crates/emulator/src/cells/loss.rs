//! Random packet loss, independent or in bursts.

use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Cell, CellDecision, CellSettings, PacketInCell, Seeds, percent, probability_fault};

/// Independent loss of each packet.
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

/// Drops each packet with the same probability.
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

/// Bursty loss with a good and a bad state (Gilbert, "Capacity of a burst-noise channel", 1960;
/// Elliott, "Estimates of error rates for codes on burst-noise channels", 1963). The share of
/// packets in the bad state is `enter / (enter + leave)`, and it lasts `1 / leave` packets on
/// average.
#[derive(Debug, Clone, PartialEq)]
pub struct BurstyLossSpec {
    /// Probability per packet of entering the bad state.
    pub enter: f64,
    /// Probability per packet of leaving the bad state.
    pub leave: f64,
    /// Loss in the good state.
    pub good_loss: f64,
    /// Loss in the bad state.
    pub bad_loss: f64,
}

impl CellSettings for BurstyLossSpec {
    fn name(&self) -> &'static str {
        "bursty-loss"
    }

    fn fault(&self) -> Option<String> {
        probability_fault(&[self.enter, self.leave, self.good_loss, self.bad_loss])
    }

    fn build(&self, seeds: Seeds) -> Box<dyn Cell> {
        let loss = [self.good_loss, self.bad_loss];
        Box::new(BurstyLoss::new(self.enter, self.leave, loss, seeds.cell))
    }
}

impl fmt::Display for BurstyLossSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bursty loss {} % and {} % (enter {} %, leave {} %)",
            percent(self.good_loss),
            percent(self.bad_loss),
            percent(self.enter),
            percent(self.leave)
        )
    }
}

/// Two states with different loss; each packet may change the state.
#[derive(Debug)]
pub(super) struct BurstyLoss {
    enter: f64,
    leave: f64,
    loss: [f64; 2],
    bad: bool,
    random: StdRng,
}

impl BurstyLoss {
    /// `loss` in the good state, then in the bad state.
    pub(super) fn new(enter: f64, leave: f64, loss: [f64; 2], seed: u64) -> Self {
        Self { enter, leave, loss, bad: false, random: StdRng::seed_from_u64(seed) }
    }
}

impl Cell for BurstyLoss {
    fn pass(&mut self, _: &mut PacketInCell<'_>) -> CellDecision {
        let change = if self.bad { self.leave } else { self.enter };
        self.bad ^= self.random.random_bool(change);
        let lost = self.random.random_bool(self.loss[usize::from(self.bad)]);
        if lost { CellDecision::Drop } else { CellDecision::Pass }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::pass;
    use super::*;

    fn decisions(probability: f64, seed: u64) -> Vec<bool> {
        let mut cell = Loss::new(probability, seed);
        (0..50_000).map(|n| pass(&mut cell, n, 100).is_some()).collect()
    }

    #[test]
    fn the_configured_share_is_lost_reproducibly() {
        let lost = decisions(0.02, 1).iter().filter(|passed| !**passed).count();
        // Five standard deviations around 1,000.
        assert!((843..1_157).contains(&lost), "{lost}");
        assert_eq!(decisions(0.02, 1), decisions(0.02, 1));
        assert_ne!(decisions(0.02, 1), decisions(0.02, 2));
        assert!(decisions(0.0, 1).iter().all(|passed| *passed));
        assert!(!decisions(1.0, 1).iter().any(|passed| *passed));
    }
}

#[cfg(test)]
mod bursty_loss_tests {
    use super::super::testing::pass;
    use super::*;

    #[test]
    fn bursts_have_the_configured_share_and_length() {
        let mut cell = BurstyLoss::new(0.005, 0.25, [0.0, 1.0], 3);
        let lost: Vec<bool> = (0..400_000).map(|n| pass(&mut cell, n, 100).is_none()).collect();
        let all = lost.iter().filter(|lost| **lost).count();
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let share = all as f64 / lost.len() as f64;
        let length = all as f64 / bursts as f64;
        assert!((share - 0.005 / 0.255).abs() < 0.003, "{share}");
        assert!((length - 4.0).abs() < 0.5, "{length}");
    }

    #[test]
    fn each_state_has_its_own_loss() {
        let mut never_bad = BurstyLoss::new(0.0, 1.0, [0.1, 1.0], 3);
        let lost = (0..20_000).filter(|n| pass(&mut never_bad, *n, 100).is_none()).count();
        assert!((1_780..2_220).contains(&lost), "{lost}");
        let mut always_bad = BurstyLoss::new(1.0, 0.0, [0.0, 1.0], 3);
        assert!((0..100).all(|n| pass(&mut always_bad, n, 100).is_none()));
    }
}
