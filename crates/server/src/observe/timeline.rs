//! When what happened at a connection's new_connection.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use firstflight_telemetry::otlp::TraceContext;

/// The moments of one connection's new_connection, and the trace of its first request, which they are
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
        let context = TraceContext::begin(1.0);
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
