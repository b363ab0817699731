//! Parses the server's handshake messages, as far as a client needs them.

use crate::ProtocolError;
use crate::wire::{RETRY_RANDOM, Reader, TLS13, X25519, extension};

/// A ServerHello or HelloRetryRequest (RFC 8446 sections 4.1.3 and 4.1.4).
pub(crate) struct ServerHello<'a> {
    pub(crate) suite: u16,
    /// Whether our only PSK was selected.
    pub(crate) resumed: bool,
    pub(crate) kind: HelloKind<'a>,
}

pub(crate) enum HelloKind<'a> {
    /// The requested group, if the key share has to change, and a cookie.
    Retry { group: Option<u16>, cookie: Option<&'a [u8]> },
    /// The server's X25519 public key.
    Hello { share: [u8; 32] },
}

impl<'a> ServerHello<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, ProtocolError> {
        let mut bytes = Reader(body);
        bytes.u16()?;
        let random = bytes.array::<32>()?;
        bytes.vec8()?;
        let suite = bytes.u16()?;
        bytes.u8()?;
        if bytes.is_empty() {
            return Err(ProtocolError::Version);
        }
        let mut extensions = bytes.vec16()?;
        bytes.end()?;
        let retry = random == RETRY_RANDOM;
        let (mut version, mut psk) = (None, None);
        let (mut group, mut share, mut cookie) = (None, None, None);
        while let Some((kind, mut content)) = extensions.extension()? {
            match kind {
                extension::SUPPORTED_VERSIONS => version = Some(content.u16()?),
                extension::PRE_SHARED_KEY if !retry => psk = Some(content.u16()?),
                extension::KEY_SHARE if retry => group = Some(content.u16()?),
                extension::KEY_SHARE => share = Some((content.u16()?, content.vec16()?.0)),
                extension::COOKIE if retry => cookie = Some(content.vec16()?.0),
                _ => continue,
            }
            content.end()?;
        }
        if version != Some(TLS13) {
            return Err(ProtocolError::Version);
        }
        if psk.is_some_and(|selected| selected != 0) {
            return Err(ProtocolError::NotOffered);
        }
        let kind = match (retry, share) {
            (true, _) => HelloKind::Retry { group, cookie },
            (false, Some((X25519, key))) => {
                let share = key.try_into().map_err(|_| ProtocolError::Malformed)?;
                HelloKind::Hello { share }
            }
            // psk_ke, without a key share, was not offered either.
            (false, _) => return Err(ProtocolError::NotOffered),
        };
        Ok(Self { suite, resumed: psk.is_some(), kind })
    }
}

/// The EncryptedExtensions (RFC 8446 section 4.3.1).
pub(crate) struct EncryptedExtensions {
    pub(crate) early_data: bool,
    pub(crate) alpn: Option<String>,
}

impl EncryptedExtensions {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut bytes = Reader(body);
        let mut extensions = bytes.vec16()?;
        bytes.end()?;
        let mut found = Self { early_data: false, alpn: None };
        while let Some((kind, mut content)) = extensions.extension()? {
            match kind {
                extension::EARLY_DATA => {
                    content.end()?;
                    found.early_data = true;
                }
                extension::ALPN => {
                    let mut list = content.vec16()?;
                    let protocol = list.vec8()?;
                    list.end()?;
                    found.alpn = Some(String::from_utf8_lossy(protocol.0).into_owned());
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The context of a CertificateRequest (RFC 8446 section 4.3.2).
pub(crate) fn certificate_request(body: &[u8]) -> Result<Vec<u8>, ProtocolError> {
    let mut bytes = Reader(body);
    let context = bytes.vec8()?.0.to_vec();
    bytes.vec16()?;
    bytes.end()?;
    Ok(context)
}

/// A NewSessionTicket (RFC 8446 section 4.6.1).
pub(crate) struct NewSessionTicket<'a> {
    pub(crate) lifetime: u32,
    pub(crate) age_add: u32,
    pub(crate) nonce: &'a [u8],
    pub(crate) identity: &'a [u8],
    pub(crate) max_early_data: Option<u32>,
}

impl<'a> NewSessionTicket<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, ProtocolError> {
        let mut bytes = Reader(body);
        let mut found = Self {
            lifetime: bytes.u32()?,
            age_add: bytes.u32()?,
            nonce: bytes.vec8()?.0,
            identity: bytes.vec16()?.0,
            max_early_data: None,
        };
        let mut extensions = bytes.vec16()?;
        bytes.end()?;
        if found.identity.is_empty() {
            return Err(ProtocolError::Malformed);
        }
        while let Some((kind, mut content)) = extensions.extension()? {
            if kind == extension::EARLY_DATA {
                found.max_early_data = Some(content.u32()?);
                content.end()?;
            }
        }
        Ok(found)
    }
}
