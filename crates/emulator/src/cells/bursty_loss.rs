//! Bursty loss: a line that is now good, now bad (Gilbert, "Capacity of a burst-noise channel",
//! 1960; Elliott, "Estimates of error rates for codes on burst-noise channels", 1963).

use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Loss in bursts: a good and a bad state (Gilbert and Elliott). The share of packets in the bad
/// state is `enter / (enter + leave)`, and it lasts `1 / leave` packets.
#[derive(Debug, Clone, PartialEq)]
pub struct BurstyLossSpec {
    /// Probability that a packet turns the good state bad.
    pub enter: f64,
    /// Probability that a packet turns the bad state good.
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

use super::{Cell, CellDecision, CellSettings, PacketInCell, Seeds, percent, probability_fault};

/// Two states, each with a loss of its own; each packet may change the state.
#[derive(Debug)]
pub(super) struct BurstyLoss {
    enter: f64,
    leave: f64,
    loss: [f64; 2],
    bad: bool,
    random: StdRng,
}

impl BurstyLoss {
    /// `loss` in the good state, then in the bad one.
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
    use super::super::trial::pass;
    use super::*;

    #[test]
    fn bursts_have_their_share_and_their_length() {
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
