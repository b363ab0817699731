//! Parses the client's byte stream: ClientHello, early data, Finished, requests.

use firstflight_wire::Suite;

use super::decrypt::Opener;
use super::handshake::{self, ClientHello, Messages};
use super::legacy::{self, LegacyOpener};
use super::record::{self, Record, Records};
use super::server::ServerStream;
use crate::Direction;
use crate::event::{Event, EventRecorder, StreamEvent};
use crate::facts::{TlsVersion, Unknown};
use crate::keylog::{KeyLog, SecretLabel};

/// The first ClientHello at the start of `stream`.
///
/// # Errors
/// `NotTls` if the stream starts with something else, `CaptureGap` if it ends too early.
pub(crate) fn client_hello(stream: &[u8]) -> Result<ClientHello, Unknown> {
    let mut records = Records::new(stream);
    let mut messages = Messages::default();
    while let Some(record) = records.next()? {
        if record.content_type != record::HANDSHAKE {
            return Err(Unknown::NotTls);
        }
        messages.push(record.payload, record.payload_start());
        match messages.next() {
            Some(message) if message.kind == handshake::CLIENT_HELLO => {
                return ClientHello::read(message.body);
            }
            Some(_) => return Err(Unknown::NotTls),
            None => {}
        }
    }
    Err(Unknown::CaptureGap)
}

/// What the client's bytes show.
#[derive(Debug, Default)]
pub(crate) struct ClientStream {
    /// Records of early data: decrypted by the early secret, or sent before the server's first byte
    /// was delivered.
    pub(crate) early_records: u32,
    /// Their bytes on the wire.
    pub(crate) early_wire_bytes: u64,
    /// The bytes of their plaintext; `None` if no early secret decrypted them.
    pub(crate) early_plain_bytes: Option<u64>,
    /// Whether the client's Finished was seen; `None` if secrets are missing.
    pub(crate) finished: Option<bool>,
    /// The events of the stream, in order.
    pub(crate) events: Vec<StreamEvent>,
}

impl ClientStream {
    /// Parses `stream`. Its first `first_flight` bytes were sent before any of the server's bytes
    /// were delivered; `server` is the parsed stream of the server.
    pub(crate) fn read(
        stream: &[u8],
        hello: &ClientHello,
        first_flight: usize,
        server: &ServerStream,
        keys: &KeyLog,
    ) -> Self {
        let secrets = |label| keys.secrets(&hello.random, label);
        // Early data uses the ticket's suite, which a server that refuses it may not choose.
        let early = match hello.early_data {
            true => Opener::new(&Suite::ALL, secrets(SecretLabel::ClientEarly)),
            false => Opener::default(),
        };
        let suites: Vec<_> = server.suite().into_iter().collect();
        let legacy = server.version().is_some_and(|version| version < TlsVersion::Tls13);
        let legacy = server.hello.as_ref().filter(|_| legacy);
        let mut reader = ClientReader {
            found: Self::default(),
            early_data_offered: hello.early_data,
            first_flight,
            legacy: legacy.map(|chosen| {
                let opener = LegacyOpener::new(hello, chosen, Direction::ToServer, keys);
                (chosen.cipher_suite, opener)
            }),
            changed_cipher: false,
            early,
            handshake: Opener::new(&suites, secrets(SecretLabel::ClientHandshake)),
            application: Opener::new(&suites, secrets(SecretLabel::ClientApplication)),
            messages: Messages::default(),
            recorder: EventRecorder::default(),
        };
        if reader.legacy.is_some() || !reader.handshake.is_empty() {
            reader.found.finished = Some(false);
        }
        let mut records = Records::new(stream);
        while let Ok(Some(record)) = records.next() {
            reader.recorder.start_record();
            reader.record(&record);
            reader.recorder.finish_record(&record, !reader.messages.is_empty());
        }
        reader.found.events = reader.recorder.all;
        reader.found
    }
}

struct ClientReader {
    found: ClientStream,
    early_data_offered: bool,
    first_flight: usize,
    /// Before TLS 1.3: the cipher suite, and the keys for records after the ChangeCipherSpec.
    legacy: Option<(u16, LegacyOpener)>,
    changed_cipher: bool,
    early: Opener,
    handshake: Opener,
    application: Opener,
    messages: Messages,
    recorder: EventRecorder,
}

impl ClientReader {
    fn record(&mut self, record: &Record<'_>) {
        let finished = self.found.finished == Some(true);
        match record.content_type {
            record::CHANGE_CIPHER_SPEC => self.changed_cipher = true,
            _ if self.changed_cipher && self.legacy.is_some() => self.legacy(record),
            record::HANDSHAKE => {
                self.messages(record.payload, record);
            }
            record::ALERT => self.recorder.set_record(Event::alert(record.payload)),
            record::APPLICATION_DATA if finished => self.after_finished(record),
            record::APPLICATION_DATA => {
                let opened = self.opens_as_early(record) || self.opens_as_handshake(record);
                if !opened && self.early_data_offered && record.start < self.first_flight {
                    self.count_early(record);
                }
            }
            _ => {}
        }
    }

    /// Handles a record of TLS 1.2 or before, after the client's ChangeCipherSpec.
    fn legacy(&mut self, record: &Record<'_>) {
        let Some((suite, opener)) = &mut self.legacy else {
            return;
        };
        let opened = opener.open(record);
        match (record.content_type, opened) {
            (record::HANDSHAKE, _) if self.found.finished != Some(true) => {
                self.found.finished = Some(true);
                self.recorder.set_record(Event::Finished);
            }
            (record::ALERT, Ok(opened)) => self.recorder.set_record(Event::alert(&opened.content)),
            (record::APPLICATION_DATA, Ok(opened)) => {
                self.recorder.set_record(Event::opened(&opened));
            }
            (record::APPLICATION_DATA, Err(_)) => {
                let bytes = legacy::plain_len(*suite, record.payload.len());
                self.recorder.set_record(Event::ApplicationData { bytes });
            }
            _ => {}
        }
    }

    /// Records the messages that end in this record. Returns whether a Finished is among them.
    fn messages(&mut self, content: &[u8], record: &Record<'_>) -> bool {
        self.recorder.set_messages();
        self.messages.push(content, record.payload_start());
        let mut finished = false;
        while let Some(message) = self.messages.next() {
            finished |= message.kind == handshake::FINISHED;
            self.recorder.push(message.span, Event::message(message.kind));
        }
        finished
    }

    fn opens_as_early(&mut self, record: &Record<'_>) -> bool {
        let Some(opened) = self.early.open(record) else {
            return false;
        };
        let plain = self.found.early_plain_bytes.get_or_insert(0);
        if opened.content_type == record::APPLICATION_DATA {
            let bytes = opened.content.len() as u64;
            *plain += bytes;
            self.count_early(record);
            self.recorder.set_record(Event::EarlyData { bytes });
        } else if opened.content.first() == Some(&handshake::END_OF_EARLY_DATA) {
            self.early = Opener::default();
            self.recorder.set_record(Event::message(handshake::END_OF_EARLY_DATA));
        } else {
            self.recorder.set_record(Event::opened(&opened));
        }
        true
    }

    /// Returns whether the handshake secret decrypts this record, which may complete the client's
    /// Finished.
    fn opens_as_handshake(&mut self, record: &Record<'_>) -> bool {
        let Some(opened) = self.handshake.open(record) else {
            return false;
        };
        if opened.content_type != record::HANDSHAKE {
            self.recorder.set_record(Event::opened(&opened));
        } else if self.messages(&opened.content, record) {
            self.found.finished = Some(true);
        }
        true
    }

    /// Decrypts a record with the application secret: requests, KeyUpdate.
    fn after_finished(&mut self, record: &Record<'_>) {
        let Some(opened) = self.application.open(record) else {
            return;
        };
        if opened.content_type != record::HANDSHAKE {
            self.recorder.set_record(Event::opened(&opened));
            return;
        }
        let events = self.recorder.all.len();
        self.messages(&opened.content, record);
        let update = Event::message(handshake::KEY_UPDATE);
        if self.recorder.all[events..].iter().any(|recorded| recorded.event == update) {
            self.application.update();
        }
    }

    fn count_early(&mut self, record: &Record<'_>) {
        self.found.early_records += 1;
        self.found.early_wire_bytes += record.wire_len() as u64;
    }
}
