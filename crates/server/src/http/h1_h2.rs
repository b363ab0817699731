//! HTTP/1.1 and HTTP/2: one task drives the library, its streams, the handshake and the time limits
//! of a connection.
//!
//! # Why one task
//!
//! BoringSSL completes a handshake by reading, and an HTTP library does not read while it waits for
//! a response. A held request would wait forever. So `split_driver` splits the TLS stream into a part
//! for the library and a [`HandshakeDriver`], and one task polls both, since a socket wakes only the
//! last task that polled it.
//!
//! HTTP/2 streams run on this task too. They end with the connection, and a response that is ready
//! immediately leaves in one write with the server's flight. For that the library's reads must not
//! send anything: hyper reads on between taking a request and responding to it, and would send the
//! flight first. The driver is polled after the library, and sends what was not sent with a
//! response.
//!
//! # Idle connections
//!
//! hyper keeps two buffers of 8 KiB for an HTTP/1.1 connection, also between requests. A connection
//! that has been idle for a second drops its hyper connection, and creates a new one when the next
//! byte arrives.
//!
//! # Half-closed connections
//!
//! close_notify closes one direction only (RFC 8446 section 6.1), so an HTTP/1.1 client that has
//! sent its request and close_notify gets its response. The connection stays open as long as the
//! response makes progress; [`FramedStream`] withholds the end from the library, which would abort
//! the request. Whether the client is still connected is known once something is sent. An end
//! without close_notify aborts.
//!
//! # Tickets
//!
//! The tickets of a connection leave in one write with its first response. If no request comes, such as
//! on a connection that a browser opens in advance, they are sent alone after [`TICKETS_DELAY`].
//!
//! # Tunnels
//!
//! WebSocket tunnels also run here. Over HTTP/1.1 hyper hands the stream over when the tunnel
//! opens, but the stream still wakes this task and sends at the end of its turn. A tunnel's request
//! lasts as long as the tunnel, so the limits, the drain and the log apply to it without further
//! rules.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use firstflight_tls::{HandshakeDriver, SharedStream};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::time::Sleep;
use tracing::debug;

use crate::context::{ShutdownStage, wait_for_stage};
use crate::http::connection::{CompletionSignal, Connection};
use crate::http::framed_stream::{FramedStream, RequestFraming};
use crate::http::request::HttpService;
use crate::http::socket::Socket;
use crate::http::stream::{ConnectionStream, StreamProgress, StreamTask, StreamTasks};

/// Serves HTTP until the connection ends. Returns whether it ended cleanly.
pub(crate) fn serve(
    connection: Arc<Connection>,
    stream: SharedStream<Socket>,
    driver: HandshakeDriver<Socket>,
    socket: Socket,
    completion: CompletionSignal,
    accepted_at: Instant,
    stages: watch::Receiver<ShutdownStage>,
) -> impl Future<Output = bool> + Send {
    let progress = StreamProgress::default();
    let spawned = StreamTasks::default();
    let http2 = connection.facts().tls.alpn.as_deref() == Some(b"h2");
    let io = ConnectionStream::new(stream, driver.clone(), socket.clone(), progress.clone(), http2);
    let shared = (spawned.clone(), progress.clone());
    let library = Library::new(&connection, driver.clone(), io, shared);
    let http2 = library.is_http2();
    ConnectionTask {
        limits: TimeLimits::new(connection.clone(), progress.clone(), accepted_at),
        connection,
        library,
        spawned,
        streams: FuturesUnordered::new(),
        tunnels: Vec::new(),
        driver,
        socket,
        ended: None,
        completion,
        progress,
        // HTTP/1.1 cannot tell a client that its request was not processed. After a handoff, a
        // kept connection ends with its next response instead.
        stopping: Box::pin(next_stage(
            ShutdownStage::Running,
            stages,
            if http2 { ShutdownStage::HandedOver } else { ShutdownStage::Draining },
        )),
    }
}

/// The HTTP library's connection, by the protocol negotiated with ALPN (RFC 7301).
enum Library {
    Http1(Http1Library),
    Http2(Pin<Box<http2::Connection<TokioIo<ConnectionStream>, HttpService, StreamTasks>>>),
}

struct Http1Library {
    connection: Arc<Connection>,
    framing: RequestFraming,
    progress: StreamProgress,
    /// `None` while the connection is idle.
    hyper: Option<Pin<Box<Http1>>>,
    /// The parts of the next hyper connection, while the connection is idle.
    parts: Option<Box<Http1Parts>>,
}

type Http1 = http1::UpgradeableConnection<Http1Io, HttpService>;
type Http1Io = TokioIo<FramedStream<ConnectionStream>>;

struct Http1Parts {
    io: Http1Io,
    service: HttpService,
}

impl Http1Parts {
    fn start(self, connection: &Connection) -> Pin<Box<Http1>> {
        // `TimeLimits` applies the limits on heads and idle connections for both protocols.
        let hyper = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .keep_alive(connection.snapshot.keep_alive)
            .max_header_size(connection.snapshot.limits.header_size)
            .serve_connection(self.io, self.service)
            .with_upgrades();
        Box::pin(hyper)
    }
}

impl Http1Library {
    fn new(
        connection: &Arc<Connection>,
        driver: HandshakeDriver<Socket>,
        io: ConnectionStream,
        progress: StreamProgress,
    ) -> Self {
        let framing = RequestFraming::default();
        let service = HttpService::new(connection.clone(), driver, Some(framing.clone()));
        let keeps_open = {
            let (connection, progress) = (connection.clone(), progress.clone());
            move || {
                let is_busy = connection.is_busy();
                if is_busy {
                    progress.note_half_closed();
                }
                is_busy
            }
        };
        let io = FramedStream::new(io, framing.clone()).with_half_close(keeps_open);
        let io = TokioIo::new(io);
        let hyper = Http1Parts { io, service }.start(connection);
        let connection = connection.clone();
        Self { connection, framing, progress, hyper: Some(hyper), parts: None }
    }

    /// Creates the hyper connection, if there is none.
    fn resume(&mut self) {
        if let Some(parts) = self.parts.take() {
            self.hyper = Some(parts.start(&self.connection));
        }
    }

    /// Drops the hyper connection between two requests. It has read whole requests only, so its
    /// buffers are empty.
    fn release(&mut self) {
        if !self.framing.is_between_requests() {
            return;
        }
        let parts = self.hyper.take().and_then(|hyper| Pin::into_inner(hyper).into_parts());
        self.parts =
            parts.map(|parts| Box::new(Http1Parts { io: parts.io, service: parts.service }));
    }

    fn poll(&mut self, cx: &mut Context<'_>, socket: &Socket) -> Poll<hyper::Result<()>> {
        if self.parts.is_some() {
            ready!(socket.poll_readable(cx));
            self.resume();
        }
        let Some(hyper) = &mut self.hyper else { return Poll::Ready(Ok(())) };
        let result = hyper.as_mut().poll(cx);
        if result.is_pending() && self.progress.is_half_closed() && !self.connection.is_busy() {
            // The last read of hyper was pending, and only another poll makes it read the end.
            return hyper.as_mut().poll(cx);
        }
        result
    }

    fn finish(&mut self) {
        self.resume();
        if let Some(hyper) = &mut self.hyper {
            hyper.as_mut().graceful_shutdown();
        }
    }
}

impl Library {
    fn new(
        connection: &Arc<Connection>,
        driver: HandshakeDriver<Socket>,
        io: ConnectionStream,
        (spawned, progress): (StreamTasks, StreamProgress),
    ) -> Self {
        let limits = &connection.snapshot.limits;
        if connection.facts().tls.alpn.as_deref() == Some(b"h2") {
            let service = HttpService::new(connection.clone(), driver, None);
            let streams = connection.max_http2_streams();
            // hyper limits rapid resets (CVE-2023-44487) by itself.
            let connection = http2::Builder::new(spawned)
                .timer(TokioTimer::new())
                .enable_connect_protocol()
                .max_concurrent_streams(streams)
                .max_header_list_size(u32::try_from(limits.header_size).unwrap_or(u32::MAX))
                .serve_connection(TokioIo::new(io), service);
            return Self::Http2(Box::pin(connection));
        }
        Self::Http1(Http1Library::new(connection, driver, io, progress))
    }

    fn poll(&mut self, cx: &mut Context<'_>, socket: &Socket) -> Poll<hyper::Result<()>> {
        match self {
            Self::Http1(library) => library.poll(cx, socket),
            Self::Http2(connection) => connection.as_mut().poll(cx),
        }
    }

    /// Gives memory back while the connection is idle.
    fn release(&mut self) {
        if let Self::Http1(library) = self {
            library.release();
        }
    }

    /// Ends the connection after the running requests.
    fn finish(&mut self) {
        match self {
            Self::Http1(library) => library.finish(),
            Self::Http2(connection) => connection.as_mut().graceful_shutdown(),
        }
    }

    fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(_))
    }
}

struct ConnectionTask {
    connection: Arc<Connection>,
    library: Library,
    spawned: StreamTasks,
    streams: FuturesUnordered<StreamTask>,
    tunnels: Vec<StreamTask>,
    driver: HandshakeDriver<Socket>,
    socket: Socket,
    /// Set when the library has ended: whether it ended cleanly. Its last bytes may still be
    /// unsent.
    ended: Option<bool>,
    completion: CompletionSignal,
    progress: StreamProgress,
    limits: TimeLimits,
    stopping: Pin<Box<dyn Future<Output = (ShutdownStage, watch::Receiver<ShutdownStage>)> + Send>>,
}

impl Future for ConnectionTask {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let this = self.get_mut();
        if this.poll_stop(cx) == Some(ShutdownStage::Abort) {
            return Poll::Ready(false);
        }
        if this.ended.is_none()
            && let Poll::Ready(ended_cleanly) = this.poll_protocol(cx)
        {
            this.ended = Some(ended_cleanly);
        }
        this.poll_tunnels(cx);
        match (this.ended, this.poll_send(cx)) {
            (Some(ended_cleanly), Poll::Ready(_)) if this.tunnels.is_empty() => {
                return Poll::Ready(ended_cleanly);
            }
            (_, Poll::Ready(Some(ended_cleanly))) => return Poll::Ready(ended_cleanly),
            _ => {}
        }
        // Over HTTP/1.1 the response itself says so (`Connection: close`).
        let is_last = !this.connection.snapshot.keep_alive || this.connection.is_replayed();
        if is_last && this.library.is_http2() && this.connection.requests_received() > 0 {
            this.finish(cx);
        }
        loop {
            match this.limits.poll(cx, this.library.is_http2()) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Expired::Abort) => return Poll::Ready(false),
                Poll::Ready(Expired::Finish) => this.finish(cx),
                Poll::Ready(Expired::Release) if this.ended.is_none() => this.library.release(),
                Poll::Ready(Expired::Release) => {}
                Poll::Ready(Expired::Tickets) => match this.driver.write_tickets() {
                    // The next turn sends them.
                    Ok(()) => cx.waker().wake_by_ref(),
                    Err(_) => return Poll::Ready(false),
                },
            }
        }
    }
}

impl ConnectionTask {
    /// Polls the library before the handshake: a response that is ready immediately then leaves in
    /// one write with the server's flight.
    fn poll_protocol(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let ended = self.poll_library(cx);
        if self.connection.is_complete() {
            return ended;
        }
        if ended.is_ready() {
            // Closing reads up to the client's Finished.
            if self.driver.is_complete() {
                self.completion.signal(&self.connection);
            }
            return ended;
        }
        match self.driver.poll_complete(cx) {
            Poll::Ready(Ok(())) => {
                self.completion.signal(&self.connection);
            }
            Poll::Ready(Err(error)) => {
                debug!("{}: {error}", self.connection.facts().client);
                return Poll::Ready(false);
            }
            Poll::Pending => {}
        }
        // Held requests may run now, and early data may have been read during the handshake.
        self.poll_library(cx)
    }

    /// Sends what this turn has written, in one write, so that it uses as few segments as possible.
    /// Returns `Some` if the socket has failed, with whether the connection ended cleanly.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Option<bool>> {
        let sent = self.driver.poll_send(cx);
        self.progress.note_write(sent, self.socket.written()).map(|sent| match sent {
            Ok(()) => None,
            Err(error) => {
                debug!("{}: {error}", self.connection.facts().client);
                Some(self.connection.is_complete())
            }
        })
    }

    fn poll_library(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.progress.start_turn();
        if let Poll::Ready(result) = self.library.poll(cx, &self.socket) {
            return Poll::Ready(self.is_clean_end(result));
        }
        self.streams.extend(self.spawned.take());
        if self.streams.is_empty() {
            return Poll::Pending;
        }
        while let Poll::Ready(Some(())) = self.streams.poll_next_unpin(cx) {}
        // In the same turn: the library sends the streams' responses and reads no further.
        let result = self.library.poll(cx, &self.socket).map(|result| self.is_clean_end(result));
        self.streams.extend(self.spawned.take());
        if !self.streams.is_empty() && result.is_pending() {
            // New streams have to be polled once to register their wakers.
            while let Poll::Ready(Some(())) = self.streams.poll_next_unpin(cx) {}
        }
        result
    }

    /// Polled after the library, which hands the stream over when a tunnel starts. Each tunnel is
    /// polled in each turn, because the stream wakes only the task.
    fn poll_tunnels(&mut self, cx: &mut Context<'_>) {
        self.tunnels.extend(self.connection.tunnels.take());
        if self.ended.is_some() {
            self.progress.start_turn();
        }
        self.tunnels.retain_mut(|tunnel| tunnel.as_mut().poll(cx).is_pending());
    }

    fn poll_stop(&mut self, cx: &mut Context<'_>) -> Option<ShutdownStage> {
        let Poll::Ready((stage, receiver)) = self.stopping.as_mut().poll(cx) else {
            return None;
        };
        let finish_stage = if self.library.is_http2() {
            ShutdownStage::HandedOver
        } else {
            ShutdownStage::Draining
        };
        self.stopping = Box::pin(next_stage(stage, receiver, finish_stage));
        // Registers for the next stage.
        if let Poll::Ready((stage, _)) = self.stopping.as_mut().poll(cx) {
            return Some(stage);
        }
        if self.library.is_http2() || self.connection.requests_received() > 0 {
            self.limits.stopping = Some(Instant::now());
            self.library.finish();
        }
        // Otherwise the first request is still on its way, and its response will say that it is the
        // last (`request.rs`): HTTP/1.1 cannot tell a client that its request was not processed.
        Some(stage)
    }

    fn finish(&mut self, cx: &mut Context<'_>) {
        if !self.limits.finishing {
            self.limits.finishing = true;
            self.library.finish();
            cx.waker().wake_by_ref();
        }
    }

    fn is_clean_end(&self, result: hyper::Result<()>) -> bool {
        if let Err(error) = &result {
            debug!("{}: {error}", self.connection.facts().client);
        }
        // After a head that is too large, the peer should still be able to read the response.
        result.is_ok() || self.connection.is_complete()
    }
}

/// Waits for the shutdown stage after `stage`. Only two matter here: from `finish_stage` on,
/// requests are finished; then everything is aborted.
async fn next_stage(
    stage: ShutdownStage,
    mut receiver: watch::Receiver<ShutdownStage>,
    finish_stage: ShutdownStage,
) -> (ShutdownStage, watch::Receiver<ShutdownStage>) {
    match stage {
        ShutdownStage::Running | ShutdownStage::Announced => {
            wait_for_stage(&mut receiver, finish_stage).await
        }
        ShutdownStage::HandedOver | ShutdownStage::Draining => {
            wait_for_stage(&mut receiver, ShutdownStage::Abort).await
        }
        ShutdownStage::Abort => std::future::pending().await,
    }
    let now = *receiver.borrow();
    (now, receiver)
}

/// What to do when a time limit is exceeded.
enum Expired {
    /// Close the connection gracefully.
    Finish,
    /// Drop the connection.
    Abort,
    /// Give memory back.
    Release,
    /// Send the tickets without a response.
    Tickets,
}

/// The time limits of one connection.
struct TimeLimits {
    connection: Arc<Connection>,
    progress: StreamProgress,
    accepted_at: Instant,
    /// Since when an HTTP/2 client's flow control has permitted no response bytes, and how many it
    /// had permitted before.
    unacknowledged: Option<(Instant, u64)>,
    /// On a half-closed connection: since when the client has accepted no response bytes, and how many
    /// it had accepted before.
    half_closed: Option<(Instant, u64)>,
    /// When tickets are sent without a response.
    tickets: TicketsDue,
    /// Set while no request is running and no response bytes are unsent.
    idle: Option<Idle>,
    /// Whether memory was given back since the connection became idle.
    released: bool,
    stopping: Option<Instant>,
    /// Whether the library was told to end the connection.
    finishing: bool,
    /// When a time limit ended the connection.
    expired: Option<Instant>,
    sleep: Pin<Box<Sleep>>,
}

/// When the tickets of a connection are sent without a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TicketsDue {
    /// The handshake is not complete.
    Unknown,
    At(Instant),
    /// They were sent, or leave with a response.
    Never,
}

#[derive(Clone, Copy)]
struct Idle {
    since: Instant,
    /// The requests and bytes that had been received by then.
    requests: u64,
    bytes_read: u64,
    /// Response bytes that HTTP/2 had written by then.
    data: u64,
    /// When the first byte of the next request's head arrived.
    head: Option<Instant>,
}

impl TimeLimits {
    fn new(connection: Arc<Connection>, progress: StreamProgress, accepted_at: Instant) -> Self {
        let first = accepted_at + connection.snapshot.limits.header_timeout;
        Self {
            connection,
            progress,
            accepted_at,
            unacknowledged: None,
            half_closed: None,
            tickets: TicketsDue::Unknown,
            idle: None,
            released: false,
            stopping: None,
            finishing: false,
            expired: None,
            sleep: Box::pin(tokio::time::sleep_until(first.into())),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, http2: bool) -> Poll<Expired> {
        self.update(http2);
        let deadline = self.deadline();
        if let Some(deadline) = deadline {
            if self.sleep.deadline() != deadline.into() {
                self.sleep.as_mut().reset(deadline.into());
            }
            if self.sleep.as_mut().poll(cx).is_ready() {
                if self.tickets == TicketsDue::At(deadline) {
                    self.tickets = TicketsDue::Never;
                    return Poll::Ready(Expired::Tickets);
                }
                if self.release_deadline() == Some(deadline) {
                    self.released = true;
                    return Poll::Ready(Expired::Release);
                }
                return Poll::Ready(self.expire());
            }
        }
        Poll::Pending
    }

    /// Updates the state from what has changed since the last poll.
    fn update(&mut self, http2: bool) {
        let data = self.progress.data_written();
        let has_unsent = http2 && self.connection.observer.unsent.load(Ordering::Relaxed) > 0;
        if !has_unsent || self.unacknowledged.is_none_or(|(_, before)| before != data) {
            self.unacknowledged = has_unsent.then(|| (Instant::now(), data));
        }
        if self.progress.is_half_closed() {
            let sent = self.progress.bytes_sent();
            if self.half_closed.is_none_or(|(_, before)| before != sent) {
                self.half_closed = Some((Instant::now(), sent));
            }
        }
        // Tickets leave with a response, or with the SETTINGS of HTTP/2.
        if http2 || self.progress.bytes_read() > 0 {
            self.tickets = TicketsDue::Never;
        } else if self.tickets == TicketsDue::Unknown && self.connection.is_complete() {
            self.tickets = TicketsDue::At(Instant::now() + TICKETS_DELAY);
        }
        // The library considers a request complete when it has all of the response, possibly long
        // before the client has.
        if self.connection.is_busy() || self.progress.blocked_since().is_some() {
            self.idle = None;
            self.released = false;
            return;
        }
        let (now, bytes_read) = (Instant::now(), self.progress.bytes_read());
        let requests = self.connection.requests_received();
        // Requests that were completed within one turn have ended the idle time before.
        if self.idle.is_some_and(|idle| idle.requests != requests) {
            self.idle = None;
            self.released = false;
        }
        let new = Idle { since: now, requests, bytes_read, data, head: None };
        let idle = self.idle.get_or_insert(new);
        if idle.data != data {
            (idle.since, idle.data) = (now, data);
        }
        // In HTTP/2 bytes without a request may be any frames, and the connection is still idle.
        if !http2 && bytes_read != idle.bytes_read {
            idle.head.get_or_insert(now);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let limits = &self.connection.snapshot.limits;
        if let (Some(expired), Some(idle)) = (self.expired, self.idle) {
            return Some(expired.max(idle.since) + CLOSE_TIMEOUT);
        }
        let first = !self.connection.is_complete() || self.connection.requests_received() == 0;
        let stopping = self.stopping.zip(self.idle).map(|(since, idle)| since.max(idle.since));
        [
            first.then(|| self.accepted_at + limits.header_timeout),
            self.idle.map(|idle| idle.since + limits.idle_timeout),
            self.idle.and_then(|idle| idle.head).map(|head| head + limits.header_timeout),
            self.progress.blocked_since().map(|since| since + limits.idle_timeout),
            self.unacknowledged.map(|(since, _)| since + limits.idle_timeout),
            self.half_closed.map(|(since, _)| since + limits.idle_timeout),
            match self.tickets {
                TicketsDue::At(due) => Some(due),
                TicketsDue::Unknown | TicketsDue::Never => None,
            },
            stopping.map(|since| since + CLOSE_TIMEOUT),
            self.release_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn release_deadline(&self) -> Option<Instant> {
        let is_kept_alive =
            self.connection.is_complete() && self.connection.requests_received() > 0;
        let is_ending = self.finishing || self.stopping.is_some();
        let may_release = is_kept_alive && !is_ending && !self.released;
        let idle = self.idle.filter(|idle| may_release && idle.head.is_none());
        idle.map(|idle| idle.since + RELEASE_DELAY)
    }

    fn expire(&mut self) -> Expired {
        // While a response is running or being sent, only a stall is limited.
        if self.idle.is_none() || self.expired.is_some() || !self.connection.is_complete() {
            self.connection.note_timeout();
            return Expired::Abort;
        }
        self.expired = Some(Instant::now());
        Expired::Finish
    }
}

/// How long tickets wait for the first request. A client that has a request sends it right after
/// its Finished.
const TICKETS_DELAY: Duration = Duration::from_millis(50);

/// How long a connection is idle before it gives memory back. Connections in use keep theirs.
const RELEASE_DELAY: Duration = Duration::from_secs(1);

/// How long a peer has to read the last bytes of an idle or stopped connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
