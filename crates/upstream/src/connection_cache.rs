//! The open connections to one server: idle ones of HTTP/1.1, and shared ones of HTTP/2.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::http2;

use crate::proxy_protocol::Addresses;
use crate::sender::Http1;
use crate::upload::Upload;

/// The client connection that the PROXY header names; `None` without a header.
pub(crate) type Owner = Option<Addresses>;

/// The open connections.
#[derive(Default)]
pub(crate) struct ConnectionCache {
    /// Connections without a request; the most recently used one is last.
    idle: Mutex<Vec<IdleConnection>>,
    shared: Mutex<Vec<SharedConnection>>,
}

struct IdleConnection {
    connection: Http1,
    owner: Owner,
    since: Instant,
}

/// An HTTP/2 connection, for several concurrent requests.
struct SharedConnection {
    sender: http2::SendRequest<Upload>,
    /// Maximum number of concurrent streams that the server allows.
    max_streams: Arc<AtomicUsize>,
    owner: Owner,
    streams: Streams,
    /// When a request last got the connection, or the sweep last found it in use.
    last_used: Instant,
}

/// A request in flight on a shared connection.
pub(crate) struct Stream(Streams);

type Streams = Arc<AtomicUsize>;

/// Maximum number of concurrent streams on one connection, even if the server allows more: if the
/// connection fails, all of them fail.
const MAX_STREAMS: usize = 100;

impl ConnectionCache {
    /// Takes the most recently used idle connection.
    pub(crate) fn take(&self, owner: Owner) -> Option<Http1> {
        let mut idle = lock(&self.idle);
        loop {
            let index = idle.iter().rposition(|idle| idle.owner == owner)?;
            let found = idle.remove(index);
            if found.connection.is_ready() {
                return Some(found.connection);
            }
        }
    }

    /// Adds an idle connection, and drops the least recently used one above `max`.
    pub(crate) fn put(&self, connection: Http1, owner: Owner, max: usize, now: Instant) {
        let mut idle = lock(&self.idle);
        idle.push(IdleConnection { connection, owner, since: now });
        if idle.len() > max {
            idle.remove(0);
        }
    }

    /// Returns a shared connection with a free stream, and the stream.
    pub(crate) fn checkout_shared(
        &self,
        owner: Owner,
        now: Instant,
    ) -> Option<(http2::SendRequest<Upload>, Stream)> {
        let mut shared = lock(&self.shared);
        shared.retain(|shared| !shared.sender.is_closed());
        let free = shared.iter_mut().find(|shared| {
            let max = shared.max_streams.load(Ordering::Relaxed).min(MAX_STREAMS);
            shared.owner == owner && shared.streams.load(Ordering::Relaxed) < max
        })?;
        free.last_used = now;
        Some((free.sender.clone(), Stream::start(&free.streams)))
    }

    /// Adds a shared connection, and returns its first stream. Also drops the least recently used
    /// idle connections above `max`: with a PROXY header, each client has its own connection.
    pub(crate) fn add_shared(
        &self,
        sender: http2::SendRequest<Upload>,
        max_streams: Arc<AtomicUsize>,
        owner: Owner,
        max: usize,
        now: Instant,
    ) -> Stream {
        let streams = Streams::default();
        let stream = Stream::start(&streams);
        let mut shared = lock(&self.shared);
        drop_idle(&mut shared, max);
        shared.push(SharedConnection { sender, max_streams, owner, streams, last_used: now });
        stream
    }

    /// Removes the connection of this stream; running streams continue.
    pub(crate) fn discard(&self, stream: &Stream) {
        lock(&self.shared).retain(|shared| !Arc::ptr_eq(&shared.streams, &stream.0));
    }

    /// Closes connections that have not been used for `limit`, and those above `max`.
    pub(crate) fn sweep(&self, limit: Duration, max: usize, now: Instant) {
        let fresh = |since: Instant| now.duration_since(since) < limit;
        lock(&self.idle).retain(|idle| fresh(idle.since) && !idle.connection.is_closed());
        let mut shared = lock(&self.shared);
        shared.retain_mut(|shared| {
            if !shared.is_idle() {
                shared.last_used = now;
            }
            fresh(shared.last_used) && !shared.sender.is_closed()
        });
        drop_idle(&mut shared, max);
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.idle).len() + lock(&self.shared).len()
    }
}

impl SharedConnection {
    fn is_idle(&self) -> bool {
        self.streams.load(Ordering::Relaxed) == 0
    }
}

/// Drops the least recently used connections without a stream, above `max`.
fn drop_idle(shared: &mut Vec<SharedConnection>, max: usize) {
    let idle = shared.iter().filter(|shared| shared.is_idle()).count();
    let mut excess = idle.saturating_sub(max);
    if excess > 0 {
        shared.sort_by_key(|shared| shared.last_used);
        shared.retain(|shared| {
            let dropped = excess > 0 && shared.is_idle();
            excess -= usize::from(dropped);
            !dropped
        });
    }
}

impl Stream {
    fn start(streams: &Streams) -> Self {
        streams.fetch_add(1, Ordering::Relaxed);
        Self(streams.clone())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
