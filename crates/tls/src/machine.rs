use std::io;
use std::sync::PoisonError;

use boring::error::ErrorStack;
use boring::ssl::{Error, ErrorCode, Ssl, SslRef, SslStream};
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::buffers::Wire;
use crate::connector::Inbox;
use crate::error::reasons;
use crate::{
    EarlyData, EarlyDataReason, Handshake, OpenedTicket, Session, TlsError, handshake, ticket,
};

/// What a step of the [`Machine`] came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// Done.
    Done(T),
    /// Needs more bytes from the peer: send what [`Machine::outgoing`] holds, then feed.
    NeedsInput,
    /// The peer closed its direction by close_notify.
    Closed,
}

impl<T> Progress<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Progress<U> {
        match self {
            Self::Done(value) => Progress::Done(change(value)),
            Self::NeedsInput => Progress::NeedsInput,
            Self::Closed => Progress::Closed,
        }
    }
}

/// One TLS connection without a socket: bytes from the peer go in by [`Machine::feed`], bytes for
/// the peer come out by [`Machine::outgoing`], and nothing waits.
///
/// A server in early data: [`Machine::read`] yields early data first and completes the handshake
/// when it has met EndOfEarlyData and Finished; [`Machine::write`] is half-RTT data. A client in
/// early data: [`Machine::write`] is early data; if the server refuses it, the machine writes it
/// again after the handshake by itself.
pub struct Machine {
    stream: SslStream<Wire>,
    role: Role,
    client: ClientEarly,
}

pub(crate) enum Role {
    /// Early data may be switched off until the ClientHello has been judged.
    Server {
        restore_early_data: bool,
    },
    Client {
        inbox: Inbox,
    },
}

/// A client's early data, from its first byte to the server's response about it.
#[derive(Default)]
struct ClientEarly {
    /// Whether the connection was ever in early data.
    offered: bool,
    /// What was written, kept until the server has accepted it.
    kept: Vec<u8>,
    /// How much was written.
    written: usize,
    /// Why the server refused it.
    refused: Option<EarlyDataReason>,
    /// Set from the refusal until the kept bytes are written again: the protocol (ALPN) that the
    /// bytes were written for.
    resend_for: Option<Option<Vec<u8>>>,
}

/// How much early data a client keeps for a second sending; more is written after the handshake.
/// RFC 8446 leaves `max_early_data_size` to the server, so a bound of our own is needed.
const MAX_EARLY_KEPT: usize = 64 * 1024;

impl Machine {
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
        Ok(Self { stream, role, client: ClientEarly::default() })
    }

    /// Takes bytes from the peer.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.stream.get_mut().incoming.append(bytes);
    }

    /// Takes note that the peer's socket has ended.
    pub fn feed_eof(&mut self) {
        self.stream.get_mut().eof = true;
    }

    /// Bytes that wait to be sent to the peer.
    pub fn outgoing(&self) -> &[u8] {
        self.stream.get_ref().outgoing.rest()
    }

    /// Takes note that the first `count` bytes of [`Machine::outgoing`] were sent.
    pub fn sent(&mut self, count: usize) {
        self.stream.get_mut().outgoing.consume(count);
    }

    /// Carries the handshake on. `Done` means that data may be written: the handshake is complete,
    /// or the connection has come into early data. A client that is in early data already is
    /// carried past it.
    ///
    /// # Errors
    /// [`TlsError`]; an alert for the peer may then be in [`Machine::outgoing`].
    pub fn handshake(&mut self) -> Result<Progress<()>, TlsError> {
        self.step(|stream| stream.do_handshake())
    }

    /// Reads application data. On a client in early data this completes the handshake first.
    ///
    /// # Errors
    /// [`TlsError`], also when the socket ended without close_notify.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Progress<usize>, TlsError> {
        self.step(|stream| stream.ssl_read(buffer))
    }

    /// Writes application data: half-RTT data on a server, early data on a client as long as the
    /// session allows. `NeedsInput`: no more fits before the handshake is complete.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn write(&mut self, data: &[u8]) -> Result<Progress<usize>, TlsError> {
        if !self.is_client() || !self.in_early_data() {
            return self.step(|stream| stream.ssl_write(data));
        }
        let room = MAX_EARLY_KEPT.saturating_sub(self.client.kept.len());
        if room == 0 {
            return match self.handshake()? {
                Progress::Done(()) => self.step(|stream| stream.ssl_write(data)),
                Progress::NeedsInput => Ok(Progress::NeedsInput),
                Progress::Closed => Ok(Progress::Closed),
            };
        }
        let progress = self.step(|stream| stream.ssl_write(&data[..data.len().min(room)]))?;
        // The write itself may have met the limit, and then the end of early data.
        if let (Progress::Done(count), true) = (&progress, self.in_early_data()) {
            self.client.kept.extend_from_slice(&data[..*count]);
            self.client.written += count;
        }
        Ok(progress)
    }

    /// Says close_notify. Does nothing while the handshake is incomplete: drain it first.
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

    /// Declines early data on a server that has not judged its ClientHello yet; later this does
    /// nothing. Tickets still allow it.
    pub(crate) fn decline_early_data(&mut self) {
        if self.reason() == EarlyDataReason::Unknown {
            // SAFETY: the connection is valid; the flag is put back once it has judged.
            unsafe { ffi::SSL_set_early_data_enabled(self.stream.ssl().as_ptr(), 0) };
        }
    }

    /// On a server whose sealer said [`OpenedTicket::Elsewhere`]: by what to fetch the session of
    /// the client's ticket, told once. The handshake answers `NeedsInput` until
    /// [`Machine::provide_session`] was called; nothing of it was sent before.
    pub fn needed_session(&mut self) -> Option<Vec<u8>> {
        ticket::needed(self.stream.ssl())
    }

    /// What came of fetching: [`OpenedTicket::Ignored`] for nothing, and then, as for another
    /// [`OpenedTicket::Elsewhere`], the handshake goes on as a full one.
    pub fn provide_session(&mut self, session: OpenedTicket) {
        ticket::provide(self.stream.ssl_mut(), session);
    }

    /// Whether early data can still be written (client) or read (server).
    pub fn in_early_data(&self) -> bool {
        // SAFETY: the pointer is valid while the stream is, and the call only reads.
        unsafe { ffi::SSL_in_early_data(self.stream.ssl().as_ptr()) == 1 }
    }

    /// Whether the peer's Finished has been verified.
    pub fn is_complete(&self) -> bool {
        self.stream.ssl().is_init_finished() && self.client.resend_for.is_none()
    }

    /// What was negotiated so far.
    pub fn facts(&self) -> Handshake {
        let reason = self.client.refused.unwrap_or_else(|| self.reason());
        Handshake::read(self.stream.ssl(), self.early_data(), reason)
    }

    /// Bytes of early data that a client has written, whether or not they were then accepted.
    pub fn early_bytes_written(&self) -> usize {
        self.client.written
    }

    /// The sessions that came in since the last call; on a client only.
    pub fn take_sessions(&mut self) -> Vec<Session> {
        match &self.role {
            Role::Client { inbox } => {
                std::mem::take(&mut *inbox.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Role::Server { .. } => Vec::new(),
        }
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

    /// Runs one operation of the library until it is done or needs the peer.
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
                Ok(Some(done)) => return Ok(Progress::Done(done)),
                Ok(None) => self.resend()?,
                Err(error) => match error.code() {
                    code if code.as_raw() == ffi::SSL_ERROR_EARLY_DATA_REJECTED => {
                        self.take_refusal();
                    }
                    ErrorCode::WANT_READ | ErrorCode::WANT_WRITE | ErrorCode::PENDING_TICKET => {
                        return Ok(Progress::NeedsInput);
                    }
                    ErrorCode::ZERO_RETURN => return Ok(Progress::Closed),
                    _ => return Err(self.failure(&error)),
                },
            }
        }
    }

    /// What has to be looked at whenever the library has run.
    fn after_step(&mut self) {
        if let Role::Server { restore_early_data: true } = self.role
            && self.reason() != EarlyDataReason::Unknown
        {
            self.role = Role::Server { restore_early_data: false };
            // SAFETY: the connection is valid; its ClientHello has been judged, and from here on
            // the flag only decides what the tickets allow.
            unsafe { ffi::SSL_set_early_data_enabled(self.stream.ssl().as_ptr(), 1) };
        }
        if self.is_client() {
            self.client.offered |= self.in_early_data();
            if self.is_complete() && !self.client.kept.is_empty() {
                self.client.kept = Vec::new();
            }
        }
    }

    /// Early data was refused: forgets the early state and remembers why, so that the kept bytes
    /// are written again once the handshake is complete.
    fn take_refusal(&mut self) {
        self.client.refused = Some(self.reason());
        self.client.resend_for =
            Some(self.stream.ssl().selected_alpn_protocol().map(<[u8]>::to_vec));
        // SAFETY: the connection is just now signalling SSL_ERROR_EARLY_DATA_REJECTED, the only
        // state in which the library allows this call.
        unsafe { ffi::SSL_reset_early_data_reject(self.stream.ssl().as_ptr()) };
    }

    /// The handshake after a refusal is complete: writes the kept bytes again.
    fn resend(&mut self) -> Result<(), TlsError> {
        let before = self.client.resend_for.take().flatten();
        let now = self.stream.ssl().selected_alpn_protocol().map(<[u8]>::to_vec);
        if before != now {
            let name = |alpn: Option<Vec<u8>>| {
                alpn.map_or_else(String::new, |a| String::from_utf8_lossy(&a).into_owned())
            };
            return Err(TlsError::AlpnChanged { before: name(before), now: name(now) });
        }
        let kept = std::mem::take(&mut self.client.kept);
        let mut rest = kept.as_slice();
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

/// What an error of the library means on this connection.
pub(crate) fn failure(ssl: &SslRef, stack: &ErrorStack, complete: bool) -> TlsError {
    let has = |reason| stack.errors().iter().any(|e| e.reason() == Some(reason));
    if has("WRONG_VERSION_ON_EARLY_DATA") {
        return TlsError::RetryWithoutEarlyData;
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
