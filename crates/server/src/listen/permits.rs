//! ConnectionPermits for connections: how many there are, which a reload may change, and how many are taken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Bounds the connections of all listeners together.
pub(crate) struct ConnectionPermits {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    limit: u32,
    taken: u32,
}

/// A connection's place; free again when it is dropped.
pub(crate) struct ConnectionPermit(Arc<ConnectionPermits>);

impl ConnectionPermits {
    pub(crate) fn new(limit: u32) -> Arc<Self> {
        let state = Mutex::new(State { limit, taken: 0 });
        Arc::new(Self { state, changed: Notify::new() })
    }

    /// Waits for a place.
    pub(crate) async fn take(self: &Arc<Self>) -> ConnectionPermit {
        self.wait_for(|state| state.taken < state.limit).await.taken += 1;
        ConnectionPermit(self.clone())
    }

    /// Waits until one is free, and leaves it.
    pub(crate) async fn one_is_free(&self) {
        drop(self.wait_for(|state| state.taken < state.limit).await);
    }

    /// A place, if one is free.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let mut state = self.state();
        (state.taken < state.limit).then(|| {
            state.taken += 1;
            ConnectionPermit(self.clone())
        })
    }

    /// A place beyond the limit, for a connection that would be reset otherwise.
    pub(crate) fn take_beyond(self: &Arc<Self>) -> ConnectionPermit {
        self.state().taken += 1;
        ConnectionPermit(self.clone())
    }

    /// Changes the limit. Connections above the new one stay; further ones wait.
    pub(crate) fn resize(&self, limit: u32) {
        self.state().limit = limit;
        self.changed.notify_waiters();
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> u32 {
        self.state().taken
    }

    /// Waits until none is taken.
    pub(crate) async fn all_free(&self) {
        drop(self.wait_for(|state| state.taken == 0).await);
    }

    async fn wait_for(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Before the look: what changes after it wakes us.
            changed.as_mut().enable();
            {
                let state = self.state();
                if condition(&state) {
                    return state;
                }
            }
            changed.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.state().taken -= 1;
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_smaller_limit_lets_connections_stay_and_further_ones_wait() {
        let permits = ConnectionPermits::new(2);
        let (first, second) = (permits.try_take().unwrap(), permits.try_take().unwrap());
        assert!(permits.try_take().is_none());
        permits.resize(1);
        drop(first);
        assert!(permits.try_take().is_none());
        drop(second);
        assert!(permits.try_take().is_some());
    }

    #[test]
    fn who_waits_is_woken_by_a_free_place_and_by_a_larger_limit() {
        let permits = ConnectionPermits::new(1);
        let first = permits.try_take().unwrap();
        let mut waits = Box::pin(permits.take());
        assert!((&mut waits).now_or_never().is_none());
        permits.resize(2);
        let second = waits.now_or_never().unwrap();
        let mut waits = Box::pin(permits.take());
        assert!((&mut waits).now_or_never().is_none());
        drop(first);
        let third = waits.now_or_never().unwrap();
        assert_eq!(permits.taken(), 2);
        let mut empty = Box::pin(permits.all_free());
        assert!((&mut empty).now_or_never().is_none());
        drop((second, third));
        assert!(empty.now_or_never().is_some());
    }
}
