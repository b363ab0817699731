//! What a connection's packets show, in the terms of the RFCs.

use std::fmt;
use std::net::SocketAddr;

use serde::{Serialize, Serializer};

use crate::FastOpenOption;

/// Everything that was seen of one TCP connection. Times are nanoseconds of the tap's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowFacts {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The server's address and port.
    pub server: SocketAddr,
    /// When the first SYN reached the tap.
    pub started: u64,
    /// When the last packet reached the tap.
    pub ended: u64,
    /// The TCP part.
    pub tcp: TcpFacts,
    /// The TLS part; `None` if the client's bytes are no ClientHello.
    pub tls: Option<TlsFacts>,
    /// The first response byte, and what it cost in round trips.
    pub first_response: FirstResponse,
    /// The TCP payload that the client sent before any payload of the server was delivered to
    /// it, in stream order: what a replaying attacker would send again. Not serialized.
    #[serde(skip)]
    pub first_flight: Vec<u8>,
}

impl FlowFacts {
    /// The connection's label, from its packets alone.
    ///
    /// # Errors
    /// Says what is missing when the packets and secrets do not decide it.
    pub fn label(&self) -> Result<Label, Unlabelled> {
        let tls = self.tls.as_ref().ok_or(Unlabelled::NotTls)?;
        let version = tls.version.ok_or(Unlabelled::NoServerHello)?;
        let kind = match (tls.early.verdict, tls.kind) {
            (EarlyData::Unknown(why), _) => return Err(Unlabelled::EarlyData(why)),
            (EarlyData::Accepted, _) => LabelKind::EarlyAccepted,
            (EarlyData::Refused, _) => LabelKind::EarlyRefused,
            (EarlyData::NotOffered, Some(Kind::Full)) => LabelKind::Full,
            (EarlyData::NotOffered, Some(Kind::Resumed)) => LabelKind::Resumed,
            (EarlyData::NotOffered, None) => return Err(Unlabelled::Unfinished),
        };
        Ok(Label { version, kind, tfo: self.tcp.fast_open })
    }

    /// Round trips from the first packet to the first response byte, where they are known.
    pub fn round_trips(&self) -> Option<u32> {
        match self.first_response {
            FirstResponse::Seen { round_trips, .. } => Some(round_trips),
            FirstResponse::None | FirstResponse::Unknown(_) => None,
        }
    }
}

/// What was seen below TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TcpFacts {
    /// Whether data in the SYN was sent and taken.
    pub fast_open: FastOpen,
    /// The Fast Open option of the client's SYN.
    pub fast_open_option: Option<FastOpenOption>,
    /// Bytes of payload in the client's SYN; of several SYNs, the most.
    pub syn_data: u32,
    /// How many of them the SYN-ACK acknowledged.
    pub syn_data_acknowledged: u32,
    /// SYNs of the client beyond the first.
    pub syn_retransmissions: u32,
    /// Whether a SYN-ACK was seen.
    pub syn_ack: bool,
    /// Segments of the client that carried what the tap had already seen, SYN and FIN included.
    pub client_retransmissions: u32,
    /// The same for the server's segments.
    pub server_retransmissions: u32,
    /// Segments of both sides that reached the tap behind a later one.
    pub out_of_order: u32,
    /// Packets that the tap did not deliver.
    pub dropped: u32,
    /// The client sent a FIN.
    pub client_fin: bool,
    /// The server sent a FIN.
    pub server_fin: bool,
    /// The client sent a RST.
    pub client_rst: bool,
    /// The server sent a RST.
    pub server_rst: bool,
}

/// TCP Fast Open, as the packets show it (RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FastOpen {
    /// The SYN carried data, and the SYN-ACK acknowledged it.
    Used,
    /// The SYN carried data, and it had to be sent again.
    FellBack,
    /// The SYN carried no data.
    #[default]
    Off,
}

/// What was seen of TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TlsFacts {
    /// The version that the ServerHello chose; `None` before there is one.
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
    /// The protocol that the server chose, where it was in clear or could be decrypted.
    pub alpn: Option<String>,
    /// Full or resumed; `None` while the packets leave it open.
    pub kind: Option<Kind>,
    /// HelloRetryRequests seen (RFC 8446 section 4.1.4): none or one.
    pub hello_retry_requests: u32,
    /// Early data.
    pub early: EarlyFacts,
    /// Whether the client's Finished was seen: an attacker who replays a flight cannot send it.
    /// `None` where secrets are lacking.
    pub client_finished: Option<bool>,
}

/// TLS versions by the number in the ServerHello.
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
    /// The version with this number on the wire; `None` for SSL 3.0 and unknown ones.
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

/// How the handshake authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// With the server's certificate.
    Full,
    /// From an earlier session: in TLS 1.3 the ServerHello has `pre_shared_key`, before that the
    /// server's ChangeCipherSpec comes without a Certificate.
    Resumed,
}

/// Early data on the wire and what became of it (RFC 8446 section 4.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EarlyFacts {
    /// What became of it.
    pub verdict: EarlyData,
    /// The first ClientHello has the `early_data` extension.
    pub extension: bool,
    /// Early records seen: those that its secret opens, and those sent before the server's
    /// first byte was delivered.
    pub records: u32,
    /// Their length on the wire, record headers included.
    pub wire_bytes: u64,
    /// Their content's length; `None` unless `CLIENT_EARLY_TRAFFIC_SECRET` opened one.
    pub plain_bytes: Option<u64>,
}

/// What became of early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyData {
    /// None was sent: the extension, or records under it, are missing.
    NotOffered,
    /// The EncryptedExtensions have `early_data`.
    Accepted,
    /// The server answered without taking it.
    Refused,
    /// The capture or the secrets do not tell.
    Unknown(Unknown),
}

/// The first response byte: the first byte of the first record from the server that holds
/// application data (TLS 1.3: the decrypted, not empty content; before: the outer type, after
/// the server's ChangeCipherSpec). Over HTTP/2 that may be the server's SETTINGS.
///
/// Its round trips are the causal depth of the packet that first carried that byte. A client's
/// packet is one deeper than the deepest packet of the server that was *delivered* to the
/// client before it *arrived* at the tap; a server's packet is as deep as the deepest packet of
/// the client delivered to the server before it arrived. Only SYNs and packets with payload
/// count. A retransmission keeps the depth of the original, except that data in a SYN which the
/// server did not take counts where it is sent again. Server packets with nothing but TLS 1.3
/// tickets do not deepen what follows, for no client waits for them (RFC 8446 section 4.6.1).
///
/// So the count is exact as long as neither side pauses for a whole round trip within one
/// flight, and no loss makes it: what it then sends may be counted as caused by what came
/// meanwhile. A sample with retransmissions is better marked than averaged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstResponse {
    /// It was seen.
    Seen {
        /// Round trips from the first packet to it.
        round_trips: u32,
        /// When it first reached the tap, in nanoseconds.
        arrived: u64,
        /// When it was first delivered to the client, in nanoseconds; `None` if it never was.
        delivered: Option<u64>,
    },
    /// The server sent none, as far as the connection went.
    None,
    /// The capture or the secrets do not tell.
    Unknown(Unknown),
}

/// Why something is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// The key log has no fitting line.
    #[error("the key log lacks this connection's secrets; log them for both sides' traffic")]
    NoSecrets,
    /// The key log's lines for this connection do not open its records.
    #[error("the key log's secrets do not open this connection's records; use its own key log")]
    WrongSecrets,
    /// A cipher suite other than the three that are read.
    #[error("the cipher suite is not read; use AES-GCM or ChaCha20-Poly1305")]
    CipherSuite,
    /// Packets are missing, cut short, or beyond the limits.
    #[error("packets are missing from the capture; raise its snap length, buffer or limits")]
    CaptureGap,
    /// The bytes are not TLS, or break its rules.
    #[error("the bytes are not well-formed TLS; check that the port speaks TLS")]
    NotTls,
    /// The connection ended before the server said it.
    #[error("the connection ended in the middle of the handshake; see which side closed it")]
    Ended,
    /// The server never answered the ClientHello.
    #[error("the server sent no ServerHello; check that it accepts the client's version")]
    NoServerHello,
}

/// What a connection was, in the terms of the lab's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Label {
    /// The negotiated version.
    pub version: TlsVersion,
    /// The handshake's kind, with what became of early data.
    pub kind: LabelKind,
    /// TCP Fast Open.
    pub tfo: FastOpen,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            LabelKind::Full => "full",
            LabelKind::Resumed => "resumed",
            LabelKind::EarlyAccepted => "early data accepted",
            LabelKind::EarlyRefused => "early data refused",
        };
        let tfo = match self.tfo {
            FastOpen::Used => "TFO used",
            FastOpen::FellBack => "TFO fallen back",
            FastOpen::Off => "TFO off",
        };
        write!(f, "{} {kind}, {tfo}", self.version)
    }
}

/// The kinds that the lab tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelKind {
    /// A full handshake without early data.
    Full,
    /// A resumed one without early data.
    Resumed,
    /// Early data sent and accepted.
    EarlyAccepted,
    /// Early data sent and refused, whether the handshake was resumed or full.
    EarlyRefused,
}

/// Why a connection has no label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unlabelled {
    /// No ClientHello was seen.
    #[error("no ClientHello was seen; check that the client speaks TLS on this port")]
    NotTls,
    /// No ServerHello with a known version was seen.
    #[error("no ServerHello was seen; check that the server accepts the client's version")]
    NoServerHello,
    /// The handshake ended before its kind showed.
    #[error("the handshake ended too early to be labelled; see how the connection closed")]
    Unfinished,
    /// Early data was sent and its fate is not known.
    #[error("whether the early data was accepted is unknown: {0}")]
    EarlyData(Unknown),
}

fn as_hex<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex::encode(bytes))
}
