//! The cluster's strike register as one node sees it: the store, and a filter before it.

use std::time::Duration;

use firstflight_replay::{
    ClaimKey, SharedConfig, SharedGate, StoreAnswer, StrikeRegister, Unknown,
};
use firstflight_store::Store;

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
}
