//! Connections and their bytes.

use super::family::counted;
use super::{Active, Counters, Description, HandshakeFailure, Snapshot, Transport};

counted! {
    /// Connections and their bytes.
    pub struct Connections {
        accepted: Counters<Transport> = counter(
            "firstflight_connections_total",
            "Connections that were accepted.",
            "Many connections with few requests each mean clients that do not keep them.",
        );
        active: Active<Transport> = gauge(
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
