//! One connection in metrics, traces and the record of replays, and the requests on it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use firstflight_telemetry::metrics::RefusedReason;
use firstflight_telemetry::otlp::{Span, TraceContext};
use firstflight_tls::Version;

use crate::context::ConnectionFacts;
use crate::context::memory::Budget;
use crate::observe::Observers;
use crate::observe::metrics::ConnectionMetrics;
use crate::observe::trace::wall;

/// One connection, for all that observes it.
pub(crate) struct ConnectionObserver {
    pub(crate) observers: Arc<Observers>,
    pub(crate) memory: Arc<Budget>,
    pub(crate) facts: ConnectionFacts,
    pub(crate) metrics: ConnectionMetrics,
    pub(crate) timeline: Timeline,
    /// Requests that came so far, and those whose response has not ended.
    pub(crate) seen: AtomicU64,
    pub(crate) running: AtomicUsize,
    /// Responses of which a part waits for the client to take it.
    pub(crate) offered: AtomicUsize,
}

impl ConnectionObserver {
    /// Early data is accepted or refused. `claim`: from when to when the flight was claimed.
    pub(crate) fn new(
        observers: Arc<Observers>,
        memory: Arc<Budget>,
        facts: ConnectionFacts,
        metrics: ConnectionMetrics,
        claim: Option<(Instant, Instant)>,
    ) -> Self {
        metrics.decided(&facts.tls, facts.flight.as_ref(), facts.refused);
        if facts.lost_claim() || facts.refused == Some(RefusedReason::RefusedBefore) {
            let (flight, client) = (&facts.tls.client_random, facts.client.ip());
            observers.replays.note(flight, client, metrics.transport(), jiff::Timestamp::now());
        }
        Self {
            timeline: Timeline::new(metrics.accepted_at(), claim),
            observers,
            memory,
            facts,
            metrics,
            seen: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            offered: AtomicUsize::new(0),
        }
    }

    /// The client's Finished is verified now.
    pub(crate) fn note_complete(&self) {
        self.timeline.complete();
        self.metrics.complete(&self.facts.tls, self.facts.refused.is_none());
        self.trace_handshake(false);
    }

    /// The head of a response is there.
    pub(crate) fn note_response(&self) {
        self.metrics.response(&self.facts.tls, self.facts.refused.is_none());
    }

    /// Adds the handshake to the first request's trace, once both have been seen. `over`: there
    /// will be no more to see.
    pub(crate) fn trace_handshake(&self, over: bool) {
        let (Some(tracer), Some(context)) = (&self.observers.tracer, self.timeline.tell(over))
        else {
            return;
        };
        if !context.sampled {
            return;
        }
        let (facts, tls) = (&self.facts, &self.facts.tls);
        let ended = self.timeline.completed_at();
        let part = |name, times: (Instant, Instant)| {
            Span::part(context, name, (wall(times.0), wall(times.1)))
        };
        let times = (self.timeline.accepted_at, ended.unwrap_or_else(Instant::now));
        let span = part("tls.handshake", times)
            .with("tls.protocol.version", tls.version.map_or("-", Version::name))
            .with("tls.cipher", tls.cipher.unwrap_or("-"))
            .with("tls.resumed", tls.resumed)
            .with("firstflight.early_data", facts.early_data())
            .with("firstflight.handshake.complete", ended.is_some());
        tracer.send(span);
        if let Some(times) = self.timeline.claim {
            let won = !facts.lost_claim();
            tracer.send(part("early_data.claim", times).with("firstflight.claim.won", won));
        }
    }
}

impl Drop for ConnectionObserver {
    fn drop(&mut self) {
        self.trace_handshake(true);
    }
}

/// The moments of one connection's start, and the trace of its first request, which they are
/// part of.
pub(crate) struct Timeline {
    pub(crate) accepted_at: Instant,
    /// From when to when the flight was claimed, if there was one.
    pub(crate) claim: Option<(Instant, Instant)>,
    completed_at: OnceLock<Instant>,
    trace: OnceLock<TraceContext>,
    told: AtomicBool,
}

impl Timeline {
    pub(crate) fn new(accepted_at: Instant, claim: Option<(Instant, Instant)>) -> Self {
        Self {
            accepted_at,
            claim,
            completed_at: OnceLock::new(),
            trace: OnceLock::new(),
            told: AtomicBool::new(false),
        }
    }

    /// The first request's trace.
    pub(crate) fn belongs_to(&self, context: &TraceContext) {
        let _ = self.trace.set(context.clone());
    }

    /// The client's Finished is verified now.
    pub(crate) fn complete(&self) {
        let _ = self.completed_at.set(Instant::now());
    }

    /// When the client's Finished was verified.
    pub(crate) fn completed_at(&self) -> Option<Instant> {
        self.completed_at.get().copied()
    }

    /// The first request's trace, given out once: when handshake and request have both been seen,
    /// or at the connection's end (`over`).
    pub(crate) fn tell(&self, over: bool) -> Option<&TraceContext> {
        let trace = self.trace.get()?;
        let ready = over || self.completed_at.get().is_some();
        (ready && !self.told.swap(true, Ordering::Relaxed)).then_some(trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_is_told_once_and_when_it_is_complete_or_over() {
        let context = TraceContext::new_root(1.0);
        let timeline = Timeline::new(Instant::now(), None);
        timeline.complete();
        assert!(timeline.tell(true).is_none(), "no request");
        let timeline = Timeline::new(Instant::now(), None);
        timeline.belongs_to(&context);
        assert!(timeline.tell(false).is_none(), "no Finished");
        timeline.complete();
        assert_eq!(timeline.tell(false), Some(&context));
        assert!(timeline.tell(true).is_none(), "twice");
    }
}
