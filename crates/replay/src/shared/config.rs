//! Settings of the shared register, and the times that follow from them.

use std::time::Duration;

use crate::flight::AGE_ROUNDING;

/// Settings of the shared register, the same on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedConfig {
    /// The greatest ticket-age skew of a flight whose requests may run early (RFC 8446 section 8.3).
    /// Default 10 s.
    pub freshness: Duration,
    /// How far a node's clock may be from the store's. A node that is further off accepts no early
    /// data. Default 6 s.
    pub clock_margin: Duration,
    /// For how long after a failover an old master may still have granted claims to a node that
    /// had not noticed. Zero for a store without replicas. Default 5 s.
    pub confirmation: Duration,
}

impl SharedConfig {
    /// How long a flight's record lives after its exact time:
    /// `2 freshness + 2 clock_margin + 3 s`, 35 s by default. See [`Self::record_end`].
    ///
    /// This is also how long a lost record matters: a flight whose claim counted when the store's
    /// clock read `t` is exact at `t + freshness + clock_margin` at the latest, so no claim of it
    /// counts from `t + 2 freshness + 2 clock_margin + 1 s` on.
    pub fn record_lifetime(&self) -> Duration {
        2 * self.freshness + 2 * self.clock_margin + AGE_ROUNDING + MAX_UNSEEN_STEP
    }

    /// When the store drops the record of a flight that is exact at `exact_at`, by the store's
    /// clock: `exact_at + record_lifetime`.
    ///
    /// Let a flight's stated ticket age be exact when a node's clock shows `z`, in whole seconds.
    /// `z` is the same for all nodes, because ticket and stated age determine it. The flight is
    /// fresh while the clock shows `z - freshness` to `z + freshness + 1 s`, since TLS counts skews
    /// in whole seconds. A claim counts only if the store's clock is within `clock_margin` of the
    /// node's. So all claims of one flight that count lie between `z - freshness - clock_margin` and
    /// `z + freshness + 1 s + clock_margin` *on the store's clock*. A record that ends at
    /// `z + record_lifetime` on the store's clock covers all of them, whichever node wrote it, and
    /// whenever.
    ///
    /// No clock has to be right or run evenly for this. But the store's clock must not pass the
    /// record's end and then step back. Two of the seconds are for steps that are too small or too
    /// recent for [`super::Continuity`] to see. The rest lets an original that was held back find
    /// the record of a copy that ran before it.
    pub fn record_end(&self, exact_at: Duration) -> Duration {
        exact_at.saturating_add(self.record_lifetime())
    }

    /// When nodes stop accepting a flight that is exact at `exact_at`, on any clock within
    /// `clock_margin` of the store's: `exact_at + freshness + 1 s + 2 clock_margin`.
    ///
    /// The store's clock then shows at least `exact_at + freshness + 1 s + clock_margin`, which is
    /// after the last claim that counts.
    pub fn closed_at(&self, exact_at: Duration) -> Duration {
        exact_at.saturating_add(self.freshness + AGE_ROUNDING + 2 * self.clock_margin)
    }

    /// How long no claim counts after claims may have been lost (RFC 8446 section 8.2):
    /// `record_lifetime + 2 clock_margin + confirmation`, 52 s by default.
    ///
    /// A lost claim that counted was made, on the old store's clock, before the new store's epoch was
    /// written, or up to `confirmation` later by a node that had not noticed the failover. Its flight
    /// is stale everywhere once that clock has advanced by `record_lifetime`. The new store's clock may
    /// be behind the old one's by at most `2 clock_margin`: a node that knew both would have noticed
    /// more, and the clocks of a store's processes are required to agree this far.
    ///
    /// The window does not cover a lost record of a flight that is still fresh after the window: one
    /// whose early data was refused because its exact time is further ahead.
    pub fn recording_window(&self) -> Duration {
        self.record_lifetime() + 2 * self.clock_margin + self.confirmation
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

/// More than a store's clock can step back unnoticed by [`super::Continuity`]: its tolerance, the
/// time between two heartbeats, and the store's caching of its clock.
const MAX_UNSEEN_STEP: Duration = Duration::from_secs(2);

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
