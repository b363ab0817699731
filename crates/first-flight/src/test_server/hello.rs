//! Reads ClientHellos, and writes ServerHellos (RFC 8446 section 4.1).

use crate::wire::{Reader, TLS13, extension, kind, message, put_extension, put_vec};
use crate::{ProtocolError, Suite};

/// The suite that the test server selects.
pub(super) const SUITE: Suite = Suite::Aes128GcmSha256;

/// Parts of a ClientHello.
#[derive(Clone, Default)]
pub(super) struct ClientHello {
    pub(super) name: Option<Vec<u8>>,
    /// The first protocol that it offers.
    pub(super) alpn: Option<Vec<u8>>,
    pub(super) groups: Vec<u16>,
    pub(super) share: Option<[u8; 32]>,
    pub(super) early_data: bool,
    pub(super) versions: Vec<u16>,
    pub(super) psk: Option<Psk>,
}

/// An offered ticket.
#[derive(Clone)]
pub(super) struct Psk {
    pub(super) identity: Vec<u8>,
    pub(super) age: u32,
    pub(super) binder: Vec<u8>,
}

impl ClientHello {
    /// Reads a message without its header.
    pub(super) fn read(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut bytes = Reader(body);
        bytes.take(34)?;
        bytes.vec8()?;
        bytes.vec16()?;
        bytes.vec8()?;
        let mut extensions = bytes.vec16()?;
        let mut hello = Self::default();
        while let Some((kind, mut content)) = extensions.extension()? {
            match kind {
                extension::SERVER_NAME => hello.name = Some(content.0.to_vec()),
                extension::ALPN => hello.alpn = Some(content.vec16()?.vec8()?.0.to_vec()),
                extension::SUPPORTED_GROUPS => {
                    let mut groups = content.vec16()?;
                    while !groups.is_empty() {
                        hello.groups.push(groups.u16()?);
                    }
                }
                extension::EARLY_DATA => hello.early_data = true,
                extension::SUPPORTED_VERSIONS => {
                    let mut versions = content.vec8()?;
                    while !versions.is_empty() {
                        hello.versions.push(versions.u16()?);
                    }
                }
                extension::KEY_SHARE => {
                    let mut shares = content.vec16()?;
                    if !shares.is_empty() {
                        shares.u16()?;
                        hello.share = Some(shares.vec16()?.array()?);
                    }
                }
                extension::PRE_SHARED_KEY => {
                    let mut identities = content.vec16()?;
                    let identity = identities.vec16()?.0.to_vec();
                    let age = identities.u32()?;
                    let binder = content.vec16()?.vec8()?.0.to_vec();
                    hello.psk = Some(Psk { identity, age, binder });
                }
                _ => {}
            }
        }
        Ok(hello)
    }
}

/// A ServerHello of an older version (RFC 5246 section 7.4.1.3), without extensions.
pub(super) fn old_server_hello(version: u16) -> Vec<u8> {
    message(kind::SERVER_HELLO, |out| {
        out.extend(version.to_be_bytes());
        out.extend([0x5a; 32]);
        // No session id, ECDHE_ECDSA with AES-128-GCM, no compression.
        out.extend([0, 0xc0, 0x2b, 0]);
    })
}

/// A ServerHello, or with its random a HelloRetryRequest.
pub(super) fn server_hello(random: &[u8; 32], extensions: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    message(kind::SERVER_HELLO, |out| {
        out.extend([3, 3]);
        out.extend_from_slice(random);
        out.push(0);
        out.extend(SUITE.id().to_be_bytes());
        out.push(0);
        put_vec(out, 2, |out| {
            put_extension(out, extension::SUPPORTED_VERSIONS, |out| {
                out.extend(TLS13.to_be_bytes());
            });
            extensions(out);
        });
    })
}
