//! TLS on a socket.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buffers::{DeliveredBytes, Phase};
use crate::{
    AcceptState, Accepting, Acceptor, ConnectOptions, Connector, Handshake, OpenedTicket, Progress,
    Session, SteadyClock, TlsConnection, TlsError,
};

/// A TLS connection on a socket.
///
/// - Writes are buffered and sent on [`AsyncWrite::poll_flush`], or when a read has to wait. So a
///   server's flight and its response leave in one write, and so do a client's ClientHello and its
///   early data.
/// - On a server, one read never returns both early data and later data. Between them, one read
///   returns `Pending` once. So a reader that parses everything before it reads again has parsed all
///   early requests before it sees the first later byte ([`TlsStream::reading_early`]). A reader
///   that reads again within the same poll, as HTTP/2 libraries do, must not get later bytes
///   until it has returned what it has parsed.
/// - Closing completes the handshake first, by reading up to the client's Finished. Otherwise a
///   reset could destroy the response to early data.
pub struct TlsStream<S> {
    io: S,
    connection: TlsConnection,
    /// Decrypted data for the reader, and whether it is early data.
    delivered: DeliveredBytes,
    close_sent: bool,
    send_mode: SendMode,
    /// See [`TlsStream::before_last_write`].
    before_last_write: Option<fn(&S)>,
    /// The bytes read so far, while the handshake may have to be restarted ([`Accepting`]).
    received: Option<Vec<u8>>,
    /// When the last of these bytes were read, by [`SteadyClock`], before BoringSSL processed them.
    received_at: i64,
}

/// The outcome of [`TlsStream::poll_start`].
pub(crate) enum StartOutcome {
    /// Data can be read or written.
    Done,
    /// A server has to look up the session of the client's ticket.
    NeedsSession(Vec<u8>),
    /// Another connection used the client's ticket before. Returned once.
    TicketUsed,
}

/// When the outgoing buffer is sent, apart from the end of the stream and a full buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendMode {
    /// On a flush, and when a read has to wait.
    Immediate,
    /// As `Immediate`, but reads send only once the handshake is complete.
    DeferFlight,
    /// On [`TlsStream::poll_send`] only.
    Manual,
}

/// A write waits for the socket while the outgoing buffer holds more than this.
const MAX_OUTGOING_BYTES: usize = 64 * 1024;

/// One read from the socket: a full record and its header.
const READ_AHEAD_BYTES: usize = 16 * 1024 + 512;

/// The most that is buffered for restarting a handshake: a ClientHello of 16 KiB, BoringSSL's limit,
/// early data of 16 KiB that TLS skips, and one read-ahead. Only records of a few bytes are more.
const MAX_RECEIVED_BYTES: usize = 52 * 1024;

/// The growth step of that buffer. Most ClientHellos fit into the first step.
const RECEIVED_STEP_BYTES: usize = 4 * 1024;

/// The most early data that is decrypted at once.
const MAX_EARLY_READ_BYTES: usize = 1024;

/// The most that one write passes to BoringSSL.
const MAX_WRITE_BYTES: usize = 64 * 1024;

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Accepts a connection. Returns when the handshake is complete or early data can be read. The
    /// server's flight may still be unsent then, so that it leaves together with the response.
    ///
    /// TLS alone decides whether early data is accepted, and no session is looked up. To control
    /// either, use [`Accepting`].
    ///
    /// # Errors
    /// [`TlsError`]. The alert was sent if the socket accepted it.
    pub async fn accept(acceptor: &Acceptor, io: S, early_data: bool) -> Result<Self, TlsError> {
        let mut accepting = Accepting::new(acceptor, io, early_data)?;
        loop {
            match accepting.advance().await? {
                AcceptState::NeedsSession(_) => accepting.provide_session(OpenedTicket::Ignored),
                AcceptState::TicketUsed => {}
                AcceptState::EarlyData | AcceptState::Complete => {
                    return Ok(accepting.into_stream());
                }
            }
        }
    }

    /// Connects. Returns when the handshake is complete, or immediately if early data can be
    /// written. In that case nothing is sent before the first flush.
    ///
    /// # Errors
    /// [`TlsError`].
    pub async fn connect(
        connector: &Connector,
        io: S,
        offer: &ConnectOptions,
    ) -> Result<Self, TlsError> {
        let mut stream = Self::new(connector.connection(offer)?, io, Phase::Late);
        std::future::poll_fn(|cx| stream.poll_start(cx)).await?;
        Ok(stream)
    }

    /// What was negotiated so far.
    pub fn facts(&self) -> Handshake {
        self.connection.facts()
    }

    /// Whether early data can still be written (client) or read (server).
    pub fn in_early_data(&self) -> bool {
        self.connection.in_early_data()
    }

    /// Whether the handshake is complete: the peer's Finished has been verified.
    pub fn is_complete(&self) -> bool {
        self.connection.is_complete()
    }

    /// On a server: whether early data was accepted and every byte read so far was early data. A
    /// request that was completely parsed while this is true can be a replay. The converse holds
    /// only for readers that follow the type's documentation.
    pub fn reading_early(&self) -> bool {
        self.delivered.is_early()
    }

    /// Bytes of early data that a client has written, accepted or not.
    pub fn early_bytes_written(&self) -> usize {
        self.connection.early_bytes_written()
    }

    /// On a client: the sessions received since the last call.
    pub fn take_sessions(&mut self) -> Vec<Session> {
        self.connection.take_sessions()
    }

    /// The socket below.
    pub fn socket(&self) -> &S {
        &self.io
    }

    /// Sets a function to call with the socket just before its last write and its shutdown.
    pub fn before_last_write(&mut self, call: fn(&S)) {
        self.before_last_write = Some(call);
    }

    /// Completes the handshake by reading, even if the application does not read. Buffers early data
    /// that arrives meanwhile (on a server at most [`crate::MAX_EARLY_DATA`]).
    ///
    /// # Errors
    /// [`TlsError`] as `io::Error`.
    pub fn poll_complete(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = [0; MAX_EARLY_READ_BYTES];
        while !self.connection.is_complete() {
            // While early data is readable, only reads advance a server's handshake.
            let progress = match self.delivered.is_early() {
                false => self.connection.handshake().map(|progress| progress.map(|()| 0)),
                true => self.connection.read(&mut buffer),
            };
            match progress.map_err(TlsError::into_io)? {
                Progress::Done(count) => {
                    self.delivered.push(self.connection.in_early_data(), &buffer[..count]);
                }
                // The read processed Finished and found no data after it, or close_notify.
                Progress::NeedsInput | Progress::Closed if self.connection.is_complete() => break,
                Progress::NeedsInput => ready!(self.poll_exchange(cx))?,
                Progress::Closed => {
                    return Poll::Ready(Err(TlsError::ClosedInHandshake.into_io()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn new(connection: TlsConnection, io: S, phase: Phase) -> Self {
        Self {
            io,
            connection,
            delivered: DeliveredBytes::new(phase),
            close_sent: false,
            send_mode: SendMode::Immediate,
            before_last_write: None,
            received: None,
            received_at: SteadyClock::unix_micros(),
        }
    }

    /// From now on, appends what is read to `received`.
    pub(crate) fn keep_received(&mut self, received: Vec<u8>) {
        self.received = Some(received);
    }

    /// Takes the bytes read so far, and stops buffering them.
    pub(crate) fn take_received(&mut self) -> Option<Vec<u8>> {
        self.received.take()
    }

    pub(crate) fn received_at(&self) -> i64 {
        self.received_at
    }

    pub(crate) fn connection_mut(&mut self) -> &mut TlsConnection {
        &mut self.connection
    }

    /// Called on a server before the first read.
    pub(crate) fn start_reading(&mut self) {
        if !self.connection.in_early_data() {
            self.delivered.set_late();
        }
    }

    /// Continues the handshake until it is complete or in early data.
    pub(crate) fn poll_start(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StartOutcome, TlsError>> {
        loop {
            match self.connection.handshake() {
                Ok(Progress::Done(())) => return Poll::Ready(Ok(StartOutcome::Done)),
                Ok(Progress::NeedsInput) => match self.connection.take_needed_session() {
                    Some(id) => return Poll::Ready(Ok(StartOutcome::NeedsSession(id))),
                    None if self.connection.take_already_used() => {
                        return Poll::Ready(Ok(StartOutcome::TicketUsed));
                    }
                    None => ready!(self.poll_exchange(cx))?,
                },
                Ok(Progress::Closed) => return Poll::Ready(Err(TlsError::ClosedInHandshake)),
                Err(error) => {
                    // Sends the alert if the socket accepts it.
                    let _ = self.poll_send(cx);
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// From now on reads do not send before the handshake is complete: an HTTP library reads again
    /// between taking a request and responding to it, and the flight would leave without the
    /// response. The caller polls [`TlsStream::poll_complete`] after the reader, which sends the
    /// flight in any case.
    pub(crate) fn defer_flight(&mut self) {
        self.send_mode = SendMode::DeferFlight;
    }

    /// From now on neither reads nor flushes send; see [`crate::HandshakeDriver::buffer_writes`].
    pub(crate) fn buffer_writes(&mut self) {
        self.send_mode = SendMode::Manual;
    }

    /// See [`TlsConnection::write_tickets`]. What is written leaves with the next send.
    pub(crate) fn write_tickets(&mut self) -> io::Result<()> {
        self.connection.write_tickets().map_err(TlsError::into_io)
    }

    /// Reads from the socket once, for a reader.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.send_mode {
            SendMode::Manual => self.poll_receive(cx),
            SendMode::DeferFlight if !self.connection.is_complete() => self.poll_receive(cx),
            SendMode::DeferFlight | SendMode::Immediate => self.poll_exchange(cx),
        }
    }

    /// Sends the outgoing buffer, then reads from the socket once.
    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Reads even if sending has to wait: a peer that does not read must not block this side.
        let sent = self.poll_send(cx);
        let received = self.poll_receive(cx);
        match (sent, received) {
            // What the peer sent before it disconnected is read first.
            (Poll::Ready(Err(_)), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
            (Poll::Ready(Err(error)), _) => Poll::Ready(Err(error)),
            (_, received) => received,
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut space = [MaybeUninit::uninit(); READ_AHEAD_BYTES];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        match buffer.filled() {
            [] => self.connection.feed_eof(),
            bytes => {
                if let Some(received) = &mut self.received {
                    if received.len() + bytes.len() > MAX_RECEIVED_BYTES {
                        let why = "the ClientHello is split into too many records";
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
                    }
                    if received.capacity() - received.len() < bytes.len() {
                        // Bounds the memory of handshakes that stall here.
                        received.reserve_exact(bytes.len().next_multiple_of(RECEIVED_STEP_BYTES));
                    }
                    received.extend_from_slice(bytes);
                    self.received_at = SteadyClock::unix_micros();
                }
                self.connection.feed(bytes);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the outgoing buffer.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.connection.outgoing().is_empty() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, self.connection.outgoing()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.connection.sent(count);
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some(buffered) = this.delivered.read(cx, buffer) {
                return buffered.map(Ok);
            }
            if !this.delivered.is_early() {
                match this.connection.read_buf(buffer) {
                    Ok(Progress::Done(()) | Progress::Closed) => return Poll::Ready(Ok(())),
                    Ok(Progress::NeedsInput) => ready!(this.poll_more(cx))?,
                    Err(error) => return this.fail(cx, error),
                }
                continue;
            }
            // In early data each record passes through `delivered`, which tracks the phase.
            let mut record = [0; MAX_EARLY_READ_BYTES];
            match this.connection.read(&mut record) {
                Ok(Progress::Done(count)) => {
                    this.delivered.push(this.connection.in_early_data(), &record[..count]);
                }
                Ok(Progress::NeedsInput) => ready!(this.poll_more(cx))?,
                Ok(Progress::Closed) => return Poll::Ready(Ok(())),
                Err(error) => return this.fail(cx, error),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    fn fail(&mut self, cx: &mut Context<'_>, error: TlsError) -> Poll<io::Result<()>> {
        let _ = self.poll_send(cx);
        Poll::Ready(Err(error.into_io()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.connection.outgoing().len() >= MAX_OUTGOING_BYTES {
            ready!(this.poll_send(cx))?;
        }
        loop {
            match this.connection.write(&data[..data.len().min(MAX_WRITE_BYTES)]) {
                Ok(Progress::Done(count)) => return Poll::Ready(Ok(count)),
                Ok(Progress::NeedsInput) => ready!(this.poll_exchange(cx))?,
                Ok(Progress::Closed) => {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
                Err(error) => return Poll::Ready(Err(error.into_io())),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A full buffer is sent in any case, so that a slow peer slows the writer down.
        match self.send_mode == SendMode::Manual
            && self.connection.outgoing().len() < MAX_OUTGOING_BYTES
        {
            true => Poll::Ready(Ok(())),
            false => self.poll_send(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.close_sent {
            // A peer that has disconnected, or never completes its handshake (a replay), is not an
            // error here: the response was sent, and the caller limits the time for this.
            let complete = ready!(this.poll_complete(cx));
            this.close_sent = true;
            if complete.is_ok() {
                this.connection.close().map_err(TlsError::into_io)?;
            }
        }
        if let Some(call) = this.before_last_write
            && !this.connection.outgoing().is_empty()
        {
            call(&this.io);
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}
