//! What the log is told about a store: each change once, with its mend.

use std::time::Duration;

use firstflight_replay::Unknown;

use super::info::ahead;
use crate::{Address, StoreError};

/// Remembers what was said last.
#[derive(Default)]
pub(super) struct Voice {
    said: Option<Said>,
}

#[derive(PartialEq, Eq)]
enum Said {
    Lost(StoreError),
    Nowhere,
    Well,
    Objection(Unknown),
}

impl Voice {
    fn is_news(&mut self, said: Said) -> bool {
        let news = self.said.as_ref() != Some(&said);
        self.said = Some(said);
        news
    }

    /// There is no address to try.
    pub(super) fn nowhere(&mut self) {
        if self.is_news(Said::Nowhere) {
            tracing::warn!(
                "no majority names a master of the store, so nothing runs early; see to the \
                 sentinels, or to the cluster's nodes"
            );
        }
    }

    /// The connection is gone, or could not be made.
    pub(super) fn lost(&mut self, address: &Address, error: &StoreError) {
        if self.is_news(Said::Lost(error.clone())) {
            tracing::warn!(%address, "{error}; nothing runs early until it can be asked again");
        }
    }

    /// A heartbeat, and why claims do not count by it.
    pub(super) fn beat(
        &mut self,
        address: &Address,
        objection: Option<Unknown>,
        store_time: Duration,
        node_time: Duration,
    ) {
        if !self.is_news(objection.map_or(Said::Well, Said::Objection)) {
            return;
        }
        match objection {
            None => tracing::info!(%address, "the store is reached"),
            Some(Unknown::Evicting) => tracing::warn!(
                %address,
                "the store may drop records before their time, so nothing runs early; set its \
                 maxmemory-policy to noeviction"
            ),
            Some(Unknown::Clock) => tracing::warn!(
                %address,
                store_ahead_ms = ahead(store_time, node_time),
                "this node's clock and the store's differ by more than clock_margin, so nothing \
                 runs early; see to the time service on both"
            ),
            Some(why) => tracing::warn!(
                %address,
                ?why,
                "the store's word does not count now, so nothing runs early"
            ),
        }
    }

    /// An epoch begins.
    pub(super) fn epoch(&self, address: &Address, window: Duration) {
        tracing::info!(
            %address,
            ?window,
            "the store begins to record anew; claims count when a recording window has passed"
        );
    }

    /// An epoch is due and cannot be written.
    pub(super) fn no_epoch(&self, address: &Address, error: &StoreError) {
        tracing::warn!(%address, "the store does not take the record of its epoch: {error}");
    }
}
