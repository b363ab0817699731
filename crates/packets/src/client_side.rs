//! Reads the client's byte stream: its ClientHello, its early data, its Finished, its requests.

use crate::Direction;
use crate::decrypt::{Opener, Suite};
use crate::event::Event;
use crate::facts::{TlsVersion, Unknown};
use crate::handshake::{self, ClientHello, Messages};
use crate::keylog::{KeyLog, SecretLabel};
use crate::legacy::{self, LegacyOpener};
use crate::record::{self, Record, Records};
use crate::sayings::{StreamEvent, StreamEvents};
use crate::server_side::ServerSide;

/// The first ClientHello at the start of `stream`.
///
/// # Errors
/// `NotTls` if something else stands there, `CaptureGap` if the stream ends within it.
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

/// What the client's bytes say.
#[derive(Debug, Default)]
pub(crate) struct ClientSide {
    /// Early records: opened by the early secret, or sent before the server's first byte came.
    pub(crate) early_records: u32,
    /// Their bytes on the wire.
    pub(crate) early_wire_bytes: u64,
    /// Their content's bytes; `None` if no early secret opened them.
    pub(crate) early_plain_bytes: Option<u64>,
    /// Whether the client's Finished was seen; `None` if that could not be read.
    pub(crate) finished: Option<bool>,
    /// All that was read, in order.
    pub(crate) said: Vec<StreamEvent>,
}

impl ClientSide {
    /// Reads `stream`. Its first `first_flight` bytes were sent before any of the server's were
    /// delivered; `server` is what the server answered.
    pub(crate) fn read(
        stream: &[u8],
        hello: &ClientHello,
        first_flight: usize,
        server: &ServerSide,
        keys: &KeyLog,
    ) -> Self {
        let secrets = |label| keys.secrets(&hello.random, label);
        // The early secret is of the ticket's suite, which a refusing server need not choose.
        let early = match hello.early_data {
            true => Opener::new(&Suite::ALL, secrets(SecretLabel::ClientEarly)),
            false => Opener::default(),
        };
        let suites: Vec<_> = server.suite().into_iter().collect();
        let legacy = server.version().is_some_and(|version| version < TlsVersion::Tls13);
        let legacy = server.hello.as_ref().filter(|_| legacy);
        let mut reader = Reader {
            found: Self::default(),
            offered: hello.early_data,
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
            sayings: StreamEvents::default(),
        };
        if reader.legacy.is_some() || !reader.handshake.is_empty() {
            reader.found.finished = Some(false);
        }
        let mut records = Records::new(stream);
        while let Ok(Some(record)) = records.next() {
            reader.sayings.begin();
            reader.record(&record);
            reader.sayings.end(&record, !reader.messages.is_empty());
        }
        reader.found.said = reader.sayings.all;
        reader.found
    }
}

struct Reader {
    found: ClientSide,
    offered: bool,
    first_flight: usize,
    /// Before TLS 1.3: the cipher suite, and what opens records after the ChangeCipherSpec.
    legacy: Option<(u16, LegacyOpener)>,
    changed_cipher: bool,
    early: Opener,
    handshake: Opener,
    application: Opener,
    messages: Messages,
    sayings: StreamEvents,
}

impl Reader {
    fn record(&mut self, record: &Record<'_>) {
        let done = self.found.finished == Some(true);
        match record.content_type {
            record::CHANGE_CIPHER_SPEC => self.changed_cipher = true,
            _ if self.changed_cipher && self.legacy.is_some() => self.legacy(record),
            record::HANDSHAKE => {
                self.messages(record.payload, record);
            }
            record::ALERT => self.sayings.record(Event::alert(record.payload)),
            record::APPLICATION_DATA if done => self.after_finished(record),
            record::APPLICATION_DATA => {
                let opened = self.opens_as_early(record) || self.opens_as_handshake(record);
                if !opened && self.offered && record.start < self.first_flight {
                    self.count_early(record);
                }
            }
            _ => {}
        }
    }

    /// TLS 1.2 and before, after the client's ChangeCipherSpec.
    fn legacy(&mut self, record: &Record<'_>) {
        let Some((suite, opener)) = &mut self.legacy else {
            return;
        };
        let opened = opener.open(record);
        match (record.content_type, opened) {
            (record::HANDSHAKE, _) if self.found.finished != Some(true) => {
                self.found.finished = Some(true);
                self.sayings.record(Event::Finished);
            }
            (record::ALERT, Ok(opened)) => self.sayings.record(Event::alert(&opened.content)),
            (record::APPLICATION_DATA, Ok(opened)) => {
                self.sayings.record(Event::opened(&opened));
            }
            (record::APPLICATION_DATA, Err(_)) => {
                let bytes = legacy::plain_len(*suite, record.payload.len());
                self.sayings.record(Event::ApplicationData { bytes });
            }
            _ => {}
        }
    }

    /// Says the messages that end in this record, and whether a Finished is among them.
    fn messages(&mut self, content: &[u8], record: &Record<'_>) -> bool {
        self.sayings.messages();
        self.messages.push(content, record.payload_start());
        let mut finished = false;
        while let Some(message) = self.messages.next() {
            finished |= message.kind == handshake::FINISHED;
            self.sayings.say(message.span, Event::message(message.kind));
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
            self.sayings.record(Event::EarlyData { bytes });
        } else if opened.content.first() == Some(&handshake::END_OF_EARLY_DATA) {
            self.early = Opener::default();
            self.sayings.record(Event::message(handshake::END_OF_EARLY_DATA));
        } else {
            self.sayings.record(Event::opened(&opened));
        }
        true
    }

    /// Whether this record is under the handshake secret; it may complete the client's Finished.
    fn opens_as_handshake(&mut self, record: &Record<'_>) -> bool {
        let Some(opened) = self.handshake.open(record) else {
            return false;
        };
        if opened.content_type != record::HANDSHAKE {
            self.sayings.record(Event::opened(&opened));
        } else if self.messages(&opened.content, record) {
            self.found.finished = Some(true);
        }
        true
    }

    /// Requests, and what else comes under the application secret.
    fn after_finished(&mut self, record: &Record<'_>) {
        let Some(opened) = self.application.open(record) else {
            return;
        };
        if opened.content_type != record::HANDSHAKE {
            self.sayings.record(Event::opened(&opened));
            return;
        }
        let said = self.sayings.all.len();
        self.messages(&opened.content, record);
        let update = Event::message(handshake::KEY_UPDATE);
        if self.sayings.all[said..].iter().any(|said| said.event == update) {
            self.application.update();
        }
    }

    fn count_early(&mut self, record: &Record<'_>) {
        self.found.early_records += 1;
        self.found.early_wire_bytes += record.wire_len() as u64;
    }
}
