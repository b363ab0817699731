//! A connection over TCP, without its socket.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Alert, Connection, Event};
use crate::handshake::{Handshake, LastFlight, Step};
use crate::parts::FlightParts;
use crate::record::{self, Messages, Record, RecordKeys, Records};
use crate::wire::kind;
use crate::{ProtocolError, Suite};

/// One copy of a first flight over TCP.
pub(crate) struct TcpConnection {
    handshake: Handshake,
    records: Records,
    messages: Messages,
    events: VecDeque<Event>,
    output: Vec<u8>,
    early: Option<RecordKeys>,
    /// Keys of the records that we read.
    read: Option<RecordKeys>,
    /// Keys of the records that we write: of the handshake, then of application data.
    write: Option<RecordKeys>,
    /// The client's last flight until it is sent, and the keys for later records.
    last_flight: Option<(LastFlight, RecordKeys)>,
    server_finished: bool,
    finished: bool,
    suite: Option<Suite>,
}

impl TcpConnection {
    pub(crate) fn new(flight: Arc<FlightParts>) -> Self {
        Self {
            early: flight.later_early_keys(),
            output: flight.pieces().concat(),
            handshake: Handshake::new(flight, true),
            records: Records::default(),
            messages: Messages::default(),
            events: VecDeque::new(),
            read: None,
            write: None,
            last_flight: None,
            server_finished: false,
            finished: false,
            suite: None,
        }
    }
}

impl Connection for TcpConnection {
    fn take_output(&mut self) -> Vec<Vec<u8>> {
        match self.output.is_empty() {
            true => Vec::new(),
            false => vec![std::mem::take(&mut self.output)],
        }
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn take_key_log(&mut self) -> Vec<String> {
        self.handshake.take_key_log()
    }

    fn is_ready(&self) -> bool {
        self.server_finished
    }

    fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<(), ProtocolError> {
        self.records.push(bytes);
        while let Some(record) = self.records.next()? {
            self.record(&record, now)?;
        }
        Ok(())
    }

    fn send_early_data(&mut self, data: &[u8]) -> bool {
        let Some(keys) = &mut self.early else { return false };
        keys.seal(record::APPLICATION_DATA, data, &mut self.output);
        true
    }

    fn finish(&mut self) -> bool {
        let Some((last, next)) = self.last_flight.take() else { return self.finished };
        if let Some((message, keys)) = last.end_of_early_data.zip(self.early.as_mut()) {
            keys.seal(record::HANDSHAKE, &message, &mut self.output);
        }
        if let Some(keys) = &mut self.write {
            keys.seal(record::HANDSHAKE, &last.messages, &mut self.output);
        }
        self.early = None;
        self.write = Some(next);
        self.finished = true;
        true
    }

    fn send(&mut self, data: &[u8]) -> bool {
        let Some(keys) = self.write.as_mut().filter(|_| self.finished) else { return false };
        keys.seal(record::APPLICATION_DATA, data, &mut self.output);
        true
    }

    fn close(&mut self) {
        if let Some(keys) = self.write.as_mut().filter(|_| self.finished) {
            keys.seal(record::ALERT, &[1, 0], &mut self.output);
        }
    }
}

impl TcpConnection {
    fn record(&mut self, record: &Record, now: Duration) -> Result<(), ProtocolError> {
        match (record.content_type(), &mut self.read) {
            // Middlebox compatibility (appendix D.4).
            (record::CHANGE_CIPHER_SPEC, _) => Ok(()),
            (record::ALERT, _) => self.alert(&record.payload),
            (record::HANDSHAKE, None) => self.handshake(&record.payload, now),
            (record::APPLICATION_DATA, Some(keys)) => {
                let (kind, content) = keys.open(record).ok_or(ProtocolError::Decrypt)?;
                match kind {
                    record::ALERT => self.alert(&content),
                    record::HANDSHAKE => self.handshake(&content, now),
                    record::APPLICATION_DATA if self.server_finished => {
                        let before_finished = !self.finished;
                        self.events.push_back(Event::ApplicationData {
                            stream: 0,
                            data: content,
                            end: false,
                            before_finished,
                        });
                        Ok(())
                    }
                    _ => Err(ProtocolError::Malformed),
                }
            }
            _ => Err(ProtocolError::Malformed),
        }
    }

    fn alert(&mut self, content: &[u8]) -> Result<(), ProtocolError> {
        let [_, description] = content else { return Err(ProtocolError::Malformed) };
        self.events.push_back(Event::Alert(Alert(*description)));
        Ok(())
    }

    fn handshake(&mut self, content: &[u8], now: Duration) -> Result<(), ProtocolError> {
        if content.is_empty() {
            return Err(ProtocolError::Malformed);
        }
        self.messages.push(content)?;
        while let Some(message) = self.messages.next() {
            match self.handshake.message(&message, now)? {
                Step::Continue => {}
                Step::Retry { hello } => {
                    record::put_plain(record::HANDSHAKE, 3, &hello, &mut self.output);
                    self.early = None;
                    self.events.push_back(Event::HelloRetryRequest);
                }
                Step::Handshake { suite, resumed, client, server } => {
                    self.expect_no_partial_message()?;
                    self.suite = Some(suite);
                    self.read = Some(RecordKeys::new(suite, &server));
                    self.write = Some(RecordKeys::new(suite, &client));
                    self.events.push_back(Event::ServerHello { suite, resumed });
                }
                Step::Extensions { early_data, alpn } => {
                    if !early_data {
                        self.early = None;
                    }
                    self.events.push_back(Event::EncryptedExtensions { early_data, alpn });
                }
                Step::Finished { client, server, last_flight } => {
                    self.expect_no_partial_message()?;
                    let suite = self.suite.ok_or(ProtocolError::Unexpected(kind::FINISHED))?;
                    self.read = Some(RecordKeys::new(suite, &server));
                    self.last_flight = Some((last_flight, RecordKeys::new(suite, &client)));
                    self.server_finished = true;
                    self.events.push_back(Event::Finished);
                }
                Step::Certificate(content) => {
                    self.events.push_back(Event::Certificate(content));
                }
                Step::Ticket(ticket) => self.events.push_back(Event::Ticket(ticket)),
                Step::KeyUpdate => {
                    self.expect_no_partial_message()?;
                    if let Some(keys) = &mut self.read {
                        keys.update();
                    }
                }
            }
        }
        Ok(())
    }

    /// A message must not span a change of keys (RFC 8446 section 5.1).
    fn expect_no_partial_message(&self) -> Result<(), ProtocolError> {
        if self.messages.is_empty() { Ok(()) } else { Err(ProtocolError::Malformed) }
    }
}
