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
    /// How long a record lives in the store: `2 freshness + 2 clock_margin + 3 s`, 35 s by default.
    ///
    /// Let a flight's skew be zero when a node's clock shows `z`, a whole second, the same for all
    /// nodes (ticket and stated age fix it). It is fresh where the clock shows `z - freshness` up
    /// to `z + freshness + 1 s`, since TLS counts skews in whole seconds. A claim counts only if
    /// the store's clock is within `clock_margin` of that. So all claims of one flight that count
    /// lie, *as the store's clock read*, between `z - freshness - clock_margin` and
    /// `z + freshness + 1 s + clock_margin`: the last of them finds the first one's record if that
    /// lives as long as both are apart. No clock has to be right for this, and none to run evenly;
    /// only, the store's must not have passed the record's end and come back. Two seconds more
    /// are for steps back too small, or too short a time ago, for [`super::Continuity`] to see.
    pub fn record_life(&self) -> Duration {
        2 * self.freshness + 2 * self.clock_margin + ROUNDING + UNSEEN_STEP
    }

    /// How long no claim counts after claims may have been lost (RFC 8446 section 8.2):
    /// `record_life + 2 clock_margin + confirmation`, 52 s by default.
    ///
    /// A claim that was lost had come, by the old store's clock, before the new store's epoch was
    /// written, or up to `confirmation` later from a node that had not noticed. By the above its
    /// flight is stale everywhere once that clock has gone `record_life` further. The new store's
    /// clock may be behind the old one's, but by no more than `2 clock_margin`: more a node that
    /// knew both would have seen, and the clocks of a store's processes are asked to agree so far.
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
