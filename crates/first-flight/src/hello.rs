//! ClientHellos (RFC 8446 section 4.1.2).

use std::net::IpAddr;

use crate::Suite;
use crate::wire::{TLS13, X25519, extension, kind, message, put_extension, put_vec};

/// What a ClientHello offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub(crate) server_name: Option<String>,
    pub(crate) alpn: Vec<String>,
    /// The only version of TLS that is offered.
    pub(crate) version: u16,
    /// The groups that are offered.
    pub(crate) groups: Vec<u16>,
    pub(crate) key_share: bool,
    /// Further extensions, before those of the PSK.
    pub(crate) extra: Vec<(u16, Vec<u8>)>,
    /// Over QUIC: what the client's first unidirectional stream starts with.
    pub(crate) quic: Option<Vec<u8>>,
}

impl Hello {
    /// Offers a host and application protocols. An IP address is no server name (RFC 6066 section
    /// 3), and is left out.
    pub fn new(host: &str, alpn: &[&str]) -> Self {
        let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        Self {
            server_name: (!is_address && !host.is_empty()).then(|| host.to_owned()),
            alpn: alpn.iter().map(|&protocol| protocol.to_owned()).collect(),
            version: TLS13,
            groups: vec![X25519],
            key_share: true,
            extra: Vec::new(),
            quic: None,
        }
    }

    /// Uses QUIC. The client's first unidirectional stream starts with `first_stream`: the control
    /// stream of HTTP/3 (RFC 9114 section 6.2.1).
    #[must_use]
    pub fn over_quic(mut self, first_stream: &[u8]) -> Self {
        self.quic = Some(first_stream.to_vec());
        self
    }

    /// Offers only an older version of TLS (section 4.2.1), such as 0x0303 (1.2); over TCP. If the
    /// server supports it, the handshake ends with
    /// [`ProtocolError::Version`](crate::ProtocolError::Version), since this crate has TLS 1.3
    /// only.
    #[must_use]
    pub fn with_version_only(mut self, version: u16) -> Self {
        self.version = version;
        // In older versions, groups also select certificates (RFC 8422 section 5.1), so P-256,
        // P-384 and P-521 are offered too.
        self.groups = vec![X25519, 0x0017, 0x0018, 0x0019];
        self
    }

    /// Offers only this group (section 4.2.7), without a key share. If the server supports it, the
    /// handshake ends with [`ProtocolError::Group`](crate::ProtocolError::Group), since this crate
    /// has X25519 only.
    #[must_use]
    pub fn with_group_only(mut self, group: u16) -> Self {
        self.groups = vec![group];
        self.without_key_share()
    }

    /// Sends an empty list of key shares, which a server has to respond to with a
    /// HelloRetryRequest (section 4.2.8).
    #[must_use]
    pub fn without_key_share(mut self) -> Self {
        self.key_share = false;
        self
    }
}

/// The parts of a ClientHello that change between the first and the second one.
#[derive(Default)]
pub(crate) struct HelloParts<'a> {
    pub(crate) random: [u8; 32],
    /// Our public key.
    pub(crate) share: Option<[u8; 32]>,
    pub(crate) cookie: Option<&'a [u8]>,
    pub(crate) early_data: bool,
    pub(crate) psk: Option<PskOffer<'a>>,
}

/// The identity of a PSK. [`write()`] leaves zeros for its binder.
pub(crate) struct PskOffer<'a> {
    pub(crate) identity: &'a [u8],
    pub(crate) obfuscated_age: u32,
    pub(crate) binder_len: usize,
}

impl PskOffer<'_> {
    /// Bytes at the end of a ClientHello that its binder does not cover: the list of binders.
    pub(crate) fn binders_len(binder_len: usize) -> usize {
        2 + 1 + binder_len
    }
}

/// Writes a ClientHello message.
pub(crate) fn write(hello: &Hello, parts: &HelloParts<'_>) -> Vec<u8> {
    message(kind::CLIENT_HELLO, |out| {
        out.extend_from_slice(&hello.version.min(TLS12).to_be_bytes());
        out.extend_from_slice(&parts.random);
        // No session id: without it there are no ChangeCipherSpec records (appendix D.4).
        out.push(0);
        put_vec(out, 2, |out| {
            match hello.version {
                TLS13 => Suite::ALL.map(Suite::id).to_vec(),
                _ => OLD_SUITES.to_vec(),
            }
            .into_iter()
            .for_each(|suite| out.extend_from_slice(&suite.to_be_bytes()));
        });
        out.extend_from_slice(&[1, 0]);
        put_vec(out, 2, |out| extensions(hello, parts, out));
    })
}

fn extensions(hello: &Hello, parts: &HelloParts<'_>, out: &mut Vec<u8>) {
    if let Some(name) = &hello.server_name {
        put_extension(out, extension::SERVER_NAME, |out| {
            put_vec(out, 2, |out| {
                out.push(0);
                put_vec(out, 2, |out| out.extend_from_slice(name.as_bytes()));
            });
        });
    }
    put_extension(out, extension::SUPPORTED_GROUPS, |out| {
        put_vec(out, 2, |out| {
            for group in &hello.groups {
                out.extend_from_slice(&group.to_be_bytes());
            }
        });
    });
    put_extension(out, extension::SIGNATURE_ALGORITHMS, |out| {
        put_vec(out, 2, |out| {
            for algorithm in SIGNATURE_ALGORITHMS {
                out.extend_from_slice(&algorithm.to_be_bytes());
            }
        });
    });
    if !hello.alpn.is_empty() {
        put_extension(out, extension::ALPN, |out| {
            put_vec(out, 2, |out| {
                for protocol in &hello.alpn {
                    put_vec(out, 1, |out| out.extend_from_slice(protocol.as_bytes()));
                }
            });
        });
    }
    put_extension(out, extension::SUPPORTED_VERSIONS, |out| {
        put_vec(out, 1, |out| out.extend_from_slice(&hello.version.to_be_bytes()));
    });
    // psk_dhe_ke: also without a PSK, since the server would otherwise issue no tickets.
    put_extension(out, extension::PSK_KEY_EXCHANGE_MODES, |out| out.extend_from_slice(&[1, 1]));
    put_extension(out, extension::KEY_SHARE, |out| {
        put_vec(out, 2, |out| {
            if let Some(share) = &parts.share {
                out.extend_from_slice(&X25519.to_be_bytes());
                put_vec(out, 2, |out| out.extend_from_slice(share));
            }
        });
    });
    if let Some(cookie) = parts.cookie {
        put_extension(out, extension::COOKIE, |out| {
            put_vec(out, 2, |out| out.extend_from_slice(cookie));
        });
    }
    for (kind, content) in &hello.extra {
        put_extension(out, *kind, |out| out.extend_from_slice(content));
    }
    if parts.early_data {
        put_extension(out, extension::EARLY_DATA, |_| {});
    }
    if let Some(psk) = &parts.psk {
        put_extension(out, extension::PRE_SHARED_KEY, |out| {
            put_vec(out, 2, |out| {
                put_vec(out, 2, |out| out.extend_from_slice(psk.identity));
                out.extend_from_slice(&psk.obfuscated_age.to_be_bytes());
            });
            put_vec(out, 2, |out| {
                put_vec(out, 1, |out| out.resize(out.len() + psk.binder_len, 0));
            });
        });
    }
}

const TLS12: u16 = 0x0303;

/// Cipher suites of TLS 1.2 and older: ECDHE with ECDSA and RSA, with GCM, ChaCha20 and CBC, and
/// RSA key exchange.
const OLD_SUITES: [u16; 12] = [
    0xc02b, 0xc02c, 0xc02f, 0xc030, 0xcca8, 0xcca9, 0xc009, 0xc00a, 0xc013, 0xc014, 0x002f, 0x0035,
];

/// ECDSA, RSA-PSS, Ed25519, and RSA-PKCS1 for certificates, so that every server finds one.
const SIGNATURE_ALGORITHMS: [u16; 11] =
    [0x0403, 0x0503, 0x0603, 0x0804, 0x0805, 0x0806, 0x0809, 0x0807, 0x0401, 0x0501, 0x0601];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6066_3_an_address_is_no_server_name() {
        for host in ["127.0.0.1", "::1", "[::1]", ""] {
            assert_eq!(Hello::new(host, &[]).server_name, None, "{host}");
        }
        assert_eq!(Hello::new("localhost", &[]).server_name.as_deref(), Some("localhost"));
    }

    #[test]
    fn rfc8446_4_2_11_the_binders_stand_at_the_end() {
        let psk = PskOffer { identity: b"ticket", obfuscated_age: 7, binder_len: 32 };
        let parts = HelloParts { psk: Some(psk), early_data: true, ..HelloParts::default() };
        let hello = write(&Hello::new("a", &["h2"]), &parts);
        let binders = &hello[hello.len() - PskOffer::binders_len(32)..];
        assert_eq!(binders[..3], [0, 33, 32]);
        assert_eq!(binders[3..], [0; 32]);
    }
}
