//! What an HTTP library reads in one progress of its connection's task, and where its streams run.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use firstflight_tls::{HandshakeDriver, SharedStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::h2_frames::{FrameMeter, IdleFrameLimit};
use crate::http::socket::Socket;

/// The TLS stream as the HTTP library sees it: once a read has had to wait in a progress, nothing more
/// is read in that progress while the reader is in early data.
///
/// The TLS stream gives way once between the last early byte and the first later one. That alone
/// is not enough for HTTP/2: the library asks the socket again between handing over one request
/// and the next, so the second request of a flight would be handed over after a later byte was
/// read, count as not early, and progress the gate by. Within one progress every request that was read is
/// handed over, so the later bytes have to wait for the next progress.
///
/// What the library writes in a progress waits for the progress's end ([`HandshakeDriver::gather`]).
pub(crate) struct ConnectionStream {
    stream: SharedStream<Socket>,
    driver: HandshakeDriver<Socket>,
    socket: Socket,
    early: bool,
    progress: StreamProgress,
    /// For HTTP/2.
    frames: Option<Frames>,
}

/// What goes by in both directions, and how much of it is too much.
struct Frames {
    read: FrameMeter,
    written: FrameMeter,
    limit: IdleFrameLimit,
}

/// What the connection's task and its stream tell each other.
#[derive(Clone, Default)]
pub(crate) struct StreamProgress(Arc<State>);

#[derive(Default)]
struct State {
    /// Whether a read has had to wait in this progress.
    waited: AtomicBool,
    /// Bytes given to the HTTP library so far, and in this progress.
    read: AtomicU64,
    read_in_pass: AtomicU64,
    /// Bytes of DATA frames that the library has written so far.
    data: AtomicU64,
    /// Since when the peer has taken no bytes though some wait for it, and how many it had taken.
    blocked: Mutex<Option<(Instant, u64)>>,
}

impl ConnectionStream {
    pub(crate) fn new(
        stream: SharedStream<Socket>,
        driver: HandshakeDriver<Socket>,
        socket: Socket,
        progress: StreamProgress,
        http2: bool,
    ) -> Self {
        let early = driver.reading_early();
        driver.gather();
        Self { stream, driver, socket, early, progress, frames: http2.then(Frames::new) }
    }
}

impl Frames {
    fn new() -> Self {
        Self {
            read: FrameMeter::of_client(),
            written: FrameMeter::default(),
            limit: IdleFrameLimit::new(Instant::now()),
        }
    }

    /// Takes note of what the client sent. False: it is too much.
    fn allow(&mut self, bytes: &[u8]) -> bool {
        let counts = self.read.feed(bytes);
        counts.idle == 0 && counts.requests == 0 || self.limit.allows(counts, Instant::now())
    }
}

impl StreamProgress {
    /// Begins a progress. Everything read before has been handed over.
    pub(crate) fn begin(&self) {
        self.0.waited.store(false, Ordering::Relaxed);
        self.0.read_in_pass.store(0, Ordering::Relaxed);
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.0.read.load(Ordering::Relaxed)
    }

    /// Bytes of answers that an HTTP/2 client's windows have let go so far.
    pub(crate) fn data_written(&self) -> u64 {
        self.0.data.load(Ordering::Relaxed)
    }

    pub(crate) fn blocked_since(&self) -> Option<Instant> {
        let blocked = self.0.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        blocked.map(|(since, _)| since)
    }

    /// Takes note of whether the peer takes what was written. `written`: what it has taken so far.
    pub(crate) fn note_write<T>(&self, result: Poll<T>, written: u64) -> Poll<T> {
        let mut blocked = self.0.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        *blocked = match (&result, *blocked) {
            (Poll::Ready(_), _) => None,
            (Poll::Pending, Some((since, before))) if before == written => Some((since, before)),
            (Poll::Pending, _) => Some((Instant::now(), written)),
        };
        result
    }
}

/// Bytes that one connection may have read before others get their turn. Without a bound, who sends
/// faster than the library works has a thread to himself: a flood of small header fields kept others
/// waiting for a quarter of a second at a time.
const MAX_PASS: u64 = 64 * 1024;

impl AsyncRead for ConnectionStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.early && this.progress.0.waited.load(Ordering::Relaxed) {
            // The read that had to wait has left its waker.
            return Poll::Pending;
        }
        if this.progress.0.read_in_pass.load(Ordering::Relaxed) >= MAX_PASS {
            // The rest is there already: other connections first, then on at once.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if this.early {
            this.progress.0.waited.store(result.is_pending(), Ordering::Relaxed);
            this.early = this.driver.reading_early();
        }
        let count = buffer.filled().len() - before;
        this.progress.0.read.fetch_add(count as u64, Ordering::Relaxed);
        this.progress.0.read_in_pass.fetch_add(count as u64, Ordering::Relaxed);
        if let Some(frames) = &mut this.frames
            && !frames.allow(&buffer.filled()[before..])
        {
            return Poll::Ready(Err(io::Error::other("frames without end, and no request")));
        }
        result
    }
}

impl AsyncWrite for ConnectionStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, data);
        if let (Poll::Ready(Ok(count)), Some(frames)) = (&result, &mut self.frames) {
            let written = frames.written.feed(&data[..*count]);
            self.progress.0.data.fetch_add(written.data, Ordering::Relaxed);
        }
        match result {
            // Written is not sent: the progress's end will tell.
            Poll::Ready(_) => result,
            Poll::Pending => self.progress.note_write(result, self.socket.written()),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        match result {
            Poll::Ready(_) => result,
            Poll::Pending => self.progress.note_write(result, self.socket.written()),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Takes the futures of HTTP/2 streams for the connection's own task: they end with the
/// connection, and an answer that is there at once leaves in one write with the server's flight.
#[derive(Clone, Default)]
pub(crate) struct StreamTasks(Arc<Mutex<Vec<StreamTask>>>);

pub(crate) type StreamTask = Pin<Box<dyn Future<Output = ()> + Send>>;

impl StreamTasks {
    /// Adds one.
    pub(crate) fn add(&self, stream: StreamTask) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// The futures that came since the last call.
    pub(crate) fn take(&self) -> Vec<StreamTask> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamTasks {
    fn execute(&self, future: F) {
        self.add(Box::pin(future));
    }
}
