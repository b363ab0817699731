//! Spans and metrics reach a collector, or are counted as dropped.

use std::time::{Duration, SystemTime};

use firstflight_telemetry::metrics::{Description, Family, Series, SeriesValue, Snapshot};
use firstflight_telemetry::otlp::{
    Endpoint, Exporter, ExporterStatistics, Span, SpanKind, SpanStatus, TelemetrySettings,
    TraceContext,
};
use firstflight_testkit::{Collector, attribute};

static EVENTS: Description = Description::counter("firstflight_x_total", "Events.", "");

fn snapshot() -> Snapshot {
    let series = vec![Series { labels: Vec::new(), value: SeriesValue::Count(3) }];
    Snapshot { families: vec![Family { description: &EVENTS, labels: Vec::new(), series }] }
}

fn start(collector: &Collector, queue: usize) -> Exporter {
    let endpoint = Endpoint::parse(&collector.endpoint()).unwrap();
    let settings = TelemetrySettings { queue, ..TelemetrySettings::default() };
    Exporter::start(endpoint, &settings, "node-1", Box::new(snapshot)).0
}

fn span() -> Span {
    let now = SystemTime::now();
    let context = TraceContext::new_root(1.0);
    let span = Span::part(&context, "tls.handshake", (now - Duration::from_millis(3), now));
    Span { kind: SpanKind::Server, status: SpanStatus::Error, ..span }
        .with("tls.resumed", true)
        .with("firstflight.early_data", "accepted")
        .with("http.response.status_code", 200)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_span_arrives_unchanged_with_the_metrics() {
    let collector = Collector::start();
    let exporter = start(&collector, 10);
    exporter.send(span());
    exporter.flush(Duration::from_secs(10)).await;
    let spans = collector.spans();
    let [received] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(received.name, "tls.handshake");
    assert_eq!(received.trace_id.len(), 16);
    assert_ne!(received.parent_span_id, received.span_id);
    assert_eq!(received.end_time_unix_nano - received.start_time_unix_nano, 3_000_000);
    assert_eq!(attribute(received, "tls.resumed").as_deref(), Some("true"));
    assert_eq!(attribute(received, "firstflight.early_data").as_deref(), Some("accepted"));
    assert_eq!(attribute(received, "http.response.status_code").as_deref(), Some("200"));
    assert_eq!(received.status.as_ref().map(|status| status.code), Some(2));
    let metrics = collector.metrics();
    assert_eq!(metrics.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["firstflight_x"]);
    assert_eq!(exporter.statistics(), ExporterStatistics { sent: 1, dropped: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_collector_is_retried() {
    let collector = Collector::start();
    collector.refuse(&[503, 429]);
    let exporter = start(&collector, 10);
    exporter.send(span());
    exporter.flush(Duration::from_secs(30)).await;
    assert_eq!((collector.spans().len(), exporter.statistics().sent), (1, 1));
    // Two refusals, the spans, the metrics.
    assert_eq!(collector.messages(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_spans_are_not_retried() {
    let collector = Collector::start();
    collector.refuse(&[400]);
    let exporter = start(&collector, 10);
    exporter.send(span());
    exporter.flush(Duration::from_secs(10)).await;
    assert_eq!(exporter.statistics(), ExporterStatistics { sent: 0, dropped: 1 });
}

#[tokio::test]
async fn spans_beyond_the_queue_are_dropped_and_counted() {
    let collector = Collector::start();
    // One thread: nothing is taken out of the queue until the test waits.
    let exporter = start(&collector, 5);
    (0..100).for_each(|_| exporter.send(span()));
    assert_eq!(exporter.statistics().dropped, 95);
    exporter.flush(Duration::from_secs(10)).await;
    assert_eq!(exporter.statistics().sent, 5);
}
