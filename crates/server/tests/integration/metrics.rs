//! The metrics after connections and requests.

use std::time::{Duration, Instant};

use firstflight_config::{ServerConfig, WhenNotAllowed};
use firstflight_telemetry::metrics::Format;
use firstflight_testkit::skipped_without;
use http::Method;

use crate::support::cluster::Cluster;
use crate::support::quic::{Quic, UdpRelay, remembered, reply, request};
use crate::support::{
    Client, LENIENT_TIMEOUT, RunningServer, TEST_TIMEOUT, fetch, get, process_keys, replay,
    start_upstream,
};

/// The value of a metric once it is `expected`: connections end slightly later than their
/// responses.
async fn wait_for_metric(
    server: &RunningServer,
    name: &str,
    labels: &[(&str, &str)],
    expected: f64,
) {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let found = server.handle.metrics().sum(name, labels);
        if found == expected {
            return;
        }
        assert!(
            Instant::now() < end,
            "{name} {labels:?} is {found}, not {expected}:\n{}",
            server.handle.metrics().encode(Format::Prometheus)
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Several metrics: `name label=value,label=value number`, one in each line.
pub(crate) async fn assert_metrics(server: &RunningServer, lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (metric, expected) = line.rsplit_once(' ').unwrap();
        let (name, labels) = metric.split_once(' ').unwrap_or((metric, ""));
        let labels = labels.split(',').filter_map(|label| label.split_once('='));
        let labels = labels.collect::<Vec<_>>();
        let name = format!("firstflight_{name}");
        wait_for_metric(server, &name, &labels, expected.parse().unwrap()).await;
    }
}

async fn send_early(server: &RunningServer, request: &[u8]) -> String {
    let session = server.session("http/1.1").await;
    Client::prepare("http/1.1", Some(&session), request).run(server.address).await
}

const POST: &[u8] =
    b"POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_connection_and_request_is_counted_once() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, process_keys).await;
    fetch(server.address, &String::from_utf8(get("/")).unwrap()).await;
    send_early(&server, &get("/early")).await;
    send_early(&server, POST).await;
    // Getting a session takes one full handshake and one request.
    assert_metrics(
        &server,
        "connections_total transport=tcp 5
         connections_active 0
         handshakes_failed_total 0
         handshake_seconds kind=full,version=1.3,transport=tcp 3
         handshake_seconds kind=early,version=1.3,transport=tcp 2
         first_response_seconds kind=full 3
         first_response_seconds kind=early 2
         early_data_offered_total transport=tcp 2
         early_data_accepted_total transport=tcp 2
         early_data_refused_total 0
         early_requests_held_total reason=policy 1
         early_requests_held_total 1
         early_requests_waiting 0
         hold_seconds ended=handshake 1
         hold_seconds 1
         requests_total protocol=http1.1,method=get,status=2xx,early=no 3
         requests_total protocol=http1.1,method=get,status=2xx,early=ran 1
         requests_total protocol=http1.1,method=post,status=2xx,early=held 1
         requests_total 5
         requests_active 0
         request_seconds 5
         claims_total register=local,result=won 2
         claims_total 2
         ticket_age_skew_seconds 2
         tickets_opened_total key=current 2
         too_early_total 0
         early_data_open 1
         config_generation 1
         config_last_reload_successful 1",
    )
    .await;
    let metrics = server.handle.metrics();
    for name in ["received_bytes_total", "sent_bytes_total"] {
        assert!(metrics.sum(&format!("firstflight_{name}"), &[]) > 1000.0, "{name}");
    }
    let expires = metrics.sum("firstflight_certificate_expiry_timestamp_seconds", &[]);
    assert!(expires > 1.7e9, "{expires}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_counts_as_lost_claim_refusal_and_hold_that_ends_with_its_connection() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, process_keys).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/once"));
    let flight = client.flight.clone();
    client.run(server.address).await;
    let copy = replay(server.address, &flight).await;
    assert_metrics(&server, "early_requests_waiting 1\n requests_active protocol=http1.1 1").await;
    drop(copy);
    assert_metrics(
        &server,
        "claims_total result=won 1
         claims_total result=lost 1
         early_data_offered_total 2
         early_data_accepted_total 1
         early_data_refused_total reason=replayed 1
         early_data_refused_total 1
         early_requests_held_total reason=replayed 1
         early_requests_waiting 0
         hold_seconds ended=disconnected 1
         hold_seconds 1
         handshakes_failed_total reason=protocol 1
         requests_total status=none,early=held 1",
    )
    .await;
    server.stop().await;
}

/// Their handshakes never complete.
#[tokio::test(flavor = "multi_thread")]
async fn copies_of_a_flight_that_was_refused_are_counted() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, process_keys).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/once"));
    let flight = client.flight.clone();
    server.reload(|config| config.early_data.enabled = false).await.unwrap();
    assert!(client.run(server.address).await.starts_with("HTTP/1.1 200"));
    server.reload(|_| {}).await.unwrap();
    for _ in 0..3 {
        drop(replay(server.address, &flight).await);
    }
    assert_metrics(
        &server,
        "early_data_offered_total 4
         early_data_refused_total reason=disabled 1
         early_data_refused_total reason=refused_before 3",
    )
    .await;
    assert_eq!(server.handle.replays().iter().map(|replay| replay.copies).sum::<u64>(), 3);
    server.stop().await;
    assert_eq!(upstream.recorded("/once").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_original_gets_425_from_the_server() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, process_keys).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/overtaken"));
    let copy = replay(server.address, &client.flight).await;
    assert!(client.run(server.address).await.starts_with("HTTP/1.1 425"));
    drop(copy);
    assert_metrics(
        &server,
        "too_early_total by=server 1
         too_early_total 1
         handshake_seconds kind=early,version=1.3,transport=tcp 1
         hold_seconds ended=too_early 1
         requests_total status=4xx,early=held 1",
    )
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_immediate_425_is_not_a_hold() {
    let server = RunningServer::files(|config| {
        config.early_data.when_not_allowed = WhenNotAllowed::TooEarly;
    })
    .await;
    assert!(send_early(&server, POST).await.starts_with("HTTP/1.1 425"));
    assert_metrics(
        &server,
        "too_early_total by=server 1\n hold_seconds 0\n early_requests_held_total 1",
    )
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_never_finishes_times_out() {
    let upstream = start_upstream();
    let server =
        RunningServer::proxy(&upstream, |config| config.limits.header_timeout = LENIENT_TIMEOUT)
            .await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), POST);
    let copy = replay(server.address, &client.flight).await;
    assert_metrics(
        &server,
        "hold_seconds ended=timeout 1
         hold_seconds 1
         handshakes_failed_total transport=tcp,reason=timeout 1",
    )
    .await;
    drop(copy);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_early_data_has_its_reason_in_the_metrics() {
    let off = |config: &mut ServerConfig| config.early_data.enabled = false;
    let server = RunningServer::files(process_keys).await;
    let session = server.session("http/1.1").await;
    let other = RunningServer::files(process_keys).await;
    Client::prepare("http/1.1", Some(&session), &get("/")).run(other.address).await;
    assert_metrics(
        &other,
        "early_data_offered_total 1
         early_data_refused_total reason=session_not_resumed,transport=tcp 1
         early_data_refused_total 1
         tickets_refused_total reason=unknown_key 1
         handshake_seconds kind=full 1",
    )
    .await;
    other.stop().await;
    server.stop().await;
    let server = RunningServer::files(off).await;
    assert_metrics(&server, "early_data_open 0").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quic_is_counted_as_tcp_is() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let remembered = remembered(server.address).await;
    let relay = UdpRelay::to(server.address).await;
    relay.hold_server_datagrams();
    let mut client = Quic::connect(relay.address, remembered).await;
    let stream = client.send_head(request(Method::GET, "/early"), true).await;
    upstream.wait_for("early").await;
    relay.release_server_datagrams().await;
    assert!(reply(stream).await.unwrap().status.is_success());
    assert!(client.accepted().await);
    // The next request must not be early, so the server has to see the end of the handshake first.
    assert_metrics(&server, "handshake_seconds kind=early,transport=quic 1").await;
    assert!(client.get("/late").await.status.is_success());
    client.close().await;
    assert_metrics(
        &server,
        "connections_total transport=quic 2
         connections_active 0
         handshake_seconds kind=full,transport=quic 1
         handshake_seconds kind=early,transport=quic 1
         early_data_offered_total transport=quic 1
         early_data_accepted_total transport=quic 1
         requests_total protocol=http3,early=ran 1
         quic_tokens_accepted_total 1
         quic_connections_refused_total 0
         quic_handshakes_active 0
         handshakes_failed_total 0",
    )
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_store_shows_in_the_metrics() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let mut cluster = Cluster::new();
    let upstream = start_upstream();
    let node = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let session = node.session("http/1.1").await;
    assert_metrics(&node, "store_up 1\n store_unavailable 0\n early_data_open 1").await;
    let metrics = node.handle.metrics();
    let won = metrics.sum("firstflight_claims_total", &[("register", "store"), ("result", "won")]);
    let unknown = metrics.sum("firstflight_store_claims_unknown_total", &[]);
    assert!(won > 0.0, "{won}");
    assert_eq!(metrics.sum("firstflight_claim_seconds", &[]), won + unknown);
    // It starts a new recording window.
    cluster.store.cli(&["flushall"]);
    assert_metrics(
        &node,
        "store_up 0
         store_unavailable reason=store_window 1
         store_unavailable 1
         early_data_open 0",
    )
    .await;
    cluster.store.kill();
    assert_metrics(
        &node,
        "store_up 0
         store_unavailable reason=store_down 1
         store_unavailable 1
         early_data_open 0",
    )
    .await;
    let refused = [("reason", "store_down")];
    let before = node.handle.metrics().sum("firstflight_early_data_refused_total", &refused);
    Client::prepare("http/1.1", Some(&session), &get("/")).run(node.address).await;
    wait_for_metric(&node, "firstflight_early_data_refused_total", &refused, before + 1.0).await;
    node.stop().await;
}
