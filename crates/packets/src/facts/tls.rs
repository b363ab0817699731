//! The facts of the TLS handshake.

use std::fmt;

use serde::{Serialize, Serializer};

use super::Unknown;

/// The facts of the TLS handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TlsFacts {
    /// The version that the ServerHello chose; `None` without a ServerHello.
    pub version: Option<TlsVersion>,
    /// The cipher suite that the ServerHello chose.
    pub cipher_suite: Option<u16>,
    /// The ClientHello's random, as hex when serialized.
    #[serde(serialize_with = "as_hex")]
    pub client_random: [u8; 32],
    /// The host name of the ClientHello (RFC 6066 section 3).
    pub server_name: Option<String>,
    /// The protocols that the client offers (RFC 7301).
    pub alpn_offered: Vec<String>,
    /// The protocol that the server chose, if it was in the clear or could be decrypted.
    pub alpn: Option<String>,
    /// Full or resumed; `None` if the packets do not show it.
    pub kind: Option<HandshakeKind>,
    /// The groups for which the first ClientHello has key shares (RFC 8446 section 4.2.8).
    pub key_shares_offered: Vec<NamedGroup>,
    /// The group of the key exchange: of the ServerHello's key share, before TLS 1.3 of the
    /// ServerKeyExchange (RFC 8422 section 5.4). `None` where there was none, as in resumption
    /// before TLS 1.3.
    pub group: Option<NamedGroup>,
    /// The server's Certificate message, if it was in the clear or could be decrypted.
    pub certificate: Option<CertificateFacts>,
    /// The scheme of the server's signature (RFC 8446 section 4.2.3), since TLS 1.2, if it was in
    /// the clear or could be decrypted.
    pub signature_scheme: Option<u16>,
    /// HelloRetryRequests seen (RFC 8446 section 4.1.4): none or one.
    pub hello_retry_requests: u32,
    /// Early data.
    pub early: EarlyFacts,
    /// Whether the client's Finished was seen, which an attacker who replays a flight cannot send.
    /// `None` if secrets are missing.
    pub client_finished: Option<bool>,
}

/// A TLS version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum TlsVersion {
    /// TLS 1.0, RFC 2246.
    #[serde(rename = "1.0")]
    Tls10,
    /// TLS 1.1, RFC 4346.
    #[serde(rename = "1.1")]
    Tls11,
    /// TLS 1.2, RFC 5246.
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3, RFC 8446.
    #[serde(rename = "1.3")]
    Tls13,
}

impl TlsVersion {
    /// The version with this number on the wire. Returns `None` for SSL 3.0 and unknown numbers.
    pub fn from_wire(number: u16) -> Option<Self> {
        match number {
            0x0301 => Some(Self::Tls10),
            0x0302 => Some(Self::Tls11),
            0x0303 => Some(Self::Tls12),
            0x0304 => Some(Self::Tls13),
            _ => None,
        }
    }
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls10 => "TLS 1.0",
            Self::Tls11 => "TLS 1.1",
            Self::Tls12 => "TLS 1.2",
            Self::Tls13 => "TLS 1.3",
        })
    }
}

/// How the server was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HandshakeKind {
    /// With the server's certificate.
    Full,
    /// From an earlier session: in TLS 1.3 the ServerHello has `pre_shared_key`, before that the
    /// server's ChangeCipherSpec comes without a Certificate.
    Resumed,
}

/// A group of the key exchange by its number (RFC 8446 section 4.2.7). Displayed as its name, or as
/// a hexadecimal number if the name is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamedGroup(pub u16);

impl NamedGroup {
    /// X25519.
    pub const X25519: Self = Self(0x001d);
    /// P-256.
    pub const P256: Self = Self(0x0017);
    /// P-384.
    pub const P384: Self = Self(0x0018);
    /// P-521.
    pub const P521: Self = Self(0x0019);
    /// X25519 with ML-KEM-768.
    pub const X25519_MLKEM768: Self = Self(0x11ec);
    /// P-256 with ML-KEM-768.
    pub const P256_MLKEM768: Self = Self(0x11eb);
}

impl fmt::Display for NamedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::X25519 => f.write_str("X25519"),
            Self::P256 => f.write_str("P-256"),
            Self::P384 => f.write_str("P-384"),
            Self::P521 => f.write_str("P-521"),
            Self::X25519_MLKEM768 => f.write_str("X25519MLKEM768"),
            Self::P256_MLKEM768 => f.write_str("SecP256r1MLKEM768"),
            Self(number) => write!(f, "{number:#06x}"),
        }
    }
}

impl Serialize for NamedGroup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The size of the server's Certificate message (RFC 8446 section 4.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CertificateFacts {
    /// The message's length on the wire without its header, in bytes.
    pub message_bytes: u32,
    /// Certificates in it; `None` if it is compressed (RFC 8879).
    pub certificates: Option<u32>,
}

/// Early data on the wire, and whether it was accepted (RFC 8446 section 4.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EarlyFacts {
    /// Whether it was accepted.
    #[serde(rename = "verdict")]
    pub outcome: EarlyData,
    /// The first ClientHello has the `early_data` extension.
    pub extension: bool,
    /// Records of early data: those that the early secret decrypts, and those sent before the
    /// server's first byte was delivered. Over QUIC: 0-RTT packets, decrypted or not.
    pub records: u32,
    /// Their length on the wire, record or packet headers included.
    pub wire_bytes: u64,
    /// The length of their plaintext; `None` unless `CLIENT_EARLY_TRAFFIC_SECRET` decrypted one.
    /// Over QUIC: the bytes of STREAM frames, each counted once.
    pub plain_bytes: Option<u64>,
}

/// Whether early data was sent and accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyData {
    /// None was sent: the extension or the records (over QUIC: 0-RTT packets) are missing.
    NotOffered,
    /// The EncryptedExtensions have `early_data`.
    Accepted,
    /// The server responded without accepting it.
    Refused,
    /// The capture or the secrets do not show it.
    Unknown(Unknown),
}

fn as_hex<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex::encode(bytes))
}
