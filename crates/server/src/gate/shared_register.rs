//! The cluster's strike register from one node's view: the store, with a filter in front of it.

use std::time::Duration;

use firstflight_replay::{
    ClaimKey, FlightOffer, MAX_TICKET_LIFETIME, RegisterStatistics, SharedConfig, SharedGate,
    SpendOutcome, StoreReply, StrikeRegister, Unknown,
};
use firstflight_store::{self as store, Claimant, Store, StoreConfig, StoreStatistics};
use firstflight_tls::SteadyClock;
use tracing::debug;

/// Claims flights in the store.
pub(crate) struct SharedRegister {
    store: Store,
    gate: SharedGate,
    /// Flights whose claims this node has settled, so that copies sent to this node do not reach
    /// the store. Missing entries are harmless: the store decides.
    filter: StrikeRegister,
}

impl SharedRegister {
    /// The register in `store` with the settings `config`, and a filter for `capacity` flights.
    pub(crate) fn new(store: Store, config: SharedConfig, capacity: usize) -> Self {
        Self { store, gate: SharedGate::new(config), filter: StrikeRegister::new(capacity) }
    }

    /// Logs in with the passwords of `config` from the next connection on.
    pub(crate) fn set_passwords(&self, config: &StoreConfig) {
        self.store.set_passwords(config);
    }

    /// Why the store is not used at the moment, if it is not.
    pub(crate) fn unavailable(&self) -> Option<Unknown> {
        self.store.unavailable_reason()
    }

    /// Why claims in the store do not count at the moment, as far as that is known without one.
    pub(crate) fn claim_problem(&self) -> Option<Unknown> {
        self.store.claim_problem()
    }

    /// The counters of the store and of the filter.
    pub(crate) fn statistics(&self) -> (StoreStatistics, RegisterStatistics) {
        (self.store.statistics(), self.filter.statistics())
    }

    /// The rules that decide by the outcome of a claim.
    pub(crate) fn gate(&self) -> &SharedGate {
        &self.gate
    }

    /// Claims a flight within the store's budget. `now` is a monotonic clock.
    pub(crate) async fn claim(
        &self,
        offer: &FlightOffer,
        claimant: Claimant,
        now: impl Fn() -> Duration,
    ) -> StoreReply {
        if self.filter.is_lost(offer.key(), now()) {
            return StoreReply::Lost;
        }
        let response = self.store.claim(offer.key(), claimant, self.record_end(offer)).await;
        // A settled claim is final. A flight with an unknown outcome was not executed, and the
        // honest original may still arrive.
        if !matches!(response, StoreReply::Unknown(_)) {
            self.remember(offer.key(), now());
        }
        response
    }

    /// Tries once to record a flight whose early data was refused. Returns `None` if it is not
    /// recorded: unless it [was stale](Self::is_stale), a copy may have been accepted by another node
    /// since it arrived, or may be later.
    pub(crate) async fn spend(
        &self,
        offer: &FlightOffer,
        claimant: Claimant,
        now: impl Fn() -> Duration,
    ) -> Option<SpendOutcome> {
        let offset = self.store.clock_offset_micros().unwrap_or(0);
        let end = spent_record_end(self.record_end(offer), offset, self.gate.config());
        match self.store.spend(offer.key(), claimant, end).await {
            Ok(store::Spent::Recorded) => {
                self.remember(offer.key(), now());
                Some(SpendOutcome::Recorded)
            }
            Ok(store::Spent::Taken) => Some(SpendOutcome::Executed),
            Err(why) => {
                debug!("a flight is not recorded yet: {why:?}");
                None
            }
        }
    }

    /// Whether the flight was too old for all nodes when it arrived, so that it needs no record.
    /// The time of arrival counts, because a copy that was fresh then may have run since. Returns
    /// false if this node's clock, which may be wrong, disagrees with the store's.
    pub(crate) fn is_stale(&self, offer: &FlightOffer) -> bool {
        let offset = self.store.clock_offset_micros();
        offset.is_some_and(|offset| is_stale(offer, offset, self.gate.config()))
    }

    /// The store's clock now. Returns `None` before the first heartbeat.
    pub(crate) fn store_time(&self) -> Option<Duration> {
        Some(by_store_clock(unix_time(), self.store.clock_offset_micros()?))
    }

    /// When the flight's record may expire, by the store's clock. The limit is the lifetime of a
    /// ticket, whatever age the client states.
    fn record_end(&self, offer: &FlightOffer) -> Duration {
        let latest = offer.received_at().saturating_add(MAX_TICKET_LIFETIME);
        self.gate.config().record_end(offer.exact_at().min(latest))
    }

    fn remember(&self, key: ClaimKey, now: Duration) {
        self.filter.claim(key, now + self.gate.config().record_lifetime(), now);
    }

    /// Claims a name for `lifetime`. The filter does not apply, because another node may release the
    /// name.
    pub(crate) async fn claim_name(&self, name: ClaimKey, lifetime: Duration) -> StoreReply {
        self.store.claim_name(name, lifetime).await
    }

    /// Releases a name.
    pub(crate) async fn release_name(&self, name: ClaimKey) {
        if let Err(error) = self.store.release_name(name).await {
            debug!("cannot release an idempotency key: {error}");
        }
    }
}

/// See [`SharedRegister::is_stale`]. `offset`: by how many microseconds the store's clock is ahead.
fn is_stale(offer: &FlightOffer, offset: i64, config: &SharedConfig) -> bool {
    // Either of two clocks that disagree may be the wrong one.
    let agree = Duration::from_micros(offset.unsigned_abs()) <= config.clock_margin;
    let arrived_at = by_store_clock(offer.received_at(), offset);
    agree && arrived_at >= config.closed_at(offer.exact_at())
}

/// When the record of a refused flight may expire. `end`: by this node's clock. `offset`: by how
/// many microseconds the store's clock is ahead.
///
/// A store that is far ahead would drop the record too early, or at once. The later of the ends by
/// both clocks suffices, whichever clock is wrong. The difference is bounded, because the clocks may
/// be years apart.
fn spent_record_end(end: Duration, offset: i64, config: &SharedConfig) -> Duration {
    let ahead = Duration::from_micros(u64::try_from(offset).unwrap_or(0));
    match ahead > config.clock_margin {
        true => end.saturating_add(ahead.min(MAX_TICKET_LIFETIME)),
        false => end,
    }
}

/// Converts this node's time to the store's, whose clock is `offset` microseconds ahead.
fn by_store_clock(time: Duration, offset: i64) -> Duration {
    let distance = Duration::from_micros(offset.unsigned_abs());
    match offset < 0 {
        true => time.saturating_sub(distance),
        false => time.saturating_add(distance),
    }
}

fn unix_time() -> Duration {
    Duration::from_micros(u64::try_from(SteadyClock::unix_micros()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_does_not_expire_too_early_by_either_clock() {
        let config = SharedConfig::default();
        let end = |offset_seconds: i64| {
            let offset = offset_seconds * 1_000_000;
            spent_record_end(Duration::from_secs(1000), offset, &config).as_secs()
        };
        let week = 7 * 86_400;
        for (offset, expected) in
            [(0, 1000), (6, 1000), (7, 1007), (3600, 4600), (week * 50, 1000 + week), (-60, 1000)]
        {
            assert_eq!(end(offset), expected as u64, "{offset}");
        }
    }

    /// A store whose clock is ahead may be corrected before the flight is fresh.
    #[test]
    fn rfc8446_8_2_no_flight_is_stale_while_the_clocks_disagree() {
        let config = SharedConfig::default();
        let stale = |skew: i32, offset_seconds: i64| {
            let now = Duration::from_secs(10_000);
            let offer = FlightOffer::new(ClaimKey::of_flight(&[1; 32]), skew, now, 0);
            is_stale(&offer, offset_seconds * 1_000_000, &config)
        };
        // Nodes accept a copy until 23 s after the exact time.
        for (skew, offset, expected) in [
            (0, 0, false),
            (-22, 0, false),
            (-23, 0, true),
            (-17, 6, true),
            (-28, -6, false),
            (-29, -6, true),
            (-30, 7, false),
            (3600, 4000, false),
            (-3600, -7, false),
        ] {
            assert_eq!(stale(skew, offset), expected, "{skew}, {offset}");
        }
    }
}
