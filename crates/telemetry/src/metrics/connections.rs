//! Connections and their bytes.

use super::{Active, Counters, Description, HandshakeFailure, Snapshot, Transport};

/// Connections and their bytes.
#[derive(Debug)]
pub struct Connections {
    /// Connections that began.
    pub accepted: Counters<Transport>,
    /// Connections there are.
    pub active: Active<Transport>,
    /// Those that ended before their handshake did.
    pub failed: Counters<(Transport, HandshakeFailure)>,
    /// Bytes from clients.
    pub received: Counters<Transport>,
    /// Bytes to clients.
    pub sent: Counters<Transport>,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            accepted: Counters::new(&ACCEPTED),
            active: Active::new(&ACTIVE),
            failed: Counters::new(&FAILED),
            received: Counters::new(&RECEIVED),
            sent: Counters::new(&SENT),
        }
    }
}

impl Connections {
    pub(super) fn collect(&self, limit: u32, snapshot: &mut Snapshot) {
        snapshot.push(self.accepted.family());
        snapshot.push(self.active.family());
        snapshot.number(&LIMIT, f64::from(limit));
        snapshot.push(self.failed.family());
        snapshot.push(self.received.family());
        snapshot.push(self.sent.family());
    }
}

static ACCEPTED: Description = Description::counter(
    "firstflight_connections_total",
    "Connections that were accepted.",
    "Many connections with few requests each mean clients that do not keep them.",
);
static ACTIVE: Description = Description::gauge(
    "firstflight_connections_active",
    "Connections there are now.",
    "At limits.connections further ones over TCP wait in the kernel's backlog, and over QUIC are refused. Raise the limit, or find out who holds them.",
);
static LIMIT: Description = Description::gauge(
    "firstflight_connections_limit",
    "Connections that there may be, limits.connections.",
    "See firstflight_connections_active.",
);
static FAILED: Description = Description::counter(
    "firstflight_handshakes_failed_total",
    "Connections that ended before their handshake was complete, without an answer.",
    "A copy of a first flight never completes its handshake, so replays show here too. Else scanners, clients that distrust the certificate, or ones that are too old.",
);
static RECEIVED: Description = Description::counter(
    "firstflight_received_bytes_total",
    "Bytes that came from clients: TLS over TCP, UDP payloads of QUIC.",
    "Compare with what the machine's link carries.",
);
static SENT: Description = Description::counter(
    "firstflight_sent_bytes_total",
    "Bytes sent to clients: TLS over TCP, UDP payloads of QUIC.",
    "Compare with what the machine's link carries.",
);
