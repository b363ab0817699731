//! Connections and requests in the metrics, from their arrival to their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use firstflight_replay::Flight;
use firstflight_telemetry::metrics::{
    Early, HandshakeFailure, HandshakeKind, HeldReason, HoldEnd, Method, Metrics, Protocol,
    RefusedReason, Status, TlsVersion, Transport,
};
use firstflight_tls::{Handshake, Version};

/// A connection's visit. Dropped, it is over.
pub(crate) struct ConnectionMetrics {
    metrics: Arc<Metrics>,
    transport: Transport,
    accepted_at: Instant,
    /// Whether it is settled if there was a handshake: it was complete, or was not to be.
    settled: AtomicBool,
    timed_out: AtomicBool,
    answered: AtomicBool,
}

/// A request that waits for the end of its connection's handshake.
pub(crate) struct Hold<'a> {
    visit: &'a ConnectionMetrics,
    since: Instant,
    end: Option<HoldEnd>,
}

impl ConnectionMetrics {
    /// A connection that was accepted just now.
    pub(crate) fn begin(metrics: &Arc<Metrics>, transport: Transport) -> Self {
        metrics.connections.accepted.count(transport);
        metrics.connections.active.increment(transport);
        Self {
            metrics: metrics.clone(),
            transport,
            accepted_at: Instant::now(),
            settled: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            answered: AtomicBool::new(false),
        }
    }

    pub(crate) fn accepted_at(&self) -> Instant {
        self.accepted_at
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// The client was requested its address, or sent away, or speaks HTTP without TLS: that there
    /// was no handshake is nobody's failure.
    pub(crate) fn has_no_handshake(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// The client took too long over its handshake.
    pub(crate) fn timed_out(&self) {
        self.timed_out.store(true, Ordering::Relaxed);
    }

    /// Early data is decided. `refused`: why TLS has refused it, if it was offered and has been.
    pub(crate) fn decided(
        &self,
        facts: &Handshake,
        flight: Option<&Flight>,
        refused: Option<RefusedReason>,
    ) {
        if facts.resumed && facts.version == Some(Version::Tls13) {
            self.metrics.tickets.age_skew.observe((), f64::from(facts.ticket_age_skew));
        }
        if facts.offered_flight.is_none() {
            return;
        }
        let counts = &self.metrics.early_data;
        counts.offered.count(self.transport);
        let refused = match flight {
            // TLS accepts it, so that nothing of it can come a second time unseen; none of it runs.
            Some(flight) => (!flight.won()).then_some(RefusedReason::Replayed),
            None => Some(refused.unwrap_or(RefusedReason::Other)),
        };
        match refused {
            None => counts.accepted.count(self.transport),
            Some(reason) => counts.refused.count((self.transport, reason)),
        }
    }

    /// The client's Finished is verified.
    pub(crate) fn complete(&self, facts: &Handshake, early: bool) {
        self.settled.store(true, Ordering::Relaxed);
        let labels = (version(facts.version), kind(facts, early), self.transport);
        self.metrics.handshakes.seconds.time(labels, self.accepted_at.elapsed());
    }

    /// A response's head is there.
    pub(crate) fn response(&self, facts: &Handshake, early: bool) {
        if !self.answered.swap(true, Ordering::Relaxed) {
            let labels = (kind(facts, early), self.transport);
            self.metrics.handshakes.first_response.time(labels, self.accepted_at.elapsed());
        }
    }

    /// A request starts to wait.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.metrics.early_data.holding.increment(());
        Hold { visit: self, since: Instant::now(), end: None }
    }
}

impl Drop for ConnectionMetrics {
    fn drop(&mut self) {
        let counts = &self.metrics.connections;
        counts.active.decrement(self.transport);
        // An early response may end a connection ahead of the client's Finished.
        let is_done = self.settled.load(Ordering::Relaxed) || self.answered.load(Ordering::Relaxed);
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
    /// The handshake is complete; `runs`: the request runs now.
    pub(crate) fn complete(mut self, runs: bool) {
        self.end = Some(if runs { HoldEnd::Handshake } else { HoldEnd::TooEarly });
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let counts = &self.visit.metrics.early_data;
        let end = self.end.unwrap_or(match self.visit.timed_out.load(Ordering::Relaxed) {
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

/// A request's place in the metrics. Dropped, it has ended.
pub(crate) struct RequestMetrics {
    metrics: Arc<Metrics>,
    began: Instant,
    protocol: Protocol,
    method: Method,
    early: Early,
    status: Option<u16>,
}

impl RequestMetrics {
    /// A request that arrives now. `protocol`: as the access log has it.
    pub(crate) fn begin(metrics: &Arc<Metrics>, protocol: &str, method: &str, early: bool) -> Self {
        let protocol = self::protocol(protocol);
        metrics.requests.active.increment(protocol);
        Self {
            metrics: metrics.clone(),
            began: Instant::now(),
            protocol,
            method: Method::of(method),
            early: if early { Early::Ran } else { Early::No },
            status: None,
        }
    }

    /// It is not run early.
    pub(crate) fn held(&mut self, reason: HeldReason) {
        self.early = Early::Held;
        self.metrics.early_data.held.count(reason);
    }

    /// The head of its response is there.
    pub(crate) fn status(&mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for RequestMetrics {
    fn drop(&mut self) {
        let requests = &self.metrics.requests;
        requests.active.decrement(self.protocol);
        requests.ended.count((self.protocol, self.method, Status::of(self.status), self.early));
        requests.seconds.time((self.protocol, self.early), self.began.elapsed());
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
