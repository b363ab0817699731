//! Reads the client's byte stream: its ClientHello, its early data, its Finished.

use crate::decrypt::{Opener, Suite};
use crate::facts::{TlsVersion, Unknown};
use crate::handshake::{self, ClientHello, Messages};
use crate::keylog::{KeyLog, SecretLabel};
use crate::record::{self, Record, Records};
use crate::server_side::ServerSide;

/// The first ClientHello at the beginning of `stream`.
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
        messages.push(record.payload);
        match messages.next() {
            Some((handshake::CLIENT_HELLO, body)) => return ClientHello::read(body),
            Some(_) => return Err(Unknown::NotTls),
            None => {}
        }
    }
    Err(Unknown::CaptureGap)
}

/// What the client's bytes after its first ClientHello say.
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
        let mut reader = Reader {
            found: Self::default(),
            offered: hello.early_data,
            first_flight,
            legacy: server.version().is_some_and(|version| version < TlsVersion::Tls13),
            changed_cipher: false,
            early,
            handshake: Opener::new(&suites, secrets(SecretLabel::ClientHandshake)),
            messages: Messages::default(),
        };
        if reader.legacy || !reader.handshake.is_empty() {
            reader.found.finished = Some(false);
        }
        let mut records = Records::new(stream);
        while let Ok(Some(record)) = records.next() {
            reader.record(&record);
            if reader.found.finished == Some(true) {
                break;
            }
        }
        reader.found
    }
}

struct Reader {
    found: ClientSide,
    offered: bool,
    first_flight: usize,
    legacy: bool,
    changed_cipher: bool,
    early: Opener,
    handshake: Opener,
    messages: Messages,
}

impl Reader {
    fn record(&mut self, record: &Record<'_>) {
        match record.content_type {
            record::CHANGE_CIPHER_SPEC => self.changed_cipher = true,
            record::HANDSHAKE if self.legacy && self.changed_cipher => {
                self.found.finished = Some(true);
            }
            record::APPLICATION_DATA if !self.opens_as_early(record) => {
                if self.opens_as_finished(record) {
                    self.found.finished = Some(true);
                } else if self.offered && record.start < self.first_flight {
                    self.count_early(record);
                }
            }
            _ => {}
        }
    }

    fn opens_as_early(&mut self, record: &Record<'_>) -> bool {
        let Some(opened) = self.early.open(record) else {
            return false;
        };
        let plain = self.found.early_plain_bytes.get_or_insert(0);
        if opened.content_type == record::APPLICATION_DATA {
            *plain += opened.content.len() as u64;
            self.count_early(record);
        } else if opened.content.first() == Some(&handshake::END_OF_EARLY_DATA) {
            self.early = Opener::default();
        }
        true
    }

    /// Whether this record, under the handshake secret, completes the client's Finished.
    fn opens_as_finished(&mut self, record: &Record<'_>) -> bool {
        let Some(opened) = self.handshake.open(record) else {
            return false;
        };
        if opened.content_type != record::HANDSHAKE {
            return false;
        }
        self.messages.push(&opened.content);
        while let Some((kind, _)) = self.messages.next() {
            if kind == handshake::FINISHED {
                return true;
            }
        }
        false
    }

    fn count_early(&mut self, record: &Record<'_>) {
        self.found.early_records += 1;
        self.found.early_wire_bytes += record.wire_len() as u64;
    }
}
