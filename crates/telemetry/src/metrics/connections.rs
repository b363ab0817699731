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
            "Accepted connections.",
            "Many with few requests each: clients do not reuse connections.",
        );
        active: Gauges<Transport> = gauge(
            "firstflight_connections_active",
            "Open connections.",
            "At `limits.connections`, TCP connections wait in the kernel's backlog, and QUIC \
             connections are refused. Raise the limit, or find the clients that hold them.",
        );
        failed: Counters<(Transport, HandshakeFailure)> = counter(
            "firstflight_handshakes_failed_total",
            "Connections that ended before their handshake was complete, without a response.",
            "Includes replays, which never complete their handshake. Other causes: scanners, old \
             clients, clients that do not trust the certificate.",
        );
        received: Counters<Transport> = counter(
            "firstflight_received_bytes_total",
            "Bytes received from clients: TLS over TCP, UDP payloads of QUIC.",
            "Compare with the link's capacity.",
        );
        sent: Counters<Transport> = counter(
            "firstflight_sent_bytes_total",
            "Bytes sent to clients: TLS over TCP, UDP payloads of QUIC.",
            "Compare with the link's capacity.",
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
    "Maximum number of connections, limits.connections.",
    "See `firstflight_connections_active`.",
);

counted! {
    /// Durations of handshakes.
    pub struct Handshakes {
        seconds: Histograms<(TlsVersion, HandshakeKind, Transport)> = histogram(
            "firstflight_handshake_seconds",
            "Time from accepting a connection to the client's Finished.",
            "Includes a round trip to the client. Early requests do not wait for it: see \
             `firstflight_first_response_seconds`.",
            DURATION_BOUNDS,
        );
        first_response: Histograms<(HandshakeKind, Transport)> = histogram(
            "firstflight_first_response_seconds",
            "Time from accepting a connection to the head of its first response.",
            "Shows the gain of 0-RTT: `early` is one round trip below `resumed`. Clients that \
             connect before they have a request extend the slow end of `full` and `resumed`.",
            DURATION_BOUNDS,
        );
    }
}

/// Upper bounds of the buckets for durations in seconds.
pub(super) const DURATION_BOUNDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];

counted! {
    /// Admission of QUIC connections.
    pub struct Quic {
        refused: Counters<QuicRefusal> = counter(
            "firstflight_quic_connections_refused_total",
            "QUIC connections refused or delayed at their first packet.",
            "`retry`, `overload` growing fast: forged addresses, or many new clients at once. See \
             `http3.retry_above`, `http3.refuse_above`.",
        );
        tokens: Counters<()> = counter(
            "firstflight_quic_tokens_accepted_total",
            "QUIC connections that proved their address with a token of an earlier one.",
            "Divided by QUIC connections: the share that can get a full response in one round \
             trip.",
        );
    }
}

/// State of QUIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuicReading {
    /// Handshakes in progress.
    pub handshakes: u64,
}

impl Quic {
    /// `reading` is `None` if HTTP/3 is off.
    pub(super) fn collect(&self, reading: Option<&QuicReading>, snapshot: &mut Snapshot) {
        self.counted(snapshot);
        let series = reading
            .map(|quic| Series::new(Vec::new(), SeriesValue::Number(quic.handshakes as f64)));
        snapshot.push(Family {
            description: &HANDSHAKES,
            labels: Vec::new(),
            series: series.into_iter().collect(),
        });
    }
}

static HANDSHAKES: Description = Description::gauge(
    "firstflight_quic_handshakes_active",
    "QUIC handshakes in progress.",
    "At `http3.refuse_above`, first packets are ignored.",
);
