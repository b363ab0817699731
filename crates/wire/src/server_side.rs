//! Reads the server's byte stream: what it negotiated, and where its first response byte is.

use std::ops::Range;

use crate::decrypt::{Opened, Opener, Suite};
use crate::facts::{Kind, TlsVersion, Unknown};
use crate::handshake::{self, EncryptedExtensions, Messages, ServerHello};
use crate::keylog::{KeyLog, SecretLabel};
use crate::record::{self, Record, Records};

/// What the server's bytes say.
#[derive(Debug, Default)]
pub(crate) struct ServerSide {
    pub(crate) hello: Option<ServerHello>,
    pub(crate) retries: u32,
    pub(crate) encrypted_extensions: Option<EncryptedExtensions>,
    /// Before TLS 1.3: whether the handshake showed itself as full or abbreviated.
    pub(crate) legacy_kind: Option<Kind>,
    /// Before TLS 1.3: the server's Finished was seen.
    pub(crate) legacy_finished: bool,
    /// Where the first record with application data begins in the stream.
    pub(crate) response: Option<usize>,
    /// Where records lie that hold nothing but TLS 1.3 tickets.
    pub(crate) tickets: Vec<Range<usize>>,
    /// Why reading stopped before the response, if the stream did not simply end.
    pub(crate) stopped: Option<Unknown>,
}

impl ServerSide {
    /// Reads `stream`, from its first byte up to the response.
    pub(crate) fn read(stream: &[u8], random: &[u8; 32], keys: &KeyLog) -> Self {
        let mut reader = Reader {
            found: Self::default(),
            phase: Phase::Hello,
            messages: Messages::default(),
            random,
            keys,
        };
        let mut records = Records::new(stream);
        reader.found.stopped = loop {
            match records.next() {
                Ok(Some(record)) => match reader.record(&record) {
                    Ok(()) if reader.found.response.is_some() => break None,
                    Ok(()) => {}
                    Err(why) => break Some(why),
                },
                Ok(None) => break None,
                Err(why) => break Some(why),
            }
        };
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
    /// TLS 1.2 and before, after the server's ChangeCipherSpec.
    LegacyEncrypted,
}

struct Reader<'a> {
    found: ServerSide,
    phase: Phase,
    messages: Messages,
    random: &'a [u8; 32],
    keys: &'a KeyLog,
}

impl Reader<'_> {
    fn record(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        // Neither alerts nor the middlebox-friendly ChangeCipherSpec of TLS 1.3 (RFC 8446
        // appendix D.4) say anything here.
        match (&mut self.phase, record.content_type) {
            (Phase::Hello, record::HANDSHAKE) => self.hello(record.payload),
            (Phase::Hello, record::APPLICATION_DATA) => Err(Unknown::NotTls),
            (Phase::Handshake(opener), record::APPLICATION_DATA) => {
                let opened = opener.open(record).ok_or(Unknown::WrongSecrets)?;
                self.handshake(&opened)
            }
            (Phase::Application(opener), record::APPLICATION_DATA) => {
                let opened = opener.open(record).ok_or(Unknown::WrongSecrets)?;
                self.application(&opened, record)
            }
            (Phase::Handshake(_) | Phase::Application(_), record::HANDSHAKE) => {
                Err(Unknown::NotTls)
            }
            (Phase::LegacyClear { .. } | Phase::LegacyEncrypted, _) => self.legacy(record),
            (_, _) => Ok(()),
        }
    }

    /// A plain record before the ServerHello is complete.
    fn hello(&mut self, payload: &[u8]) -> Result<(), Unknown> {
        self.messages.push(payload);
        while let Some((kind, body)) = self.messages.next() {
            // HelloRequest (0) may precede it before TLS 1.3.
            if kind != handshake::SERVER_HELLO {
                continue;
            }
            let hello = ServerHello::read(body)?;
            if hello.retry {
                self.found.retries += 1;
                continue;
            }
            self.found.hello = Some(hello);
            return match self.found.version().ok_or(Unknown::NotTls)? {
                TlsVersion::Tls13 => self.enter_handshake(),
                _ => {
                    self.phase = Phase::LegacyClear { certificate: false };
                    self.legacy_messages();
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
        let opener = Opener::new(&[suite], self.keys.secrets(self.random, label));
        if opener.is_empty() { Err(Unknown::NoSecrets) } else { Ok(opener) }
    }

    /// EncryptedExtensions to Finished.
    fn handshake(&mut self, opened: &Opened) -> Result<(), Unknown> {
        if opened.content_type != record::HANDSHAKE {
            return Ok(());
        }
        self.messages.push(&opened.content);
        while let Some((kind, body)) = self.messages.next() {
            match kind {
                handshake::ENCRYPTED_EXTENSIONS => {
                    self.found.encrypted_extensions = Some(EncryptedExtensions::read(body)?);
                }
                handshake::FINISHED => {
                    if !self.messages.is_empty() {
                        return Err(Unknown::NotTls);
                    }
                    self.phase = Phase::Application(self.opener(SecretLabel::ServerApplication)?);
                    return Ok(());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Tickets, key updates and, at last, the response.
    fn application(&mut self, opened: &Opened, record: &Record<'_>) -> Result<(), Unknown> {
        match opened.content_type {
            record::APPLICATION_DATA if !opened.content.is_empty() => {
                self.found.response = Some(record.start);
            }
            record::HANDSHAKE => {
                let mut only_tickets = self.messages.is_empty();
                let mut updated = false;
                self.messages.push(&opened.content);
                while let Some((kind, _)) = self.messages.next() {
                    only_tickets &= kind == handshake::NEW_SESSION_TICKET;
                    updated |= kind == handshake::KEY_UPDATE;
                }
                if only_tickets && self.messages.is_empty() {
                    self.found.tickets.push(record.start..record.start + record.wire_len());
                }
                if let (true, Phase::Application(opener)) = (updated, &mut self.phase) {
                    opener.update();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// TLS 1.2 and before (RFC 5246 section 7.3).
    fn legacy(&mut self, record: &Record<'_>) -> Result<(), Unknown> {
        match (&self.phase, record.content_type) {
            (Phase::LegacyClear { .. }, record::HANDSHAKE) => {
                self.messages.push(record.payload);
                self.legacy_messages();
            }
            (Phase::LegacyClear { certificate }, record::CHANGE_CIPHER_SPEC) => {
                let kind = if *certificate { Kind::Full } else { Kind::Resumed };
                self.found.legacy_kind = Some(kind);
                self.phase = Phase::LegacyEncrypted;
            }
            (Phase::LegacyClear { .. }, record::APPLICATION_DATA) => return Err(Unknown::NotTls),
            (Phase::LegacyEncrypted, record::HANDSHAKE) => self.found.legacy_finished = true,
            (Phase::LegacyEncrypted, record::APPLICATION_DATA) => {
                self.found.response = Some(record.start);
            }
            _ => {}
        }
        Ok(())
    }

    fn legacy_messages(&mut self) {
        while let Some((kind, _)) = self.messages.next() {
            // Suites without a certificate still end their flight with ServerHelloDone.
            if matches!(kind, handshake::CERTIFICATE | handshake::SERVER_HELLO_DONE) {
                self.phase = Phase::LegacyClear { certificate: true };
                self.found.legacy_kind = Some(Kind::Full);
            }
        }
    }
}
