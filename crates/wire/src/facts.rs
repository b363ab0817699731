//! What a connection's packets show, in the terms of the RFCs.

mod response;
mod tcp;
mod tls;

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

pub use response::{FirstResponse, LastResponse};
pub use tcp::{FastOpen, Stall, TcpFacts, Traffic};
pub use tls::{CertificateFacts, EarlyData, EarlyFacts, Kind, NamedGroup, TlsFacts, TlsVersion};

use crate::Packet;

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
    /// When the SYN-ACK was first delivered to the client: what curl calls connect.
    pub connected: Option<u64>,
    /// When the client could send application data without early data, False Start aside: the
    /// delivery to it of the server's Finished and all before it. `None` if that was not
    /// delivered or cannot be told.
    pub setup_done: Option<u64>,
    /// The first response byte, and what it cost in round trips.
    pub first_response: FirstResponse,
    /// The last response byte, and what it cost in round trips.
    pub last_response: LastResponse,
    /// Bytes of plain text between the two: application data of TLS, over HTTP/2 the frames of
    /// answers. Decrypted, or in TLS 1.2 by the length where the cipher suite is an AEAD one.
    pub response_bytes: Option<u64>,
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

    /// Whether `packet` is one of this connection: of its ends and within its time, for a later
    /// connection may have the same ends. Where many connections are looked for, sort the packets
    /// by [`Packet::ends`] first.
    pub fn owns(&self, packet: &Packet<'_>) -> bool {
        (self.started..=self.ended).contains(&packet.arrived)
            && packet.ends() == Some((self.client, self.server))
    }

    /// Round trips from the first packet to the first response byte, where they are known.
    pub fn round_trips(&self) -> Option<u32> {
        match self.first_response {
            FirstResponse::Seen { round_trips, .. } => Some(round_trips),
            FirstResponse::None | FirstResponse::Unknown(_) => None,
        }
    }
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
    /// A cipher suite other than those that are read.
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
