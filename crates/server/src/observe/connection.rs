//! One connection in metrics, traces and recent replays.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use firstflight_telemetry::metrics::RefusedReason;
use firstflight_telemetry::otlp::{Span, TraceContext};
use firstflight_tls::Version;

use crate::context::ConnectionFacts;
use crate::context::memory::MemoryBudget;
use crate::observe::Observers;
use crate::observe::metrics::ConnectionMetrics;
use crate::observe::trace::system_time;

/// Observes one connection and its requests.
pub(crate) struct ConnectionObserver {
    pub(crate) observers: Arc<Observers>,
    pub(crate) memory: Arc<MemoryBudget>,
    pub(crate) facts: ConnectionFacts,
    pub(crate) metrics: ConnectionMetrics,
    pub(crate) timeline: Timeline,
    /// The number of requests received.
    pub(crate) received: AtomicU64,
    /// The number of requests whose response has not ended.
    pub(crate) running: AtomicUsize,
    /// The number of responses with a part that the client has not accepted yet.
    pub(crate) unsent: AtomicUsize,
}

impl ConnectionObserver {
    /// Call this when early data is accepted or refused. `claim`: when the flight's claim was
    /// requested and settled.
    pub(crate) fn new(
        observers: Arc<Observers>,
        memory: Arc<MemoryBudget>,
        facts: ConnectionFacts,
        metrics: ConnectionMetrics,
        claim: Option<(Instant, Instant)>,
    ) -> Self {
        let is_counted = metrics.is_offer_counted();
        metrics.note_early_data(&facts.tls, facts.flight.as_ref(), facts.refused);
        let is_refused_copy = [RefusedReason::RefusedBefore, RefusedReason::Replayed]
            .map(Some)
            .contains(&facts.refused);
        if facts.lost_claim() || is_refused_copy && !is_counted {
            observers.note_replay(&facts.tls, facts.client.ip(), metrics.transport());
        }
        Self {
            timeline: Timeline::new(metrics.accepted_at(), claim),
            observers,
            memory,
            facts,
            metrics,
            received: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
        }
    }

    /// The client's Finished is verified.
    pub(crate) fn note_complete(&self) {
        self.timeline.note_complete();
        self.metrics.note_complete(&self.facts.tls, self.facts.refused.is_none());
        self.trace_handshake(false);
    }

    /// The head of a response is ready.
    pub(crate) fn note_response(&self) {
        self.metrics.note_response(&self.facts.tls, self.facts.refused.is_none());
    }

    /// Adds the handshake to the first request's trace, once both are complete. `over`: the
    /// connection ends, and nothing more can be added.
    pub(crate) fn trace_handshake(&self, over: bool) {
        let (Some(tracer), Some(context)) =
            (&self.observers.tracer, self.timeline.take_trace(over))
        else {
            return;
        };
        if !context.sampled {
            return;
        }
        let (facts, tls) = (&self.facts, &self.facts.tls);
        let ended = self.timeline.completed_at();
        let part = |name, times: (Instant, Instant)| {
            Span::part(context, name, (system_time(times.0), system_time(times.1)))
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

/// The times of a connection's handshake, and the trace of its first request, which they belong to.
pub(crate) struct Timeline {
    pub(crate) accepted_at: Instant,
    /// When the flight's claim was requested and settled, if there was a flight.
    pub(crate) claim: Option<(Instant, Instant)>,
    completed_at: OnceLock<Instant>,
    trace: OnceLock<TraceContext>,
    reported: AtomicBool,
}

impl Timeline {
    pub(crate) fn new(accepted_at: Instant, claim: Option<(Instant, Instant)>) -> Self {
        Self {
            accepted_at,
            claim,
            completed_at: OnceLock::new(),
            trace: OnceLock::new(),
            reported: AtomicBool::new(false),
        }
    }

    /// Sets the first request's trace.
    pub(crate) fn set_trace(&self, context: &TraceContext) {
        let _ = self.trace.set(context.clone());
    }

    /// The client's Finished is verified.
    pub(crate) fn note_complete(&self) {
        let _ = self.completed_at.set(Instant::now());
    }

    /// When the client's Finished was verified.
    pub(crate) fn completed_at(&self) -> Option<Instant> {
        self.completed_at.get().copied()
    }

    /// The first request's trace, returned once: when the handshake is complete and a request has
    /// arrived, or at the connection's end (`over`).
    pub(crate) fn take_trace(&self, over: bool) -> Option<&TraceContext> {
        let trace = self.trace.get()?;
        let ready = over || self.completed_at.get().is_some();
        (ready && !self.reported.swap(true, Ordering::Relaxed)).then_some(trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_is_reported_once_when_it_is_complete_or_over() {
        let context = TraceContext::new_root(1.0);
        let timeline = Timeline::new(Instant::now(), None);
        timeline.note_complete();
        assert!(timeline.take_trace(true).is_none(), "no request");
        let timeline = Timeline::new(Instant::now(), None);
        timeline.set_trace(&context);
        assert!(timeline.take_trace(false).is_none(), "no Finished");
        timeline.note_complete();
        assert_eq!(timeline.take_trace(false), Some(&context));
        assert!(timeline.take_trace(true).is_none(), "twice");
    }
}
