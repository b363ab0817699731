//! The cluster's strike register as one node sees it: the store, and a filter before it.

use std::time::Duration;

use firstflight_replay::{
    ClaimKey, RegisterStatistics, SharedConfig, SharedGate, StoreAnswer, StrikeRegister, Unknown,
};
use firstflight_store::{Store, StoreStatistics};
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
        self.store.resting()
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
    pub(crate) async fn claim(&self, key: ClaimKey, now: impl Fn() -> Duration) -> StoreAnswer {
        if self.filter.contains(key, now()) {
            return StoreAnswer::Lost;
        }
        let answer = self.store.claim(key).await;
        // A claim that came out is taken for good. One whose outcome is not known was executed
        // nowhere, and the honest original may still come.
        if !matches!(answer, StoreAnswer::Unknown(_)) {
            let now = now();
            self.filter.claim(key, now + self.gate.config().record_life(), now);
        }
        answer
    }

    /// Claims a name for so long. There is no filter before it: another node may give it back.
    pub(crate) async fn claim_name(&self, name: ClaimKey, life: Duration) -> StoreAnswer {
        self.store.claim_name(name, life).await
    }

    /// Gives a name back.
    pub(crate) async fn release_name(&self, name: ClaimKey) {
        if let Err(error) = self.store.release_name(name).await {
            debug!("an idempotency key could not be given back: {error}");
        }
    }
}
