//! A delay that changes at fixed intervals, as in a satellite network that assigns new routes.

use std::fmt;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{
    Cell, CellDecision, CellSettings, Distribution, PacketInCell, Seeds, delay_fault, mix,
    nanoseconds, shift_delay,
};

/// A delay that is drawn at fixed intervals, for both directions of a path together.
#[derive(Debug, Clone, PartialEq)]
pub struct ReconfigurationSpec {
    /// The base of the distribution, one way.
    pub delay: Duration,
    /// The deviation from the base, one way.
    pub distribution: Distribution,
    /// The length of an interval. Intervals start at multiples of it since boot.
    pub period: Duration,
    /// For how long all packets are dropped at the start of each interval.
    pub outage: Duration,
}

impl CellSettings for ReconfigurationSpec {
    fn name(&self) -> &'static str {
        "reconfiguration"
    }

    fn fault(&self) -> Option<String> {
        let Self { delay, distribution, period, outage } = self;
        if let Some(fault) = delay_fault(*delay).or_else(|| distribution.fault()) {
            return Some(fault);
        }
        if !(MIN_PERIOD..=MAX_PERIOD).contains(period) {
            return Some(format!("a period is {MIN_PERIOD:?} to {MAX_PERIOD:?}, not {period:?}"));
        }
        (outage > period).then(|| format!("an outage of {outage:?} is longer than the period"))
    }

    fn base_delay(&self) -> Duration {
        self.delay
    }

    fn varies_delay(&self) -> bool {
        true
    }

    fn build(&self, seeds: Seeds) -> Box<dyn Cell> {
        Box::new(Reconfiguration::new(
            nanoseconds(self.delay),
            self.distribution.clone(),
            nanoseconds(self.period),
            nanoseconds(self.outage),
            seeds.path,
        ))
    }
}

impl fmt::Display for ReconfigurationSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delay, distribution, period, outage } = self;
        write!(f, "delay {delay:?}, every {period:?} moved by {distribution}")?;
        match outage.is_zero() {
            true => Ok(()),
            false => write!(f, ", outage {outage:?}"),
        }
    }
}

const MIN_PERIOD: Duration = Duration::from_millis(1);
const MAX_PERIOD: Duration = Duration::from_secs(3_600);

/// Draws one delay for each interval. Both directions of a path have the same seed, so that they
/// change together and a round trip changes by the sum.
#[derive(Debug)]
pub(super) struct Reconfiguration {
    delay_ns: u64,
    distribution: Distribution,
    period_ns: u64,
    outage_ns: u64,
    seed: u64,
    last_ns: u64,
    /// The last interval with its delay.
    drawn: Option<(u64, u64)>,
}

impl Reconfiguration {
    pub(super) fn new(
        delay_ns: u64,
        distribution: Distribution,
        period_ns: u64,
        outage_ns: u64,
        seed: u64,
    ) -> Self {
        let (last_ns, drawn) = (0, None);
        Self { delay_ns, distribution, period_ns, outage_ns, seed, last_ns, drawn }
    }

    fn delay_in(&mut self, interval: u64) -> u64 {
        match self.drawn {
            Some((drawn_for, delay_ns)) if drawn_for == interval => delay_ns,
            _ => {
                // Depends only on the interval's number, not on earlier packets.
                let mut random = StdRng::seed_from_u64(mix(self.seed, interval));
                let delay_ns = shift_delay(self.delay_ns, self.distribution.draw(&mut random));
                self.drawn = Some((interval, delay_ns));
                delay_ns
            }
        }
    }
}

impl Cell for Reconfiguration {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        if packet.at_ns % self.period_ns < self.outage_ns {
            return CellDecision::Drop;
        }
        let delay_ns = self.delay_in(packet.at_ns / self.period_ns);
        packet.at_ns = packet.at_ns.saturating_add(delay_ns).max(self.last_ns);
        self.last_ns = packet.at_ns;
        CellDecision::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::pass;
    use super::*;

    const MS: u64 = 1_000_000;
    const PERIOD: u64 = 15_000 * MS;

    fn cell(outage_ns: u64) -> Reconfiguration {
        let distribution = Distribution::Uniform { spread_ms: 10.0 };
        Reconfiguration::new(25 * MS, distribution, PERIOD, outage_ns, 5)
    }

    #[test]
    fn the_delay_holds_for_an_interval_and_both_directions_change_together() {
        let (mut up, mut down) = (cell(0), cell(0));
        let mut seen = Vec::new();
        for interval in 0..20 {
            let start = interval * PERIOD;
            let delays = [0, 1, PERIOD / 2, PERIOD - 50 * MS]
                .map(|after| pass(&mut up, start + after, 100).unwrap() - start - after);
            assert!(delays.iter().all(|delay| *delay == delays[0]), "{delays:?}");
            // The other direction has other packets.
            let later = start + PERIOD / 3;
            assert_eq!(pass(&mut down, later, 100).unwrap() - later, delays[0]);
            seen.push(delays[0]);
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 20, "each interval draws anew: {seen:?}");
        assert!(seen[0] >= 15 * MS && seen[19] <= 35 * MS);
    }

    #[test]
    fn nothing_overtakes_when_the_delay_becomes_shorter() {
        let (mut cell, mut last) = (cell(0), 0);
        for n in 0..4_000 {
            let out = pass(&mut cell, n * 100 * MS, 100).unwrap();
            assert!(out >= last);
            last = out;
        }
    }

    #[test]
    fn an_outage_drops_at_the_start_of_each_interval() {
        let mut cell = cell(30 * MS);
        for interval in 1..4 {
            assert_eq!(pass(&mut cell, interval * PERIOD + 29 * MS, 100), None);
            assert!(pass(&mut cell, interval * PERIOD + 30 * MS, 100).is_some());
        }
    }
}
