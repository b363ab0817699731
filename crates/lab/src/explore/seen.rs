//! What is said of a connection.

use std::net::SocketAddr;

use firstflight_packets::{
    FastOpen, FirstResponse, FlowFacts, LabelKind, NamedGroup, TlsVersion, TransportFacts,
};
use serde::Serialize;

/// A connection as its packets show it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
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
    /// The name that the client asked for (RFC 6066 section 3).
    pub server_name: Option<String>,
    /// The protocol that the server chose (RFC 7301), such as `h2`, where it can be read.
    pub alpn: Option<String>,
    /// The TLS version.
    pub tls: Option<TlsVersion>,
    /// What the handshake was; `None` where that does not show.
    pub handshake: Option<Handshake>,
    /// Why it does not show.
    pub unknown: Option<String>,
    /// The group of the key exchange.
    pub group: Option<NamedGroup>,
    /// A HelloRetryRequest (RFC 8446 section 4.1.4) cost a round trip.
    pub hello_retry: bool,
    /// The SYN carried data that the server took (RFC 7413).
    pub fast_open: bool,
    /// Bytes of early data, decrypted; `None` where there was none or it cannot be read.
    pub early_bytes: Option<u64>,
    /// Round trips from the first packet to the first byte of the response.
    pub round_trips: Option<u32>,
    /// From the first packet until the handshake would have let a request go that is not early.
    pub setup_ms: Option<f64>,
    /// From the first packet to the delivery of the response's first byte.
    pub first_byte_ms: Option<f64>,
    /// Packets that the network dropped.
    pub dropped: u32,
    /// Packets that carried what had been sent before.
    pub sent_again: u32,
}

/// What a handshake was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Handshake {
    /// With the server's certificate, and no early data.
    #[serde(rename = "full")]
    Full,
    /// From an earlier session, and no early data.
    #[serde(rename = "resumed")]
    Resumed,
    /// With early data that the server took.
    #[serde(rename = "0-RTT accepted")]
    Accepted,
    /// With early data that the server did not take.
    #[serde(rename = "0-RTT refused")]
    Refused,
}

impl Handshake {
    /// As it is serialized.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::Accepted => "0-RTT accepted",
            Self::Refused => "0-RTT refused",
        }
    }
}

impl From<LabelKind> for Handshake {
    fn from(kind: LabelKind) -> Self {
        match kind {
            LabelKind::Full => Self::Full,
            LabelKind::Resumed => Self::Resumed,
            LabelKind::EarlyAccepted => Self::Accepted,
            LabelKind::EarlyRefused => Self::Refused,
        }
    }
}

impl Seen {
    /// A connection from what its packets say. `offset_ns` leads from the tap's clock to that of
    /// the world.
    pub(super) fn new(facts: &FlowFacts, network: &str, server: &str, offset_ns: i64) -> Self {
        let tls = facts.tls.as_ref();
        let label = facts.label();
        let ms = |ns: u64| ns.saturating_sub(facts.started) as f64 / 1e6;
        let first_byte = match facts.first_response {
            FirstResponse::Seen { delivered, .. } => delivered,
            FirstResponse::None | FirstResponse::Unknown(_) => None,
        };
        Self {
            at: in_utc(facts.started.saturating_add_signed(offset_ns)),
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
            sent_again: facts.transport.sent_again(),
        }
    }
}

fn in_utc(unix_ns: u64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_to_the_millisecond() {
        assert_eq!(in_utc(1_790_000_000_123_456_789), "2026-09-21T14:13:20.123Z");
    }

    #[test]
    fn a_handshake_is_called_what_it_is_serialized_as() {
        use Handshake::{Accepted, Full, Refused, Resumed};
        for one in [Full, Resumed, Accepted, Refused] {
            assert_eq!(serde_json::to_value(one).unwrap(), one.name());
        }
    }
}
