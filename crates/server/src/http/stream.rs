//! The streams of a TCP connection: the socket, TLS as the HTTP library sees it, and for HTTP/1.1
//! one request at a time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_telemetry::metrics::{Metrics, Transport};
use firstflight_tls::{HandshakeDriver, SharedStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::context::memory::{Charge, HANDSHAKE_BYTE};
use crate::http::Shared;
use crate::http::framing::Framing;
use crate::http::framing::{FrameMeter, IdleFrameLimit};

/// The TLS stream as the HTTP library sees it: once a read has had to wait in a turn, nothing more
/// is read in that turn while the reader is in early data.
///
/// The TLS stream gives way once between the last early byte and the first later one. That alone
/// is not enough for HTTP/2: the library asks the socket again between handing over one request
/// and the next, so the second request of a flight would be handed over after a later byte was
/// read, count as not early, and pass the gate by. Within one turn every request that was read is
/// handed over, so the later bytes have to wait for the next turn.
///
/// What the library writes in a turn waits for the turn's end ([`HandshakeDriver::gather`]).
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
pub(crate) struct StreamProgress(Arc<ProgressState>);

#[derive(Default)]
struct ProgressState {
    /// Whether a read has had to wait in this turn.
    waited: AtomicBool,
    /// Bytes given to the HTTP library so far, and in this turn.
    read: AtomicU64,
    read_in_turn: AtomicU64,
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
        driver.buffer_writes();
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
    /// Starts a turn of the connection's task. Everything read before has been handed over.
    pub(crate) fn begin(&self) {
        self.0.waited.store(false, Ordering::Relaxed);
        self.0.read_in_turn.store(0, Ordering::Relaxed);
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.0.read.load(Ordering::Relaxed)
    }

    /// Bytes of responses that an HTTP/2 client's windows have let go so far.
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
/// faster than the library works has a thread to himself: a flood of small header fields kept
/// others waiting for a quarter of a second at a time.
const MAX_TURN_BYTES: u64 = 64 * 1024;

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
        if this.progress.0.read_in_turn.load(Ordering::Relaxed) >= MAX_TURN_BYTES {
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
        this.progress.0.read_in_turn.fetch_add(count as u64, Ordering::Relaxed);
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
            // Written is not sent: the turn's end will tell.
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
/// connection, and a response that is there at once leaves in one write with the server's flight.
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

/// A stream whose reader gets a request's head, then what belongs to its body, then the next head.
pub(crate) struct FramedStream<S> {
    stream: S,
    requests: RequestFraming,
    /// What was read and may not be given yet.
    held: Bytes,
}

/// What the reader of a [`FramedStream`] says about the heads that it has read. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct RequestFraming(Arc<Mutex<FramingState>>);

#[derive(Default)]
struct FramingState {
    framing: Framing,
    /// Of a reader that asks for more before it has said what body its head has.
    reader: Option<Waker>,
}

/// In a chunked body no reader takes this for anything, wherever it stands. So the reader refuses
/// the request itself, in its own time, as it refuses any body that is malformed. An error would
/// end the connection before a response.
const NO_BODY: Bytes = Bytes::from_static(b"\r\r");

impl<S> FramedStream<S> {
    pub(crate) fn new(stream: S, requests: RequestFraming) -> Self {
        Self { stream, requests, held: Bytes::new() }
    }
}

impl RequestFraming {
    /// A head was read, whose body has this length or, if it has none, comes in chunks.
    pub(crate) fn head_read(&self, length: Option<u64>) {
        self.change(|framing| framing.head_read(length));
    }

    /// The connection becomes a tunnel with its next response.
    pub(crate) fn become_tunnel(&self) {
        self.change(Framing::become_tunnel);
    }

    fn change(&self, change: impl FnOnce(&mut Framing)) {
        let mut state = self.lock();
        change(&mut state.framing);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, FramingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FramedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut state = this.requests.lock();
        if state.framing.is_waiting() {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        if !state.framing.is_malformed() {
            if this.held.is_empty() {
                ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
                let read = &buffer.filled()[before..];
                let passed = state.framing.scan(read);
                this.held = Bytes::copy_from_slice(&read[passed..]);
                buffer.set_filled(before + passed);
            } else {
                let room = this.held.len().min(buffer.remaining());
                let passed = state.framing.scan(&this.held[..room]);
                buffer.put_slice(&this.held.split_to(passed));
            }
            if !state.framing.is_malformed() {
                return Poll::Ready(Ok(()));
            }
            this.held = NO_BODY;
        }
        // Behind that it is as if the client had closed.
        let room = this.held.len().min(buffer.remaining());
        buffer.put_slice(&this.held.split_to(room));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FramedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The socket under a TLS stream.
#[derive(Clone)]
pub(crate) struct Socket(Arc<Inner>);

struct Inner {
    stream: TcpStream,
    written: AtomicU64,
    metrics: Arc<Metrics>,
    /// Whether what is read is kept for the handshake, and what that holds.
    in_handshake: AtomicBool,
    charge: Charge,
}

impl Socket {
    /// A client's, whose handshake starts.
    pub(crate) fn new(stream: TcpStream, shared: &Shared) -> Self {
        Self(Arc::new(Inner {
            stream,
            written: AtomicU64::new(0),
            metrics: shared.observers.metrics.clone(),
            in_handshake: AtomicBool::new(true),
            charge: shared.memory.open(),
        }))
    }

    /// Early data is decided, or the handshake has failed: what was read for it is not kept any
    /// longer.
    pub(crate) fn has_handshake(&self) {
        self.0.in_handshake.store(false, Ordering::Relaxed);
        self.0.charge.clear();
    }

    /// Bytes that the kernel has taken so far.
    pub(crate) fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// Ends our direction and reads on for a short while until the peer has ended its own.
    ///
    /// Bytes that are unread when a socket is closed turn the close into a reset, which can
    /// destroy a response or an alert that the peer has not read yet (RFC 9112 section 9.6).
    pub(crate) async fn linger(&self) {
        let _ = socket2::SockRef::from(&self.0.stream).shutdown(std::net::Shutdown::Write);
        let _ = timeout(LINGER, async {
            let mut scratch = vec![0; 16 * 1024];
            let mut left = MAX_LINGER_BYTES;
            while left > 0 && self.0.stream.readable().await.is_ok() {
                match self.0.stream.try_read(&mut scratch) {
                    Ok(0) => break,
                    Ok(count) => left = left.saturating_sub(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
        })
        .await;
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.stream.poll_read_ready(cx))?;
            match self.0.stream.try_read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    self.0.metrics.connections.received.add(Transport::Tcp, count as u64);
                    if self.0.in_handshake.load(Ordering::Relaxed)
                        && !self.0.charge.grow(count * HANDSHAKE_BYTE)
                    {
                        let why = "too many handshakes are incomplete";
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, why)));
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.stream.poll_write_ready(cx))?;
            match self.0.stream.try_write(data) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => {
                    self.0.written.fetch_add(count as u64, Ordering::Relaxed);
                    self.0.metrics.connections.sent.add(Transport::Tcp, count as u64);
                    return Poll::Ready(Ok(count));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(socket2::SockRef::from(&self.0.stream).shutdown(std::net::Shutdown::Write))
    }
}

/// How long a closed connection waits for the peer's own close, and for how many bytes: what a
/// slow path still has in flight, not an upload.
const LINGER: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http::{Request, Response, StatusCode};
    use http_body::Body as _;
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::timeout;

    use super::*;

    /// What the library makes of these bytes, which come in two parts: requests and their bodies,
    /// and the statuses of the responses.
    async fn read(bytes: &[u8], split: usize) -> (Vec<String>, Vec<u16>) {
        let (mut client, server) = duplex(1 << 16);
        let requests = RequestFraming::default();
        let stream = FramedStream::new(server, requests.clone());
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let log = seen.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            requests.head_read(request.body().size_hint().exact());
            let log = log.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await;
                let mut response = Response::new(Full::<Bytes>::default());
                match body {
                    Ok(body) => {
                        let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
                        log.lock().unwrap().push(format!("{} {body}", head.uri));
                    }
                    Err(_) => *response.status_mut() = StatusCode::BAD_REQUEST,
                }
                Ok::<_, Infallible>(response)
            }
        });
        let serving =
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        for part in [&bytes[..split], &bytes[split..]] {
            // A server that has had enough closes.
            let _ = client.write_all(part).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        let mut response = String::new();
        let reading = client.read_to_string(&mut response);
        timeout(Duration::from_secs(30), reading).await.expect("the connection ends").unwrap();
        let _ = serving.await.unwrap();
        let statuses =
            response.split("HTTP/1.1 ").skip(1).map(|rest| rest[..3].parse().unwrap()).collect();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        (seen, statuses)
    }

    const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    const LAST: &str = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

    /// Two more requests come behind these bytes, however all of it is cut.
    async fn expect(bytes: &str, bodies: &[&str], statuses: &[u16]) {
        let bytes = format!("{bytes}{NEXT}{LAST}");
        for split in 0..=bytes.len() {
            let (seen, responses) = read(bytes.as_bytes(), split).await;
            assert_eq!(seen, bodies, "{bytes:?}, split at {split}");
            assert_eq!(responses, statuses, "{bytes:?}, split at {split}");
        }
    }

    fn post(body: &str) -> String {
        format!("POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
    }

    #[tokio::test]
    async fn rfc9112_7_1_2_a_bare_lf_in_a_trailer_section_swallows_no_request() {
        for trailers in ["\n", "X: a\n\r\n", "X: a\n\n", "X: a\r\n\n"] {
            expect(&post(&format!("5\r\nhello\r\n0\r\n{trailers}")), &[], &[400]).await;
        }
        expect(&post("5\r\nhello\n0\r\n\r\n"), &[], &[400]).await;
    }

    #[tokio::test]
    async fn requests_of_good_form_stay_what_they_are() {
        let all = ["/a hello", "/next ", "/last "];
        for body in ["5\r\nhello\r\n0\r\n\r\n", "2\r\nhe\r\n3;x=y\r\nllo\r\n00\r\nX: a\r\n\r\n"] {
            expect(&post(body), &all, &[200, 200, 200]).await;
        }
        let length = "\r\nPOST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
        expect(length, &all, &[200, 200, 200]).await;
        expect("GET /a HTTP/1.1\nHost: h\n\n", &["/a ", "/next ", "/last "], &[200; 3]).await;
    }

    #[tokio::test]
    async fn a_tunnels_bytes_are_no_requests() {
        let (mut client, server) = duplex(1 << 16);
        let requests = RequestFraming::default();
        let mut stream = FramedStream::new(server, requests.clone());
        let head = "GET / HTTP/1.1\r\n\r\n";
        client.write_all(format!("{head}\n\n\r\n\r\n").as_bytes()).await.unwrap();
        drop(client);
        let mut given = String::new();
        stream.read_exact(&mut vec![0; head.len()]).await.unwrap();
        let reading = tokio::spawn(async move {
            stream.read_to_string(&mut given).await.unwrap();
            given
        });
        tokio::task::yield_now().await;
        requests.become_tunnel();
        assert_eq!(reading.await.unwrap(), "\n\n\r\n\r\n");
    }
}
