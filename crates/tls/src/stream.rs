use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::given::{DeliveredBytes, Phase};
use crate::{
    Accepted, Accepting, Acceptor, Connector, Handshake, Machine, Offer, OpenedTicket, Progress,
    Session, SteadyClock, TlsError,
};

/// A TLS connection on a socket.
///
/// - What the library writes is gathered and leaves on [`AsyncWrite::poll_flush`] or when a read
///   has to wait: a server's handshake flight and its response, a client's ClientHello and its early
///   data each leave as one.
/// - On a server, bytes of early data and later bytes are never mixed in one read, and a read that
///   goes from the first to the second gives way once, so that a reader which parses all that it
///   has before it reads again has seen all early requests before the first later byte
///   ([`TlsStream::reading_early`]). A reader that asks again within one poll, as HTTP/2 libraries
///   do, must be kept from it until it has handed over what it parsed.
/// - Closing drains the handshake to the client's Finished first; otherwise the response to early
///   data could be lost to a reset.
pub struct TlsStream<S> {
    io: S,
    machine: Machine,
    /// What the reader has not been given yet, and where it stands.
    given: DeliveredBytes,
    close_said: bool,
    sending: Sending,
    /// What was read so far, as long as the handshake may have to start again ([`Accepting`]).
    heard: Option<Vec<u8>>,
    /// When the last of it came, by [`SteadyClock`]; before the library was given it.
    heard_at: i64,
}

/// How far [`TlsStream::poll_start`] came.
pub(crate) enum Started {
    /// Data can be read or written.
    Done,
    /// A server has to fetch the session of the client's ticket.
    NeedsSession(Vec<u8>),
}

/// When what waits in the outgoing buffer is sent, apart from the end of the stream and a full
/// buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// By a flush, and by a read that has to wait.
    Promptly,
    /// The same, but a read does so only once the handshake is complete.
    FlightWaits,
    /// By [`TlsStream::poll_send`] alone: whoever asks for this calls it after each poll.
    AtPassEnd,
}

/// How much may wait in the outgoing buffer before a write has to wait for the socket.
const MAX_OUTGOING: usize = 64 * 1024;

/// How much one read takes from the socket: a full record and its header.
const READ_AHEAD: usize = 16 * 1024 + 512;

/// How much is kept for a handshake that may have to start again. The library takes a ClientHello
/// of 16 KiB, and a read-ahead comes on top; only one cut into records of a few bytes is more.
const MAX_HEARD: usize = 34 * 1024;

/// By how much the place for it grows. Most ClientHellos fit into the first.
const HEARD_STEP: usize = 4 * 1024;

/// How much one write hands to the library.
const MAX_WRITE: usize = 64 * 1024;

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Accepts a connection; returns when the handshake is complete or early data can be read.
    /// The server's flight may still be unsent then, so that it leaves together with the response.
    /// Early data is accepted as TLS would, and a session that is elsewhere is not fetched; see
    /// [`Accepting`] for both.
    ///
    /// # Errors
    /// [`TlsError`]; the alert has been sent as far as the socket took it.
    pub async fn accept(acceptor: &Acceptor, io: S, early_data: bool) -> Result<Self, TlsError> {
        let mut accepting = Accepting::new(acceptor, io, early_data)?;
        while let Accepted::NeedsSession(_) = accepting.advance().await? {
            accepting.provide_session(OpenedTicket::Ignored);
        }
        Ok(accepting.into_stream())
    }

    /// Connects; returns when the handshake is complete, or at once when early data can be
    /// written. Nothing is sent in the second case before the first flush.
    ///
    /// # Errors
    /// [`TlsError`].
    pub async fn connect(connector: &Connector, io: S, offer: &Offer) -> Result<Self, TlsError> {
        let mut stream = Self::new(connector.machine(offer)?, io, Phase::Late);
        std::future::poll_fn(|cx| stream.poll_start(cx)).await?;
        Ok(stream)
    }

    /// What was negotiated so far.
    pub fn facts(&self) -> Handshake {
        self.machine.facts()
    }

    /// Whether the connection is in early data: a client may still write some, a server may still
    /// read some.
    pub fn in_early_data(&self) -> bool {
        self.machine.in_early_data()
    }

    /// Whether the peer's Finished has been verified.
    pub fn is_complete(&self) -> bool {
        self.machine.is_complete()
    }

    /// On a server: whether early data was accepted and every byte given to the reader so far was
    /// early data. A request that was parsed whole while this is true can be a replay; the converse
    /// holds only for readers as the type's documentation describes them.
    pub fn reading_early(&self) -> bool {
        self.given.is_early()
    }

    /// Bytes of early data that a client has written, accepted or not.
    pub fn early_bytes_written(&self) -> usize {
        self.machine.early_bytes_written()
    }

    /// The sessions that came in since the last call (client).
    pub fn take_sessions(&mut self) -> Vec<Session> {
        self.machine.take_sessions()
    }

    /// The socket below.
    pub fn socket(&self) -> &S {
        &self.io
    }

    /// Completes the handshake by reading, without waiting for the application to read: early data
    /// that comes in meanwhile is kept for it (on a server [`crate::MAX_EARLY_DATA`] at most).
    ///
    /// # Errors
    /// [`TlsError`] as `io::Error`.
    pub fn poll_complete(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = [0; 4096];
        while !self.machine.is_complete() {
            // A server's completion is driven by reads as long as early data is readable.
            let progress = match self.given.is_early() {
                false => self.machine.handshake().map(|progress| progress.map(|()| 0)),
                true => self.machine.read(&mut buffer),
            };
            match progress.map_err(TlsError::into_io)? {
                Progress::Done(count) => {
                    self.given.keep(self.machine.in_early_data(), &buffer[..count]);
                }
                // The read that met Finished found nothing behind it.
                Progress::NeedsInput if self.machine.is_complete() => break,
                Progress::NeedsInput => ready!(self.poll_exchange(cx))?,
                Progress::Closed => {
                    return Poll::Ready(Err(TlsError::ClosedInHandshake.into_io()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn new(machine: Machine, io: S, phase: Phase) -> Self {
        Self {
            io,
            machine,
            given: DeliveredBytes::new(phase),
            close_said: false,
            sending: Sending::Promptly,
            heard: None,
            heard_at: SteadyClock::unix_micros(),
        }
    }

    /// From now on what is read is kept too.
    pub(crate) fn keep_what_is_heard(&mut self) {
        self.heard = Some(Vec::new());
    }

    /// What was read so far, if it was kept. It is kept no longer.
    pub(crate) fn take_heard(&mut self) -> Option<Vec<u8>> {
        self.heard.take()
    }

    pub(crate) fn heard_at(&self) -> i64 {
        self.heard_at
    }

    pub(crate) fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// A server's readers start: without early data, all that they read is late.
    pub(crate) fn begin(&mut self) {
        if !self.machine.in_early_data() {
            self.given.begin_late();
        }
    }

    /// Carries the handshake on until it is complete or in early data.
    pub(crate) fn poll_start(&mut self, cx: &mut Context<'_>) -> Poll<Result<Started, TlsError>> {
        loop {
            match self.machine.handshake() {
                Ok(Progress::Done(())) => return Poll::Ready(Ok(Started::Done)),
                Ok(Progress::NeedsInput) => match self.machine.needed_session() {
                    Some(id) => return Poll::Ready(Ok(Started::NeedsSession(id))),
                    None => ready!(self.poll_exchange(cx))?,
                },
                Ok(Progress::Closed) => return Poll::Ready(Err(TlsError::ClosedInHandshake)),
                Err(error) => {
                    // The peer is owed the alert; whether it can take it does not matter any more.
                    let _ = self.poll_send(cx);
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// From now on a read that has to wait before the handshake is complete does not send what
    /// waits: an HTTP library looks for more to read between taking a request and answering it, and
    /// the flight would leave without the response. Whoever calls this polls
    /// [`TlsStream::poll_complete`] after each reader, which sends it in any case.
    pub(crate) fn let_flight_wait(&mut self) {
        self.sending = Sending::FlightWaits;
    }

    /// From now on neither a read that has to wait nor a flush sends anything; see
    /// [`crate::HandshakeDriver::gather`].
    pub(crate) fn gather(&mut self) {
        self.sending = Sending::AtPassEnd;
    }

    /// Reads from the socket once, for a reader.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.sending {
            Sending::AtPassEnd => self.poll_receive(cx),
            Sending::FlightWaits if !self.machine.is_complete() => self.poll_receive(cx),
            Sending::FlightWaits | Sending::Promptly => self.poll_exchange(cx),
        }
    }

    /// Sends what waits, then reads from the socket once.
    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Both directions: a peer that does not read must not keep us from reading.
        if let Poll::Ready(Err(error)) = self.poll_send(cx) {
            return Poll::Ready(Err(error));
        }
        self.poll_receive(cx)
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut space = [MaybeUninit::uninit(); READ_AHEAD];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        match buffer.filled() {
            [] => self.machine.feed_eof(),
            bytes => {
                if let Some(heard) = &mut self.heard {
                    if heard.len() + bytes.len() > MAX_HEARD {
                        let why = "the ClientHello comes in too many pieces";
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
                    }
                    if heard.capacity() - heard.len() < bytes.len() {
                        // No more than a step too much, however many handshakes stop here.
                        heard.reserve_exact(bytes.len().next_multiple_of(HEARD_STEP));
                    }
                    heard.extend_from_slice(bytes);
                    self.heard_at = SteadyClock::unix_micros();
                }
                self.machine.feed(bytes);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what waits.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.machine.outgoing().is_empty() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, self.machine.outgoing()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.machine.sent(count);
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
            if let Some(kept) = this.given.read(cx, buffer) {
                return kept.map(Ok);
            }
            if !this.given.is_early() {
                match this.machine.read(buffer.initialize_unfilled()) {
                    Ok(Progress::Done(count)) => {
                        buffer.advance(count);
                        return Poll::Ready(Ok(()));
                    }
                    Ok(Progress::Closed) => return Poll::Ready(Ok(())),
                    Ok(Progress::NeedsInput) => ready!(this.poll_more(cx))?,
                    Err(error) => return this.fail(cx, error),
                }
                continue;
            }
            // Early: one record at a time goes through the kept bytes, which know their phase.
            let mut record = [0; 4096];
            match this.machine.read(&mut record) {
                Ok(Progress::Done(count)) => {
                    this.given.keep(this.machine.in_early_data(), &record[..count]);
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
        if this.machine.outgoing().len() >= MAX_OUTGOING {
            ready!(this.poll_send(cx))?;
        }
        loop {
            match this.machine.write(&data[..data.len().min(MAX_WRITE)]) {
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
        // A full buffer is sent all the same: it is the writer's only sign of a slow peer.
        match self.sending == Sending::AtPassEnd && self.machine.outgoing().len() < MAX_OUTGOING {
            true => Poll::Ready(Ok(())),
            false => self.poll_send(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.close_said {
            // A peer that has gone, or that never ends its handshake (a replay), is no reason to
            // fail here: what it was sent is sent, and the caller limits how long this may take.
            let complete = ready!(this.poll_complete(cx));
            this.close_said = true;
            if complete.is_ok() {
                this.machine.close().map_err(TlsError::into_io)?;
            }
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}
