use std::io;
use std::sync::PoisonError;

use boring::error::ErrorStack;
use boring::ssl::{Error, ErrorCode, Ssl, SslRef, SslStream};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;
use tokio::io::ReadBuf;

use crate::buffers::{Queue, Wire};
use crate::error::reasons;
use crate::session::SessionInbox;
use crate::{
    EarlyData, EarlyDataReason, Handshake, OpenedTicket, Session, TlsError, handshake, ticket,
};

/// The outcome of one operation on a [`TlsConnection`].
#[derive(Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// Done.
    Done(T),
    /// More bytes from the peer are needed: send [`TlsConnection::outgoing`], then feed.
    NeedsInput,
    /// The peer sent close_notify.
    Closed,
}

impl<T> Progress<T> {
    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Progress<U> {
        match self {
            Self::Done(value) => Progress::Done(convert(value)),
            Self::NeedsInput => Progress::NeedsInput,
            Self::Closed => Progress::Closed,
        }
    }
}

/// One TLS connection without a socket. Bytes from the peer go in through [`TlsConnection::feed`],
/// bytes for the peer come out of [`TlsConnection::outgoing`], and no call blocks.
///
/// While a server is in early data, [`TlsConnection::read`] returns early data. It completes the
/// handshake when EndOfEarlyData and Finished arrive. What [`TlsConnection::write`] sends before is
/// half-RTT data (RFC 8446 appendix E.1).
///
/// While a client is in early data, [`TlsConnection::write`] sends early data. If the server refuses
/// it, the connection writes it again by itself after the handshake.
pub struct TlsConnection {
    stream: SslStream<Wire>,
    role: Role,
    client: ClientEarlyData,
}

pub(crate) enum Role {
    Server {
        /// Whether it is still undecided if the tickets to issue allow early data. This is decided
        /// once the ClientHello has been processed.
        tickets_undecided: bool,
        /// Whether the client's ticket may still have to be used up.
        ticket_unused: bool,
    },
    Client {
        inbox: SessionInbox,
    },
}

/// A client's early data, until the server has accepted or refused it.
#[derive(Default)]
struct ClientEarlyData {
    /// Whether the connection was ever in early data.
    offered: bool,
    /// What was written, until the server has accepted it.
    buffered: Vec<u8>,
    /// Bytes written so far.
    written: usize,
    /// Why the server refused it.
    refused: Option<EarlyDataReason>,
    /// Set between the refusal and the second write: the application protocol (ALPN) that the bytes
    /// were written for.
    resend_for: Option<Option<Vec<u8>>>,
}

/// How much early data a client buffers to write it again after a refusal. The server chooses
/// `max_early_data_size`, so the client needs a bound too; more is written after the handshake.
const MAX_BUFFERED_EARLY_DATA: usize = 64 * 1024;

/// The content type of a record with handshake messages (RFC 8446 section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

impl TlsConnection {
    pub(crate) fn new(ssl: Ssl, role: Role) -> Result<Self, TlsError> {
        // SAFETY: the connection is valid and its handshake has not started.
        unsafe {
            match role {
                Role::Server { .. } => ffi::SSL_set_accept_state(ssl.as_ptr()),
                Role::Client { .. } => ffi::SSL_set_connect_state(ssl.as_ptr()),
            }
        }
        let stream = SslStream::new(ssl, Wire::default())
            .map_err(TlsError::setup("a connection's buffers"))?;
        Ok(Self { stream, role, client: ClientEarlyData::default() })
    }

    /// Takes bytes from the peer.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.stream.get_mut().incoming.append(bytes);
    }

    /// Signals the end of the peer's bytes (EOF).
    pub fn feed_eof(&mut self) {
        self.stream.get_mut().eof = true;
    }

    /// The bytes to send to the peer.
    pub fn outgoing(&self) -> &[u8] {
        self.stream.get_ref().outgoing.rest()
    }

    /// Removes the first `count` bytes of [`TlsConnection::outgoing`], which were sent.
    pub fn sent(&mut self, count: usize) {
        self.stream.get_mut().outgoing.consume(count);
    }

    /// Continues the handshake. `Done` means that data may be written: the handshake is complete, or
    /// the connection is in early data. On a client that is in early data already, completes the
    /// handshake.
    ///
    /// # Errors
    /// [`TlsError`]. [`TlsConnection::outgoing`] may then hold an alert for the peer.
    pub fn handshake(&mut self) -> Result<Progress<()>, TlsError> {
        self.step(|stream| stream.do_handshake())
    }

    /// Reads application data. On a client in early data, completes the handshake first.
    ///
    /// # Errors
    /// [`TlsError`], also if the peer's bytes ended without close_notify.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Progress<usize>, TlsError> {
        self.step(|stream| stream.ssl_read(buffer))
    }

    /// As [`TlsConnection::read`], into a buffer that may be uninitialized.
    ///
    /// # Errors
    /// As [`TlsConnection::read`].
    pub(crate) fn read_buf(&mut self, buffer: &mut ReadBuf<'_>) -> Result<Progress<()>, TlsError> {
        if self.is_drained() {
            return Ok(Progress::NeedsInput);
        }
        // SAFETY: BoringSSL only writes to the buffer, and never reads from it.
        let unfilled = unsafe { buffer.unfilled_mut() };
        let progress = self.step(|stream| stream.ssl_read_uninit(unfilled))?;
        Ok(progress.map(|count| {
            // SAFETY: BoringSSL has written `count` bytes.
            unsafe { buffer.assume_init(count) };
            buffer.advance(count);
        }))
    }

    /// Writes application data. Before the handshake is complete this is half-RTT data on a server,
    /// and early data on a client. `NeedsInput`: no more can be written until the handshake is
    /// complete.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn write(&mut self, data: &[u8]) -> Result<Progress<usize>, TlsError> {
        if !self.is_client() || !self.in_early_data() {
            return self.step(|stream| stream.ssl_write(data));
        }
        let room = MAX_BUFFERED_EARLY_DATA.saturating_sub(self.client.buffered.len());
        if room == 0 {
            return match self.handshake()? {
                Progress::Done(()) => self.step(|stream| stream.ssl_write(data)),
                Progress::NeedsInput => Ok(Progress::NeedsInput),
                Progress::Closed => Ok(Progress::Closed),
            };
        }
        let progress = self.step(|stream| stream.ssl_write(&data[..data.len().min(room)]))?;
        // The write may have reached the limit, which ends early data.
        if let (Progress::Done(count), true) = (&progress, self.in_early_data()) {
            self.client.buffered.extend_from_slice(&data[..*count]);
            self.client.written += count;
        }
        Ok(progress)
    }

    /// Writes the tickets that BoringSSL keeps for the next [`TlsConnection::write`] of a server (RFC
    /// 8446 section 4.6.1). Does nothing if there are none.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn write_tickets(&mut self) -> Result<(), TlsError> {
        if self.is_client() || !self.is_complete() {
            return Ok(());
        }
        // SAFETY: the connection is valid, and nothing is read from an empty buffer. The stream's own
        // method does not pass empty writes on.
        let done = unsafe { ffi::SSL_write(self.stream.ssl().as_ptr(), std::ptr::null(), 0) };
        if done >= 0 {
            return Ok(());
        }
        Err(failure(self.stream.ssl(), &ErrorStack::get(), true))
    }

    /// Sends close_notify. Does nothing before the handshake is complete.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn close(&mut self) -> Result<(), TlsError> {
        if !self.is_complete() {
            return Ok(());
        }
        match self.stream.shutdown() {
            Ok(_) => Ok(()),
            Err(error) if error.would_block() || error.code() == ErrorCode::ZERO_RETURN => Ok(()),
            Err(error) => Err(self.failure(&error)),
        }
    }

    /// Refuses early data on a server that has not processed its ClientHello yet. Later this does
    /// nothing. Its tickets may still allow early data.
    pub(crate) fn decline_early_data(&mut self) {
        if self.reason() == EarlyDataReason::Unknown {
            // SAFETY: the connection is valid. `after_step` sets the flag anew.
            unsafe { ffi::SSL_set_early_data_enabled(self.stream.ssl().as_ptr(), 0) };
        }
    }

    /// On a server whose sealer returned [`OpenedTicket::NeedsLookup`]: the key by which to look up
    /// the session of the client's ticket, once. The handshake returns `NeedsInput` and sends nothing
    /// until [`TlsConnection::provide_session`] is called.
    pub fn take_needed_session(&mut self) -> Option<Vec<u8>> {
        ticket::take_needed_session(self.stream.ssl())
    }

    /// Whether another connection used the client's ticket before. Returns true once.
    pub(crate) fn take_already_used(&mut self) -> bool {
        ticket::take_already_used(self.stream.ssl())
    }

    /// Provides the session that was looked up. With [`OpenedTicket::Ignored`] (nothing found) or
    /// another [`OpenedTicket::NeedsLookup`], the handshake continues as a full one.
    pub fn provide_session(&mut self, session: OpenedTicket) {
        ticket::provide_session(self.stream.ssl_mut(), session);
    }

    /// Whether the handshake has failed because another connection or process used the client's ticket
    /// meanwhile. Another connection has to take this one's place.
    pub(crate) fn has_lost_ticket(&self) -> bool {
        ticket::is_lost(self.stream.ssl())
    }

    /// The session that this connection was provided with, or whose ticket it has used up.
    pub(crate) fn provided_session(&self) -> Option<OpenedTicket> {
        ticket::provided_session(self.stream.ssl())
    }

    /// Overwrites the session of [`Self::provided_session`]. Call this when early data is decided.
    pub(crate) fn forget_session(&mut self) {
        ticket::forget_session(self.stream.ssl());
    }

    /// Whether early data can still be written (client) or read (server).
    pub fn in_early_data(&self) -> bool {
        // SAFETY: the pointer is valid while the stream is, and the call only reads.
        unsafe { ffi::SSL_in_early_data(self.stream.ssl().as_ptr()) == 1 }
    }

    /// Whether the handshake is complete: the peer's Finished has been verified.
    pub fn is_complete(&self) -> bool {
        self.stream.ssl().is_init_finished() && self.client.resend_for.is_none()
    }

    /// What was negotiated so far.
    pub fn facts(&self) -> Handshake {
        let reason = self.client.refused.unwrap_or_else(|| self.reason());
        Handshake::read(self.stream.ssl(), self.early_data(), reason)
    }

    /// Bytes of early data that a client has written, accepted or not.
    pub fn early_bytes_written(&self) -> usize {
        self.client.written
    }

    /// On a client: the sessions received since the last call.
    pub fn take_sessions(&mut self) -> Vec<Session> {
        match &self.role {
            Role::Client { inbox } => {
                std::mem::take(&mut *inbox.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Role::Server { .. } => Vec::new(),
        }
    }

    /// Whether a read could only find out that it needs bytes from the peer: the handshake is
    /// complete, nothing is buffered, and the peer's bytes have not ended. BoringSSL takes a
    /// thousand instructions to find that out, and HTTP libraries read three times per request.
    fn is_drained(&self) -> bool {
        let wire = self.stream.get_ref();
        let ssl = self.stream.ssl().as_ptr();
        // SAFETY: the pointer is valid while the stream is, and the calls only read. A connection
        // that has failed counts as shut down.
        wire.incoming.rest().is_empty()
            && !wire.eof
            && self.is_complete()
            && unsafe { ffi::SSL_has_pending(ssl) == 0 && ffi::SSL_get_shutdown(ssl) == 0 }
    }

    fn is_client(&self) -> bool {
        matches!(self.role, Role::Client { .. })
    }

    fn early_data(&self) -> EarlyData {
        // SAFETY: the pointer is valid while the stream is, and the call only reads.
        let accepted = unsafe { ffi::SSL_early_data_accepted(self.stream.ssl().as_ptr()) == 1 };
        if self.client.refused.is_some() {
            return EarlyData::Refused;
        }
        if self.is_client() {
            return match (self.client.offered, accepted && self.is_complete()) {
                (false, _) => EarlyData::NotOffered,
                (true, true) => EarlyData::Accepted,
                (true, false) => EarlyData::Pending,
            };
        }
        handshake::server_early_data(self.stream.ssl(), self.reason())
    }

    fn reason(&self) -> EarlyDataReason {
        handshake::reason(self.stream.ssl())
    }

    /// Runs one operation of BoringSSL until it is done or needs bytes from the peer.
    fn step<T>(
        &mut self,
        mut operation: impl FnMut(&mut SslStream<Wire>) -> Result<T, Error>,
    ) -> Result<Progress<T>, TlsError> {
        loop {
            let result = match self.client.resend_for {
                None => operation(&mut self.stream).map(Some),
                Some(_) => self.stream.do_handshake().map(|()| None),
            };
            self.after_step();
            match result {
                Ok(Some(done)) => {
                    self.use_up_ticket()?;
                    return Ok(Progress::Done(done));
                }
                Ok(None) => self.resend()?,
                Err(error) => match error.code() {
                    code if code.as_raw() == ffi::SSL_ERROR_EARLY_DATA_REJECTED => {
                        self.on_early_data_refused();
                    }
                    ErrorCode::PENDING_TICKET => return Ok(Progress::NeedsInput),
                    ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => {
                        self.use_up_ticket()?;
                        return Ok(Progress::NeedsInput);
                    }
                    code => {
                        // The bytes after the ClientHello, read in the same step, are invalid or an
                        // alert. If the server's flight is written, the client's binder was valid.
                        if self.outgoing().first() == Some(&HANDSHAKE_RECORD) {
                            self.use_up_ticket()?;
                        }
                        return match code {
                            ErrorCode::ZERO_RETURN => Ok(Progress::Closed),
                            _ => Err(self.failure(&error)),
                        };
                    }
                },
            }
        }
    }

    /// Updates the state after BoringSSL has run.
    fn after_step(&mut self) {
        if let Role::Server { tickets_undecided: true, ticket_unused } = self.role
            && self.reason() != EarlyDataReason::Unknown
        {
            self.role = Role::Server { tickets_undecided: false, ticket_unused };
            ticket::decide_early_data_of_tickets(self.stream.ssl_mut(), true);
        }
        if self.is_client() {
            self.client.offered |= self.in_early_data();
            if self.is_complete() && !self.client.buffered.is_empty() {
                self.client.buffered = Vec::new();
            }
        }
    }

    /// Uses up the client's ticket once BoringSSL has processed the ClientHello, and so has verified its
    /// binder. Nothing was sent before.
    fn use_up_ticket(&mut self) -> Result<(), TlsError> {
        let Role::Server { ticket_unused: true, tickets_undecided } = self.role else {
            return Ok(());
        };
        if self.reason() == EarlyDataReason::Unknown {
            return Ok(());
        }
        if ticket::use_up(self.stream.ssl_mut()) {
            self.role = Role::Server { ticket_unused: false, tickets_undecided };
            return Ok(());
        }
        // Each later step does the same.
        self.stream.get_mut().outgoing = Queue::default();
        Err(TlsError::Handshake("another connection has used the ticket".to_owned()))
    }

    /// The server refused early data: leaves the early state, so that the buffered bytes are written
    /// again once the handshake is complete.
    fn on_early_data_refused(&mut self) {
        self.client.refused = Some(self.reason());
        self.client.resend_for =
            Some(self.stream.ssl().selected_alpn_protocol().map(<[u8]>::to_vec));
        // SAFETY: the connection signals SSL_ERROR_EARLY_DATA_REJECTED, the only state in which
        // BoringSSL allows this call.
        unsafe { ffi::SSL_reset_early_data_reject(self.stream.ssl().as_ptr()) };
    }

    /// Writes the buffered bytes again, after the handshake that followed a refusal.
    fn resend(&mut self) -> Result<(), TlsError> {
        let before = self.client.resend_for.take().flatten();
        let now = self.stream.ssl().selected_alpn_protocol().map(<[u8]>::to_vec);
        if before != now {
            let name = |alpn: Option<Vec<u8>>| {
                alpn.map_or_else(String::new, |a| String::from_utf8_lossy(&a).into_owned())
            };
            return Err(TlsError::AlpnChanged { before: name(before), now: name(now) });
        }
        let buffered = std::mem::take(&mut self.client.buffered);
        let mut rest = buffered.as_slice();
        while !rest.is_empty() {
            match self.stream.ssl_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => return Err(self.failure(&error)),
            }
        }
        Ok(())
    }

    fn failure(&self, error: &Error) -> TlsError {
        let complete = self.is_complete();
        let Some(stack) = error.ssl_error() else {
            return match error.io_error() {
                Some(io) => TlsError::Io(io::Error::new(io.kind(), io.to_string())),
                None if complete => TlsError::Io(io::ErrorKind::UnexpectedEof.into()),
                None => TlsError::ClosedInHandshake,
            };
        };
        failure(self.stream.ssl(), stack, complete)
    }
}

/// Converts BoringSSL's error stack for this connection.
pub(crate) fn failure(ssl: &SslRef, stack: &ErrorStack, complete: bool) -> TlsError {
    let has = |reason| stack.errors().iter().any(|e| e.reason() == Some(reason));
    if has("WRONG_VERSION_ON_EARLY_DATA") {
        return TlsError::RetryWithoutEarlyData;
    }
    if has("ECH_REJECTED") {
        let configs = ssl.get_ech_retry_configs().filter(|configs| !configs.is_empty());
        return TlsError::EchRejected { retry_configs: configs.map(<[u8]>::to_vec) };
    }
    if has("CERTIFICATE_VERIFY_FAILED") {
        let why = match ssl.verify_result() {
            Err(why) => why.error_string().to_owned(),
            Ok(()) => "verification failed".to_owned(),
        };
        return TlsError::Certificate(why);
    }
    match complete {
        true => TlsError::Connection(reasons(stack)),
        false => TlsError::Handshake(reasons(stack)),
    }
}
