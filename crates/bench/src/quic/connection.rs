use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_quic::{Handshake, Resumption, ResumptionInbox};
use firstflight_units::printable;
use quinn_proto::{
    ConnectionError, Dir, Event, ReadError, ReadableError, StreamEvent, StreamId,
    TransportErrorCode, VarInt, WriteError,
};

use super::http3::{CONTROL_STREAM, encode_request};
use crate::counts::Finished;
use crate::error::Failure;
use crate::response::{ResponseReader, ResponseSummary};
use crate::worker::Ticket;
use crate::{ErrorKind, Exchange, Transport};

/// What the connections of a thread share.
pub(crate) struct Shared {
    exchange: Exchange,
    request: Vec<u8>,
    /// Whether to wait for tickets before closing a connection.
    wants_tickets: bool,
}

impl Shared {
    pub(crate) fn new(exchange: &Exchange, wants_tickets: bool) -> Self {
        Self { exchange: exchange.clone(), request: encode_request(exchange), wants_tickets }
    }
}

/// A QUIC session, with the address token that came with it.
#[derive(Clone)]
pub(crate) struct QuicTicket {
    pub(crate) resumption: Resumption,
    pub(crate) token: Option<Bytes>,
}

impl Ticket for QuicTicket {
    fn single_use(&self) -> bool {
        self.resumption.session.single_use()
    }

    fn early_data_capable(&self) -> bool {
        self.resumption.session.early_data_capable()
    }
}

/// One connection, from its first flight to the end of the response.
pub(crate) struct Connection {
    pub(crate) quic: quinn_proto::Connection,
    inbox: ResumptionInbox,
    /// The scheduled start, from which all times count.
    intended: Instant,
    request: Request,
    response: ResponseReader,
    tickets: Vec<QuicTicket>,
    setup: Option<Duration>,
    first_byte: Option<Duration>,
    completed: Option<(Duration, ResponseSummary)>,
}

/// The streams of the request, and how much of it was written.
#[derive(Default)]
struct Request {
    control: Option<StreamId>,
    stream: Option<StreamId>,
    written: usize,
}

/// The state of a connection after an event.
pub(crate) enum Step {
    /// Waits for the peer.
    Wait,
    /// The response is complete, and tickets are still missing.
    Complete,
    /// The connection can be closed.
    Done,
}

impl Connection {
    /// Starts the connection. Sends the request as early data if the session allows it.
    pub(crate) fn start(
        quic: quinn_proto::Connection,
        inbox: ResumptionInbox,
        intended: Instant,
        shared: &Shared,
    ) -> Result<Self, Failure> {
        let mut connection = Self {
            quic,
            inbox,
            intended,
            request: Request::default(),
            response: ResponseReader::new(&shared.exchange, Transport::Quic),
            tickets: Vec::new(),
            setup: None,
            first_byte: None,
            completed: None,
        };
        if connection.quic.has_0rtt() {
            connection.send_request(shared)?;
        }
        Ok(connection)
    }

    /// Processes events after datagrams or a timer.
    pub(crate) fn advance(&mut self, shared: &Shared) -> Result<Step, Failure> {
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => {
                    self.setup = Some(self.intended.elapsed());
                    if self.quic.has_0rtt() && !self.quic.accepted_0rtt() {
                        // The streams of refused early data are lost.
                        self.request = Request::default();
                    }
                    self.send_request(shared)?;
                }
                Event::Stream(StreamEvent::Available { .. } | StreamEvent::Writable { .. }) => {
                    self.send_request(shared)?;
                }
                Event::Stream(StreamEvent::Readable { id }) if self.request.stream == Some(id) => {
                    self.read(id)?;
                }
                Event::ConnectionLost { .. } if self.completed.is_some() => return Ok(Step::Done),
                Event::ConnectionLost { reason } => return Err(reason.into()),
                _ => {}
            }
        }
        if self.completed.is_none() {
            return Ok(Step::Wait);
        }
        self.take_tickets();
        match shared.wants_tickets && self.tickets.is_empty() {
            true => Ok(Step::Complete),
            false => Ok(Step::Done),
        }
    }

    /// Closes the connection with H3_NO_ERROR (RFC 9114 section 8.1).
    pub(crate) fn close(&mut self, now: Instant) {
        self.quic.close(now, VarInt::from_u32(0x100), Bytes::new());
    }

    /// Returns the outcome of the connection and its tickets, also after an error page.
    pub(crate) fn finish(mut self) -> (Result<Finished, Failure>, Vec<QuicTicket>) {
        self.take_tickets();
        let tickets = std::mem::take(&mut self.tickets);
        (self.finished(), tickets)
    }

    /// Whether the response is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.completed.is_some()
    }

    fn finished(&self) -> Result<Finished, Failure> {
        let (Some(first_byte), Some((total, response))) = (self.first_byte, self.completed) else {
            return Err(Failure::truncated());
        };
        // `None` if the connection ended after the response but before the handshake was complete.
        let setup = self.setup.ok_or_else(Failure::truncated)?;
        if let Some(status @ 400..) = response.status {
            return Err(Failure::new(ErrorKind::HttpStatus, format!("status {status}")));
        }
        let facts = self.quic.crypto_session().handshake_data();
        let facts = facts.and_then(|facts| facts.downcast::<Handshake>().ok());
        Ok(Finished {
            version: facts.as_ref().and_then(|facts| facts.version),
            group: facts.as_ref().and_then(|facts| facts.group).unwrap_or("none"),
            resumed: facts.is_some_and(|facts| facts.resumed),
            early_accepted: self.quic.has_0rtt().then(|| self.quic.accepted_0rtt()),
            fast_open: false,
            status: response.status,
            bytes: response.bytes,
            setup,
            first_byte,
            total,
        })
    }

    /// Opens the streams, and writes as much of the request as there is room for.
    fn send_request(&mut self, shared: &Shared) -> Result<(), Failure> {
        if self.request.stream.is_none() {
            if matches!(shared.exchange, Exchange::Get { .. }) && self.request.control.is_none() {
                // RFC 9114 section 6.2.1: each side has a control stream.
                let Some(control) = self.quic.streams().open(Dir::Uni) else { return Ok(()) };
                bytes_written(self.quic.send_stream(control).write(CONTROL_STREAM))?;
                self.request.control = Some(control);
            }
            self.request.stream = self.quic.streams().open(Dir::Bi);
        }
        let Some(id) = self.request.stream else { return Ok(()) };
        let rest = &shared.request[self.request.written..];
        if rest.is_empty() {
            return Ok(());
        }
        let mut stream = self.quic.send_stream(id);
        self.request.written += bytes_written(stream.write(rest))?;
        if self.request.written == shared.request.len() {
            // Fails if the server has stopped the stream; it then responds or resets.
            let _ = stream.finish();
        }
        Ok(())
    }

    fn read(&mut self, id: StreamId) -> Result<(), Failure> {
        let mut stream = self.quic.recv_stream(id);
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => return Ok(()),
        };
        let ended = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    self.first_byte.get_or_insert_with(|| self.intended.elapsed());
                    self.response.feed(&chunk.bytes)?;
                }
                Ok(None) => break true,
                Err(ReadError::Blocked) => break false,
                Err(ReadError::Reset(code)) => {
                    let reason = format!("the server reset the stream (code {code})");
                    return Err(Failure::new(ErrorKind::Reset, reason));
                }
            }
        };
        // Whether to send a flow control update is decided when datagrams are sent.
        let _ = chunks.finalize();
        if self.completed.is_none() {
            let complete = self.response.complete(ended);
            self.completed = complete.map(|response| (self.intended.elapsed(), response));
            if ended && self.completed.is_none() {
                return Err(Failure::truncated());
            }
        }
        Ok(())
    }

    fn take_tickets(&mut self) {
        let mut tokens = self.inbox.take_tokens().into_iter();
        for resumption in self.inbox.take_resumptions() {
            self.tickets.push(QuicTicket { resumption, token: tokens.next() });
        }
    }
}

fn bytes_written(result: Result<usize, WriteError>) -> Result<usize, Failure> {
    match result {
        Ok(count) => Ok(count),
        Err(WriteError::Blocked) => Ok(0),
        Err(error) => Err(Failure::new(ErrorKind::Reset, error.to_string())),
    }
}

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Self {
        let kind = match &error {
            ConnectionError::ConnectionClosed(close) => match close.error_code {
                TransportErrorCode::CONNECTION_REFUSED => ErrorKind::ConnectRefused,
                code if alert(code).is_some() => ErrorKind::TlsAlert,
                _ => ErrorKind::Reset,
            },
            ConnectionError::TransportError(error) => match alert(error.code) {
                Some(CERTIFICATE_FIRST..=CERTIFICATE_LAST | UNKNOWN_CA) => ErrorKind::Certificate,
                Some(_) => ErrorKind::Tls,
                None => ErrorKind::Quic,
            },
            ConnectionError::ApplicationClosed(_) => ErrorKind::Truncated,
            ConnectionError::Reset => ErrorKind::Reset,
            ConnectionError::TimedOut => ErrorKind::Timeout,
            ConnectionError::VersionMismatch
            | ConnectionError::LocallyClosed
            | ConnectionError::CidsExhausted => ErrorKind::Quic,
        };
        // The message contains text of the server.
        Self::new(kind, printable(&error.to_string()))
    }
}

/// Alerts about the server's certificate, `bad_certificate` to `certificate_unknown` (RFC 8446
/// section 6.2).
const CERTIFICATE_FIRST: u8 = 42;
const CERTIFICATE_LAST: u8 = 46;
const UNKNOWN_CA: u8 = 48;

/// The TLS alert of an error code (RFC 9001 section 4.8).
fn alert(code: TransportErrorCode) -> Option<u8> {
    u8::try_from(u64::from(code).checked_sub(0x100)?).ok()
}

#[cfg(test)]
mod tests {
    use quinn_proto::TransportError;

    use super::*;

    #[test]
    fn rfc9001_4_8_tls_alerts_are_distinguished_from_quic_errors() {
        let kind = |code| {
            let error = TransportError { code, frame: None, reason: String::new() };
            Failure::from(ConnectionError::TransportError(error)).kind
        };
        assert_eq!(kind(TransportErrorCode::crypto(42)), ErrorKind::Certificate);
        assert_eq!(kind(TransportErrorCode::crypto(120)), ErrorKind::Tls);
        assert_eq!(kind(TransportErrorCode::FLOW_CONTROL_ERROR), ErrorKind::Quic);
        assert_eq!(Failure::from(ConnectionError::TimedOut).kind, ErrorKind::Timeout);
        assert_eq!(Failure::from(ConnectionError::Reset).kind, ErrorKind::Reset);
    }
}
