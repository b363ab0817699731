//! Cells that delay packets: by a fixed time, by a random time, or out of order.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{
    Cell, CellDecision, CellSettings, Distribution, PacketInCell, Seeds, delay_fault, nanoseconds,
    percent, probability_fault, shift_delay,
};

/// The same delay for each packet.
#[derive(Debug, Clone, PartialEq)]
pub struct DelaySpec {
    /// One way.
    pub delay: Duration,
}

impl CellSettings for DelaySpec {
    fn name(&self) -> &'static str {
        "delay"
    }

    fn fault(&self) -> Option<String> {
        delay_fault(self.delay)
    }

    fn base_delay(&self) -> Duration {
        self.delay
    }

    fn may_drop(&self) -> bool {
        false
    }

    fn build(&self, _: Seeds) -> Box<dyn Cell> {
        Box::new(Delay { delay_ns: nanoseconds(self.delay) })
    }
}

impl fmt::Display for DelaySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delay {:?}", self.delay)
    }
}

/// Adds the same delay to each packet.
#[derive(Debug)]
pub(super) struct Delay {
    pub(super) delay_ns: u64,
}

impl Cell for Delay {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        packet.at_ns = packet.at_ns.saturating_add(self.delay_ns);
        CellDecision::Pass
    }
}

/// A random delay.
#[derive(Debug, Clone, PartialEq)]
pub struct JitterSpec {
    /// The base of the distribution, one way.
    pub delay: Duration,
    /// The deviation from the base.
    pub distribution: Distribution,
    /// How long a drawn value is used; if zero, each packet draws its own. Because order is kept,
    /// packets close together would then all wait for the slowest of them.
    pub hold: Duration,
    /// Whether packets may overtake each other. Usually false: a longer delay also
    /// delays later packets.
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
        write!(f, "delay {:?}, jitter {}", self.delay, self.distribution)?;
        if !self.hold.is_zero() {
            write!(f, ", held {:?}", self.hold)?;
        }
        f.write_str(if self.overtakes { ", overtakes" } else { "" })
    }
}

/// Draws a delay for each packet, or for all packets of an interval.
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
            self.drawn_ns = shift_delay(self.delay_ns, self.distribution.draw(&mut self.random));
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

/// Delays some packets, so that later ones overtake them.
#[derive(Debug, Clone, PartialEq)]
pub struct ReorderSpec {
    /// The share of packets, from 0 to 1.
    pub probability: f64,
    /// The additional delay.
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

/// Delays a share of the packets.
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
    use super::super::testing::pass;
    use super::*;

    #[test]
    fn each_packet_gets_the_same_delay() {
        let mut cell = Delay { delay_ns: 7 };
        assert_eq!(pass(&mut cell, 10, 100), Some(17));
        assert_eq!(pass(&mut cell, 11, 1_500), Some(18));
        assert_eq!(pass(&mut cell, u64::MAX, 1), Some(u64::MAX));
    }
}

#[cfg(test)]
mod jitter_tests {
    use super::super::testing::pass;
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
    fn the_base_is_the_median_of_packets_far_apart() {
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
    fn a_drawn_delay_is_held_for_the_interval() {
        let all = delays(&mut cell(10 * MS, true, 1), MS);
        for (number, ten) in all.chunks(10).enumerate() {
            assert!(ten.iter().all(|delay| *delay == ten[0]), "interval {number}: {ten:?}");
        }
        assert_ne!(all[0], all[10]);
    }

    proptest! {
        #[test]
        fn order_is_kept_unless_overtaking_is_configured(
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
    fn overtaking_is_possible_if_configured() {
        let mut cell = cell(0, true, 3);
        let times: Vec<_> = (0..100).filter_map(|n| pass(&mut cell, n, 100)).collect();
        assert!(!times.is_sorted());
        assert!(!cell.keeps_order());
    }
}

#[cfg(test)]
mod reorder_tests {
    use super::super::testing::pass;
    use super::*;

    #[test]
    fn the_configured_share_is_delayed_by_the_configured_time() {
        let mut cell = Reorder::new(0.1, 5_000, 1);
        let held: Vec<u64> =
            (0..20_000).filter_map(|n| pass(&mut cell, n, 100).map(|out| out - n)).collect();
        assert!(held.iter().all(|by| *by == 0 || *by == 5_000));
        let share = held.iter().filter(|by| **by > 0).count();
        assert!((1_780..2_220).contains(&share), "{share}");
    }
}
