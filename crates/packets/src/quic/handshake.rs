//! Parses the TLS messages in CRYPTO frames (RFC 9001 section 4).

use std::ops::Range;

use firstflight_wire::{PacketKind, Suite};

use crate::Direction;
use crate::event::{Event, StreamEvent};
use crate::facts::{TlsVersion, Unknown};
use crate::reassembly::StreamBytes;
use crate::tls::handshake::{
    self, Authentication, ClientHello, EncryptedExtensions, Messages, ServerHello,
};

/// The handshake messages of both sides so far.
#[derive(Default)]
pub(crate) struct Handshake {
    /// The first ClientHello.
    pub(crate) hello: Option<ClientHello>,
    pub(crate) server_hello: Option<ServerHello>,
    /// The end of the ServerHello in the server's Initial CRYPTO bytes.
    pub(crate) server_hello_end: usize,
    pub(crate) retries: u32,
    pub(crate) extensions: Option<EncryptedExtensions>,
    pub(crate) authentication: Authentication,
    /// The end of the server's Finished in its Handshake CRYPTO bytes.
    pub(crate) server_finished: Option<usize>,
    pub(crate) client_finished: bool,
    /// Why a message could not be parsed.
    pub(crate) error: Option<Unknown>,
    levels: [[CryptoStream; 3]; 2],
}

/// The CRYPTO frames of one packet number space and direction.
#[derive(Default)]
pub(crate) struct CryptoStream {
    pub(crate) stream_bytes: StreamBytes,
    pub(crate) events: Vec<StreamEvent>,
    messages: Messages,
    /// How many of its bytes were parsed.
    parsed: usize,
}

impl Handshake {
    pub(crate) fn level(&self, direction: Direction, kind: PacketKind) -> &CryptoStream {
        &self.levels[direction as usize][kind.space()]
    }

    /// The cipher suite that the server chose. Returns `None` if it is not supported.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.server_hello.as_ref().and_then(|hello| Suite::from_id(hello.cipher_suite))
    }

    /// Adds a CRYPTO frame. `datagram` is the index of its datagram, `delivered` its time of
    /// delivery.
    pub(crate) fn add(
        &mut self,
        direction: Direction,
        kind: PacketKind,
        (offset, data): (u64, &[u8]),
        (datagram, delivered): (usize, Option<u64>),
    ) {
        let mut level = std::mem::take(&mut self.levels[direction as usize][kind.space()]);
        level.stream_bytes.add(offset, data, datagram, delivered);
        let bytes = level.stream_bytes.bytes();
        if level.parsed < bytes.len() {
            level.messages.push(&bytes[level.parsed..], level.parsed);
            level.parsed = bytes.len();
            while let Some(message) = level.messages.next() {
                let (message_type, span) = (message.kind, message.span);
                let read = self.message(direction, kind, message_type, message.body, span.clone());
                let event = read.unwrap_or_else(|why| {
                    self.error.get_or_insert(why);
                    Event::message(message_type)
                });
                level.events.push(StreamEvent { span, event });
            }
        }
        self.levels[direction as usize][kind.space()] = level;
    }

    fn message(
        &mut self,
        direction: Direction,
        kind: PacketKind,
        message_type: u8,
        body: &[u8],
        span: Range<usize>,
    ) -> Result<Event, Unknown> {
        match (direction, kind, message_type) {
            (Direction::ToServer, PacketKind::Initial, handshake::CLIENT_HELLO) => {
                let hello = ClientHello::read(body)?;
                self.hello.get_or_insert(hello);
            }
            (Direction::ToServer, PacketKind::Handshake, handshake::FINISHED) => {
                self.client_finished = true;
            }
            (Direction::ToClient, PacketKind::Initial, handshake::SERVER_HELLO) => {
                let hello = ServerHello::read(body)?;
                if hello.retry {
                    self.retries += 1;
                    return Ok(Event::HelloRetryRequest);
                }
                self.server_hello_end = span.end;
                self.server_hello.get_or_insert(hello);
            }
            (Direction::ToClient, PacketKind::Handshake, handshake::ENCRYPTED_EXTENSIONS) => {
                let found = EncryptedExtensions::read(body)?;
                let offered = self.hello.as_ref().is_some_and(|hello| hello.early_data);
                let early_data = offered.then_some(found.early_data);
                self.extensions.get_or_insert(found);
                return Ok(Event::EncryptedExtensions { early_data });
            }
            (Direction::ToClient, PacketKind::Handshake, handshake::FINISHED) => {
                self.server_finished.get_or_insert(span.end);
            }
            (Direction::ToClient, PacketKind::Handshake, _) => {
                self.authentication.message(message_type, body, TlsVersion::Tls13);
            }
            _ => {}
        }
        Ok(Event::message(message_type))
    }
}
