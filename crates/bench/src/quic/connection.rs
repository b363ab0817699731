use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_quic::{Handshake, Resumption, ResumptionInbox};
use quinn_proto::{
    Dir, Event, ReadError, ReadableError, StreamEvent, StreamId, VarInt, WriteError,
};

use super::http3::{CONTROL, request_of};
use crate::failure::Failure;
use crate::response::{Answer, Answered};
use crate::tally::Finished;
use crate::tickets::Ticket;
use crate::{ErrorKind, Exchange, Transport};

/// What all connections of a thread have in common.
pub(crate) struct Shared {
    exchange: Exchange,
    request: Vec<u8>,
    /// Whether tickets are wanted, so that a connection is not closed before they came.
    wants_tickets: bool,
}

impl Shared {
    pub(crate) fn new(exchange: &Exchange, wants_tickets: bool) -> Self {
        Self { exchange: exchange.clone(), request: request_of(exchange), wants_tickets }
    }
}

/// What resumes a connection over QUIC, and the address token that came with it.
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
    /// When it should have started; its times count from here.
    intended: Instant,
    request: Request,
    response: Answer,
    tickets: Vec<QuicTicket>,
    setup: Option<Duration>,
    first_byte: Option<Duration>,
    answered: Option<(Duration, Answered)>,
}

/// The request's stream, and how much of the request it has taken.
#[derive(Default)]
struct Request {
    control: Option<StreamId>,
    stream: Option<StreamId>,
    written: usize,
}

/// What a step of a connection came to.
pub(crate) enum Step {
    /// It waits for the peer.
    Wait,
    /// The response is whole, and tickets are still wanted.
    Answered,
    /// It is over.
    Done,
}

impl Connection {
    /// Asks at once where the session allows early data.
    pub(crate) fn begin(
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
            response: Answer::expect(&shared.exchange, Transport::Quic),
            tickets: Vec::new(),
            setup: None,
            first_byte: None,
            answered: None,
        };
        if connection.quic.has_0rtt() {
            connection.ask(shared)?;
        }
        Ok(connection)
    }

    /// Takes what came of datagrams or time.
    pub(crate) fn go_on(&mut self, shared: &Shared) -> Result<Step, Failure> {
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => {
                    self.setup = Some(self.intended.elapsed());
                    if self.quic.has_0rtt() && !self.quic.accepted_0rtt() {
                        // The streams are gone with what they carried.
                        self.request = Request::default();
                    }
                    self.ask(shared)?;
                }
                Event::Stream(StreamEvent::Available { .. } | StreamEvent::Writable { .. }) => {
                    self.ask(shared)?;
                }
                Event::Stream(StreamEvent::Readable { id }) if self.request.stream == Some(id) => {
                    self.read(id)?;
                }
                Event::ConnectionLost { .. } if self.answered.is_some() => return Ok(Step::Done),
                Event::ConnectionLost { reason } => return Err(reason.into()),
                _ => {}
            }
        }
        if self.answered.is_none() {
            return Ok(Step::Wait);
        }
        self.take_tickets();
        match shared.wants_tickets && self.tickets.is_empty() {
            true => Ok(Step::Answered),
            false => Ok(Step::Done),
        }
    }

    /// Says goodbye (H3_NO_ERROR, RFC 9114 section 8.1), as a client that needs nothing more.
    pub(crate) fn close(&mut self, now: Instant) {
        self.quic.close(now, VarInt::from_u32(0x100), Bytes::new());
    }

    /// What it was, once it is done, and the tickets that came: an error page's too.
    pub(crate) fn finish(mut self) -> (Result<Finished, Failure>, Vec<QuicTicket>) {
        self.take_tickets();
        let tickets = std::mem::take(&mut self.tickets);
        (self.finished(), tickets)
    }

    /// Whether the response is whole.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered.is_some()
    }

    fn finished(&self) -> Result<Finished, Failure> {
        let (Some(first_byte), Some((total, answered))) = (self.first_byte, self.answered) else {
            return Err(Failure::truncated());
        };
        // Answered before the handshake was over, and nothing came after.
        let setup = self.setup.ok_or_else(Failure::truncated)?;
        if let Some(status @ 400..) = answered.status {
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
            bytes: answered.bytes,
            setup,
            first_byte,
            total,
        })
    }

    /// Opens what the request needs, and writes what there is room for.
    fn ask(&mut self, shared: &Shared) -> Result<(), Failure> {
        if self.request.stream.is_none() {
            if matches!(shared.exchange, Exchange::Get { .. }) && self.request.control.is_none() {
                // RFC 9114 section 6.2.1: each side has a control stream.
                let Some(control) = self.quic.streams().open(Dir::Uni) else { return Ok(()) };
                written(self.quic.send_stream(control).write(CONTROL))?;
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
        self.request.written += written(stream.write(rest))?;
        if self.request.written == shared.request.len() {
            // A server that stopped it answers, or resets.
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
        // Whether a window has to be sent is looked at with everything else.
        let _ = chunks.finalize();
        if self.answered.is_none() {
            let whole = self.response.whole(ended);
            self.answered = whole.map(|answered| (self.intended.elapsed(), answered));
            if ended && self.answered.is_none() {
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

fn written(written: Result<usize, WriteError>) -> Result<usize, Failure> {
    match written {
        Ok(count) => Ok(count),
        Err(WriteError::Blocked) => Ok(0),
        Err(error) => Err(Failure::new(ErrorKind::Reset, error.to_string())),
    }
}
