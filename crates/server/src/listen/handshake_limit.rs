//! Who is let in while many knock: handshakes in progress are bounded, and from a point on only
//! who receives at its address begins one (RFC 9000 section 8.1.2).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

/// Counts handshakes in progress over all endpoints.
pub(crate) struct HandshakeLimiter {
    retry_above: AtomicUsize,
    refuse_above: AtomicUsize,
    /// Handshakes in progress, and those of them whose client has not shown its address.
    handshakes: AtomicUsize,
    unshown: AtomicUsize,
    retried: AtomicU64,
    ignored: AtomicU64,
    /// Whether a rush was logged, and when it was last felt.
    told: AtomicBool,
    felt: Mutex<Option<Instant>>,
}

/// What becomes of a connection that begins.
pub(crate) enum Admission {
    /// It may begin.
    Handshake(HandshakePermit),
    /// Its client has to show its address first.
    Retry,
    /// Nothing is answered. The client sends again by itself, and has TCP.
    Ignore,
}

/// A handshake in progress; drop it when it is complete, or has failed.
pub(crate) struct HandshakePermit {
    limiter: Arc<HandshakeLimiter>,
    shown: bool,
}

impl HandshakeLimiter {
    /// Retry above so many handshakes of clients that have not shown their addresses, and nothing
    /// answered above so many of all.
    pub(crate) fn new(retry_above: usize, refuse_above: usize) -> Arc<Self> {
        Arc::new(Self {
            retry_above: retry_above.into(),
            refuse_above: refuse_above.into(),
            handshakes: AtomicUsize::new(0),
            unshown: AtomicUsize::new(0),
            retried: AtomicU64::new(0),
            ignored: AtomicU64::new(0),
            told: AtomicBool::new(false),
            felt: Mutex::new(None),
        })
    }

    /// Changes the bounds of [`HandshakeLimiter::new`].
    pub(crate) fn resize(&self, retry_above: usize, refuse_above: usize) {
        self.retry_above.store(retry_above, Ordering::Relaxed);
        self.refuse_above.store(refuse_above, Ordering::Relaxed);
    }

    /// Decides over a client; `shown`: it came with a token that says so.
    pub(crate) fn enter(self: &Arc<Self>, shown: bool) -> Admission {
        if self.handshakes.load(Ordering::Relaxed) >= self.refuse_above.load(Ordering::Relaxed) {
            self.feel(&self.ignored);
            return Admission::Ignore;
        }
        if !shown
            && self.unshown.load(Ordering::Relaxed) >= self.retry_above.load(Ordering::Relaxed)
        {
            self.feel(&self.retried);
            return Admission::Retry;
        }
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        self.unshown.fetch_add(usize::from(!shown), Ordering::Relaxed);
        Admission::Handshake(HandshakePermit { limiter: self.clone(), shown })
    }

    /// Handshakes in progress.
    pub(crate) fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::Relaxed)
    }

    /// Says when a rush is over. Call it about once a second.
    pub(crate) fn look(&self) {
        let mut felt = self.felt.lock().unwrap_or_else(PoisonError::into_inner);
        if felt.is_some_and(|last| last.elapsed() > QUIET) {
            *felt = None;
            self.told.store(false, Ordering::Relaxed);
            let retried = self.retried.swap(0, Ordering::Relaxed);
            let ignored = self.ignored.swap(0, Ordering::Relaxed);
            info!(
                "the rush of QUIC connections is over: {retried} clients were asked to show their \
                 addresses, {ignored} first packets were ignored"
            );
        }
    }

    fn feel(&self, count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
        *self.felt.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if !self.told.swap(true, Ordering::Relaxed) {
            warn!(
                "many QUIC connections begin at once: until fewer than {} handshakes are in \
                 progress, clients have to show their addresses first (Retry)",
                self.retry_above.load(Ordering::Relaxed)
            );
        }
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.limiter.handshakes.fetch_sub(1, Ordering::Relaxed);
        self.limiter.unshown.fetch_sub(usize::from(!self.shown), Ordering::Relaxed);
    }
}

/// Without a Retry for so long, a rush is over.
const QUIET: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn let_in(entry: Admission) -> HandshakePermit {
        match entry {
            Admission::Handshake(handshake_permit) => handshake_permit,
            Admission::Retry => panic!("a Retry"),
            Admission::Ignore => panic!("ignored"),
        }
    }

    #[test]
    fn rfc9000_8_1_2_retry_above_and_nothing_above_that() {
        let limiter = HandshakeLimiter::new(2, 4);
        let first = let_in(limiter.enter(false));
        let _shown = let_in(limiter.enter(true));
        let _second = let_in(limiter.enter(false));
        assert!(matches!(limiter.enter(false), Admission::Retry));
        let last = let_in(limiter.enter(true));
        assert!(matches!(limiter.enter(true), Admission::Ignore));
        assert!(matches!(limiter.enter(false), Admission::Ignore));
        drop(first);
        let again = let_in(limiter.enter(false));
        assert!(matches!(limiter.enter(true), Admission::Ignore));
        drop((again, last));
        let_in(limiter.enter(true));
        let_in(limiter.enter(false));
    }

    #[test]
    fn without_room_for_strangers_all_are_asked() {
        let limiter = HandshakeLimiter::new(0, 4);
        assert!(matches!(limiter.enter(false), Admission::Retry));
        let_in(limiter.enter(true));
    }
}
