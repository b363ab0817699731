//! A delay that varies.

use std::fmt;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{
    Cell, CellDecision, CellSettings, Distribution, PacketInCell, Seeds, delay_fault, moved,
    nanoseconds,
};

/// A delay that varies.
#[derive(Debug, Clone, PartialEq)]
pub struct JitterSpec {
    /// What the distribution lies around.
    pub delay: Duration,
    /// How far from it.
    pub distribution: Distribution,
    /// How long a draw holds; zero: each packet has its own. Order being kept, packets side by
    /// side would otherwise all wait for the slowest of them.
    pub hold: Duration,
    /// Whether packets may overtake each other. Usually not: a longer delay holds up those behind
    /// it.
    pub overtakes: bool,
}

impl CellSettings for JitterSpec {
    fn name(&self) -> &'static str {
        "jitter"
    }

    fn fault(&self) -> Option<String> {
        delay_fault(self.delay)
            .or_else(|| self.distribution.fault())
            .or_else(|| delay_fault(self.hold))
    }

    fn base_delay(&self) -> Duration {
        self.delay
    }

    fn varies_delay(&self) -> bool {
        true
    }

    fn build(&self, seeds: Seeds) -> Box<dyn Cell> {
        Box::new(Jitter::new(
            nanoseconds(self.delay),
            self.distribution.clone(),
            nanoseconds(self.hold),
            self.overtakes,
            seeds.cell,
        ))
    }
}

impl fmt::Display for JitterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delay {:?}, jitter {}", self.delay, self.distribution)
    }
}

/// Draws the delay again for each packet, or for all packets of a while.
#[derive(Debug)]
pub(super) struct Jitter {
    delay_ns: u64,
    distribution: Distribution,
    hold_ns: u64,
    overtakes: bool,
    random: StdRng,
    drawn_ns: u64,
    drawn_until_ns: u64,
    last_ns: u64,
}

impl Jitter {
    pub(super) fn new(
        delay_ns: u64,
        distribution: Distribution,
        hold_ns: u64,
        overtakes: bool,
        seed: u64,
    ) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let (drawn_ns, drawn_until_ns, last_ns) = (0, 0, 0);
        Self {
            delay_ns,
            distribution,
            hold_ns,
            overtakes,
            random,
            drawn_ns,
            drawn_until_ns,
            last_ns,
        }
    }
}

impl Cell for Jitter {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        if packet.at_ns >= self.drawn_until_ns {
            self.drawn_ns = moved(self.delay_ns, self.distribution.draw(&mut self.random));
            self.drawn_until_ns = packet.at_ns.saturating_add(self.hold_ns);
        }
        packet.at_ns = packet.at_ns.saturating_add(self.drawn_ns);
        if !self.overtakes {
            packet.at_ns = packet.at_ns.max(self.last_ns);
            self.last_ns = packet.at_ns;
        }
        CellDecision::Pass
    }

    fn keeps_order(&self) -> bool {
        !self.overtakes
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::pass;
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn cell(hold_ns: u64, overtakes: bool, seed: u64) -> Jitter {
        let distribution = Distribution::Normal { sd_ms: 6.0 };
        Jitter::new(25 * MS, distribution, hold_ns, overtakes, seed)
    }

    fn delays(cell: &mut Jitter, every_ns: u64) -> Vec<u64> {
        (0..2_000)
            .map(|n| pass(cell, n * every_ns, 100).expect("never dropped") - n * every_ns)
            .collect()
    }

    #[test]
    fn the_base_is_the_median_where_packets_are_far_apart() {
        let mut all = delays(&mut cell(0, false, 1), 1_000 * MS);
        all.sort_unstable();
        assert!(all[1_000].abs_diff(25 * MS) < MS, "{}", all[1_000]);
        assert!(all[1_682].abs_diff(31 * MS) < MS, "one sd above: {}", all[1_682]);
    }

    #[test]
    fn the_same_seed_has_the_same_delays() {
        let run = |seed| delays(&mut cell(0, false, seed), MS);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn a_draw_holds_for_its_while() {
        let all = delays(&mut cell(10 * MS, true, 1), MS);
        for (number, ten) in all.chunks(10).enumerate() {
            assert!(ten.iter().all(|delay| *delay == ten[0]), "while {number}: {ten:?}");
        }
        assert_ne!(all[0], all[10]);
    }

    proptest! {
        #[test]
        fn order_is_kept_unless_overtaking_is_asked_for(
            seed in any::<u64>(),
            steps in proptest::collection::vec(0..5 * MS, 2..200),
        ) {
            let mut cell = cell(0, false, seed);
            let (mut now, mut last) = (0, 0);
            for step in steps {
                now += step;
                let out = pass(&mut cell, now, 100).expect("never dropped");
                prop_assert!(out >= last.max(now));
                last = out;
            }
        }
    }

    #[test]
    fn overtaking_is_possible_where_asked_for() {
        let mut cell = cell(0, true, 3);
        let times: Vec<_> = (0..100).filter_map(|n| pass(&mut cell, n, 100)).collect();
        assert!(!times.is_sorted());
        assert!(!cell.keeps_order());
    }
}
