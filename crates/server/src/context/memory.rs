//! Limits the memory that clients use in addition to their connections: request heads, incomplete
//! handshakes, upstream connections. One limit applies to the whole process (`memory` in
//! `[limits]`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use tracing::warn;

/// The memory limit and its current use.
pub(crate) struct MemoryBudget {
    limit: AtomicUsize,
    held: AtomicUsize,
    /// When reaching the limit was last logged.
    logged: Mutex<Option<Instant>>,
}

/// The memory held by one request or handshake, released when dropped.
pub(crate) struct MemoryCharge {
    budget: Arc<MemoryBudget>,
    held: AtomicUsize,
}

impl MemoryBudget {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.into(), held: AtomicUsize::new(0), logged: Mutex::new(None) })
    }

    /// Changes the limit. Memory in use stays in use.
    pub(crate) fn resize(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// A charge that holds nothing yet.
    pub(crate) fn charge(self: &Arc<Self>) -> MemoryCharge {
        MemoryCharge { budget: self.clone(), held: AtomicUsize::new(0) }
    }

    fn take(&self, bytes: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        if self.held.fetch_add(bytes, Ordering::Relaxed) + bytes <= limit {
            return true;
        }
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.log(limit);
        false
    }

    fn log(&self, limit: usize) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|last| last.elapsed() > LOG_INTERVAL) {
            *logged = Some(Instant::now());
            warn!(
                "the memory limit of {limit} bytes is reached: further requests and handshakes are \
                 refused; raise memory in [limits]"
            );
        }
    }
}

impl MemoryCharge {
    /// Reserves memory. Returns false if the limit is reached; nothing has changed then.
    pub(crate) fn grow(&self, bytes: usize) -> bool {
        let taken = self.budget.take(bytes);
        if taken {
            self.held.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// Releases everything.
    pub(crate) fn clear(&self) {
        self.budget.held.fetch_sub(self.held.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The memory of a request until its response has ended. Its fields are stored twice, as received
/// and as sent to an upstream, in two maps.
pub(crate) fn request_bytes(target: &str, headers: Option<&HeaderMap>) -> usize {
    let fields = headers.into_iter().flatten();
    let fields =
        fields.map(|(name, value)| 2 * (name.as_str().len() + value.len()) + FIELD_OVERHEAD);
    REQUEST_OVERHEAD + 2 * target.len() + fields.sum::<usize>()
}

/// Task, stream, record and log line of a request.
const REQUEST_OVERHEAD: usize = 4 * 1024;

/// Two map entries, where a map may have twice the capacity that it needs.
const FIELD_OVERHEAD: usize = 320;

/// Memory of a connection to an upstream, with its buffers in this process and in the kernel.
pub(crate) const UPSTREAM_CONNECTION_BYTES: usize = 32 * 1024;

/// The memory to compress a response of this length: tables, a window and its buffers. A short
/// response uses only part of the window. The sizes are Brotli's, which needs the most.
pub(crate) fn encoder_bytes(length: Option<u64>) -> usize {
    let window = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX);
    ENCODER_TABLES + window.saturating_mul(2).min(ENCODER_WINDOW)
}

const ENCODER_TABLES: usize = 2 << 20;
const ENCODER_WINDOW: usize = 8 << 20;

/// Memory for each byte of an incomplete handshake: a copy for a restart of the handshake, the
/// library's copy, and the unused capacity of their buffers.
pub(crate) const HANDSHAKE_BYTE_FACTOR: usize = 3;

/// Memory for each received piece of an incomplete head, in addition to its bytes.
pub(crate) const HEAD_PIECE_OVERHEAD: usize = 128;

const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn charges_above_the_limit_are_refused_and_dropped_charges_are_released() {
        let budget = MemoryBudget::new(100);
        let (first, second) = (budget.charge(), budget.charge());
        assert!(first.grow(60) && second.grow(40));
        assert!(!second.grow(1));
        drop(first);
        assert!(second.grow(60) && !second.grow(1));
        second.clear();
        assert!(second.grow(100));
        budget.resize(50);
        assert!(!budget.charge().grow(1));
        drop(second);
        assert!(budget.charge().grow(50));
    }

    #[test]
    fn many_small_fields_cost_more_than_their_bytes() {
        let mut headers = HeaderMap::new();
        for _ in 0..100 {
            headers.append("a", HeaderValue::from_static(""));
        }
        assert!(request_bytes("/", Some(&headers)) > 100 * 300);
        headers.insert("a", HeaderValue::from_str(&"x".repeat(28_000)).unwrap());
        assert!(request_bytes("/", Some(&headers)) > 2 * 28_000);
    }
}
