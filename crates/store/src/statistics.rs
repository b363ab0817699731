//! Counters, for metrics and logs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use firstflight_replay::{StoreReply, Unknown};

use crate::Spent;

/// Upper bounds of the classes by which claims' times are counted, in microseconds; what takes
/// longer is in a last class of its own.
pub const CLAIM_TIME_BOUNDS: [u64; 10] =
    [100, 200, 300, 500, 750, 1_000, 2_000, 3_000, 5_000, 10_000];

/// Counters, for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStatistics {
    /// Claims won.
    pub won: u64,
    /// Claims lost.
    pub lost: u64,
    /// Claims whose outcome is not known.
    pub unknown: u64,
    /// Those by their reason, in the order of [`StoreStatistics::REASONS`].
    pub reasons: [u64; StoreStatistics::REASONS.len()],
    /// Flights that were recorded as spent.
    pub spent: u64,
    /// Flights that could not be, because another connection has their record.
    pub taken: u64,
    /// Attempts to record a flight as spent that failed.
    pub unspent: u64,
    /// Exchanges with the store; each carries all requests that were waiting.
    pub batches: u64,
    /// Connections made, the first ones too.
    pub connections: u64,
    /// How long claims took, counted by the classes of [`CLAIM_TIME_BOUNDS`].
    pub claim_times: [u64; CLAIM_TIME_BOUNDS.len() + 1],
    /// The sum of all claims' times in microseconds.
    pub claim_micros: u64,
}

impl StoreStatistics {
    /// All reasons for which a claim's outcome may not be known.
    pub const REASONS: [Unknown; 7] = [
        Unknown::Absent,
        Unknown::Slow,
        Unknown::Refused,
        Unknown::Unreplicated,
        Unknown::Window,
        Unknown::Clock,
        Unknown::Evicting,
    ];

    /// Claims whose outcome is not known for this reason.
    pub fn unknown_by(&self, reason: Unknown) -> u64 {
        Self::REASONS
            .iter()
            .zip(self.reasons)
            .find(|(one, _)| **one == reason)
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
    unspent: AtomicU64,
    batches: AtomicU64,
    connections: AtomicU64,
    claim_times: [AtomicU64; CLAIM_TIME_BOUNDS.len() + 1],
    claim_micros: AtomicU64,
}

impl Counters {
    pub(crate) fn claim(&self, reply: StoreReply, took: Duration) {
        match reply {
            StoreReply::Won => add(&self.won, 1),
            StoreReply::Lost => add(&self.lost, 1),
            StoreReply::Unknown(why) => {
                let place = StoreStatistics::REASONS.iter().position(|reason| *reason == why);
                place.into_iter().for_each(|place| add(&self.reasons[place], 1));
            }
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let class = CLAIM_TIME_BOUNDS.partition_point(|bound| *bound < micros);
        add(&self.claim_times[class], 1);
        add(&self.claim_micros, micros);
    }

    pub(crate) fn spend(&self, spent: Result<Spent, Unknown>) {
        match spent {
            Ok(Spent::Recorded) => add(&self.spent, 1),
            Ok(Spent::Taken) => add(&self.taken, 1),
            Err(_) => add(&self.unspent, 1),
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
            unspent: get(&self.unspent),
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
    fn each_claim_is_in_one_class() {
        let counters = Counters::default();
        counters.claim(StoreReply::Won, Duration::from_micros(100));
        counters.claim(StoreReply::Lost, Duration::from_micros(101));
        counters.claim(StoreReply::Unknown(Unknown::Slow), Duration::from_secs(1));
        let read = counters.read();
        assert_eq!((read.won, read.lost, read.unknown), (1, 1, 1));
        assert_eq!((read.claim_times[0], read.claim_times[1], read.claim_times[10]), (1, 1, 1));
        assert_eq!((read.unknown_by(Unknown::Slow), read.unknown_by(Unknown::Clock)), (1, 0));
        assert_eq!(read.claim_micros, 1_000_201);
    }
}
