//! Counts connections and requests in the metrics, from their arrival to their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use firstflight_replay::Flight;
use firstflight_telemetry::metrics::{
    Early, HandshakeFailure, HandshakeKind, HeldReason, HoldEnd, Method, Metrics, Protocol,
    RefusedReason, Status, TlsVersion, Transport,
};
use firstflight_tls::{Handshake, Version};
use http::StatusCode;

/// Counts one connection. Dropped when the connection ends.
pub(crate) struct ConnectionMetrics {
    metrics: Arc<Metrics>,
    transport: Transport,
    accepted_at: Instant,
    /// Whether the handshake is complete, or none is expected.
    handshake_settled: AtomicBool,
    timed_out: AtomicBool,
    responded: AtomicBool,
    /// Whether the offer of early data was counted.
    offer_counted: AtomicBool,
}

/// Counts a request that waits for its connection's handshake.
pub(crate) struct Hold<'a> {
    connection: &'a ConnectionMetrics,
    since: Instant,
    end: Option<HoldEnd>,
}

impl ConnectionMetrics {
    /// Counts a connection that was just accepted.
    pub(crate) fn start(metrics: &Arc<Metrics>, transport: Transport) -> Self {
        metrics.connections.accepted.count(transport);
        metrics.connections.active.increment(transport);
        Self {
            metrics: metrics.clone(),
            transport,
            accepted_at: Instant::now(),
            handshake_settled: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            responded: AtomicBool::new(false),
            offer_counted: AtomicBool::new(false),
        }
    }

    pub(crate) fn accepted_at(&self) -> Instant {
        self.accepted_at
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// No handshake is expected: the client was sent a Retry, was refused, or uses HTTP without
    /// TLS.
    pub(crate) fn expect_no_handshake(&self) {
        self.handshake_settled.store(true, Ordering::Relaxed);
    }

    /// A time limit ends the connection.
    pub(crate) fn note_timeout(&self) {
        self.timed_out.store(true, Ordering::Relaxed);
    }

    /// Early data is accepted or refused. `refused`: why TLS refused it, if it was offered.
    pub(crate) fn note_early_data(
        &self,
        facts: &Handshake,
        flight: Option<&Flight>,
        refused: Option<RefusedReason>,
    ) {
        let is_offer = facts.offered_flight.is_some();
        if is_offer && self.offer_counted.swap(true, Ordering::Relaxed) {
            return;
        }
        if facts.resumed && facts.version == Some(Version::Tls13) {
            self.metrics.tickets.age_skew.observe((), f64::from(facts.ticket_age_skew));
        }
        if !is_offer {
            return;
        }
        let counts = &self.metrics.early_data;
        counts.offered.count(self.transport);
        let refused = match flight {
            // TLS accepts the copy's early data, so that the client does not send it again; none of
            // it is executed.
            Some(flight) => (!flight.won()).then_some(RefusedReason::Replayed),
            None => Some(refused.unwrap_or(RefusedReason::Other)),
        };
        match refused {
            None => counts.accepted.count(self.transport),
            Some(reason) => counts.refused.count((self.transport, reason)),
        }
    }

    /// Whether early data was offered and counted.
    pub(crate) fn is_offer_counted(&self) -> bool {
        self.offer_counted.load(Ordering::Relaxed)
    }

    /// The client's Finished is verified.
    pub(crate) fn note_complete(&self, facts: &Handshake, early: bool) {
        self.handshake_settled.store(true, Ordering::Relaxed);
        let labels = (version(facts.version), kind(facts, early), self.transport);
        self.metrics.handshakes.seconds.time(labels, self.accepted_at.elapsed());
    }

    /// A response's head is ready.
    pub(crate) fn note_response(&self, facts: &Handshake, early: bool) {
        if !self.responded.swap(true, Ordering::Relaxed) {
            let labels = (kind(facts, early), self.transport);
            self.metrics.handshakes.first_response.time(labels, self.accepted_at.elapsed());
        }
    }

    /// Starts to hold a request.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.metrics.early_data.holding.increment(());
        Hold { connection: self, since: Instant::now(), end: None }
    }
}

impl Drop for ConnectionMetrics {
    fn drop(&mut self) {
        let counts = &self.metrics.connections;
        counts.active.decrement(self.transport);
        // An early response may end a connection before the client's Finished.
        let is_done = self.handshake_settled.load(Ordering::Relaxed)
            || self.responded.load(Ordering::Relaxed);
        if !is_done {
            let reason = match self.timed_out.load(Ordering::Relaxed) {
                true => HandshakeFailure::Timeout,
                false => HandshakeFailure::Protocol,
            };
            counts.failed.count((self.transport, reason));
        }
    }
}

impl Hold<'_> {
    /// The handshake is complete. `runs`: the request is executed now.
    pub(crate) fn complete(mut self, runs: bool) {
        self.end = Some(if runs { HoldEnd::Handshake } else { HoldEnd::TooEarly });
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let counts = &self.connection.metrics.early_data;
        let end = self.end.unwrap_or(match self.connection.timed_out.load(Ordering::Relaxed) {
            true => HoldEnd::Timeout,
            false => HoldEnd::Disconnected,
        });
        counts.holding.decrement(());
        counts.hold_seconds.time(end, self.since.elapsed());
    }
}

fn version(version: Option<Version>) -> TlsVersion {
    match version {
        Some(Version::Tls10) => TlsVersion::Tls10,
        Some(Version::Tls11) => TlsVersion::Tls11,
        Some(Version::Tls12) => TlsVersion::Tls12,
        Some(Version::Tls13) | None => TlsVersion::Tls13,
    }
}

fn kind(facts: &Handshake, early: bool) -> HandshakeKind {
    match facts.resumed {
        true if early => HandshakeKind::Early,
        true => HandshakeKind::Resumed,
        false => HandshakeKind::Full,
    }
}

/// Counts one request. Dropped when the request has ended.
pub(crate) struct RequestMetrics {
    metrics: Arc<Metrics>,
    started_at: Instant,
    protocol: Protocol,
    method: Method,
    early: Early,
    status: Option<u16>,
}

impl RequestMetrics {
    /// Counts a request that just arrived. `protocol`: as in the access log.
    pub(crate) fn start(metrics: &Arc<Metrics>, protocol: &str, method: &str, early: bool) -> Self {
        let protocol = self::protocol(protocol);
        metrics.requests.active.increment(protocol);
        Self {
            metrics: metrics.clone(),
            started_at: Instant::now(),
            protocol,
            method: Method::of(method),
            early: if early { Early::Ran } else { Early::No },
            status: None,
        }
    }

    /// The request is not run early.
    pub(crate) fn note_held(&mut self, reason: HeldReason) {
        self.early = Early::Held;
        self.metrics.early_data.held.count(reason);
    }

    /// The head of its response is ready.
    pub(crate) fn set_status(&mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for RequestMetrics {
    fn drop(&mut self) {
        let requests = &self.metrics.requests;
        requests.active.decrement(self.protocol);
        requests.ended.count((self.protocol, self.method, Status::of(self.status), self.early));
        if self.status == Some(StatusCode::MISDIRECTED_REQUEST.as_u16()) {
            requests.misdirected.count(self.protocol);
        }
        requests.seconds.time((self.protocol, self.early), self.started_at.elapsed());
    }
}

fn protocol(name: &str) -> Protocol {
    match name {
        "HTTP/1.0" => Protocol::Http10,
        "HTTP/1.1" => Protocol::Http11,
        "HTTP/2" => Protocol::Http2,
        "HTTP/3" => Protocol::Http3,
        _ => Protocol::PingPong,
    }
}
