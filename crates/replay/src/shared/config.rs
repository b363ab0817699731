//! Times that follow from one another.

use std::time::Duration;

/// Settings of the shared register, the same on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedConfig {
    /// How far the ticket age that the client states may be off for its request to run early
    /// (RFC 8446 section 8.3). Default 10 s.
    pub freshness: Duration,
    /// How far a node's clock may be from the store's. A node that finds itself further away
    /// runs nothing early. Default 6 s.
    pub clock_margin: Duration,
    /// For how long after a failover an old master may still have granted claims to a node that
    /// had not noticed. Zero for a store without replicas. Default 5 s.
    pub confirmation: Duration,
}

impl SharedConfig {
    /// How long a flight's record lives after its exact time:
    /// `2 freshness + 2 clock_margin + 3 s`, 35 s by default. See [`Self::record_end`].
    ///
    /// Also the time for which a record is of use once it is lost: a flight whose claim counted
    /// when the store's clock read `t` is exact at `t + freshness + clock_margin` at the latest,
    /// so no claim of it counts from `t + 2 freshness + 2 clock_margin + 1 s` on.
    pub fn record_life(&self) -> Duration {
        2 * self.freshness + 2 * self.clock_margin + ROUNDING + UNSEEN_STEP
    }

    /// When the store drops the record of a flight that is exact at `exact_at`, by the store's
    /// clock: `exact_at + record_life`.
    ///
    /// Let a flight's stated ticket age be exact when a node's clock shows `z`, a whole second, the
    /// same for all nodes (ticket and stated age fix it). It is fresh where the clock shows
    /// `z - freshness` up to `z + freshness + 1 s`, since TLS counts skews in whole seconds. A
    /// claim counts only if the store's clock is within `clock_margin` of that. So all claims of
    /// one flight that count lie, *as the store's clock read*, between
    /// `z - freshness - clock_margin` and `z + freshness + 1 s + clock_margin`. A record that ends
    /// at `z + record_life`, again as the store's clock reads, is there for all of them, whoever
    /// wrote it, and however long before. No clock has to be right for this, not even that of the
    /// node that writes, and none has to run evenly; only, the store's must not have passed the
    /// record's end and come back. Two seconds are for steps back too small, or too short a time
    /// ago, for [`super::Continuity`] to see. The rest lets an original that was held back find
    /// the record of a copy that ran before it.
    pub fn record_end(&self, exact_at: Duration) -> Duration {
        exact_at.saturating_add(self.record_life())
    }

    /// From when on no node accepts a flight that is exact at `exact_at`, as a clock reads that is
    /// within `clock_margin` of the store's: `exact_at + freshness + 1 s + 2 clock_margin`.
    ///
    /// The store's clock then shows `exact_at + freshness + 1 s + clock_margin` at least, which is
    /// past the last claim that counts.
    pub fn closed_at(&self, exact_at: Duration) -> Duration {
        exact_at.saturating_add(self.freshness + ROUNDING + 2 * self.clock_margin)
    }

    /// How long no claim counts after claims may have been lost (RFC 8446 section 8.2):
    /// `record_life + 2 clock_margin + confirmation`, 52 s by default.
    ///
    /// A claim that counted and was lost had come, by the old store's clock, before the new store's
    /// epoch was written, or up to `confirmation` later from a node that had not noticed. By the
    /// above its flight is stale everywhere once that clock has gone `record_life` further. The new
    /// store's clock may be behind the old one's, but by no more than `2 clock_margin`: more a node
    /// that knew both would have seen, and the clocks of a store's processes are required to agree
    /// so far.
    ///
    /// The window does not cover a lost record of a flight that becomes fresh only after it: one
    /// whose early data was refused because its exact time lies further ahead.
    pub fn recording_window(&self) -> Duration {
        self.record_life() + 2 * self.clock_margin + self.confirmation
    }
}

impl Default for SharedConfig {
    fn default() -> Self {
        Self {
            freshness: Duration::from_secs(10),
            clock_margin: Duration::from_secs(6),
            confirmation: Duration::from_secs(5),
        }
    }
}

/// TLS counts skews in whole seconds.
const ROUNDING: Duration = Duration::from_secs(1);
/// More than [`super::Continuity`] may overlook of a store's clock that is set back: what it
/// tolerates, what happens between two heartbeats, and what a store caches of its clock.
const UNSEEN_STEP: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_outlive_the_last_claim_that_counts() {
        let config = SharedConfig::default();
        let (exact, seconds) = (Duration::from_secs(1000), |time: Duration| time.as_secs());
        assert_eq!(seconds(config.record_end(exact)), 1035);
        assert_eq!(seconds(config.closed_at(exact)), 1023);
        assert!(config.closed_at(exact) < config.record_end(exact));
        assert_eq!(config.record_end(Duration::MAX), Duration::MAX);
        assert_eq!(config.closed_at(Duration::MAX), Duration::MAX);
    }
}
