//! Handshake messages: put together from records, and read as far as the facts need them.

use std::ops::Range;

use crate::facts::{NamedGroup, Unknown};
use crate::presentation::Bytes;

pub(crate) const CLIENT_HELLO: u8 = 1;
pub(crate) const SERVER_HELLO: u8 = 2;
pub(crate) const NEW_SESSION_TICKET: u8 = 4;
pub(crate) const END_OF_EARLY_DATA: u8 = 5;
pub(crate) const ENCRYPTED_EXTENSIONS: u8 = 8;
pub(crate) const CERTIFICATE: u8 = 11;
pub(crate) const SERVER_KEY_EXCHANGE: u8 = 12;
pub(crate) const SERVER_HELLO_DONE: u8 = 14;
pub(crate) const CERTIFICATE_VERIFY: u8 = 15;
pub(crate) const FINISHED: u8 = 20;
pub(crate) const KEY_UPDATE: u8 = 24;
pub(crate) const COMPRESSED_CERTIFICATE: u8 = 25;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const PRE_SHARED_KEY: u16 = 41;
const EARLY_DATA: u16 = 42;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;

/// SHA-256 of "HelloRetryRequest": the random that marks one (RFC 8446 section 4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Messages that may share a record or span several. It holds no more than the stream it is fed.
#[derive(Default)]
pub(crate) struct Messages {
    buffer: Vec<u8>,
    taken: usize,
    /// Where the piece that was pushed last starts in the buffer, and where in the stream.
    piece: (usize, usize),
    /// Where in the stream the message starts that earlier pieces left unfinished.
    unfinished: usize,
}

/// A whole message.
pub(crate) struct Message<'a> {
    pub(crate) kind: u8,
    pub(crate) body: &'a [u8],
    /// Where it lies in the stream that the pieces came from.
    pub(crate) span: Range<usize>,
}

impl Messages {
    /// Adds bytes that lie at `at` in the stream, after all whole messages were taken.
    pub(crate) fn push(&mut self, bytes: &[u8], at: usize) {
        self.unfinished = self.position(self.taken);
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.piece = (self.buffer.len(), at);
        self.buffer.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self) -> Option<Message<'_>> {
        let [kind, a, b, c, body @ ..] = &self.buffer[self.taken..] else {
            return None;
        };
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let body = body.get(..len)?;
        let (from, to) = (self.taken, self.taken + 4 + len);
        let span = self.position(from)..self.position(to);
        self.taken = to;
        Some(Message { kind: *kind, body, span })
    }

    /// Nothing is left over, as there must not be where keys change (RFC 8446 section 5.1).
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.buffer.len()
    }

    /// Where in the stream a place of the buffer lies.
    fn position(&self, place: usize) -> usize {
        let (start, at) = self.piece;
        place.checked_sub(start).map_or(self.unfinished, |distance| at + distance)
    }
}

/// What a ClientHello says (RFC 8446 section 4.1.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientHello {
    pub(crate) random: [u8; 32],
    pub(crate) server_name: Option<String>,
    pub(crate) alpn: Vec<String>,
    pub(crate) key_shares: Vec<NamedGroup>,
    pub(crate) early_data: bool,
}

impl ClientHello {
    pub(crate) fn read(body: &[u8]) -> Result<Self, Unknown> {
        let mut bytes = Bytes(body);
        bytes.u16()?;
        let random = bytes.array()?;
        bytes.vec8()?;
        bytes.vec16()?;
        bytes.vec8()?;
        let mut hello = Self {
            random,
            server_name: None,
            alpn: Vec::new(),
            key_shares: Vec::new(),
            early_data: false,
        };
        let mut extensions = Extensions::after_hello(bytes)?;
        while let Some((kind, data)) = extensions.next()? {
            match kind {
                SERVER_NAME => hello.server_name = host_name(data)?,
                ALPN => hello.alpn = protocols(data)?,
                KEY_SHARE => hello.key_shares = key_shares(data)?,
                EARLY_DATA => hello.early_data = true,
                _ => {}
            }
        }
        Ok(hello)
    }
}

/// What a ServerHello or HelloRetryRequest says (RFC 8446 section 4.1.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerHello {
    pub(crate) random: [u8; 32],
    pub(crate) retry: bool,
    pub(crate) version: u16,
    pub(crate) cipher_suite: u16,
    pub(crate) pre_shared_key: bool,
    /// Of its key share; in a retry, of the one that it asks for.
    pub(crate) group: Option<NamedGroup>,
    pub(crate) alpn: Option<String>,
}

impl ServerHello {
    pub(crate) fn read(body: &[u8]) -> Result<Self, Unknown> {
        let mut bytes = Bytes(body);
        let version = bytes.u16()?;
        let random: [u8; 32] = bytes.array()?;
        bytes.vec8()?;
        let cipher_suite = bytes.u16()?;
        bytes.u8()?;
        let retry = random == RETRY_RANDOM;
        let mut hello = Self {
            random,
            retry,
            version,
            cipher_suite,
            pre_shared_key: false,
            group: None,
            alpn: None,
        };
        let mut extensions = Extensions::after_hello(bytes)?;
        while let Some((kind, mut data)) = extensions.next()? {
            match kind {
                SUPPORTED_VERSIONS => hello.version = data.u16()?,
                PRE_SHARED_KEY => hello.pre_shared_key = true,
                KEY_SHARE => hello.group = Some(NamedGroup(data.u16()?)),
                ALPN => hello.alpn = protocols(data)?.pop(),
                _ => {}
            }
        }
        Ok(hello)
    }
}

/// What the EncryptedExtensions say (RFC 8446 section 4.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncryptedExtensions {
    pub(crate) early_data: bool,
    pub(crate) alpn: Option<String>,
}

impl EncryptedExtensions {
    pub(crate) fn read(body: &[u8]) -> Result<Self, Unknown> {
        let mut found = Self { early_data: false, alpn: None };
        let mut extensions = Extensions(Bytes(body).vec16()?);
        while let Some((kind, data)) = extensions.next()? {
            match kind {
                EARLY_DATA => found.early_data = true,
                ALPN => found.alpn = protocols(data)?.pop(),
                _ => {}
            }
        }
        Ok(found)
    }
}

fn host_name(mut data: Bytes<'_>) -> Result<Option<String>, Unknown> {
    // A server answers with an empty extension.
    if data.0.is_empty() {
        return Ok(None);
    }
    let mut names = data.vec16()?;
    while !names.0.is_empty() {
        let (kind, name) = (names.u8()?, names.vec16()?);
        if kind == 0 {
            return Ok(Some(String::from_utf8_lossy(name.0).into_owned()));
        }
    }
    Ok(None)
}

fn key_shares(mut data: Bytes<'_>) -> Result<Vec<NamedGroup>, Unknown> {
    let mut list = data.vec16()?;
    let mut groups = Vec::new();
    while !list.0.is_empty() {
        groups.push(NamedGroup(list.u16()?));
        list.vec16()?;
    }
    Ok(groups)
}

fn protocols(mut data: Bytes<'_>) -> Result<Vec<String>, Unknown> {
    let mut list = data.vec16()?;
    let mut protocols = Vec::new();
    while !list.0.is_empty() {
        protocols.push(String::from_utf8_lossy(list.vec8()?.0).into_owned());
    }
    Ok(protocols)
}

/// A list of extensions.
struct Extensions<'a>(Bytes<'a>);

impl<'a> Extensions<'a> {
    /// Those at the end of a hello, which before TLS 1.3 may lack them.
    fn after_hello(mut rest: Bytes<'a>) -> Result<Self, Unknown> {
        if rest.0.is_empty() {
            return Ok(Self(rest));
        }
        Ok(Self(rest.vec16()?))
    }

    fn next(&mut self) -> Result<Option<(u16, Bytes<'a>)>, Unknown> {
        if self.0.0.is_empty() {
            return Ok(None);
        }
        Ok(Some((self.0.u16()?, self.0.vec16()?)))
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn rfc8446_4_1_3_the_retry_random_is_the_hash_of_its_name() {
        assert_eq!(RETRY_RANDOM, Sha256::digest(b"HelloRetryRequest").as_slice());
    }

    #[test]
    fn rfc8446_5_1_messages_share_records_and_span_them() {
        let mut messages = Messages::default();
        let next = |messages: &mut Messages| {
            messages.next().map(|message| (message.kind, message.body.to_vec(), message.span))
        };
        messages.push(&[8, 0, 0, 1, 0xaa, 11, 0, 0], 100);
        assert_eq!(next(&mut messages), Some((8, vec![0xaa], 100..105)));
        assert_eq!(next(&mut messages), None);
        assert!(!messages.is_empty());
        messages.push(&[2, 1], 200);
        assert_eq!(next(&mut messages), None);
        messages.push(&[2, 20, 0, 0, 0], 300);
        assert_eq!(next(&mut messages), Some((11, vec![1, 2], 105..301)));
        assert_eq!(next(&mut messages), Some((20, vec![], 301..305)));
        assert!(messages.is_empty());
    }

    #[test]
    fn rfc8446_4_2_8_key_shares_are_read_and_cut_ones_are_not() {
        let list = [0, 13, 0x11, 0xec, 0, 2, 7, 7, 0, 0x1d, 0, 3, 1, 2, 3];
        let groups = vec![NamedGroup::X25519_MLKEM768, NamedGroup::X25519];
        assert_eq!(key_shares(Bytes(&list)), Ok(groups));
        for len in 0..list.len() {
            assert_eq!(key_shares(Bytes(&list[..len])), Err(Unknown::NotTls), "{len} bytes");
        }
    }

    #[test]
    fn rfc2246_a_hello_without_extensions_is_read() {
        let mut body = vec![3, 1];
        body.extend([7; 32]);
        body.extend([0, 0, 0x2f, 0]);
        let hello = ServerHello::read(&body).unwrap();
        assert_eq!((hello.version, hello.cipher_suite, hello.retry), (0x0301, 0x002f, false));
        for len in 0..body.len() {
            assert_eq!(ServerHello::read(&body[..len]), Err(Unknown::NotTls), "{len} bytes");
        }
    }
}
