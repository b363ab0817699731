//! Counters, for metrics and logs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use firstflight_replay::{StoreReply, Unknown};

use crate::Spent;

/// Upper bounds of the histogram of claim times, in microseconds. Longer claims are in one more
/// bucket.
pub const CLAIM_TIME_BOUNDS: [u64; 10] =
    [100, 200, 300, 500, 750, 1_000, 2_000, 3_000, 5_000, 10_000];

/// Counters, for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStatistics {
    /// Claims won.
    pub won: u64,
    /// Claims lost.
    pub lost: u64,
    /// Claims with an unknown outcome.
    pub unknown: u64,
    /// Claims with an unknown outcome, in the order of [`StoreStatistics::REASONS`].
    pub reasons: [u64; StoreStatistics::REASONS.len()],
    /// Flights recorded as spent.
    pub spent: u64,
    /// Flights not recorded as spent because another connection has their record.
    pub taken: u64,
    /// Failed attempts to record a flight as spent.
    pub spend_failures: u64,
    /// Exchanges with the store; each carries all commands that were waiting.
    pub batches: u64,
    /// Connections opened, including the first ones.
    pub connections: u64,
    /// Histogram of the times of claims that were sent, by [`CLAIM_TIME_BOUNDS`].
    pub claim_times: [u64; CLAIM_TIME_BOUNDS.len() + 1],
    /// Sum of these times, in microseconds.
    pub claim_micros: u64,
}

impl StoreStatistics {
    /// The reasons for an unknown outcome.
    pub const REASONS: [Unknown; 7] = [
        Unknown::Absent,
        Unknown::Slow,
        Unknown::Refused,
        Unknown::Unreplicated,
        Unknown::Window,
        Unknown::Clock,
        Unknown::Evicting,
    ];

    /// Returns the number of claims with an unknown outcome for this reason.
    pub fn unknown_by(&self, reason: Unknown) -> u64 {
        Self::REASONS
            .iter()
            .zip(self.reasons)
            .find(|(known, _)| **known == reason)
            .map_or(0, |(_, n)| n)
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    won: AtomicU64,
    lost: AtomicU64,
    reasons: [AtomicU64; StoreStatistics::REASONS.len()],
    spent: AtomicU64,
    taken: AtomicU64,
    spend_failures: AtomicU64,
    batches: AtomicU64,
    connections: AtomicU64,
    claim_times: [AtomicU64; CLAIM_TIME_BOUNDS.len() + 1],
    claim_micros: AtomicU64,
}

impl Counters {
    /// Counts a claim; `took`: how long it took, if it was sent.
    pub(crate) fn claim(&self, reply: StoreReply, took: Option<Duration>) {
        match reply {
            StoreReply::Won => add(&self.won, 1),
            StoreReply::Lost => add(&self.lost, 1),
            StoreReply::Unknown(why) => {
                let index = StoreStatistics::REASONS.iter().position(|reason| *reason == why);
                index.into_iter().for_each(|index| add(&self.reasons[index], 1));
            }
        }
        let Some(took) = took else { return };
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = CLAIM_TIME_BOUNDS.partition_point(|bound| *bound < micros);
        add(&self.claim_times[bucket], 1);
        add(&self.claim_micros, micros);
    }

    pub(crate) fn spend(&self, spent: Result<Spent, Unknown>) {
        match spent {
            Ok(Spent::Recorded) => add(&self.spent, 1),
            Ok(Spent::Taken) => add(&self.taken, 1),
            Err(_) => add(&self.spend_failures, 1),
        }
    }

    pub(crate) fn batch(&self) {
        add(&self.batches, 1);
    }

    pub(crate) fn connection(&self) {
        add(&self.connections, 1);
    }

    pub(crate) fn read(&self) -> StoreStatistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let reasons = self.reasons.each_ref().map(get);
        StoreStatistics {
            won: get(&self.won),
            lost: get(&self.lost),
            unknown: reasons.iter().sum(),
            reasons,
            spent: get(&self.spent),
            taken: get(&self.taken),
            spend_failures: get(&self.spend_failures),
            batches: get(&self.batches),
            connections: get(&self.connections),
            claim_times: self.claim_times.each_ref().map(get),
            claim_micros: get(&self.claim_micros),
        }
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sent_claim_is_in_one_bucket() {
        let counters = Counters::default();
        counters.claim(StoreReply::Won, Some(Duration::from_micros(100)));
        counters.claim(StoreReply::Lost, Some(Duration::from_micros(101)));
        counters.claim(StoreReply::Unknown(Unknown::Slow), Some(Duration::from_secs(1)));
        counters.claim(StoreReply::Unknown(Unknown::Absent), None);
        let read = counters.read();
        assert_eq!((read.won, read.lost, read.unknown), (1, 1, 2));
        assert_eq!(read.claim_times.iter().sum::<u64>(), 3);
        assert_eq!((read.claim_times[0], read.claim_times[1], read.claim_times[10]), (1, 1, 1));
        assert_eq!((read.unknown_by(Unknown::Slow), read.unknown_by(Unknown::Clock)), (1, 0));
        assert_eq!(read.claim_micros, 1_000_201);
    }
}
