//! Labels: what kind of connection it was, by its packets.

use std::fmt;

use serde::Serialize;

use super::{EarlyData, FastOpen, FlowFacts, HandshakeKind, TlsVersion, TransportFacts, Unknown};

impl FlowFacts {
    /// The connection's label, determined from its packets alone.
    ///
    /// # Errors
    /// Returns what is missing if the packets and secrets do not determine the label.
    pub fn label(&self) -> Result<Label, Unlabelled> {
        let tls = self.tls.as_ref().ok_or(Unlabelled::NotTls)?;
        let version = tls.version.ok_or(Unlabelled::NoServerHello)?;
        let kind = match (tls.early.outcome, tls.kind) {
            (EarlyData::Unknown(why), _) => return Err(Unlabelled::EarlyData(why)),
            (EarlyData::Accepted, _) => LabelKind::EarlyAccepted,
            (EarlyData::Refused, _) => LabelKind::EarlyRefused,
            (EarlyData::NotOffered, Some(HandshakeKind::Full)) => LabelKind::Full,
            (EarlyData::NotOffered, Some(HandshakeKind::Resumed)) => LabelKind::Resumed,
            (EarlyData::NotOffered, None) => return Err(Unlabelled::Unfinished),
        };
        let transport = match &self.transport {
            TransportFacts::Tcp(tcp) => LabelTransport::Tcp(tcp.fast_open),
            TransportFacts::Quic(_) => LabelTransport::Quic,
        };
        Ok(Label { version, kind, transport })
    }
}

/// What kind of connection it was: full, resumed, with early data accepted or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Label {
    /// The negotiated version.
    pub version: TlsVersion,
    /// The kind of handshake, and whether early data was accepted.
    pub kind: LabelKind,
    /// The transport below TLS.
    pub transport: LabelTransport,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            LabelKind::Full => "full",
            LabelKind::Resumed => "resumed",
            LabelKind::EarlyAccepted => "early data accepted",
            LabelKind::EarlyRefused => "early data refused",
        };
        let transport = match self.transport {
            LabelTransport::Tcp(FastOpen::Used) => "TFO used",
            LabelTransport::Tcp(FastOpen::FellBack) => "TFO fallen back",
            LabelTransport::Tcp(FastOpen::Off) => "TFO off",
            LabelTransport::Quic => "QUIC",
        };
        write!(f, "{} {kind}, {transport}", self.version)
    }
}

/// The transport of a labelled connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelTransport {
    /// TCP, with or without Fast Open.
    Tcp(FastOpen),
    /// QUIC.
    Quic,
}

/// The kinds of connections that are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelKind {
    /// A full handshake without early data.
    Full,
    /// A resumed handshake without early data.
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
    /// The handshake ended before its kind was known.
    #[error("the handshake ended too early to be labelled; see how the connection closed")]
    Unfinished,
    /// Early data was sent, and it is not known whether it was accepted.
    #[error("whether the early data was accepted is unknown: {0}")]
    EarlyData(Unknown),
}
