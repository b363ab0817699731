//! Reads the TLS messages in CRYPTO frames (RFC 9001 section 4).

use std::ops::Range;

use super::header::Kind;
use super::pieces::StreamBytes;
use crate::Direction;
use crate::authentication::Authentication;
use crate::decrypt::Suite;
use crate::event::Event;
use crate::facts::{TlsVersion, Unknown};
use crate::handshake::{self, ClientHello, EncryptedExtensions, Messages, ServerHello};
use crate::sayings::StreamEvent;

/// What both sides said so far.
#[derive(Default)]
pub(crate) struct Handshake {
    /// The first ClientHello.
    pub(crate) hello: Option<ClientHello>,
    pub(crate) server_hello: Option<ServerHello>,
    /// Where it ends among the server's Initial CRYPTO bytes.
    pub(crate) server_hello_end: usize,
    pub(crate) retries: u32,
    pub(crate) extensions: Option<EncryptedExtensions>,
    pub(crate) authentication: Authentication,
    /// Where the server's Finished ends among its Handshake CRYPTO bytes.
    pub(crate) server_finished: Option<usize>,
    pub(crate) client_finished: bool,
    /// Why what came in could not be read.
    pub(crate) broken: Option<Unknown>,
    levels: [[Level; 3]; 2],
}

/// The CRYPTO frames of one number space and direction.
#[derive(Default)]
pub(crate) struct Level {
    pub(crate) pieces: StreamBytes,
    pub(crate) said: Vec<StreamEvent>,
    messages: Messages,
    /// How many of its bytes were read.
    read: usize,
}

impl Handshake {
    pub(crate) fn level(&self, direction: Direction, kind: Kind) -> &Level {
        &self.levels[direction as usize][kind.space()]
    }

    /// The cipher suite that the server chose, if it is one that is read.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.server_hello.as_ref().and_then(|hello| Suite::from_wire(hello.cipher_suite))
    }

    /// Takes a CRYPTO frame in, which the datagram of this index `brought`.
    pub(crate) fn add(
        &mut self,
        direction: Direction,
        kind: Kind,
        (offset, data): (u64, &[u8]),
        (brought, delivered): (usize, Option<u64>),
    ) {
        let mut level = std::mem::take(&mut self.levels[direction as usize][kind.space()]);
        level.pieces.add(offset, data, brought, delivered);
        let bytes = level.pieces.bytes();
        if level.read < bytes.len() {
            level.messages.push(&bytes[level.read..], level.read);
            level.read = bytes.len();
            while let Some(message) = level.messages.next() {
                let (number, span) = (message.kind, message.span);
                let read = self.message(direction, kind, number, message.body, span.clone());
                let event = read.unwrap_or_else(|why| {
                    self.broken.get_or_insert(why);
                    Event::message(number)
                });
                level.said.push(StreamEvent { span, event });
            }
        }
        self.levels[direction as usize][kind.space()] = level;
    }

    fn message(
        &mut self,
        direction: Direction,
        kind: Kind,
        number: u8,
        body: &[u8],
        span: Range<usize>,
    ) -> Result<Event, Unknown> {
        match (direction, kind, number) {
            (Direction::ToServer, Kind::Initial, handshake::CLIENT_HELLO) => {
                let hello = ClientHello::read(body)?;
                self.hello.get_or_insert(hello);
            }
            (Direction::ToServer, Kind::Handshake, handshake::FINISHED) => {
                self.client_finished = true;
            }
            (Direction::ToClient, Kind::Initial, handshake::SERVER_HELLO) => {
                let hello = ServerHello::read(body)?;
                if hello.retry {
                    self.retries += 1;
                    return Ok(Event::HelloRetryRequest);
                }
                self.server_hello_end = span.end;
                self.server_hello.get_or_insert(hello);
            }
            (Direction::ToClient, Kind::Handshake, handshake::ENCRYPTED_EXTENSIONS) => {
                let found = EncryptedExtensions::read(body)?;
                let offered = self.hello.as_ref().is_some_and(|hello| hello.early_data);
                let early_data = offered.then_some(found.early_data);
                self.extensions.get_or_insert(found);
                return Ok(Event::EncryptedExtensions { early_data });
            }
            (Direction::ToClient, Kind::Handshake, handshake::FINISHED) => {
                self.server_finished.get_or_insert(span.end);
            }
            (Direction::ToClient, Kind::Handshake, _) => {
                self.authentication.message(number, body, TlsVersion::Tls13);
            }
            _ => {}
        }
        Ok(Event::message(number))
    }
}
