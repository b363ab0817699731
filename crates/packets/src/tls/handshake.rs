//! Handshake messages: reassembled from records, and parsed as far as the facts need.

use std::ops::Range;

use super::record::Bytes;
use crate::facts::{CertificateFacts, NamedGroup, TlsVersion, Unknown};

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

/// Reassembles messages that share a record or span several. Stores no more than its input.
#[derive(Default)]
pub(crate) struct Messages {
    buffer: Vec<u8>,
    taken: usize,
    /// Where the last pushed bytes start in the buffer, and where in the stream.
    piece: (usize, usize),
    /// Where in the stream the unfinished message starts.
    unfinished: usize,
}

/// A whole message.
pub(crate) struct Message<'a> {
    pub(crate) kind: u8,
    pub(crate) body: &'a [u8],
    /// Its range in the stream.
    pub(crate) span: Range<usize>,
}

impl Messages {
    /// Adds bytes at position `at` of the stream. Call `next` until it returns `None` first.
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

    /// Whether no bytes are left over. There must be none where keys change (RFC 8446 section 5.1).
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.buffer.len()
    }

    /// The stream position of an index of the buffer.
    fn position(&self, index: usize) -> usize {
        let (start, at) = self.piece;
        index.checked_sub(start).map_or(self.unfinished, |distance| at + distance)
    }
}

/// A ClientHello (RFC 8446 section 4.1.2).
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

/// A ServerHello or HelloRetryRequest (RFC 8446 section 4.1.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerHello {
    pub(crate) random: [u8; 32],
    pub(crate) retry: bool,
    pub(crate) version: u16,
    pub(crate) cipher_suite: u16,
    pub(crate) pre_shared_key: bool,
    /// The group of its key share; of a HelloRetryRequest, the requested group.
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

/// The EncryptedExtensions (RFC 8446 section 4.3.1).
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
    // A server responds with an empty extension.
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
    /// The extensions at the end of a hello; before TLS 1.3 they may be missing.
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

/// How the server authenticated: its Certificate, its signature, the group of its key exchange.
#[derive(Debug, Default)]
pub(crate) struct Authentication {
    pub(crate) certificate: Option<CertificateFacts>,
    pub(crate) signature_scheme: Option<u16>,
    /// The group before TLS 1.3; since then it is in the ServerHello.
    pub(crate) group: Option<NamedGroup>,
}

impl Authentication {
    /// Adds a message of the server. Malformed messages are ignored: rejecting them is up to the
    /// client.
    pub(crate) fn message(&mut self, kind: u8, body: &[u8], version: TlsVersion) {
        match kind {
            CERTIFICATE => {
                let certificates = certificates(body, version).ok();
                self.certificate = Some(certificate_facts(body, certificates));
            }
            COMPRESSED_CERTIFICATE if version == TlsVersion::Tls13 => {
                self.certificate = Some(certificate_facts(body, None));
            }
            CERTIFICATE_VERIFY => self.signature_scheme = Bytes(body).u16().ok(),
            SERVER_KEY_EXCHANGE => {
                if let Ok((group, scheme)) = key_exchange(body, version) {
                    self.group = Some(group);
                    self.signature_scheme = scheme;
                }
            }
            _ => {}
        }
    }
}

fn certificate_facts(body: &[u8], certificates: Option<u32>) -> CertificateFacts {
    // A message's length has 24 bits.
    CertificateFacts { message_bytes: body.len() as u32, certificates }
}

/// The number of certificates (RFC 8446 section 4.4.2, RFC 5246 section 7.4.2).
fn certificates(body: &[u8], version: TlsVersion) -> Result<u32, Unknown> {
    let mut bytes = Bytes(body);
    if version == TlsVersion::Tls13 {
        bytes.vec8()?;
    }
    let mut list = bytes.vec24()?;
    let mut count = 0;
    while !list.0.is_empty() {
        list.vec24()?;
        if version == TlsVersion::Tls13 {
            list.vec16()?;
        }
        count += 1;
    }
    Ok(count)
}

/// The group of an ECDHE key exchange, and since TLS 1.2 the scheme of its signature (RFC 8422
/// section 5.4).
fn key_exchange(body: &[u8], version: TlsVersion) -> Result<(NamedGroup, Option<u16>), Unknown> {
    const NAMED_CURVE: u8 = 3;
    let mut bytes = Bytes(body);
    if bytes.u8()? != NAMED_CURVE {
        return Err(Unknown::NotTls);
    }
    let group = NamedGroup(bytes.u16()?);
    bytes.vec8()?;
    let scheme = match version {
        TlsVersion::Tls12 => Some(bytes.u16()?),
        _ => None,
    };
    Ok((group, scheme))
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
    fn rfc8446_4_2_8_key_shares_are_parsed_and_truncated_ones_rejected() {
        let list = [0, 13, 0x11, 0xec, 0, 2, 7, 7, 0, 0x1d, 0, 3, 1, 2, 3];
        let groups = vec![NamedGroup::X25519_MLKEM768, NamedGroup::X25519];
        assert_eq!(key_shares(Bytes(&list)), Ok(groups));
        for len in 0..list.len() {
            assert_eq!(key_shares(Bytes(&list[..len])), Err(Unknown::NotTls), "{len} bytes");
        }
    }

    #[test]
    fn rfc2246_a_hello_without_extensions_is_parsed() {
        let mut body = vec![3, 1];
        body.extend([7; 32]);
        body.extend([0, 0, 0x2f, 0]);
        let hello = ServerHello::read(&body).unwrap();
        assert_eq!((hello.version, hello.cipher_suite, hello.retry), (0x0301, 0x002f, false));
        for len in 0..body.len() {
            assert_eq!(ServerHello::read(&body[..len]), Err(Unknown::NotTls), "{len} bytes");
        }
    }

    #[test]
    fn rfc8446_4_4_2_certificates_are_counted_in_both_forms() {
        let old = [0, 0, 9, 0, 0, 2, 1, 1, 0, 0, 1, 2];
        let new = [0, 0, 0, 13, 0, 0, 2, 1, 1, 0, 0, 0, 0, 1, 2, 0, 0];
        for (body, version) in [(&old[..], TlsVersion::Tls12), (&new, TlsVersion::Tls13)] {
            let mut read = Authentication::default();
            read.message(CERTIFICATE, body, version);
            let expected =
                CertificateFacts { message_bytes: body.len() as u32, certificates: Some(2) };
            assert_eq!(read.certificate, Some(expected));
            for len in 0..body.len() {
                assert!(certificates(&body[..len], version).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn rfc8422_5_4_the_key_exchange_names_its_group() {
        let body = [3, 0, 0x1d, 2, 9, 9, 4, 3, 0, 1, 7];
        let read = |version| key_exchange(&body, version).unwrap();
        assert_eq!(read(TlsVersion::Tls12), (NamedGroup::X25519, Some(0x0403)));
        assert_eq!(read(TlsVersion::Tls10), (NamedGroup::X25519, None));
        assert!(key_exchange(&body[1..], TlsVersion::Tls12).is_err(), "a classic DH exchange");
    }
}
