//! The streams of a TCP connection: the socket, the TLS stream as the HTTP library sees it, and the
//! framing of HTTP/1.1 requests.

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

use crate::context::memory::{HANDSHAKE_BYTE_FACTOR, MemoryCharge};
use crate::http::ServerContext;
use crate::http::framing::Framing;
use crate::http::framing::{FrameMeter, IdleFrameLimit};

/// The TLS stream as the HTTP library sees it. It keeps early and later bytes apart: while the
/// reader is in early data, nothing more is read in a turn in which a read was pending.
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
    /// For HTTP/2.
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
    /// Bytes read by the HTTP library, in total and in this turn.
    read: AtomicU64,
    read_in_turn: AtomicU64,
    /// Bytes of DATA frames that the library has written.
    data: AtomicU64,
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

    /// Counts received frames. Returns false if there are too many without a request.
    fn allow(&mut self, bytes: &[u8]) -> bool {
        let counts = self.read.feed(bytes);
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

    /// Response bytes that an HTTP/2 client's flow control has let pass.
    pub(crate) fn data_written(&self) -> u64 {
        self.0.data.load(Ordering::Relaxed)
    }

    pub(crate) fn blocked_since(&self) -> Option<Instant> {
        let blocked = self.0.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        blocked.map(|(since, _)| since)
    }

    /// Updates whether the peer accepts what was written. `written`: the bytes that it has accepted
    /// so far.
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
            let written = frames.written.feed(&data[..*count]);
            self.progress.0.data.fetch_add(written.data, Ordering::Relaxed);
        }
        match result {
            // Written is not sent: the end of the turn decides.
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

/// A stream that delivers one request's head, then its body, then the next head.
pub(crate) struct FramedStream<S> {
    stream: S,
    requests: RequestFraming,
    /// Bytes that were read and may not be delivered yet.
    withheld: Bytes,
}

/// Tells a [`FramedStream`] which heads the library has read. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct RequestFraming(Arc<Mutex<FramingState>>);

#[derive(Default)]
struct FramingState {
    framing: Framing,
    /// Set if the library reads on before it has reported the head's body.
    reader: Option<Waker>,
}

/// No parser accepts this anywhere in a chunked body. The library therefore refuses the request by
/// itself, like any malformed body. An error would end the connection without a response.
const MALFORMED_CHUNK: Bytes = Bytes::from_static(b"\r\r");

impl<S> FramedStream<S> {
    pub(crate) fn new(stream: S, requests: RequestFraming) -> Self {
        Self { stream, requests, withheld: Bytes::new() }
    }
}

impl RequestFraming {
    /// The library has read a head. `length` is the length of its body, or `None` for a chunked
    /// body.
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
            if this.withheld.is_empty() {
                ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
                let read = &buffer.filled()[before..];
                let passed = state.framing.scan(read);
                this.withheld = Bytes::copy_from_slice(&read[passed..]);
                buffer.set_filled(before + passed);
            } else {
                let room = this.withheld.len().min(buffer.remaining());
                let passed = state.framing.scan(&this.withheld[..room]);
                buffer.put_slice(&this.withheld.split_to(passed));
            }
            if !state.framing.is_malformed() {
                return Poll::Ready(Ok(()));
            }
            this.withheld = MALFORMED_CHUNK;
        }
        // After that, report the end of the stream.
        let room = this.withheld.len().min(buffer.remaining());
        buffer.put_slice(&this.withheld.split_to(room));
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

/// The TCP socket below a TLS stream.
#[derive(Clone)]
pub(crate) struct Socket(Arc<SocketState>);

struct SocketState {
    stream: TcpStream,
    written: AtomicU64,
    metrics: Arc<Metrics>,
    /// Whether received bytes are buffered for the handshake, and their memory.
    in_handshake: AtomicBool,
    charge: MemoryCharge,
}

impl Socket {
    /// The socket of a client whose handshake starts.
    pub(crate) fn new(stream: TcpStream, shared: &ServerContext) -> Self {
        Self(Arc::new(SocketState {
            stream,
            written: AtomicU64::new(0),
            metrics: shared.observers.metrics.clone(),
            in_handshake: AtomicBool::new(true),
            charge: shared.memory.charge(),
        }))
    }

    /// The handshake has failed, or early data is decided: the buffered bytes are released.
    pub(crate) fn release_handshake_memory(&self) {
        self.0.in_handshake.store(false, Ordering::Relaxed);
        self.0.charge.clear();
    }

    /// Bytes that the kernel has accepted.
    pub(crate) fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// Closes the sending direction and reads for a short while, until the peer has closed its own.
    ///
    /// Closing a socket with unread bytes resets the connection. A reset can destroy a response or
    /// an alert that the peer has not read yet (RFC 9112 section 9.6).
    pub(crate) async fn linger(&self) {
        let _ = socket2::SockRef::from(&self.0.stream).shutdown(std::net::Shutdown::Write);
        let _ = timeout(LINGER_TIMEOUT, async {
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
                        && !self.0.charge.grow(count * HANDSHAKE_BYTE_FACTOR)
                    {
                        let why = "the memory limit for incomplete handshakes is reached";
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

/// How long and for how many bytes a closed connection waits for the peer's close: enough for what
/// a slow path has in flight, but not for an upload.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
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

    /// Sends these bytes to the library in two parts. Returns the requests with their bodies, and
    /// the statuses of the responses.
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
            // The server closes after a malformed request.
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

    /// Sends two more requests after these bytes, split at every offset.
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
