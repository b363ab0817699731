//! Logs the state of a store: each change once, with its fix.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use firstflight_replay::Unknown;

use crate::{Address, StoreError};

/// Logs changes of state, and remembers the last one.
#[derive(Default)]
pub(super) struct StateLogger {
    last: Option<LoggedState>,
}

#[derive(PartialEq, Eq)]
enum LoggedState {
    Lost(StoreError),
    NoAddress,
    Healthy,
    ClaimProblem(Unknown),
}

impl StateLogger {
    fn has_changed(&mut self, last: LoggedState) -> bool {
        let changed = self.last.as_ref() != Some(&last);
        self.last = Some(last);
        changed
    }

    /// Logs that no address of the master is known.
    pub(super) fn no_address(&mut self) {
        if self.has_changed(LoggedState::NoAddress) {
            tracing::warn!(
                "no early data: no majority names a master of the store; check the sentinels, or the \
                 nodes of the cluster"
            );
        }
    }

    /// Logs that the connection failed, or could not be opened.
    pub(super) fn lost(&mut self, address: &Address, error: &StoreError) {
        if self.has_changed(LoggedState::Lost(error.clone())) {
            tracing::warn!(%address, "no early data: {error}");
        }
    }

    /// Logs the state after a successful heartbeat. `claim_problem`: why claims do not count.
    pub(super) fn heartbeat(
        &mut self,
        address: &Address,
        claim_problem: Option<Unknown>,
        store_time: Duration,
        node_time: Duration,
    ) {
        if !self.has_changed(claim_problem.map_or(LoggedState::Healthy, LoggedState::ClaimProblem))
        {
            return;
        }
        match claim_problem {
            None => tracing::info!(%address, "connected to the store"),
            Some(Unknown::Evicting) => tracing::warn!(
                %address,
                "no early data: the store may evict records; set its maxmemory-policy to noeviction"
            ),
            Some(Unknown::Clock) => tracing::warn!(
                %address,
                store_ahead_ms = millis_ahead(store_time, node_time),
                "no early data: the clocks of this node and of the store differ by more than \
                 clock_margin; check the time service on both"
            ),
            // The heartbeat succeeded, so the store is there, but not confirmed as the master.
            Some(Unknown::Absent) => tracing::warn!(
                %address,
                "no early data: no majority of the sentinels, or of the cluster's masters, has \
                 confirmed the store as master; check them and the network to them"
            ),
            Some(why) => tracing::warn!(
                %address,
                ?why,
                "no early data: the replies of the store do not count now"
            ),
        }
    }

    /// Logs that a new epoch starts.
    pub(super) fn epoch(&self, address: &Address, window: Duration) {
        tracing::info!(
            %address,
            ?window,
            "the store starts to record; claims count after one recording window"
        );
    }

    /// Logs that the record of a new epoch could not be written.
    pub(super) fn no_epoch(&self, address: &Address, error: &StoreError) {
        tracing::warn!(%address, "the record of the epoch could not be written: {error}");
    }
}

/// Logs why claims fail: when the reason changes, or as a reminder, and at most once a second. There
/// may be thousands of claims a second, with alternating results.
#[derive(Default)]
pub(super) struct ClaimWarnings {
    last: Mutex<Option<(String, Instant)>>,
}

impl ClaimWarnings {
    const MIN_INTERVAL: Duration = Duration::from_secs(1);
    const REMINDER_INTERVAL: Duration = Duration::from_secs(300);

    /// Logs that claims are refused.
    pub(super) fn warn(&self, address: &Address, why: &str) {
        if self.should_log(why, Instant::now()) {
            tracing::warn!(%address, "no early data: {why}");
        }
    }

    fn should_log(&self, why: &str, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.as_ref().is_none_or(|(last, at)| {
            let pause = if last == why { Self::REMINDER_INTERVAL } else { Self::MIN_INTERVAL };
            now.saturating_duration_since(*at) >= pause
        });
        if due {
            *last = Some((why.to_owned(), now));
        }
        due
    }
}

/// By how many milliseconds the store's clock is ahead of the node's, for the log.
fn millis_ahead(store: Duration, node: Duration) -> i64 {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    millis(store).saturating_sub(millis(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_warnings_are_limited() {
        let warnings = ClaimWarnings::default();
        let start = Instant::now();
        let should_log = |why, after| warnings.should_log(why, start + Duration::from_secs(after));
        assert!(should_log("a", 0));
        assert!(!should_log("b", 0), "a second has not passed");
        assert!(should_log("b", 1));
        assert!(!should_log("b", 300));
        assert!(should_log("b", 301));
    }

    #[test]
    fn each_change_is_logged_once() {
        let mut logger = StateLogger::default();
        let lost = || LoggedState::Lost(StoreError::Absent("x".to_owned()));
        assert!(logger.has_changed(lost()));
        assert!(!logger.has_changed(lost()));
        assert!(logger.has_changed(LoggedState::Healthy));
        assert!(logger.has_changed(LoggedState::ClaimProblem(Unknown::Clock)));
        assert!(!logger.has_changed(LoggedState::ClaimProblem(Unknown::Clock)));
        assert!(logger.has_changed(lost()));
    }
}
