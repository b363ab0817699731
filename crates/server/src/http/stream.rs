//! The TLS stream of a TCP connection as the HTTP library sees it, and the tasks of its requests.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use firstflight_tls::{HandshakeDriver, SharedStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::frames::{FrameMeter, IdleFrameLimit};
use crate::http::socket::Socket;

/// The TLS stream as the HTTP library sees it. It keeps early and later bytes apart: while the
/// reader is in early data, nothing more is read in a turn ([`StreamProgress::start_turn`]) in
/// which a read was pending.
///
/// The TLS stream never returns early and later bytes from the same read, and is pending once
/// between them. That alone is not enough for HTTP/2. Whether a request was early is decided when
/// the library hands it over, and the library reads the socket again between two requests. The
/// second request of a flight could be handed over after a later byte was read, count as not early,
/// and bypass the gate. Within one turn the library hands over every request that it has read, so
/// the later bytes have to wait for the next turn.
///
/// What the library writes is sent at the end of the turn ([`HandshakeDriver::gather`]).
pub(crate) struct ConnectionStream {
    stream: SharedStream<Socket>,
    driver: HandshakeDriver<Socket>,
    socket: Socket,
    early: bool,
    progress: StreamProgress,
    /// Only for HTTP/2.
    frames: Option<Frames>,
}

/// Counts the frames in both directions, and limits those without a request.
struct Frames {
    read: FrameMeter,
    written: FrameMeter,
    limit: IdleFrameLimit,
}

/// State shared by the connection's task and its stream.
#[derive(Clone, Default)]
pub(crate) struct StreamProgress(Arc<ProgressState>);

#[derive(Default)]
struct ProgressState {
    /// Whether a read was pending in this turn.
    was_pending: AtomicBool,
    /// Bytes read by the HTTP library.
    read: AtomicU64,
    /// Those of this turn.
    read_in_turn: AtomicU64,
    /// Bytes of DATA frames that the library has written.
    data: AtomicU64,
    /// Whether the client has closed its direction while a response was on its way.
    half_closed: AtomicBool,
    /// Bytes that the peer has accepted.
    sent: AtomicU64,
    /// Since when the peer has accepted no bytes although some are pending, and how many it had
    /// accepted before.
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
        driver.buffer_writes();
        Self { stream, driver, socket, early, progress, frames: http2.then(Frames::new) }
    }
}

impl Frames {
    fn new() -> Self {
        Self {
            read: FrameMeter::for_client(),
            written: FrameMeter::default(),
            limit: IdleFrameLimit::new(Instant::now()),
        }
    }

    /// Counts received frames. Returns false if there are too many without a request.
    fn allow(&mut self, bytes: &[u8]) -> bool {
        let counts = self.read.count(bytes);
        counts.idle == 0 && counts.requests == 0 || self.limit.allows(counts, Instant::now())
    }
}

impl StreamProgress {
    /// Starts a turn of the connection's task. The library has handed over everything that was read
    /// before.
    pub(crate) fn start_turn(&self) {
        self.0.was_pending.store(false, Ordering::Relaxed);
        self.0.read_in_turn.store(0, Ordering::Relaxed);
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.0.read.load(Ordering::Relaxed)
    }

    /// Response bytes that an HTTP/2 client's flow control has permitted.
    pub(crate) fn data_written(&self) -> u64 {
        self.0.data.load(Ordering::Relaxed)
    }

    /// The client has closed its direction, and a response is on its way.
    pub(crate) fn note_half_closed(&self) {
        self.0.half_closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_half_closed(&self) -> bool {
        self.0.half_closed.load(Ordering::Relaxed)
    }

    /// Bytes that the peer has accepted.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn blocked_since(&self) -> Option<Instant> {
        let blocked = self.0.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        blocked.map(|(since, _)| since)
    }

    /// Updates whether the peer accepts what was written. `written`: the bytes that it has accepted
    /// so far.
    pub(crate) fn note_write<T>(&self, result: Poll<T>, written: u64) -> Poll<T> {
        self.0.sent.store(written, Ordering::Relaxed);
        let mut blocked = self.0.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        *blocked = match (&result, *blocked) {
            (Poll::Ready(_), _) => None,
            (Poll::Pending, Some((since, before))) if before == written => Some((since, before)),
            (Poll::Pending, _) => Some((Instant::now(), written)),
        };
        result
    }
}

/// Bytes that one connection may read before other connections get their turn. Without a limit, a
/// client that sends faster than the library parses occupies a thread: a flood of small header
/// fields delayed others by a quarter of a second.
const MAX_TURN_BYTES: u64 = 64 * 1024;

impl AsyncRead for ConnectionStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.early && this.progress.0.was_pending.load(Ordering::Relaxed) {
            // The pending read has registered its waker.
            return Poll::Pending;
        }
        if this.progress.0.read_in_turn.load(Ordering::Relaxed) >= MAX_TURN_BYTES {
            // More bytes are available: other connections first, then this one again.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if this.early {
            this.progress.0.was_pending.store(result.is_pending(), Ordering::Relaxed);
            this.early = this.driver.reading_early();
        }
        let count = buffer.filled().len() - before;
        this.progress.0.read.fetch_add(count as u64, Ordering::Relaxed);
        this.progress.0.read_in_turn.fetch_add(count as u64, Ordering::Relaxed);
        if let Some(frames) = &mut this.frames
            && !frames.allow(&buffer.filled()[before..])
        {
            return Poll::Ready(Err(io::Error::other("too many HTTP/2 frames without a request")));
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
            let written = frames.written.count(&data[..*count]);
            frames.limit.permit(written.data_frames);
            self.progress.0.data.fetch_add(written.data, Ordering::Relaxed);
        }
        match result {
            // Not sent yet: the end of the turn shows whether the peer accepts the bytes.
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

/// Collects the futures of HTTP/2 streams for the connection's own task.
#[derive(Clone, Default)]
pub(crate) struct StreamTasks(Arc<Mutex<Vec<StreamTask>>>);

pub(crate) type StreamTask = Pin<Box<dyn Future<Output = ()> + Send>>;

impl StreamTasks {
    /// Adds a future.
    pub(crate) fn add(&self, stream: StreamTask) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// Takes the futures added since the last call.
    pub(crate) fn take(&self) -> Vec<StreamTask> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamTasks {
    fn execute(&self, future: F) {
        self.add(Box::pin(future));
    }
}
