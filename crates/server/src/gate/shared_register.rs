//! The cluster's strike register as one node sees it: the store, and a filter before it.

use std::time::Duration;

use firstflight_replay::{
    ClaimKey, FlightOffer, RegisterStatistics, SharedConfig, SharedGate, SpendOutcome, StoreReply,
    StrikeRegister, Unknown,
};
use firstflight_store::{self as store, Claimant, Store, StoreStatistics};
use firstflight_tls::SteadyClock;
use tracing::debug;

/// Claims flights in the store.
pub(crate) struct SharedRegister {
    store: Store,
    gate: SharedGate,
    /// Flights whose claims have come out here, so that the copies which hit this node need no
    /// store. It may be lost or full: then the store is asked.
    filter: StrikeRegister,
}

impl SharedRegister {
    /// The register in `store`, whose settings are `config`, with a filter for `capacity` flights.
    pub(crate) fn new(store: Store, config: SharedConfig, capacity: usize) -> Self {
        Self { store, gate: SharedGate::new(config), filter: StrikeRegister::new(capacity) }
    }

    /// Why claims are not even tried now, if so.
    pub(crate) fn resting(&self) -> Option<Unknown> {
        self.store.unavailable_reason()
    }

    /// The store's counters, and those of the filter before it.
    pub(crate) fn statistics(&self) -> (StoreStatistics, RegisterStatistics) {
        (self.store.statistics(), self.filter.statistics())
    }

    /// The rules over what comes of a claim.
    pub(crate) fn gate(&self) -> &SharedGate {
        &self.gate
    }

    /// Claims a flight, within the store's budget. `now` is a clock that only goes forward.
    pub(crate) async fn claim(
        &self,
        offer: &FlightOffer,
        claimant: Claimant,
        now: impl Fn() -> Duration,
    ) -> StoreReply {
        if self.filter.contains(offer.key(), now()) {
            return StoreReply::Lost;
        }
        let response = self.store.claim(offer.key(), claimant, self.record_end(offer)).await;
        // A claim that came out is taken for good. One whose outcome is not known was executed
        // nowhere, and the honest original may still come.
        if !matches!(response, StoreReply::Unknown(_)) {
            self.remember(offer.key(), now());
        }
        response
    }

    /// One attempt to record a flight whose early data was refused. `None`: it is not recorded, and
    /// a copy of it may have been accepted by another node since it came, or may still be.
    pub(crate) async fn spend(
        &self,
        offer: &FlightOffer,
        claimant: Claimant,
        now: impl Fn() -> Duration,
    ) -> Option<SpendOutcome> {
        match self.store.spend(offer.key(), claimant, self.record_end(offer)).await {
            Ok(store::Spent::Recorded) => {
                self.remember(offer.key(), now());
                Some(SpendOutcome::Recorded)
            }
            Ok(store::Spent::Taken) => Some(SpendOutcome::Executed),
            Err(why) => {
                debug!("a flight is not recorded yet: {why:?}");
                // As the clocks were when it came: a copy that was fresh then may have run since.
                let came_at = self.by_store_clock(offer.received_at());
                let is_stale = came_at >= self.gate.config().closed_at(offer.exact_at());
                is_stale.then_some(SpendOutcome::Recorded)
            }
        }
    }

    /// When the flight's record may go, by the store's clock. A ticket is dead by then, however old
    /// its client says that it is.
    fn record_end(&self, offer: &FlightOffer) -> Duration {
        let latest = unix_time().saturating_add(MAX_TICKET_LIFETIME);
        self.gate.config().record_end(offer.exact_at().min(latest))
    }

    /// A reading of this node's clock as the store's, as far as their distance is known.
    fn by_store_clock(&self, time: Duration) -> Duration {
        let offset = self.store.clock_offset_micros().unwrap_or(0);
        let distance = Duration::from_micros(offset.unsigned_abs());
        match offset < 0 {
            true => time.saturating_sub(distance),
            false => time.saturating_add(distance),
        }
    }

    fn remember(&self, key: ClaimKey, now: Duration) {
        self.filter.claim(key, now + self.gate.config().record_life(), now);
    }

    /// Claims a name for so long. There is no filter before it: another node may give it back.
    pub(crate) async fn claim_name(&self, name: ClaimKey, life: Duration) -> StoreReply {
        self.store.claim_name(name, life).await
    }

    /// Gives a name back.
    pub(crate) async fn release_name(&self, name: ClaimKey) {
        if let Err(error) = self.store.release_name(name).await {
            debug!("an idempotency key could not be given back: {error}");
        }
    }
}

fn unix_time() -> Duration {
    Duration::from_micros(u64::try_from(SteadyClock::unix_micros()).unwrap_or(0))
}

/// RFC 8446 section 4.6.1.
const MAX_TICKET_LIFETIME: Duration = Duration::from_secs(7 * 86_400);
