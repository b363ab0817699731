//! One request in the metrics, from its arrival until its answer has ended.

use std::sync::Arc;
use std::time::Instant;

use firstflight_telemetry::metrics::{Early, HeldReason, Method, Metrics, Protocol, Status};

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
        metrics.requests.active.begin(protocol);
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

    /// The head of its answer is there.
    pub(crate) fn status(&mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for RequestMetrics {
    fn drop(&mut self) {
        let requests = &self.metrics.requests;
        requests.active.end(self.protocol);
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
