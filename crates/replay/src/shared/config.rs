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
    /// How long a record lives in the store: `2 freshness + 2 clock_margin + 1 s`, 33 s by default.
    ///
    /// Two nodes that both find a flight fresh read clocks that are at most `2 freshness` apart
    /// (plus the second to which TLS rounds), and each clock is within `clock_margin` of the
    /// store's at its own claim: so on the store's clock, by which records expire, the second
    /// claim comes before the first one's record goes.
    pub fn record_life(&self) -> Duration {
        2 * self.freshness + 2 * self.clock_margin + ROUNDING
    }

    /// How long no claim counts after claims may have been lost (RFC 8446 section 8.2):
    /// `record_life + 2 clock_margin + confirmation`, since the new store's clock need not be the
    /// old one's.
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
