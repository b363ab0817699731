//! Limits open connections, and QUIC handshakes in progress: above a threshold clients have to
//! validate their addresses first (RFC 9000 section 8.1.2).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tracing::{info, warn};

/// Limits the connections of all listeners together.
pub(crate) struct ConnectionPermits {
    state: Mutex<PermitState>,
    changed: Notify,
}

struct PermitState {
    limit: u32,
    in_use: u32,
}

/// The permit of one connection, released when dropped.
pub(crate) struct ConnectionPermit(Arc<ConnectionPermits>);

impl ConnectionPermits {
    pub(crate) fn new(limit: u32) -> Arc<Self> {
        let state = Mutex::new(PermitState { limit, in_use: 0 });
        Arc::new(Self { state, changed: Notify::new() })
    }

    /// Waits for a permit.
    pub(crate) async fn take(self: &Arc<Self>) -> ConnectionPermit {
        self.wait_for(|state| state.in_use < state.limit).await.in_use += 1;
        ConnectionPermit(self.clone())
    }

    /// Waits until a permit is free, without taking it.
    pub(crate) async fn wait_for_free(&self) {
        drop(self.wait_for(|state| state.in_use < state.limit).await);
    }

    /// Takes a permit if one is free.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let mut state = self.state();
        (state.in_use < state.limit).then(|| {
            state.in_use += 1;
            ConnectionPermit(self.clone())
        })
    }

    /// Takes a permit beyond the limit, for a connection that would be reset otherwise.
    pub(crate) fn take_above_limit(self: &Arc<Self>) -> ConnectionPermit {
        self.state().in_use += 1;
        ConnectionPermit(self.clone())
    }

    /// Changes the limit. Connections above the new limit stay open.
    pub(crate) fn resize(&self, limit: u32) {
        self.state().limit = limit;
        self.changed.notify_waiters();
    }

    /// The number of permits taken.
    pub(crate) fn in_use(&self) -> u32 {
        self.state().in_use
    }

    /// Waits until no permit is taken.
    pub(crate) async fn wait_until_unused(&self) {
        drop(self.wait_for(|state| state.in_use == 0).await);
    }

    async fn wait_for(
        &self,
        condition: impl Fn(&PermitState) -> bool,
    ) -> MutexGuard<'_, PermitState> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registers before the check, so that no change after it is missed.
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

    fn state(&self) -> MutexGuard<'_, PermitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.state().in_use -= 1;
        self.0.changed.notify_waiters();
    }
}

/// Limits the handshakes in progress on all QUIC endpoints.
pub(crate) struct HandshakeLimiter {
    retry_above: AtomicUsize,
    refuse_above: AtomicUsize,
    /// Handshakes in progress, and those whose client address is not validated.
    handshakes: AtomicUsize,
    unvalidated: AtomicUsize,
    retried: AtomicU64,
    ignored: AtomicU64,
    /// Whether overload was logged, and when a connection was last limited.
    logged: AtomicBool,
    last_limited: Mutex<Option<Instant>>,
}

/// The decision about a new connection.
pub(crate) enum HandshakeAdmission {
    /// The handshake may start.
    Handshake(HandshakePermit),
    /// The client has to validate its address first (Retry).
    Retry,
    /// The packet is ignored. The client retransmits, or falls back to TCP.
    Ignore,
}

/// The permit of one handshake in progress. Drop it when the handshake has completed or failed.
pub(crate) struct HandshakePermit {
    limiter: Arc<HandshakeLimiter>,
    validated: bool,
}

impl HandshakeLimiter {
    /// Requires a Retry above `retry_above` handshakes with unvalidated addresses, and ignores new
    /// connections above `refuse_above` handshakes in total.
    pub(crate) fn new(retry_above: usize, refuse_above: usize) -> Arc<Self> {
        Arc::new(Self {
            retry_above: retry_above.into(),
            refuse_above: refuse_above.into(),
            handshakes: AtomicUsize::new(0),
            unvalidated: AtomicUsize::new(0),
            retried: AtomicU64::new(0),
            ignored: AtomicU64::new(0),
            logged: AtomicBool::new(false),
            last_limited: Mutex::new(None),
        })
    }

    /// Changes the limits of [`HandshakeLimiter::new`].
    pub(crate) fn resize(&self, retry_above: usize, refuse_above: usize) {
        self.retry_above.store(retry_above, Ordering::Relaxed);
        self.refuse_above.store(refuse_above, Ordering::Relaxed);
    }

    /// Decides about a new connection. `validated`: a token has validated the client's address.
    pub(crate) fn admit(self: &Arc<Self>, validated: bool) -> HandshakeAdmission {
        if self.handshakes.load(Ordering::Relaxed) >= self.refuse_above.load(Ordering::Relaxed) {
            self.note_limited(&self.ignored);
            return HandshakeAdmission::Ignore;
        }
        if !validated
            && self.unvalidated.load(Ordering::Relaxed) >= self.retry_above.load(Ordering::Relaxed)
        {
            self.note_limited(&self.retried);
            return HandshakeAdmission::Retry;
        }
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        self.unvalidated.fetch_add(usize::from(!validated), Ordering::Relaxed);
        HandshakeAdmission::Handshake(HandshakePermit { limiter: self.clone(), validated })
    }

    /// The number of handshakes in progress.
    pub(crate) fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::Relaxed)
    }

    /// Logs when an overload has ended. Call it about once a second.
    pub(crate) fn log_recovery(&self) {
        let mut last_limited = self.last_limited.lock().unwrap_or_else(PoisonError::into_inner);
        if last_limited.is_some_and(|last| last.elapsed() > QUIET_PERIOD) {
            *last_limited = None;
            self.logged.store(false, Ordering::Relaxed);
            let retried = self.retried.swap(0, Ordering::Relaxed);
            let ignored = self.ignored.swap(0, Ordering::Relaxed);
            info!(
                "QUIC handshakes are below their limit again: {retried} clients were sent a Retry, \
                 {ignored} first packets were ignored"
            );
        }
    }

    fn note_limited(&self, count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
        *self.last_limited.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if !self.logged.swap(true, Ordering::Relaxed) {
            warn!(
                "too many QUIC handshakes at once: until fewer than {} are in progress, clients have to \
                 validate their addresses first (Retry)",
                self.retry_above.load(Ordering::Relaxed)
            );
        }
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.limiter.handshakes.fetch_sub(1, Ordering::Relaxed);
        self.limiter.unvalidated.fetch_sub(usize::from(!self.validated), Ordering::Relaxed);
    }
}

/// An overload has ended after this time without a limited connection.
const QUIET_PERIOD: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_smaller_limit_keeps_open_connections_and_makes_new_ones_wait() {
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
    fn a_waiting_task_is_woken_by_a_free_permit_and_by_a_larger_limit() {
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
        assert_eq!(permits.in_use(), 2);
        let mut empty = Box::pin(permits.wait_until_unused());
        assert!((&mut empty).now_or_never().is_none());
        drop((second, third));
        assert!(empty.now_or_never().is_some());
    }
}

#[cfg(test)]
mod handshake_limit_tests {
    use super::*;

    fn admitted(admission: HandshakeAdmission) -> HandshakePermit {
        match admission {
            HandshakeAdmission::Handshake(handshake_permit) => handshake_permit,
            HandshakeAdmission::Retry => panic!("a Retry"),
            HandshakeAdmission::Ignore => panic!("ignored"),
        }
    }

    #[test]
    fn rfc9000_8_1_2_a_retry_above_one_limit_and_no_response_above_the_other() {
        let limiter = HandshakeLimiter::new(2, 4);
        let first = admitted(limiter.admit(false));
        let _validated = admitted(limiter.admit(true));
        let _second = admitted(limiter.admit(false));
        assert!(matches!(limiter.admit(false), HandshakeAdmission::Retry));
        let last = admitted(limiter.admit(true));
        assert!(matches!(limiter.admit(true), HandshakeAdmission::Ignore));
        assert!(matches!(limiter.admit(false), HandshakeAdmission::Ignore));
        drop(first);
        let again = admitted(limiter.admit(false));
        assert!(matches!(limiter.admit(true), HandshakeAdmission::Ignore));
        drop((again, last));
        admitted(limiter.admit(true));
        admitted(limiter.admit(false));
    }

    #[test]
    fn with_a_retry_limit_of_zero_every_client_needs_a_token() {
        let limiter = HandshakeLimiter::new(0, 4);
        assert!(matches!(limiter.admit(false), HandshakeAdmission::Retry));
        admitted(limiter.admit(true));
    }
}
