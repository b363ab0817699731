//! Parses the server's byte stream: what it negotiated, and where its response is.

use std::ops::Range;

use firstflight_wire::Suite;

use super::decrypt::{Opened, Opener};
use super::handshake::{
    self, Authentication, ClientHello, EncryptedExtensions, Messages, ServerHello,
};
use super::legacy::{self, LegacyOpener};
use super::record::{self, Record, Records};
use crate::Direction;
use crate::event::{Event, EventRecorder, StreamEvent};
use crate::facts::{HandshakeKind, TlsVersion, Unknown};
use crate::keylog::{KeyLog, SecretLabel};

/// What the server's bytes show.
#[derive(Debug, Default)]
pub(crate) struct ServerStream {
    pub(crate) hello: Option<ServerHello>,
    pub(crate) retries: u32,
    pub(crate) encrypted_extensions: Option<EncryptedExtensions>,
    pub(crate) authentication: Authentication,
    /// Before TLS 1.3: whether the handshake was full or abbreviated.
    pub(crate) legacy_kind: Option<HandshakeKind>,
    /// The end of the record that completes the server's Finished.
    pub(crate) finished: Option<usize>,
    pub(crate) response: Option<ResponseSpan>,
    /// The ranges of records that hold only TLS 1.3 tickets.
    pub(crate) tickets: Vec<Range<usize>>,
    /// Why parsing stopped before the end of the stream.
    pub(crate) stopped: Option<Unknown>,
    /// The events of the stream, in order.
    pub(crate) events: Vec<StreamEvent>,
}

/// Where the response is in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseSpan {
    /// Where its first record starts.
    pub(crate) start: usize,
    /// Where its last record ends.
    pub(crate) end: usize,
    /// The length of its plaintext.
    pub(crate) bytes: Option<u64>,
}

impl ServerStream {
    /// Parses `stream` up to its last whole record.
    pub(crate) fn read(stream: &[u8], hello: &ClientHello, keys: &KeyLog) -> Self {
        let mut reader = ServerReader {
            found: Self::default(),
            phase: Phase::Hello,
            messages: Messages::default(),
            frames: None,
            recorder: EventRecorder::default(),
            client: hello,
            keys,
        };
        let mut records = Records::new(stream);
        loop {
            match records.next() {
                Ok(Some(record)) => {
                    if let Err(why) = reader.record(&record) {
                        reader.found.stopped = Some(why);
                        reader.phase = Phase::Stopped;
                    }
                }
                Ok(None) => break,
                Err(why) => {
                    reader.found.stopped.get_or_insert(why);
                    break;
                }
            }
        }
        reader.found.events = reader.recorder.all;
        reader.found
    }

    /// The negotiated version. Returns `None` if it is unknown.
    pub(crate) fn version(&self) -> Option<TlsVersion> {
        self.hello.as_ref().and_then(|hello| TlsVersion::from_wire(hello.version))
    }

    /// The cipher suite of TLS 1.3. Returns `None` if it is not supported.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.hello.as_ref().and_then(|hello| Suite::from_id(hello.cipher_suite))
    }
}

enum Phase {
    /// Up to the ServerHello.
    Hello,
    /// TLS 1.3 under the handshake secret.
    Handshake(Opener),
    /// TLS 1.3 under the application secret.
    Application(Opener),
    /// TLS 1.2 and before, in clear.
    LegacyClear { certificate: bool },
    /// TLS 1.2 and before, after the server's ChangeCipherSpec.
    LegacyEncrypted(LegacyOpener),
    /// Parsing has stopped: events follow from record headers alone.
    Stopped,
}

struct ServerReader<'a> {
    found: ServerStream,
    phase: Phase,
    messages: Messages,
    /// The frame parser for HTTP/2.
    frames: Option<ResponseFrames>,
    recorder: EventRecorder,
    client: &'a ClientHello,
    keys: &'a KeyLog,
}

impl ServerReader<'_> {
    fn record(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        self.recorder.start_record();
        let read = self.read(record);
        self.recorder.finish_record(record, !self.messages.is_empty());
        read
    }

    fn read(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        // ChangeCipherSpec has no meaning in TLS 1.3 (RFC 8446 appendix D.4), and a plaintext alert
        // changes no phase.
        match (&mut self.phase, record.content_type) {
            (Phase::Hello, record::HANDSHAKE) => self.hello(record),
            (Phase::Hello, record::APPLICATION_DATA) => Err(Unknown::NotTls),
            (Phase::Handshake(opener), record::APPLICATION_DATA) => {
                let opened = opener.open(record).ok_or(Unknown::WrongSecrets)?;
                self.handshake(&opened, record)
            }
            (Phase::Application(opener), record::APPLICATION_DATA) => {
                let opened = opener.open(record).ok_or(Unknown::WrongSecrets)?;
                self.application(&opened, record)
            }
            (Phase::Handshake(_) | Phase::Application(_), record::HANDSHAKE) => {
                Err(Unknown::NotTls)
            }
            (Phase::LegacyClear { .. }, _) => self.legacy_clear(record),
            (Phase::LegacyEncrypted(opener), _) => {
                let opened = opener.open(record);
                self.legacy_encrypted(record, opened)
            }
            (_, record::ALERT) => {
                self.recorder.set_record(Event::alert(record.payload));
                Ok(())
            }
            (_, _) => Ok(()),
        }
    }

    /// Handles a plaintext record before the ServerHello is complete.
    fn hello(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        self.recorder.set_messages();
        self.messages.push(record.payload, record.payload_start());
        while let Some(message) = self.messages.next() {
            // Before TLS 1.3 a HelloRequest (0) may precede the ServerHello.
            if message.kind != handshake::SERVER_HELLO {
                self.recorder.push(message.span, Event::message(message.kind));
                continue;
            }
            let hello = ServerHello::read(message.body)?;
            if hello.retry {
                self.recorder.push(message.span, Event::HelloRetryRequest);
                self.found.retries += 1;
                continue;
            }
            self.recorder.push(message.span, Event::ServerHello);
            self.found.hello = Some(hello);
            return match self.found.version().ok_or(Unknown::NotTls)? {
                TlsVersion::Tls13 => self.enter_handshake(),
                version => {
                    self.phase = Phase::LegacyClear { certificate: false };
                    self.legacy_messages(version);
                    Ok(())
                }
            };
        }
        Ok(())
    }

    fn enter_handshake(&mut self) -> Result<(), Unknown> {
        if !self.messages.is_empty() {
            return Err(Unknown::NotTls);
        }
        self.phase = Phase::Handshake(self.opener(SecretLabel::ServerHandshake)?);
        Ok(())
    }

    fn opener(&self, label: SecretLabel) -> Result<Opener, Unknown> {
        let suite = self.found.suite().ok_or(Unknown::CipherSuite)?;
        let opener = Opener::new(&[suite], self.keys.secrets(&self.client.random, label));
        if opener.is_empty() { Err(Unknown::NoSecrets) } else { Ok(opener) }
    }

    /// Handles a record from the EncryptedExtensions to the Finished.
    fn handshake(&mut self, opened: &Opened, record: &Record<'_>) -> Result<(), Unknown> {
        if opened.content_type != record::HANDSHAKE {
            self.recorder.set_record(Event::opened(opened));
            return Ok(());
        }
        self.recorder.set_messages();
        self.messages.push(&opened.content, record.payload_start());
        while let Some(message) = self.messages.next() {
            match message.kind {
                handshake::ENCRYPTED_EXTENSIONS => {
                    let extensions = EncryptedExtensions::read(message.body)?;
                    let early_data = self.client.early_data.then_some(extensions.early_data);
                    self.recorder.push(message.span, Event::EncryptedExtensions { early_data });
                    if extensions.alpn.as_deref() == Some("h2") {
                        self.frames = Some(ResponseFrames::default());
                    }
                    self.found.encrypted_extensions = Some(extensions);
                }
                handshake::FINISHED => {
                    self.recorder.push(message.span, Event::Finished);
                    if !self.messages.is_empty() {
                        return Err(Unknown::NotTls);
                    }
                    self.found.finished = Some(record.end());
                    self.phase = Phase::Application(self.opener(SecretLabel::ServerApplication)?);
                    return Ok(());
                }
                kind => {
                    self.recorder.push(message.span, Event::message(kind));
                    let version = TlsVersion::Tls13;
                    self.found.authentication.message(kind, message.body, version);
                }
            }
        }
        Ok(())
    }

    /// Handles a record after the Finished: response, tickets, key updates.
    fn application(&mut self, opened: &Opened, record: &Record<'_>) -> Result<(), Unknown> {
        if opened.content_type != record::HANDSHAKE {
            self.recorder.set_record(Event::opened(opened));
            if opened.content_type == record::APPLICATION_DATA {
                self.plain_response(&opened.content, record);
            }
            return Ok(());
        }
        let mut only_tickets = self.messages.is_empty();
        let mut updated = false;
        self.recorder.set_messages();
        self.messages.push(&opened.content, record.payload_start());
        while let Some(message) = self.messages.next() {
            only_tickets &= message.kind == handshake::NEW_SESSION_TICKET;
            updated |= message.kind == handshake::KEY_UPDATE;
            self.recorder.push(message.span, Event::message(message.kind));
        }
        if only_tickets && self.messages.is_empty() {
            self.found.tickets.push(record.start..record.end());
        }
        if let (true, Phase::Application(opener)) = (updated, &mut self.phase) {
            opener.update();
        }
        Ok(())
    }

    /// Handles decrypted application data.
    fn plain_response(&mut self, content: &[u8], record: &Record<'_>) {
        let bytes = match &mut self.frames {
            Some(frames) => frames.push(content),
            None => content.len() as u64,
        };
        if bytes > 0 {
            self.response(record, Some(bytes));
        }
    }

    fn response(&mut self, record: &Record<'_>, bytes: Option<u64>) {
        let (start, end) = (record.start, record.end());
        let response =
            self.found.response.get_or_insert(ResponseSpan { start, end, bytes: Some(0) });
        response.end = end;
        response.bytes = response.bytes.zip(bytes).map(|(before, taken)| before + taken);
    }

    /// Handles a record of TLS 1.2 or before, up to the server's ChangeCipherSpec (RFC 5246 section
    /// 7.3).
    fn legacy_clear(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        let hello = self.found.hello.as_ref().ok_or(Unknown::NotTls)?;
        match (&self.phase, record.content_type) {
            (_, record::HANDSHAKE) => {
                let version = TlsVersion::from_wire(hello.version).ok_or(Unknown::NotTls)?;
                self.recorder.set_messages();
                self.messages.push(record.payload, record.payload_start());
                self.legacy_messages(version);
            }
            (Phase::LegacyClear { certificate }, record::CHANGE_CIPHER_SPEC) => {
                let kind = if *certificate { HandshakeKind::Full } else { HandshakeKind::Resumed };
                self.found.legacy_kind = Some(kind);
                if hello.alpn.as_deref() == Some("h2") {
                    self.frames = Some(ResponseFrames::default());
                }
                let opener = LegacyOpener::new(self.client, hello, Direction::ToClient, self.keys);
                self.phase = Phase::LegacyEncrypted(opener);
            }
            (_, record::APPLICATION_DATA) => return Err(Unknown::NotTls),
            (_, record::ALERT) => self.recorder.set_record(Event::alert(record.payload)),
            _ => {}
        }
        Ok(())
    }

    /// After the ChangeCipherSpec, events follow from the record types, and from the content if it
    /// was `opened`.
    fn legacy_encrypted(
        &mut self,
        record: &Record<'_>,
        opened: Result<Opened, Unknown>,
    ) -> Result<(), Unknown> {
        match (record.content_type, opened) {
            (record::HANDSHAKE, _) if self.found.finished.is_none() => {
                self.recorder.set_record(Event::Finished);
                self.found.finished = Some(record.end());
            }
            (record::ALERT, Ok(opened)) => self.recorder.set_record(Event::alert(&opened.content)),
            (record::APPLICATION_DATA, Ok(opened)) => {
                self.recorder.set_record(Event::opened(&opened));
                self.plain_response(&opened.content, record);
            }
            (record::APPLICATION_DATA, Err(why)) => {
                let suite = self.found.hello.as_ref().map_or(0, |hello| hello.cipher_suite);
                let bytes = legacy::plain_len(suite, record.payload.len());
                self.recorder.set_record(Event::ApplicationData { bytes });
                if self.frames.is_some() {
                    // The record may hold only the server's SETTINGS.
                    return Err(why);
                }
                self.response(record, bytes);
            }
            _ => {}
        }
        Ok(())
    }

    fn legacy_messages(&mut self, version: TlsVersion) {
        while let Some(message) = self.messages.next() {
            let kind = message.kind;
            self.found.authentication.message(kind, message.body, version);
            self.recorder.push(message.span, Event::message(kind));
            // Suites without a certificate still end their flight with ServerHelloDone.
            if matches!(kind, handshake::CERTIFICATE | handshake::SERVER_HELLO_DONE) {
                self.phase = Phase::LegacyClear { certificate: true };
                self.found.legacy_kind = Some(HandshakeKind::Full);
            }
        }
    }
}

/// Counts the bytes of response frames: HEADERS, CONTINUATION and DATA on a stream that the client
/// opened (RFC 9113 section 4.1).
#[derive(Debug, Default)]
pub(crate) struct ResponseFrames {
    header: Vec<u8>,
    /// The bytes left of the current frame.
    remaining: usize,
    /// Whether the current frame belongs to a response.
    in_response: bool,
}

const HEADER_LEN: usize = 9;

impl ResponseFrames {
    /// Continues with `bytes`. Returns how many of them belong to responses. A frame header counts
    /// where it ends.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> u64 {
        let mut counted = 0;
        while !bytes.is_empty() {
            if self.remaining == 0 {
                let missing = (HEADER_LEN - self.header.len()).min(bytes.len());
                self.header.extend_from_slice(&bytes[..missing]);
                bytes = &bytes[missing..];
                if let Some(header) = self.header.first_chunk::<HEADER_LEN>() {
                    self.remaining =
                        u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
                    self.in_response = is_response_frame(header);
                    self.header.clear();
                    counted += if self.in_response { HEADER_LEN as u64 } else { 0 };
                }
                continue;
            }
            let taken = self.remaining.min(bytes.len());
            counted += if self.in_response { taken as u64 } else { 0 };
            self.remaining -= taken;
            bytes = &bytes[taken..];
        }
        counted
    }
}

fn is_response_frame(header: &[u8; HEADER_LEN]) -> bool {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const CONTINUATION: u8 = 9;
    let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
    // The client's streams have odd numbers (RFC 9113 section 5.1.1).
    matches!(header[3], DATA | HEADERS | CONTINUATION) && stream % 2 == 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, stream: u8, len: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, len, kind, 0, 0, 0, 0, stream];
        frame.extend(vec![0xff; usize::from(len)]);
        frame
    }

    proptest! {
        #[test]
        fn rfc9113_4_1_only_response_frames_count_in_any_fragmentation(
            cuts in prop::collection::vec(1usize..20, 0..30)
        ) {
            // SETTINGS, WINDOW_UPDATE on a stream, HEADERS, DATA, an empty DATA, GOAWAY.
            let all: Vec<u8> = [
                frame(4, 0, 18), frame(8, 1, 4), frame(1, 1, 30), frame(0, 1, 200),
                frame(0, 1, 0), frame(7, 0, 8),
            ].concat();
            let mut frames = ResponseFrames::default();
            let (mut rest, mut counted) = (&all[..], 0);
            for cut in cuts {
                let (chunk, remaining) = rest.split_at(cut.min(rest.len()));
                counted += frames.push(chunk);
                rest = remaining;
            }
            counted += frames.push(rest);
            prop_assert_eq!(counted, 9 + 30 + 9 + 200 + 9);
        }

        #[test]
        fn the_count_never_exceeds_the_input(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(ResponseFrames::default().push(&bytes) <= bytes.len() as u64);
        }
    }

    #[test]
    fn rfc9113_3_4_settings_alone_are_no_response() {
        assert_eq!(ResponseFrames::default().push(&frame(4, 0, 18)), 0);
    }
}
