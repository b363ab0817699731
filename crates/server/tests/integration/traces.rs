//! The traces that a collector, the upstream and the access log get.

use firstflight_config::ServerConfig;
use firstflight_telemetry::otlp::{Endpoint, TelemetrySettings};
use firstflight_testkit::{Collector, ReceivedRequest, Span, attribute};
use opentelemetry_proto::tonic::metrics::v1::NumberDataPoint;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;

use crate::support::{Client, RunningServer, get, line, process_keys, replay, start_upstream};

const THEIR_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const THEIR_SPAN: &str = "b7ad6b7169203331";

fn traced(collector: &Collector) -> TelemetrySettings {
    let otlp = Some(Endpoint::parse(&collector.endpoint()).unwrap());
    TelemetrySettings { otlp, traces_sampled: 1.0, ..TelemetrySettings::default() }
}

fn with(settings: TelemetrySettings) -> impl FnOnce(&mut ServerConfig) {
    move |config| config.telemetry = Some(settings)
}

/// The request's span, by its path.
fn root<'a>(spans: &'a [Span], path: &str) -> Option<&'a Span> {
    spans.iter().find(|span| attribute(span, "url.path").as_deref() == Some(path))
}

/// The parts of a request, by name.
fn part<'a>(spans: &'a [Span], root: &Span, name: &str) -> Option<&'a Span> {
    let ours = |span: &&Span| span.trace_id == root.trace_id && span.parent_span_id == root.span_id;
    spans.iter().filter(ours).find(|span| span.name == name)
}

fn traceparent(recorded: &ReceivedRequest) -> &str {
    recorded.headers.get("traceparent").expect("a traceparent")
}

fn exported(span: &Span, name: &str) -> String {
    attribute(span, name).unwrap_or_else(|| panic!("no {name} in {span:#?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_an_early_request_has_handshake_claim_and_upstream() {
    let (collector, upstream) = (Collector::start(), start_upstream());
    let server = RunningServer::proxy(&upstream, with(traced(&collector))).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/early?secret=1"));
    let response = client.run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let log = server.stop().await;
    let spans = collector.spans();
    let request_span = root(&spans, "/early").expect("a request");
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("server.address", "h"),
        ("tls.resumed", "true"),
        ("firstflight.early", "true"),
        ("firstflight.early_data", "accepted"),
        ("firstflight.claim", "won"),
    ] {
        assert_eq!(exported(request_span, name), value, "{name}");
    }
    assert_eq!(request_span.name, "GET");
    assert!(request_span.parent_span_id.is_empty());
    assert!(!format!("{spans:?}").contains("secret"), "the query is not exported");
    let handshake = part(&spans, request_span, "tls.handshake").expect("a handshake");
    let claim = part(&spans, request_span, "early_data.claim").expect("a claim");
    assert!(claim.start_time_unix_nano >= handshake.start_time_unix_nano);
    assert!(claim.end_time_unix_nano <= handshake.end_time_unix_nano);
    let upstream_span = part(&spans, request_span, "upstream").expect("an upstream");
    assert_eq!(exported(upstream_span, "http.response.status_code"), "200");
    assert!(part(&spans, request_span, "early_data.hold").is_none(), "it was not held");
    // The upstream continues from this server's span, and the log has the trace.
    let [recorded] = &upstream.recorded("/early")[..] else { panic!("not once") };
    let field = traceparent(recorded);
    let (trace, span) = (hex::encode(&request_span.trace_id), hex::encode(&upstream_span.span_id));
    assert_eq!(field, format!("00-{trace}-{span}-01"));
    let line = line(&log, "/early");
    assert_eq!(line["trace_id"], trace.as_str());
    assert_eq!(line["span_id"], hex::encode(&request_span.span_id).as_str());
    assert!(line["upstream_ms"].as_f64().is_some() && line["upstream_status"] == 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_why_and_how_long_a_request_was_held_and_that_a_copy_lost() {
    let (collector, upstream) = (Collector::start(), start_upstream());
    let server = RunningServer::proxy(&upstream, |config| {
        with(traced(&collector))(config);
        process_keys(config);
    })
    .await;
    let session = server.session("http/1.1").await;
    let post =
        b"POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
    let client = Client::prepare("http/1.1", Some(&session), post);
    let response = client.run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/copied"));
    let flight = client.flight.clone();
    client.run(server.address).await;
    drop(replay(server.address, &flight).await);
    let log = server.stop().await;
    let spans = collector.spans();
    let request_span = root(&spans, "/held").expect("a request");
    assert_eq!(exported(request_span, "firstflight.held"), "policy");
    let hold = part(&spans, request_span, "early_data.hold").expect("a hold");
    assert_eq!(exported(hold, "firstflight.held"), "policy");
    assert!(hold.end_time_unix_nano > hold.start_time_unix_nano);
    let handshake = part(&spans, request_span, "tls.handshake").expect("a handshake");
    assert_eq!(exported(handshake, "firstflight.handshake.complete"), "true");
    assert_eq!(line(&log, "/held")["bytes_in"], 3);
    let copies = spans.iter().filter(|span| {
        attribute(span, "url.path").as_deref() == Some("/copied")
            && attribute(span, "firstflight.claim").as_deref() == Some("lost")
    });
    let copies: Vec<_> = copies.collect();
    let [copy] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!(exported(copy, "firstflight.held"), "replayed");
    let claim = part(&spans, copy, "early_data.claim").expect("a claim");
    assert_eq!(exported(claim, "firstflight.claim.won"), "false");
    let handshake = part(&spans, copy, "tls.handshake").expect("a handshake");
    assert_eq!(exported(handshake, "firstflight.handshake.complete"), "false");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_request_of_a_connection_has_the_handshake_span() {
    let collector = Collector::start();
    let server = RunningServer::files(with(traced(&collector))).await;
    let session = server.session("http/1.1").await;
    let two = [&b"GET /?1 HTTP/1.1\r\nHost: h\r\n\r\n"[..], &get("/big")[..]].concat();
    Client::prepare("http/1.1", Some(&session), &two).run(server.address).await;
    server.stop().await;
    let spans = collector.spans();
    let request_span = root(&spans, "/big").expect("a request");
    assert!(part(&spans, request_span, "tls.handshake").is_none());
    assert!(part(&spans, root(&spans, "/").expect("a request"), "tls.handshake").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_trace_is_continued_only_if_clients_are_trusted() {
    let collector = Collector::start();
    let parent = format!("00-{THEIR_TRACE}-{THEIR_SPAN}-01");
    for trusted in [false, true] {
        let upstream = start_upstream();
        let settings = TelemetrySettings {
            trust_traceparent: trusted,
            traces_sampled: 0.0,
            ..traced(&collector)
        };
        let server = RunningServer::proxy(&upstream, with(settings)).await;
        let session = server.session("http/1.1").await;
        let request = format!(
            "GET /theirs HTTP/1.1\r\nHost: h\r\nTraceparent: {parent}\r\nTracestate: a=1\r\n\
             Connection: close\r\n\r\n"
        );
        let client = Client::prepare("http/1.1", Some(&session), request.as_bytes());
        client.run(server.address).await;
        let log = server.stop().await;
        let [recorded] = &upstream.recorded("/theirs")[..] else { panic!("not once") };
        let field = traceparent(recorded);
        assert_eq!(field.contains(THEIR_TRACE), trusted, "{field}");
        assert_eq!(line(&log, "/theirs")["trace_id"] == THEIR_TRACE, trusted);
        assert_eq!(recorded.headers.contains_key("tracestate"), trusted);
        let spans = collector.spans();
        let request_span = root(&spans, "/theirs");
        assert_eq!(request_span.is_some(), trusted, "an unsampled trace is not exported");
        if let Some(request_span) = request_span {
            assert_eq!(hex::encode(&request_span.parent_span_id), THEIR_SPAN);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_exported_under_the_names_that_are_scraped() {
    let collector = Collector::start();
    let server = RunningServer::files(with(traced(&collector))).await;
    let session = server.session("http/1.1").await;
    Client::prepare("http/1.1", Some(&session), &get("/")).run(server.address).await;
    // The last spans and metrics are sent at the end.
    server.stop().await;
    let metrics = collector.metrics();
    let names: Vec<_> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    for name in ["firstflight_requests", "firstflight_handshake_seconds", "firstflight_spans"] {
        assert!(names.contains(&name), "no {name} in {names:?}");
    }
    let requests = metrics.iter().find(|metric| metric.name == "firstflight_requests").unwrap();
    let Some(Data::Sum(sum)) = &requests.data else { panic!("no counter: {requests:?}") };
    let count = |point: &NumberDataPoint| match point.value {
        Some(Value::AsDouble(value)) => value,
        _ => panic!("no number: {point:?}"),
    };
    assert_eq!(sum.data_points.iter().map(count).sum::<f64>(), 2.0);
}
