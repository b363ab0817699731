//! What a connection was, in the terms of the lab's cells.

use std::fmt;

use serde::Serialize;

use super::{EarlyData, FastOpen, FlowFacts, Kind, TlsVersion, TransportFacts, Unknown};

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
        let transport = match &self.transport {
            TransportFacts::Tcp(tcp) => LabelTransport::Tcp(tcp.fast_open),
            TransportFacts::Quic(_) => LabelTransport::Quic,
        };
        Ok(Label { version, kind, transport })
    }
}

/// What a connection was, in the terms of the lab's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Label {
    /// The negotiated version.
    pub version: TlsVersion,
    /// The handshake's kind, with what became of early data.
    pub kind: LabelKind,
    /// What carried it.
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

/// What carried a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelTransport {
    /// TCP, with or without Fast Open.
    Tcp(FastOpen),
    /// QUIC.
    Quic,
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
