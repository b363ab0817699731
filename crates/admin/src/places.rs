//! Places for connections. When all are taken, an old connection makes room for a new one, so that
//! nobody who keeps connections open keeps a probe waiting.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The connections that there are, by their order.
pub(crate) struct Places {
    limit: usize,
    /// How long a new connection may take until it has had its answer, before it has to go.
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

/// A connection's place, free again when it is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
    dropped: Arc<Notify>,
}

impl Places {
    pub(crate) fn new(limit: usize, grace: Duration) -> Arc<Self> {
        Arc::new(Self { limit, grace, taken: Mutex::default(), freed: Notify::new() })
    }

    /// A place for a new connection. If all are taken, the oldest connection that is not trusted is
    /// dropped, or the oldest of all if each is trusted. A connection younger than the grace period
    /// is waited for.
    pub(crate) async fn take(self: &Arc<Self>) -> Place {
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
        Place { places: self.clone(), number, dropped }
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

impl Place {
    /// The connection's last request was allowed to look, or was not.
    pub(crate) fn set_trusted(&self, trusted: bool) {
        if let Some(entry) = self.places.taken().connections.get_mut(&self.number) {
            entry.trusted = trusted;
        }
    }

    /// Waits until the connection has to make room for another one.
    pub(crate) async fn dropped(&self) {
        self.dropped.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().connections.remove(&self.number);
        self.places.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Whether it has to make room.
    fn has_to_go(place: &Place) -> bool {
        place.dropped().now_or_never().is_some()
    }

    #[tokio::test]
    async fn the_oldest_without_a_token_makes_room() {
        let places = Places::new(3, Duration::ZERO);
        let (first, second, third) =
            (places.take().await, places.take().await, places.take().await);
        first.set_trusted(true);
        let fourth = places.take().await;
        assert_eq!([&first, &second, &third].map(has_to_go), [false, true, false]);
        // It may take a while until it has gone.
        drop(second);
        third.set_trusted(true);
        fourth.set_trusted(true);
        let fifth = places.take().await;
        assert_eq!([&first, &third, &fourth, &fifth].map(has_to_go), [true, false, false, false]);
    }

    #[tokio::test]
    async fn a_place_that_is_free_costs_nobody_his() {
        let places = Places::new(2, Duration::ZERO);
        let first = places.take().await;
        for _ in 0..10 {
            drop(places.take().await);
        }
        assert!(!has_to_go(&first));
    }

    #[tokio::test]
    async fn a_young_connection_is_waited_for() {
        let places = Places::new(1, Duration::from_secs(3600));
        let first = places.take().await;
        assert!(places.take().now_or_never().is_none());
        assert!(!has_to_go(&first));
        let second = places.clone();
        let waiting = tokio::spawn(async move { drop(second.take().await) });
        tokio::task::yield_now().await;
        drop(first);
        waiting.await.unwrap();

        let places = Places::new(1, Duration::from_millis(20));
        let first = places.take().await;
        let _second = places.take().await;
        assert!(has_to_go(&first));
    }
}
