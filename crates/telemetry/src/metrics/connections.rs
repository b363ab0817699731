//! Metrics of connections and handshakes.

use super::instruments::counted;
use super::{
    Counters, Description, Family, Gauges, HandshakeFailure, HandshakeKind, Histograms,
    QuicRefusal, Series, SeriesValue, Snapshot, TlsVersion, Transport,
};

counted! {
    /// Connections and their bytes.
    pub struct Connections {
        accepted: Counters<Transport> = counter(
            "firstflight_connections_total",
            "Connections that were accepted.",
            "Many connections with few requests each mean clients that do not keep them.",
        );
        active: Gauges<Transport> = gauge(
            "firstflight_connections_active",
            "Connections there are now.",
            "At limits.connections further ones over TCP wait in the kernel's backlog, and over \
             QUIC are refused. Raise the limit, or find out who holds them.",
        );
        failed: Counters<(Transport, HandshakeFailure)> = counter(
            "firstflight_handshakes_failed_total",
            "Connections that ended before their handshake was complete, without an answer.",
            "A copy of a first flight never completes its handshake, so replays show here too. \
             Else scanners, clients that distrust the certificate, or ones that are too old.",
        );
        received: Counters<Transport> = counter(
            "firstflight_received_bytes_total",
            "Bytes that came from clients: TLS over TCP, UDP payloads of QUIC.",
            "Compare with what the machine's link carries.",
        );
        sent: Counters<Transport> = counter(
            "firstflight_sent_bytes_total",
            "Bytes sent to clients: TLS over TCP, UDP payloads of QUIC.",
            "Compare with what the machine's link carries.",
        );
    }
}

impl Connections {
    pub(super) fn collect(&self, limit: u32, snapshot: &mut Snapshot) {
        self.counted(snapshot);
        snapshot.number(&LIMIT, f64::from(limit));
    }
}

static LIMIT: Description = Description::gauge(
    "firstflight_connections_limit",
    "Connections that there may be, limits.connections.",
    "See firstflight_connections_active.",
);

counted! {
    /// Handshakes and what they cost.
    pub struct Handshakes {
        seconds: Histograms<(TlsVersion, HandshakeKind, Transport)> = histogram(
            "firstflight_handshake_seconds",
            "From a connection's acceptance to the client's Finished.",
            "The client's round trip lies in it. An early one is not waited for: see the first \
             response.",
            DURATION_BOUNDS,
        );
        first_response: Histograms<(HandshakeKind, Transport)> = histogram(
            "firstflight_first_response_seconds",
            "From a connection's acceptance to the head of its first answer.",
            "What 0-RTT is worth: early lies below resumed by a round trip. Clients that connect \
             ahead of \
             need make the slow end of full and resumed longer.",
            DURATION_BOUNDS,
        );
    }
}

/// From what a local network takes to what a client stands.
pub(super) const DURATION_BOUNDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];

counted! {
    /// QUIC's door.
    pub struct Quic {
        refused: Counters<QuicRefusal> = counter(
            "firstflight_quic_connections_refused_total",
            "Connections over QUIC that were not begun at their first packet.",
            "retry and rush growing fast: forged addresses, or a rush of new clients. See \
             http3.retry_above and http3.refuse_above.",
        );
        tokens: Counters<()> = counter(
            "firstflight_quic_tokens_accepted_total",
            "Connections over QUIC that showed their address by a token from an earlier one.",
            "Divided by connections over QUIC: how many have their whole answer in one round trip.",
        );
    }
}

/// What is known of QUIC now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuicReading {
    /// Handshakes in progress.
    pub handshakes: u64,
}

impl Quic {
    /// `None`: there is no HTTP/3.
    pub(super) fn collect(&self, now: Option<&QuicReading>, snapshot: &mut Snapshot) {
        self.counted(snapshot);
        let series =
            now.map(|now| Series::new(Vec::new(), SeriesValue::Number(now.handshakes as f64)));
        snapshot.push(Family {
            description: &HANDSHAKES,
            labels: Vec::new(),
            series: series.into_iter().collect(),
        });
    }
}

static HANDSHAKES: Description = Description::gauge(
    "firstflight_quic_handshakes_active",
    "Handshakes over QUIC in progress now.",
    "At http3.refuse_above first packets are ignored.",
);
