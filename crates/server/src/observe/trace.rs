//! Traces of requests: the duration of each part of the work.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use firstflight_telemetry::metrics::SpanReading;
use firstflight_telemetry::otlp::{
    Exporter, ExporterStatistics, Span, SpanId, SpanKind, SpanStatus, TelemetrySettings,
    TraceContext,
};
use firstflight_upstream::{Attempt, Observer};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Starts traces and exports their spans.
pub(crate) struct Tracer {
    settings: TelemetrySettings,
    exporter: Option<Exporter>,
}

/// The trace of a running request.
pub(crate) struct RequestTrace {
    context: TraceContext,
    /// The span of the upstream's work. Its id is chosen early because the upstream receives it.
    upstream: SpanId,
    spans: Vec<Span>,
}

/// The upstream's work for a request, recorded by the proxy.
#[derive(Clone, Default)]
pub(crate) struct UpstreamNotes(Arc<Mutex<Option<UpstreamWork>>>);

/// From the first attempt to the outcome of the last one.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamWork {
    pub(crate) started_at: Instant,
    pub(crate) ended_at: Instant,
    /// The server of the last attempt.
    pub(crate) server: String,
    /// Its response's status; `None` if it did not respond.
    pub(crate) status: Option<u16>,
    /// The number of attempts.
    pub(crate) attempts: u32,
}

/// The fields that continue a trace (W3C Trace Context section 3.2).
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

impl Tracer {
    pub(crate) fn new(settings: TelemetrySettings, exporter: Option<Exporter>) -> Self {
        Self { settings, exporter }
    }

    /// Starts the trace of a request with these fields. Continues the client's trace if the
    /// configuration trusts clients.
    pub(crate) fn start(&self, headers: Option<&HeaderMap>) -> RequestTrace {
        let continued = headers.filter(|_| self.settings.trust_traceparent).and_then(|headers| {
            TraceContext::from_traceparent(headers.get(TRACEPARENT)?.to_str().ok()?)
        });
        let context =
            continued.unwrap_or_else(|| TraceContext::new_root(self.settings.traces_sampled));
        RequestTrace { context, upstream: SpanId::random(), spans: Vec::new() }
    }

    /// Sets the trace fields of a request to the upstream. An untrusted client's fields are not
    /// forwarded.
    pub(crate) fn set_fields(&self, traceparent: &str, headers: &mut HeaderMap) {
        if !self.settings.trust_traceparent {
            headers.remove(TRACESTATE);
        }
        if let Ok(value) = HeaderValue::from_str(traceparent) {
            headers.insert(TRACEPARENT, value);
        }
    }

    /// Exports a request's spans.
    pub(crate) fn export(&self, trace: RequestTrace) {
        trace.spans.into_iter().for_each(|span| self.send(span));
    }

    /// Exports a finished span.
    pub(crate) fn send(&self, span: Span) {
        if let Some(exporter) = &self.exporter {
            exporter.send(span);
        }
    }

    /// The values for metrics; `None` without an exporter.
    pub(crate) fn reading(&self) -> Option<SpanReading> {
        let ExporterStatistics { sent, dropped } = self.exporter.as_ref()?.statistics();
        Some(SpanReading { sent, dropped })
    }

    /// Sends the queued spans.
    pub(crate) async fn flush(&self) {
        if let Some(exporter) = &self.exporter {
            exporter.flush(FLUSH_TIMEOUT).await;
        }
    }
}

impl RequestTrace {
    pub(crate) fn context(&self) -> &TraceContext {
        &self.context
    }

    /// The `traceparent` field for the upstream.
    pub(crate) fn traceparent(&self) -> String {
        self.context.traceparent(self.upstream)
    }

    /// Whether the trace is sampled. Otherwise no span is created.
    pub(crate) fn is_sampled(&self) -> bool {
        self.context.sampled
    }

    /// Adds a span for a part of the work. `annotate`: adds its attributes.
    pub(crate) fn add_span(
        &mut self,
        name: &'static str,
        times: (Instant, Instant),
        annotate: impl FnOnce(Span) -> Span,
    ) {
        if self.is_sampled() {
            let times = (system_time(times.0), system_time(times.1));
            self.spans.push(annotate(Span::part(&self.context, name, times)));
        }
    }

    /// Adds the span of the upstream's work.
    pub(crate) fn add_upstream(&mut self, work: &UpstreamWork) {
        let id = self.upstream;
        self.add_span("upstream", (work.started_at, work.ended_at), |mut span| {
            (span.id, span.kind) = (id, SpanKind::Client);
            let failed = work.status.is_none_or(|status| status >= 500);
            span.status = if failed { SpanStatus::Error } else { SpanStatus::Unset };
            let span = span
                .with("server.address", work.server.clone())
                .with("firstflight.upstream.attempts", i64::from(work.attempts));
            match work.status {
                Some(status) => span.with("http.response.status_code", i64::from(status)),
                None => span,
            }
        });
    }

    /// Adds the request's own span.
    pub(crate) fn add_request(
        &mut self,
        name: String,
        started_at: Instant,
        annotate: impl FnOnce(Span) -> Span,
    ) {
        let (id, parent) = (self.context.span, self.context.parent);
        self.add_span("request", (started_at, Instant::now()), |mut span| {
            (span.id, span.parent, span.kind) = (id, parent, SpanKind::Server);
            span.name = name.into();
            annotate(span)
        });
    }
}

impl Observer for UpstreamNotes {
    /// Records an attempt and its outcome.
    fn attempt(&self, attempt: &Attempt<'_>) {
        let (server, status) = (attempt.server, attempt.result.ok().map(|status| status.as_u16()));
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (started_at, attempts) = match &*notes {
            Some(earlier) => (earlier.started_at, earlier.attempts + 1),
            None => (attempt.started, 1),
        };
        let (ended_at, server) = (Instant::now(), server.to_owned());
        *notes = Some(UpstreamWork { started_at, ended_at, server, status, attempts });
    }
}

impl UpstreamNotes {
    /// The recorded work.
    pub(crate) fn work(&self) -> Option<UpstreamWork> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl UpstreamWork {
    pub(crate) fn duration(&self) -> Duration {
        self.ended_at.duration_since(self.started_at)
    }
}

/// Converts to wall-clock time, which collectors expect.
pub(crate) fn system_time(moment: Instant) -> SystemTime {
    SystemTime::now() - moment.elapsed()
}

/// How long the last spans may take to be sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
