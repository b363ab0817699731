//! Permits for connections. When all are in use, an old connection is closed for a new one, so that
//! open connections never keep a health probe waiting.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The connections that there are, by their order.
pub(crate) struct Permits {
    limit: usize,
    /// How long a new connection may take until it has had its response, before it has to go.
    grace: Duration,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    next: u64,
    connections: BTreeMap<u64, Entry>,
}

struct Entry {
    since: Instant,
    trusted: bool,
    dropped: Arc<Notify>,
}

/// A connection's permit, returned when it is dropped.
pub(crate) struct Permit {
    permits: Arc<Permits>,
    number: u64,
    dropped: Arc<Notify>,
}

impl Permits {
    pub(crate) fn new(limit: usize, grace: Duration) -> Arc<Self> {
        Arc::new(Self { limit, grace, taken: Mutex::default(), freed: Notify::new() })
    }

    /// A permit for a new connection. If all are in use, the oldest connection that is not trusted
    /// is dropped, or the oldest of all if each is trusted. A connection younger than the grace
    /// period is waited for.
    pub(crate) async fn take(self: &Arc<Self>) -> Permit {
        while let Some(wait) = self.make_room() {
            let _ = timeout(wait, self.freed.notified()).await;
        }
        let dropped = Arc::new(Notify::new());
        let mut taken = self.taken();
        let number = taken.next;
        taken.next += 1;
        let entry = Entry { since: Instant::now(), trusted: false, dropped: dropped.clone() };
        taken.connections.insert(number, entry);
        drop(taken);
        Permit { permits: self.clone(), number, dropped }
    }

    /// Drops a connection if there has to be one less; returns how long to wait if none may be
    /// dropped yet.
    fn make_room(&self) -> Option<Duration> {
        let mut taken = self.taken();
        if taken.connections.len() < self.limit {
            return None;
        }
        let connections = &taken.connections;
        let untrusted = connections.iter().find(|(_, entry)| !entry.trusted);
        let (&number, oldest) = untrusted.or_else(|| connections.iter().next())?;
        let age = oldest.since.elapsed();
        if age < self.grace {
            return Some(self.grace - age);
        }
        oldest.dropped.notify_one();
        taken.connections.remove(&number);
        None
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// The connection's last request was allowed to look, or was not.
    pub(crate) fn set_trusted(&self, trusted: bool) {
        if let Some(entry) = self.permits.taken().connections.get_mut(&self.number) {
            entry.trusted = trusted;
        }
    }

    /// Waits until the connection has to make room for another one.
    pub(crate) async fn dropped(&self) {
        self.dropped.notified().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.taken().connections.remove(&self.number);
        self.permits.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Whether it has to make room.
    fn has_to_go(permit: &Permit) -> bool {
        permit.dropped().now_or_never().is_some()
    }

    #[tokio::test]
    async fn the_oldest_without_a_token_makes_room() {
        let permits = Permits::new(3, Duration::ZERO);
        let (first, second, third) =
            (permits.take().await, permits.take().await, permits.take().await);
        first.set_trusted(true);
        let fourth = permits.take().await;
        assert_eq!([&first, &second, &third].map(has_to_go), [false, true, false]);
        // It may take a while until it has gone.
        drop(second);
        third.set_trusted(true);
        fourth.set_trusted(true);
        let fifth = permits.take().await;
        assert_eq!([&first, &third, &fourth, &fifth].map(has_to_go), [true, false, false, false]);
    }

    #[tokio::test]
    async fn a_free_permit_closes_no_connection() {
        let permits = Permits::new(2, Duration::ZERO);
        let first = permits.take().await;
        for _ in 0..10 {
            drop(permits.take().await);
        }
        assert!(!has_to_go(&first));
    }

    #[tokio::test]
    async fn a_young_connection_is_waited_for() {
        let permits = Permits::new(1, Duration::from_secs(3600));
        let first = permits.take().await;
        assert!(permits.take().now_or_never().is_none());
        assert!(!has_to_go(&first));
        let second = permits.clone();
        let waiting = tokio::spawn(async move { drop(second.take().await) });
        tokio::task::yield_now().await;
        drop(first);
        waiting.await.unwrap();

        let permits = Permits::new(1, Duration::from_millis(20));
        let first = permits.take().await;
        let _second = permits.take().await;
        assert!(has_to_go(&first));
    }
}
