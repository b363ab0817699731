//! Reads the server's byte stream: what it negotiated, and where its response lies.

use std::ops::Range;

use crate::Direction;
use crate::authentication::Authentication;
use crate::decrypt::{Opened, Opener, Suite};
use crate::event::Event;
use crate::facts::{Kind, TlsVersion, Unknown};
use crate::handshake::{self, ClientHello, EncryptedExtensions, Messages, ServerHello};
use crate::http2::Frames;
use crate::keylog::{KeyLog, SecretLabel};
use crate::legacy::{self, LegacyOpener};
use crate::record::{self, Record, Records};
use crate::sayings::{StreamEvent, StreamEvents};

/// What the server's bytes say.
#[derive(Debug, Default)]
pub(crate) struct ServerSide {
    pub(crate) hello: Option<ServerHello>,
    pub(crate) retries: u32,
    pub(crate) encrypted_extensions: Option<EncryptedExtensions>,
    pub(crate) authentication: Authentication,
    /// Before TLS 1.3: whether the handshake showed itself as full or abbreviated.
    pub(crate) legacy_kind: Option<Kind>,
    /// Where the record ends that completes the server's Finished.
    pub(crate) finished: Option<usize>,
    pub(crate) response: Option<Response>,
    /// Where records lie that hold nothing but TLS 1.3 tickets.
    pub(crate) tickets: Vec<Range<usize>>,
    /// Why reading stopped, if the stream did not simply end.
    pub(crate) stopped: Option<Unknown>,
    /// All that was read, in order.
    pub(crate) said: Vec<StreamEvent>,
}

/// Where the response lies in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    /// Where its first record starts.
    pub(crate) start: usize,
    /// Where its last record ends.
    pub(crate) end: usize,
    /// Its plain text's length.
    pub(crate) bytes: Option<u64>,
}

impl ServerSide {
    /// Reads `stream` from its first byte to its last whole record.
    pub(crate) fn read(stream: &[u8], hello: &ClientHello, keys: &KeyLog) -> Self {
        let mut reader = Reader {
            found: Self::default(),
            phase: Phase::Hello,
            messages: Messages::default(),
            frames: None,
            sayings: StreamEvents::default(),
            client: hello,
            keys,
        };
        let mut records = Records::new(stream);
        loop {
            match records.next() {
                Ok(Some(record)) => {
                    if let Err(why) = reader.record(&record) {
                        reader.found.stopped = Some(why);
                        reader.phase = Phase::Blind;
                    }
                }
                Ok(None) => break,
                Err(why) => {
                    reader.found.stopped.get_or_insert(why);
                    break;
                }
            }
        }
        reader.found.said = reader.sayings.all;
        reader.found
    }

    /// The negotiated version, if it is one that is known.
    pub(crate) fn version(&self) -> Option<TlsVersion> {
        self.hello.as_ref().and_then(|hello| TlsVersion::from_wire(hello.version))
    }

    /// The cipher suite of TLS 1.3, if it is one that is read.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.hello.as_ref().and_then(|hello| Suite::from_wire(hello.cipher_suite))
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
    /// TLS 1.2 and before, after the server's ChangeCipherSpec; its opener may open nothing.
    LegacyEncrypted(LegacyOpener),
    /// Reading has stopped: records are named by what their headers say.
    Blind,
}

struct Reader<'a> {
    found: ServerSide,
    phase: Phase,
    messages: Messages,
    /// Over HTTP/2.
    frames: Option<Frames>,
    sayings: StreamEvents,
    client: &'a ClientHello,
    keys: &'a KeyLog,
}

impl Reader<'_> {
    fn record(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        self.sayings.begin();
        let read = self.read(record);
        self.sayings.end(record, !self.messages.is_empty());
        read
    }

    fn read(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        // The middlebox-friendly ChangeCipherSpec of TLS 1.3 (RFC 8446 appendix D.4) and alerts
        // in clear say nothing that is looked for.
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
                self.sayings.record(Event::alert(record.payload));
                Ok(())
            }
            (_, _) => Ok(()),
        }
    }

    /// A plain record before the ServerHello is complete.
    fn hello(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        self.sayings.messages();
        self.messages.push(record.payload, record.payload_start());
        while let Some(message) = self.messages.next() {
            // HelloRequest (0) may precede it before TLS 1.3.
            if message.kind != handshake::SERVER_HELLO {
                self.sayings.say(message.span, Event::message(message.kind));
                continue;
            }
            let hello = ServerHello::read(message.body)?;
            if hello.retry {
                self.sayings.say(message.span, Event::HelloRetryRequest);
                self.found.retries += 1;
                continue;
            }
            self.sayings.say(message.span, Event::ServerHello);
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

    /// EncryptedExtensions to Finished.
    fn handshake(&mut self, opened: &Opened, record: &Record<'_>) -> Result<(), Unknown> {
        if opened.content_type != record::HANDSHAKE {
            self.sayings.record(Event::opened(opened));
            return Ok(());
        }
        self.sayings.messages();
        self.messages.push(&opened.content, record.payload_start());
        while let Some(message) = self.messages.next() {
            match message.kind {
                handshake::ENCRYPTED_EXTENSIONS => {
                    let extensions = EncryptedExtensions::read(message.body)?;
                    let early_data = self.client.early_data.then_some(extensions.early_data);
                    self.sayings.say(message.span, Event::EncryptedExtensions { early_data });
                    if extensions.alpn.as_deref() == Some("h2") {
                        self.frames = Some(Frames::default());
                    }
                    self.found.encrypted_extensions = Some(extensions);
                }
                handshake::FINISHED => {
                    self.sayings.say(message.span, Event::Finished);
                    if !self.messages.is_empty() {
                        return Err(Unknown::NotTls);
                    }
                    self.found.finished = Some(record.end());
                    self.phase = Phase::Application(self.opener(SecretLabel::ServerApplication)?);
                    return Ok(());
                }
                kind => {
                    self.sayings.say(message.span, Event::message(kind));
                    let version = TlsVersion::Tls13;
                    self.found.authentication.message(kind, message.body, version);
                }
            }
        }
        Ok(())
    }

    /// The response, tickets and key updates.
    fn application(&mut self, opened: &Opened, record: &Record<'_>) -> Result<(), Unknown> {
        if opened.content_type != record::HANDSHAKE {
            self.sayings.record(Event::opened(opened));
            if opened.content_type == record::APPLICATION_DATA {
                self.plain_response(&opened.content, record);
            }
            return Ok(());
        }
        let mut only_tickets = self.messages.is_empty();
        let mut updated = false;
        self.sayings.messages();
        self.messages.push(&opened.content, record.payload_start());
        while let Some(message) = self.messages.next() {
            only_tickets &= message.kind == handshake::NEW_SESSION_TICKET;
            updated |= message.kind == handshake::KEY_UPDATE;
            self.sayings.say(message.span, Event::message(message.kind));
        }
        if only_tickets && self.messages.is_empty() {
            self.found.tickets.push(record.start..record.end());
        }
        if let (true, Phase::Application(opener)) = (updated, &mut self.phase) {
            opener.update();
        }
        Ok(())
    }

    /// Application data that was opened.
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
        let response = self.found.response.get_or_insert(Response { start, end, bytes: Some(0) });
        response.end = end;
        response.bytes = response.bytes.zip(bytes).map(|(before, here)| before + here);
    }

    /// TLS 1.2 and before, up to the server's ChangeCipherSpec (RFC 5246 section 7.3).
    fn legacy_clear(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        let hello = self.found.hello.as_ref().ok_or(Unknown::NotTls)?;
        match (&self.phase, record.content_type) {
            (_, record::HANDSHAKE) => {
                let version = TlsVersion::from_wire(hello.version).ok_or(Unknown::NotTls)?;
                self.sayings.messages();
                self.messages.push(record.payload, record.payload_start());
                self.legacy_messages(version);
            }
            (Phase::LegacyClear { certificate }, record::CHANGE_CIPHER_SPEC) => {
                let kind = if *certificate { Kind::Full } else { Kind::Resumed };
                self.found.legacy_kind = Some(kind);
                if hello.alpn.as_deref() == Some("h2") {
                    self.frames = Some(Frames::default());
                }
                let opener = LegacyOpener::new(self.client, hello, Direction::ToClient, self.keys);
                self.phase = Phase::LegacyEncrypted(opener);
            }
            (_, record::APPLICATION_DATA) => return Err(Unknown::NotTls),
            (_, record::ALERT) => self.sayings.record(Event::alert(record.payload)),
            _ => {}
        }
        Ok(())
    }

    /// What follows is read by the types of its records, and what they hold where that could be
    /// `opened`.
    fn legacy_encrypted(
        &mut self,
        record: &Record<'_>,
        opened: Result<Opened, Unknown>,
    ) -> Result<(), Unknown> {
        match (record.content_type, opened) {
            (record::HANDSHAKE, _) if self.found.finished.is_none() => {
                self.sayings.record(Event::Finished);
                self.found.finished = Some(record.end());
            }
            (record::ALERT, Ok(opened)) => self.sayings.record(Event::alert(&opened.content)),
            (record::APPLICATION_DATA, Ok(opened)) => {
                self.sayings.record(Event::opened(&opened));
                self.plain_response(&opened.content, record);
            }
            (record::APPLICATION_DATA, Err(why)) => {
                let suite = self.found.hello.as_ref().map_or(0, |hello| hello.cipher_suite);
                let bytes = legacy::plain_len(suite, record.payload.len());
                self.sayings.record(Event::ApplicationData { bytes });
                if self.frames.is_some() {
                    // It may be the server's SETTINGS.
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
            self.sayings.say(message.span, Event::message(kind));
            // Suites without a certificate still end their flight with ServerHelloDone.
            if matches!(kind, handshake::CERTIFICATE | handshake::SERVER_HELLO_DONE) {
                self.phase = Phase::LegacyClear { certificate: true };
                self.found.legacy_kind = Some(Kind::Full);
            }
        }
    }
}
