//! The description of an observed connection.

use std::net::SocketAddr;

use firstflight_packets::{
    FastOpen, FirstResponse, FlowFacts, LabelKind, NamedGroup, TlsVersion, TransportFacts,
};
use serde::Serialize;

/// A connection as its packets show it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObservedConnection {
    /// When its first packet reached the link, in UTC (RFC 3339, to the millisecond).
    pub at: String,
    /// The network, by its profile's name.
    pub network: String,
    /// The server, by its name in flags.
    pub server: String,
    /// The client's address and port.
    pub client: SocketAddr,
    /// `tcp` or `quic`.
    pub transport: &'static str,
    /// The server name in the ClientHello (RFC 6066 section 3).
    pub server_name: Option<String>,
    /// The protocol that the server chose (RFC 7301), such as `h2`, if it can be decrypted.
    pub alpn: Option<String>,
    /// The TLS version.
    pub tls: Option<TlsVersion>,
    /// The outcome of the handshake, if the packets show it.
    pub handshake: Option<HandshakeOutcome>,
    /// Why the packets do not show the outcome.
    pub unknown: Option<String>,
    /// The group of the key exchange.
    pub group: Option<NamedGroup>,
    /// Whether the server sent a HelloRetryRequest (RFC 8446 section 4.1.4).
    pub hello_retry: bool,
    /// Whether the SYN carried data that the server accepted (RFC 7413).
    pub fast_open: bool,
    /// Bytes of decrypted early data. `None` if there was none or it cannot be decrypted.
    pub early_bytes: Option<u64>,
    /// Round trips from the first packet to the first byte of the response.
    pub round_trips: Option<u32>,
    /// From the first packet until a request without early data could have been sent.
    pub setup_ms: Option<f64>,
    /// From the first packet to the delivery of the response's first byte.
    pub first_byte_ms: Option<f64>,
    /// Packets that the network dropped.
    pub dropped: u32,
    /// Packets that were retransmissions.
    pub sent_again: u32,
}

/// The outcome of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum HandshakeOutcome {
    /// A full handshake, without early data.
    #[serde(rename = "full")]
    Full,
    /// Resumption of an earlier session, without early data.
    #[serde(rename = "resumed")]
    Resumed,
    /// Early data that the server accepted.
    #[serde(rename = "0-RTT accepted")]
    Accepted,
    /// Early data that the server refused.
    #[serde(rename = "0-RTT refused")]
    Refused,
}

impl HandshakeOutcome {
    /// The serialized name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::Accepted => "0-RTT accepted",
            Self::Refused => "0-RTT refused",
        }
    }
}

impl From<LabelKind> for HandshakeOutcome {
    fn from(kind: LabelKind) -> Self {
        match kind {
            LabelKind::Full => Self::Full,
            LabelKind::Resumed => Self::Resumed,
            LabelKind::EarlyAccepted => Self::Accepted,
            LabelKind::EarlyRefused => Self::Refused,
        }
    }
}

impl ObservedConnection {
    /// Describes a connection by its packets. `offset_ns` converts the tap's clock to Unix time.
    pub(super) fn new(facts: &FlowFacts, network: &str, server: &str, offset_ns: i64) -> Self {
        let tls = facts.tls.as_ref();
        let label = facts.label();
        let ms = |ns: u64| ns.saturating_sub(facts.started) as f64 / 1e6;
        let first_byte = match facts.first_response {
            FirstResponse::Seen { delivered, .. } => delivered,
            FirstResponse::None | FirstResponse::Unknown(_) => None,
        };
        Self {
            at: format_utc(facts.started.saturating_add_signed(offset_ns)),
            network: network.to_owned(),
            server: server.to_owned(),
            client: facts.client,
            transport: match facts.transport {
                TransportFacts::Tcp(_) => "tcp",
                TransportFacts::Quic(_) => "quic",
            },
            server_name: tls.and_then(|tls| tls.server_name.clone()),
            alpn: tls.and_then(|tls| tls.alpn.clone()),
            tls: tls.and_then(|tls| tls.version),
            handshake: label.ok().map(|label| label.kind.into()),
            unknown: label.err().map(|why| why.to_string()),
            group: tls.and_then(|tls| tls.group),
            hello_retry: tls.is_some_and(|tls| tls.hello_retry_requests > 0),
            fast_open: facts.tcp().is_some_and(|tcp| tcp.fast_open == FastOpen::Used),
            early_bytes: tls.and_then(|tls| tls.early.plain_bytes),
            round_trips: facts.round_trips(),
            setup_ms: facts.setup_done.map(ms),
            first_byte_ms: first_byte.map(ms),
            dropped: facts.transport.dropped(),
            sent_again: facts.transport.retransmissions(),
        }
    }
}

fn format_utc(unix_ns: u64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_to_the_millisecond() {
        assert_eq!(format_utc(1_790_000_000_123_456_789), "2026-09-21T14:13:20.123Z");
    }

    #[test]
    fn the_name_of_an_outcome_is_its_serialized_form() {
        use HandshakeOutcome::{Accepted, Full, Refused, Resumed};
        for outcome in [Full, Resumed, Accepted, Refused] {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.name());
        }
    }
}
