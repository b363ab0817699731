//! A connection over a byte stream, without its socket.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::flight::FlightParts;
use crate::handshake::{Handshake, LastFlight, Step};
use crate::record::{self, Messages, Record, RecordKeys, Records};
use crate::wire::kind;
use crate::{ProtocolError, Suite, Ticket};

/// What a server did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It requested another ClientHello, which discards the early data. The second one is sent by
    /// itself, without early data.
    HelloRetryRequest,
    /// It chose a suite, and accepted the ticket or not.
    ServerHello {
        /// The suite.
        suite: Suite,
        /// Whether the ticket was accepted.
        resumed: bool,
    },
    /// Its extensions: whether it accepts the early data.
    EncryptedExtensions {
        /// Whether the early data was accepted.
        early_data: bool,
        /// The application protocol.
        alpn: Option<String>,
    },
    /// The content of its Certificate message, which is not verified: it tells whether two names have
    /// the same certificate.
    Certificate(Vec<u8>),
    /// Its Finished, which is right. The handshake can be completed.
    Finished,
    /// Application data.
    ApplicationData {
        /// The data.
        data: Vec<u8>,
        /// Whether it came before we sent our Finished.
        before_finished: bool,
    },
    /// A ticket.
    Ticket(Ticket),
    /// An alert.
    Alert(Alert),
}

/// An alert (RFC 8446 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alert(pub u8);

impl Alert {
    /// The end of the data, and no error.
    pub const CLOSE_NOTIFY: Self = Self(0);

    /// The name in the RFC.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            22 => "record_overflow",
            40 => "handshake_failure",
            42 => "bad_certificate",
            47 => "illegal_parameter",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            86 => "inappropriate_fallback",
            90 => "user_canceled",
            109 => "missing_extension",
            110 => "unsupported_extension",
            112 => "unrecognized_name",
            115 => "unknown_psk_identity",
            116 => "certificate_required",
            120 => "no_application_protocol",
            _ => "unknown alert",
        }
    }
}

/// One copy of a first flight: reads the response, and may complete the handshake.
pub struct Connection {
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
    /// Until it is sent: the client's last flight, and the keys for what comes after it.
    last_flight: Option<(LastFlight, RecordKeys)>,
    server_finished: bool,
    finished: bool,
    early_data: bool,
    suite: Option<Suite>,
}

impl Connection {
    pub(crate) fn new(flight: Arc<FlightParts>) -> Self {
        Self {
            early: flight.later_early_keys(),
            output: flight.bytes().to_vec(),
            handshake: Handshake::new(flight, true),
            records: Records::default(),
            messages: Messages::default(),
            events: VecDeque::new(),
            read: None,
            write: None,
            last_flight: None,
            server_finished: false,
            finished: false,
            early_data: false,
            suite: None,
        }
    }

    /// The bytes to send next: at first those of the flight.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the server's Finished has been received.
    pub fn is_ready(&self) -> bool {
        self.server_finished
    }

    /// Whether the early data was accepted.
    pub fn early_data_accepted(&self) -> bool {
        self.early_data
    }

    /// Processes bytes of the server, which arrived at this time.
    ///
    /// # Errors
    /// If they break the protocol. The connection is of no use then; its events are still there.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<(), ProtocolError> {
        self.records.push(bytes);
        while let Some(record) = self.records.next()? {
            self.record(&record, now)?;
        }
        Ok(())
    }

    /// Sends more early data, after that of the flight. Returns whether that is possible: early data
    /// was offered, and its end was not sent.
    pub fn send_early_data(&mut self, data: &[u8]) -> bool {
        let Some(keys) = &mut self.early else { return false };
        keys.seal(record::APPLICATION_DATA, data, &mut self.output);
        true
    }

    /// Completes the handshake: EndOfEarlyData, if early data was accepted, and Finished. Returns
    /// whether that is possible: the server's Finished must have been received.
    pub fn finish(&mut self) -> bool {
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

    /// Sends application data after the handshake. Returns whether that is possible: the handshake
    /// must have been completed by [`finish`](Self::finish).
    pub fn send(&mut self, data: &[u8]) -> bool {
        let Some(keys) = self.write.as_mut().filter(|_| self.finished) else { return false };
        keys.seal(record::APPLICATION_DATA, data, &mut self.output);
        true
    }

    /// Sends close_notify, if the handshake is complete.
    pub fn close(&mut self) {
        if let Some(keys) = self.write.as_mut().filter(|_| self.finished) {
            keys.seal(record::ALERT, &[1, 0], &mut self.output);
        }
    }

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
                        let data = content;
                        self.events.push_back(Event::ApplicationData { data, before_finished });
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
                    self.expect_no_rest()?;
                    self.suite = Some(suite);
                    self.read = Some(RecordKeys::new(suite, &server));
                    self.write = Some(RecordKeys::new(suite, &client));
                    self.events.push_back(Event::ServerHello { suite, resumed });
                }
                Step::Extensions { early_data, alpn } => {
                    self.early_data = early_data;
                    if !early_data {
                        self.early = None;
                    }
                    self.events.push_back(Event::EncryptedExtensions { early_data, alpn });
                }
                Step::Finished { client, server, last_flight } => {
                    self.expect_no_rest()?;
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
                    self.expect_no_rest()?;
                    if let Some(keys) = &mut self.read {
                        keys.update();
                    }
                }
            }
        }
        Ok(())
    }

    /// Messages end where keys change (RFC 8446 section 5.1).
    fn expect_no_rest(&self) -> Result<(), ProtocolError> {
        if self.messages.is_empty() { Ok(()) } else { Err(ProtocolError::Malformed) }
    }
}
