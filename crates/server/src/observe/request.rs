//! Records a request for the access log, metrics and traces, until its response has ended.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_telemetry::metrics::HeldReason;
use firstflight_telemetry::otlp::{Span, SpanStatus};
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use crate::context::memory::{self, MemoryCharge};
use crate::context::{BodyError, ResponseBody};
use crate::observe::access_log::AccessLogEntry;
use crate::observe::connection::ConnectionObserver;
use crate::observe::metrics::RequestMetrics;
use crate::observe::trace::{RequestTrace, UpstreamNotes};

/// The record of one request. When it is dropped, the request is counted and logged exactly once,
/// even if the connection fails, and its trace ends.
pub(crate) struct RequestRecord {
    connection: Arc<ConnectionObserver>,
    client: SocketAddr,
    started_at: Instant,
    metrics: RequestMetrics,
    /// Boxed, like `facts`: most requests have neither, and a record is moved with its response.
    entry: Option<Box<AccessLogEntry>>,
    trace: Option<RequestTrace>,
    /// Only for a request that is forwarded.
    upstream: OnceLock<UpstreamNotes>,
    usage: Arc<RequestUsage>,
    /// The facts for a sampled trace, which the log entry has too.
    facts: Option<Box<TraceFacts>>,
    /// Of a connection that limits what runs.
    permit: Option<OwnedSemaphorePermit>,
}

/// Facts that the handler and the body of a request add. Shared, because an upload may outlast its
/// response.
struct RequestUsage {
    /// Bytes read from the body.
    read: AtomicU64,
    /// Whether files or an upstream may have executed the request.
    executed: AtomicBool,
    /// The memory that the request holds; `None` if the limit was reached.
    charge: Option<MemoryCharge>,
}

/// Whether files or an upstream may have executed a request, as far as is known now.
#[derive(Clone)]
pub(crate) struct Execution(Arc<RequestUsage>);

impl Execution {
    pub(crate) fn is_possible(&self) -> bool {
        self.0.executed.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn new(executed: bool) -> Self {
        let (read, executed) = (AtomicU64::new(0), AtomicBool::new(executed));
        Self(Arc::new(RequestUsage { read, executed, charge: None }))
    }
}

/// The facts that are known when a request arrives.
pub(crate) struct RequestHead<'a> {
    pub(crate) method: &'a str,
    /// Path and query.
    pub(crate) target: &'a str,
    pub(crate) protocol: &'static str,
    pub(crate) host: Option<&'a str>,
    pub(crate) headers: Option<&'a HeaderMap>,
    /// The connection's client, or the one that a trusted proxy names.
    pub(crate) client: SocketAddr,
}

/// The facts for a request's trace.
#[derive(Default)]
struct TraceFacts {
    method: String,
    path: String,
    host: Option<String>,
    protocol: &'static str,
    early: bool,
    held: Option<&'static str>,
    claim: &'static str,
    status: Option<u16>,
}

impl RequestRecord {
    pub(crate) fn start(
        connection: &Arc<ConnectionObserver>,
        head: &RequestHead<'_>,
        early: bool,
    ) -> Self {
        let first = connection.received.fetch_add(1, Ordering::Relaxed) == 0;
        connection.running.fetch_add(1, Ordering::Relaxed);
        let trace = connection.observers.tracer.as_ref().map(|tracer| tracer.start(head.headers));
        if let (true, Some(trace)) = (first, &trace) {
            connection.timeline.set_trace(trace.context());
        }
        // Strings are allocated only if there is a log, or if the trace is sampled.
        let entry = connection
            .observers
            .access_log
            .get()
            .is_some()
            .then(|| Box::new(entry(connection, head, early, &trace)));
        let sampled = trace.as_ref().is_some_and(RequestTrace::is_sampled);
        let facts = sampled.then(|| Box::new(TraceFacts::new(head, early)));
        let metrics = &connection.observers.metrics;
        let charge = connection.memory.charge();
        let fits = charge.grow(memory::request_bytes(head.target, head.headers));
        Self {
            connection: connection.clone(),
            client: head.client,
            started_at: Instant::now(),
            metrics: RequestMetrics::start(metrics, head.protocol, head.method, early),
            entry,
            trace,
            upstream: OnceLock::new(),
            usage: Arc::new(RequestUsage {
                read: AtomicU64::new(0),
                executed: AtomicBool::new(false),
                charge: fits.then_some(charge),
            }),
            facts,
            permit: None,
        }
    }

    /// Holds a permit until the response has ended.
    pub(crate) fn hold_permit(&mut self, permit: OwnedSemaphorePermit) {
        self.permit = Some(permit);
    }

    /// The request's client.
    pub(crate) fn client(&self) -> SocketAddr {
        self.client
    }

    /// Whether the memory limit permits the request.
    pub(crate) fn fits(&self) -> bool {
        self.usage.charge.is_some()
    }

    /// Reserves memory for an upstream connection. Returns false if the limit is reached.
    pub(crate) fn reserve_upstream_memory(&self) -> bool {
        self.reserve_memory(memory::UPSTREAM_CONNECTION_BYTES)
    }

    /// Reserves memory until response and request have ended. Returns false if the limit is reached.
    pub(crate) fn reserve_memory(&self, bytes: usize) -> bool {
        self.usage.charge.as_ref().is_some_and(|charge| charge.grow(bytes))
    }

    /// The notes in which the proxy records the upstream's work.
    pub(crate) fn upstream_notes(&self) -> UpstreamNotes {
        self.upstream.get_or_init(UpstreamNotes::default).clone()
    }

    /// The `traceparent` field that continues the trace at the upstream.
    pub(crate) fn traceparent(&self) -> Option<String> {
        self.trace.as_ref().map(RequestTrace::traceparent)
    }

    /// The request is not run early.
    pub(crate) fn note_held(&mut self, reason: HeldReason) {
        self.metrics.note_held(reason);
        self.change_facts(|facts| facts.held = Some(reason.name()));
        self.change_entry(|entry| entry.held = Some(reason.name()));
    }

    /// The request was held from `since` until now.
    pub(crate) fn note_held_since(&mut self, since: Instant) {
        let reason = self.facts.as_ref().and_then(|facts| facts.held).unwrap_or("-");
        let now = Instant::now();
        self.change_entry(|entry| entry.held_ms = Some(milliseconds(now - since)));
        if let Some(trace) = &mut self.trace {
            trace.add_span("early_data.hold", (since, now), |span| {
                span.with("firstflight.held", reason)
            });
        }
    }

    pub(crate) fn set_claim(&mut self, claim: &'static str) {
        self.change_facts(|facts| facts.claim = claim);
        self.change_entry(|entry| entry.claim = claim);
    }

    /// Sets whether files or an upstream may have executed the request, as far as is known now.
    pub(crate) fn set_executed(&self, executed: bool) {
        self.usage.executed.store(executed, Ordering::Relaxed);
    }

    /// Follows [`set_executed`](Self::set_executed).
    pub(crate) fn execution(&self) -> Execution {
        Execution(self.usage.clone())
    }

    /// The head of the response is ready.
    pub(crate) fn set_status(&mut self, status: u16) {
        self.connection.note_response();
        self.metrics.set_status(status);
        self.change_facts(|facts| facts.status = Some(status));
        self.change_entry(|entry| entry.status = Some(status));
    }

    /// Counts the bytes read from the request's body.
    pub(crate) fn count_body<B>(&self, body: B) -> CountedBody<B> {
        CountedBody { body, usage: self.usage.clone() }
    }

    pub(crate) fn add_bytes(&mut self, count: u64) {
        self.change_entry(|entry| entry.bytes += count);
    }

    /// The whole response was passed to the connection.
    pub(crate) fn note_complete(&mut self) {
        self.change_entry(|entry| entry.complete = true);
    }

    fn change_entry(&mut self, change: impl FnOnce(&mut AccessLogEntry)) {
        if let Some(entry) = &mut self.entry {
            change(entry);
        }
    }

    fn change_facts(&mut self, change: impl FnOnce(&mut TraceFacts)) {
        if let Some(facts) = &mut self.facts {
            change(facts);
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.connection.running.fetch_sub(1, Ordering::Relaxed);
        self.connection.trace_handshake(false);
        let work = self.upstream.get().and_then(UpstreamNotes::work);
        if let (Some(mut entry), Some(log)) =
            (self.entry.take(), self.connection.observers.access_log.get())
        {
            entry.bytes_in = self.usage.read.load(Ordering::Relaxed);
            entry.executed = self.usage.executed.load(Ordering::Relaxed);
            entry.duration_ms = milliseconds(self.started_at.elapsed());
            if let Some(work) = &work {
                entry.upstream = Some(work.server.clone());
                entry.upstream_status = work.status;
                entry.upstream_ms = Some(milliseconds(work.duration()));
            }
            log.queue(*entry);
        }
        if let (Some(mut trace), Some(tracer)) =
            (self.trace.take(), &self.connection.observers.tracer)
        {
            if let Some(work) = &work {
                trace.add_upstream(work);
            }
            let facts = self.facts.take().map_or_else(TraceFacts::default, |facts| *facts);
            let (connection, name) = (&self.connection, facts.method.clone());
            let client = self.client.ip();
            trace.add_request(name, self.started_at, |span| {
                facts.annotate(span, connection, client)
            });
            tracer.export(trace);
        }
    }
}

impl TraceFacts {
    fn new(head: &RequestHead<'_>, early: bool) -> Self {
        let path = head.target.split('?').next().unwrap_or_default();
        Self {
            method: copy_truncated(head.method),
            path: copy_truncated(path),
            host: head.host.map(copy_truncated),
            protocol: head.protocol,
            early,
            claim: "none",
            ..Self::default()
        }
    }

    /// Adds the facts to the request's span, named by OpenTelemetry's conventions for HTTP. The
    /// query is left out because it may be confidential.
    fn annotate(self, mut span: Span, connection: &ConnectionObserver, client: IpAddr) -> Span {
        let tls = &connection.facts.tls;
        span.status = match self.status {
            Some(500..) | None => SpanStatus::Error,
            _ => SpanStatus::Unset,
        };
        let version = self.protocol.trim_start_matches("HTTP/");
        span = span
            .with("http.request.method", self.method)
            .with("url.scheme", "https")
            .with("url.path", self.path)
            .with("network.protocol.version", version)
            .with("client.address", client.to_canonical().to_string())
            .with("tls.protocol.version", tls.version.map_or("-", firstflight_tls::Version::name))
            .with("tls.resumed", tls.resumed)
            .with("firstflight.early", self.early)
            .with("firstflight.early_data", connection.facts.early_data())
            .with("firstflight.claim", self.claim);
        if let Some(host) = self.host {
            span = span.with("server.address", host);
        }
        if let Some(held) = self.held {
            span = span.with("firstflight.held", held);
        }
        match self.status {
            Some(status) => span.with("http.response.status_code", i64::from(status)),
            None => span,
        }
    }
}

fn entry(
    connection: &ConnectionObserver,
    head: &RequestHead<'_>,
    early: bool,
    trace: &Option<RequestTrace>,
) -> AccessLogEntry {
    let facts = &connection.facts.tls;
    let context = trace.as_ref().map(RequestTrace::context);
    let field = |name| {
        let value = head.headers.and_then(|headers| headers.get(name))?;
        Some(copy_truncated(&String::from_utf8_lossy(value.as_bytes())))
    };
    AccessLogEntry {
        time: jiff::Timestamp::now(),
        client: client_text(head.client),
        trace_id: context.map(|context| context.trace.to_string()),
        span_id: context.map(|context| context.span.to_string()),
        method: copy_truncated(head.method),
        host: head.host.map(copy_truncated),
        target: copy_truncated(head.target),
        protocol: head.protocol,
        status: None,
        bytes_in: 0,
        bytes: 0,
        duration_ms: 0.0,
        complete: false,
        tls_version: facts.version.map_or("-", firstflight_tls::Version::name),
        cipher: facts.cipher.unwrap_or("-"),
        resumed: facts.resumed,
        early,
        held: None,
        held_ms: None,
        claim: "none",
        ticket_age_skew: facts.ticket_age_skew,
        early_data: connection.facts.early_data(),
        executed: false,
        client_random: facts.client_random,
        upstream: None,
        upstream_status: None,
        upstream_ms: None,
        referer: field(header::REFERER),
        user_agent: field(header::USER_AGENT),
    }
}

/// A request's body that counts the bytes read from it, and holds the request's memory.
pub(crate) struct CountedBody<B> {
    body: B,
    usage: Arc<RequestUsage>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            let count = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.usage.read.fetch_add(count, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body that counts its bytes in the request's record.
pub(crate) struct RecordedBody {
    body: ResponseBody,
    /// `None`: the record belongs to a tunnel.
    record: Option<RequestRecord>,
    /// Bytes that the library has not read yet, if the length is known.
    remaining: Option<u64>,
    /// Whether trailers may follow the last byte.
    trailers: bool,
    /// Whether a part of the body waits for the client.
    unsent: bool,
}

impl RecordedBody {
    /// `headers`: those of the response.
    pub(crate) fn new(body: ResponseBody, mut record: RequestRecord, headers: &HeaderMap) -> Self {
        let announced = headers.get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        let remaining = announced.or(body.size_hint().exact());
        let trailers = headers.contains_key(header::TRAILER);
        if body.is_end_stream() || remaining == Some(0) {
            record.note_complete();
        }
        let mut this = Self { body, record: Some(record), remaining, trailers, unsent: false };
        this.set_unsent(!this.is_end_stream());
        this
    }

    /// The empty body of a response that opens a tunnel. The tunnel has the record.
    pub(crate) fn for_tunnel(body: ResponseBody) -> Self {
        Self { body, record: None, remaining: Some(0), trailers: false, unsent: false }
    }

    fn set_unsent(&mut self, unsent: bool) {
        let Some(record) = &self.record else { return };
        let count = &record.connection.unsent;
        match (self.unsent, unsent) {
            (false, true) => count.fetch_add(1, Ordering::Relaxed),
            (true, false) => count.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        self.unsent = unsent;
    }
}

impl Body for RecordedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        // The library has taken the previous part.
        this.set_unsent(false);
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        this.set_unsent(matches!(frame, Some(Ok(_))));
        let Some(record) = &mut this.record else { return Poll::Ready(frame) };
        match &frame {
            None if this.remaining.is_none_or(|bytes| bytes == 0) => record.note_complete(),
            None => {}
            Some(Ok(frame)) => {
                let count = frame.data_ref().map_or(0, |data| data.len() as u64);
                record.add_bytes(count);
                this.remaining = this.remaining.map(|bytes| bytes.saturating_sub(count));
                // The library stops polling when the announced length has been sent.
                if this.remaining == Some(0) {
                    record.note_complete();
                }
            }
            Some(Err(_)) => {}
        }
        Poll::Ready(frame)
    }

    /// A file's body does not know its end before it is read again. The announced length does, so
    /// END_STREAM is set on the last DATA frame (RFC 9113 section 6.1) instead of an additional
    /// empty one.
    fn is_end_stream(&self) -> bool {
        self.remaining == Some(0) && !self.trailers || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        self.set_unsent(false);
    }
}

/// Copies a client's text for the access log or a span, up to a maximum length: both wait in
/// queues.
fn copy_truncated(text: &str) -> String {
    let mut end = text.len().min(MAX_COPIED_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Longer than practically all targets, and than any `Referer` of a browser.
const MAX_COPIED_BYTES: usize = 4096;

/// The address, with its port if that is known.
fn client_text(client: SocketAddr) -> String {
    match client.port() {
        0 => client.ip().to_string(),
        _ => client.to_string(),
    }
}

fn milliseconds(time: Duration) -> f64 {
    // Rounded to microseconds; more digits would not be accurate.
    time.as_micros() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        for (text, length) in
            [("/", 1), (&"x".repeat(5000), 4096), (&"\u{20ac}".repeat(5000), 4095)]
        {
            let copy = copy_truncated(text);
            assert_eq!(copy.len(), length);
            assert!(text.starts_with(&copy));
        }
    }
}
