//! Requests as traces: what each part of the work on one took.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use firstflight_telemetry::metrics::SpanReading;
use firstflight_telemetry::otlp::{
    Exporter, ExporterStatistics, Span, SpanId, SpanKind, SpanStatus, TelemetrySettings,
    TraceContext,
};
use firstflight_upstream::{Attempt, Observer};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Starts traces, and takes their spans.
pub(crate) struct Tracer {
    settings: TelemetrySettings,
    exporter: Option<Exporter>,
}

/// The trace of one request, while it runs.
pub(crate) struct RequestTrace {
    context: TraceContext,
    /// The span of the upstream's work, chosen before it is known whether there will be one: the
    /// upstream is told.
    upstream: SpanId,
    spans: Vec<Span>,
}

/// What the upstream did for a request, told by who forwards it.
#[derive(Clone, Default)]
pub(crate) struct UpstreamNotes(Arc<Mutex<Option<UpstreamWork>>>);

/// From the first try to the last one's outcome.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamWork {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// The server that was tried last.
    pub(crate) server: String,
    /// What it answered; `None`: nothing.
    pub(crate) status: Option<u16>,
    /// Servers tried.
    pub(crate) attempts: u32,
}

/// The field by which a trace goes on (W3C Trace Context section 3.2), and its companion.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

impl Tracer {
    pub(crate) fn new(settings: TelemetrySettings, exporter: Option<Exporter>) -> Self {
        Self { settings, exporter }
    }

    /// The trace of a request with these fields: its client's, if clients are trusted.
    pub(crate) fn begin(&self, headers: Option<&HeaderMap>) -> RequestTrace {
        let theirs = headers.filter(|_| self.settings.trust_traceparent).and_then(|headers| {
            TraceContext::from_traceparent(headers.get(TRACEPARENT)?.to_str().ok()?)
        });
        let context =
            theirs.unwrap_or_else(|| TraceContext::new_root(self.settings.traces_sampled));
        RequestTrace { context, upstream: SpanId::random(), spans: Vec::new() }
    }

    /// The fields of a request that goes to the upstream. What a client that is not trusted has
    /// said of traces goes no further.
    pub(crate) fn pass_on(&self, traceparent: &str, headers: &mut HeaderMap) {
        if !self.settings.trust_traceparent {
            headers.remove(TRACESTATE);
        }
        if let Ok(value) = HeaderValue::from_str(traceparent) {
            headers.insert(TRACEPARENT, value);
        }
    }

    /// Takes a request's spans.
    pub(crate) fn take(&self, trace: RequestTrace) {
        trace.spans.into_iter().for_each(|span| self.send(span));
    }

    /// Takes a finished span.
    pub(crate) fn send(&self, span: Span) {
        if let Some(exporter) = &self.exporter {
            exporter.send(span);
        }
    }

    /// What became of spans; `None`: they go nowhere.
    pub(crate) fn reading(&self) -> Option<SpanReading> {
        let ExporterStatistics { sent, dropped } = self.exporter.as_ref()?.statistics();
        Some(SpanReading { sent, dropped })
    }

    /// Sends what waits.
    pub(crate) async fn flush(&self) {
        if let Some(exporter) = &self.exporter {
            exporter.flush(LAST_SPANS).await;
        }
    }
}

impl RequestTrace {
    pub(crate) fn context(&self) -> &TraceContext {
        &self.context
    }

    /// The field that the upstream gets.
    pub(crate) fn traceparent(&self) -> String {
        self.context.traceparent(self.upstream)
    }

    /// Whether spans are kept, so that none is made in vain.
    pub(crate) fn is_sampled(&self) -> bool {
        self.context.sampled
    }

    /// Adds a part of the work.
    pub(crate) fn part(
        &mut self,
        name: &'static str,
        times: (Instant, Instant),
        shape: impl FnOnce(Span) -> Span,
    ) {
        if self.is_sampled() {
            let times = (wall(times.0), wall(times.1));
            self.spans.push(shape(Span::part(&self.context, name, times)));
        }
    }

    /// Adds the upstream's part.
    pub(crate) fn upstream(&mut self, work: &UpstreamWork) {
        let id = self.upstream;
        self.part("upstream", (work.began, work.ended), |mut span| {
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

    /// Adds the request as a whole.
    pub(crate) fn whole(&mut self, name: String, began: Instant, shape: impl FnOnce(Span) -> Span) {
        let (id, parent) = (self.context.span, self.context.parent);
        self.part("request", (began, Instant::now()), |mut span| {
            (span.id, span.parent, span.kind) = (id, parent, SpanKind::Server);
            span.name = name.into();
            shape(span)
        });
    }
}

impl Observer for UpstreamNotes {
    /// Notes a try, and how it came out.
    fn attempt(&self, attempt: &Attempt<'_>) {
        let (server, status) = (attempt.server, attempt.result.ok().map(|status| status.as_u16()));
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, attempts) = match &*notes {
            Some(earlier) => (earlier.began, earlier.attempts + 1),
            None => (attempt.started, 1),
        };
        let (ended, server) = (Instant::now(), server.to_owned());
        *notes = Some(UpstreamWork { began, ended, server, status, attempts });
    }
}

impl UpstreamNotes {
    /// What was noted.
    pub(crate) fn work(&self) -> Option<UpstreamWork> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl UpstreamWork {
    pub(crate) fn time(&self) -> Duration {
        self.ended.duration_since(self.began)
    }
}

/// A moment on the clock on the wall, as collectors want it.
pub(crate) fn wall(moment: Instant) -> SystemTime {
    SystemTime::now() - moment.elapsed()
}

/// How long the last spans may take to leave.
const LAST_SPANS: Duration = Duration::from_secs(3);
