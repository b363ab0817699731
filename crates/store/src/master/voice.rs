//! What the log is told about a store: each change once, with its fix.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use firstflight_replay::Unknown;

use super::info::ahead;
use crate::{Address, StoreError};

/// Remembers what was said last.
#[derive(Default)]
pub(super) struct StateLogger {
    said: Option<LoggedState>,
}

#[derive(PartialEq, Eq)]
enum LoggedState {
    Lost(StoreError),
    Nowhere,
    Well,
    Objection(Unknown),
}

impl StateLogger {
    fn is_news(&mut self, said: LoggedState) -> bool {
        let news = self.said.as_ref() != Some(&said);
        self.said = Some(said);
        news
    }

    /// There is no address to try.
    pub(super) fn nowhere(&mut self) {
        if self.is_news(LoggedState::Nowhere) {
            tracing::warn!(
                "no majority names a master of the store, so nothing runs early; see to the \
                 sentinels, or to the cluster's nodes"
            );
        }
    }

    /// The connection is gone, or could not be made.
    pub(super) fn lost(&mut self, address: &Address, error: &StoreError) {
        if self.is_news(LoggedState::Lost(error.clone())) {
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
        if !self.is_news(objection.map_or(LoggedState::Well, LoggedState::Objection)) {
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
            // A heartbeat came, so somebody is there: only nobody vouches for him.
            Some(Unknown::Absent) => tracing::warn!(
                %address,
                "no majority of the sentinels, or of the cluster's masters, has confirmed the \
                 store as master, so nothing runs early; see to them and to the way there"
            ),
            Some(why) => tracing::warn!(
                %address,
                ?why,
                "the store's word does not count now, so nothing runs early"
            ),
        }
    }

    /// An epoch starts.
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

/// Claims come by the thousand, and may be taken and refused in turns: what is wrong with them is
/// said when it is another thing than last time, or that was long ago, and never twice a second.
#[derive(Default)]
pub(super) struct Complaints {
    last: Mutex<Option<(String, Instant)>>,
}

impl Complaints {
    const PAUSE: Duration = Duration::from_secs(1);
    const REMINDER: Duration = Duration::from_secs(300);

    /// Claims are refused.
    pub(super) fn warn(&self, address: &Address, why: &str) {
        if self.is_news(why, Instant::now()) {
            tracing::warn!(%address, "{why}; nothing runs early while it does so");
        }
    }

    fn is_news(&self, why: &str, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let news = last.as_ref().is_none_or(|(said, at)| {
            let pause = if said == why { Self::REMINDER } else { Self::PAUSE };
            now.saturating_duration_since(*at) >= pause
        });
        if news {
            *last = Some((why.to_owned(), now));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_not_flooded() {
        let complaints = Complaints::default();
        let start = Instant::now();
        let said = |why, after| complaints.is_news(why, start + Duration::from_secs(after));
        assert!(said("a", 0));
        assert!(!said("b", 0), "a second has not passed");
        assert!(said("b", 1));
        assert!(!said("b", 300));
        assert!(said("b", 301));
    }

    #[test]
    fn each_change_is_said_once() {
        let mut voice = StateLogger::default();
        let lost = || LoggedState::Lost(StoreError::Absent("x".to_owned()));
        assert!(voice.is_news(lost()));
        assert!(!voice.is_news(lost()));
        assert!(voice.is_news(LoggedState::Well));
        assert!(voice.is_news(LoggedState::Objection(Unknown::Clock)));
        assert!(!voice.is_news(LoggedState::Objection(Unknown::Clock)));
        assert!(voice.is_news(lost()));
    }
}
