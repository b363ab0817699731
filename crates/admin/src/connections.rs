//! Limits of connections: how many there are, and how long a write may take.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Permits for connections. If all are in use, an old connection is closed for a new one, so that open
/// connections never keep a health probe waiting.
pub(crate) struct Permits {
    limit: usize,
    /// How long a new connection is protected, so that it can get its response.
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

    /// Takes a permit for a new connection. If all are in use, drops the oldest connection that is not
    /// trusted, or the oldest of all if each is trusted. Waits while that connection is younger than
    /// the grace period.
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

    /// Drops a connection if all permits are in use. Returns how long to wait if none may be dropped
    /// yet.
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
    /// Sets whether the last request of the connection was authorized.
    pub(crate) fn set_trusted(&self, trusted: bool) {
        if let Some(entry) = self.permits.taken().connections.get_mut(&self.number) {
            entry.trusted = trusted;
        }
    }

    /// Waits until the connection has to be closed for another one.
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

/// A stream whose writes fail if the peer does not read for the time of the timeout.
pub(crate) struct WriteTimeoutStream<S> {
    stream: S,
    write_timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> WriteTimeoutStream<S> {
    pub(crate) fn new(stream: S, write_timeout: Duration) -> Self {
        Self { stream, write_timeout, deadline: Box::pin(sleep(write_timeout)), waiting: false }
    }

    /// Returns the outcome of a write, or an error if the timeout has expired.
    fn limit<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waiting = false;
            return outcome;
        }
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(Instant::now() + self.write_timeout);
        }
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, data);
        self.limit(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.limit(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// Whether the connection has to be closed.
    fn is_dropped(permit: &Permit) -> bool {
        permit.dropped().now_or_never().is_some()
    }

    #[tokio::test]
    async fn the_oldest_connection_without_a_token_is_dropped() {
        let permits = Permits::new(3, Duration::ZERO);
        let (first, second, third) =
            (permits.take().await, permits.take().await, permits.take().await);
        first.set_trusted(true);
        let fourth = permits.take().await;
        assert_eq!([&first, &second, &third].map(is_dropped), [false, true, false]);
        // The permit is returned later.
        drop(second);
        third.set_trusted(true);
        fourth.set_trusted(true);
        let fifth = permits.take().await;
        assert_eq!([&first, &third, &fourth, &fifth].map(is_dropped), [true, false, false, false]);
    }

    #[tokio::test]
    async fn a_free_permit_closes_no_connection() {
        let permits = Permits::new(2, Duration::ZERO);
        let first = permits.take().await;
        for _ in 0..10 {
            drop(permits.take().await);
        }
        assert!(!is_dropped(&first));
    }

    #[tokio::test]
    async fn a_young_connection_is_waited_for() {
        let permits = Permits::new(1, Duration::from_secs(3600));
        let first = permits.take().await;
        assert!(permits.take().now_or_never().is_none());
        assert!(!is_dropped(&first));
        let second = permits.clone();
        let waiting = tokio::spawn(async move { drop(second.take().await) });
        tokio::task::yield_now().await;
        drop(first);
        waiting.await.unwrap();

        let permits = Permits::new(1, Duration::from_millis(20));
        let first = permits.take().await;
        let _second = permits.take().await;
        assert!(is_dropped(&first));
    }

    #[tokio::test]
    async fn a_write_times_out_only_if_the_peer_does_not_read() {
        let (ours, mut theirs) = duplex(8);
        let mut ours = WriteTimeoutStream::new(ours, Duration::from_millis(50));
        let reading = tokio::spawn(async move {
            let mut taken = [0; 32];
            theirs.read_exact(&mut taken).await.unwrap();
            theirs
        });
        ours.write_all(&[1; 32]).await.unwrap();
        let _stalled = reading.await.unwrap();
        let error = ours.write_all(&[1; 32]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
