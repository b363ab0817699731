//! Requests with an idempotency key or a nonce run once, however often their client or an attacker
//! sends them.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use firstflight_config::{Content, EarlyRules, Mode, Nonce, Policy, RateLimit, ServerConfig};
use firstflight_quic::Remembered;
use firstflight_testkit::{Upstream, UpstreamResponse, free_port, skipped_without};
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Method};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::cluster::Cluster;
use crate::support::quic::{self, Quic};
use crate::support::{
    Client, PREFACE, RunningServer, TEST_TIMEOUT, executions, fetch, get, http2_request_with, line,
    process_keys, replay, start_upstream, until,
};

/// Applies these rules to all requests.
fn with_rules(rules: EarlyRules) -> impl FnOnce(&mut ServerConfig) {
    move |config| {
        let Content::Sites(sites) = &mut config.content else { panic!("sites") };
        sites.sites[0].routes[0].early = rules;
    }
}

fn key_rules() -> EarlyRules {
    EarlyRules {
        idempotency_key: Some(Duration::from_secs(3600)),
        flight_header: Some(HeaderName::from_static("flight-id")),
        ..EarlyRules::default()
    }
}

fn post(target: &str, headers: &str) -> Vec<u8> {
    format!(
        "POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nConnection: close\r\n\
         {headers}\r\n\r\nhi"
    )
    .into_bytes()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn status(response: &str) -> &str {
    response.get(9..12).unwrap_or(response)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_with_a_key_runs_early_and_once() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, with_rules(key_rules())).await;
    let session = server.session("http/1.1").await;
    let request = post("/pay", "Idempotency-Key: \"a\"\r\nFlight-Id: forged");
    let mut client = Client::prepare("http/1.1", Some(&session), &request);
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&client.flight).await.unwrap();
    // The server has read nothing else: the handshake is incomplete.
    upstream.wait_for("/pay").await;
    let copy = replay(server.address, &client.flight).await;
    let response = client.finish(&mut tcp).await;
    assert_eq!(status(&response), "200", "{response}");
    // The client did not get the response and sends the request again.
    let response = fetch(server.address, &text(request.clone())).await;
    assert_eq!(status(&response), "409", "{response}");
    assert!(response.contains("application/problem+json"), "{response}");
    let session = server.session("http/1.1").await;
    let response = Client::prepare("http/1.1", Some(&session), &request).run(server.address).await;
    assert_eq!(status(&response), "409", "{response}");
    drop(copy);
    let recorded = upstream.recorded("/pay");
    assert_eq!((recorded.len(), recorded[0].body.as_ref()), (1, &b"hi"[..]));
    assert_eq!(recorded[0].headers["early-data"], "1");
    let id = &recorded[0].headers["flight-id"];
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    // Another key is another request, and a late request has no flight.
    let other = text(post("/pay", "Idempotency-Key: \"b\"\r\nFlight-Id: forged"));
    assert_eq!(status(&fetch(server.address, &other).await), "200");
    assert!(!upstream.recorded("/pay")[1].headers.contains_key("flight-id"));
    let log = server.stop().await;
    assert_eq!(executions(&log, "/pay"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_without_a_valid_key_waits() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, with_rules(key_rules())).await;
    let long = format!("Idempotency-Key: {}", "k".repeat(256));
    for (target, field, expected) in
        [("/none", "X: y", "200"), ("/long", &long, "400"), ("/empty", "Idempotency-Key:", "400")]
    {
        let session = server.session("http/1.1").await;
        let client = Client::prepare("http/1.1", Some(&session), &post(target, field));
        let response = client.run(server.address).await;
        assert_eq!(status(&response), expected, "{target}: {response}");
    }
    let log = server.stop().await;
    for target in ["/none", "/long", "/empty"] {
        assert_eq!(line(&log, target)["held"], "policy");
    }
    assert_eq!((upstream.recorded("/none").len(), executions(&log, "/")), (1, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_early_data_that_was_refused_and_sent_again_runs_once() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |config| {
        with_rules(key_rules())(config);
        process_keys(config);
    })
    .await;
    let session = server.session("http/1.1").await.issued_earlier(30).unwrap();
    let request = post("/again", "Idempotency-Key: r");
    let client = Client::prepare("http/1.1", Some(&session), &request);
    let flight = client.flight.clone();
    let response = client.run(server.address).await;
    assert_eq!(status(&response), "200", "{response}");
    drop(replay(server.address, &flight).await);
    assert_eq!(status(&fetch(server.address, &text(request)).await), "409");
    let log = server.stop().await;
    assert_eq!((upstream.recorded("/again").len(), executions(&log, "/again")), (1, 1));
    assert!(log.iter().any(|line| line["early_data"] == "age"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_request_that_was_not_sent_can_be_used_again() {
    // No server listens there.
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let content = Content::upstream(&format!("http://127.0.0.1:{}", free_port())).unwrap();
    let server = RunningServer::start(dir, content, with_rules(key_rules())).await;
    let request = text(post("/pay", "Idempotency-Key: u"));
    for _ in 0..2 {
        let response = fetch(server.address, &request).await;
        assert!(["502", "503"].contains(&status(&response)), "{response}");
    }
    let log = server.stop().await;
    assert_eq!(executions(&log, "/pay"), 0);
}

/// The client leaves while its request waits in the upstream's queue, over each HTTP version.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_request_whose_client_left_before_it_was_sent_can_be_used_again() {
    let (arrive, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let upstream = Upstream::responding(move |request| {
        if request.target.contains("busy") {
            let _ = arrive.send(());
            let _ = tokio::task::block_in_place(|| released.lock().unwrap().recv());
        }
        UpstreamResponse::default()
    });
    let server = RunningServer::proxy(&upstream, |config| {
        with_rules(key_rules())(config);
        let Content::Sites(sites) = &mut config.content else { panic!("sites") };
        for pool in sites.upstreams.values_mut() {
            (pool.requests, pool.queue_timeout) = (1, TEST_TIMEOUT);
        }
    })
    .await;
    let waiting = |count| {
        let handle = server.handle.clone();
        until("requests in the queue", move || handle.upstreams()[0].waiting == count)
    };
    let address = server.address;
    let key = ("idempotency-key", "k");
    for (alpn, target) in [("http/1.1", "/pay/1"), ("h2", "/pay/2"), ("h3", "/pay/3")] {
        let busy = format!("/busy{target}");
        let page = text(get(&busy));
        let running = tokio::spawn(async move { fetch(address, &page).await });
        timeout(TEST_TIMEOUT, arrived.recv()).await.expect("the upstream is busy").unwrap();
        let http1 = post(target, "Idempotency-Key: k");
        if alpn == "h3" {
            let mut client = Quic::connect(address, Remembered::default()).await;
            let mut request = quic::request(Method::POST, target);
            // A key counts for one host.
            *request.uri_mut() = format!("https://h{target}").parse().unwrap();
            request.headers_mut().insert(key.0, HeaderValue::from_static(key.1));
            let _stream = client.send_head(request, true).await;
            waiting(1).await;
            client.close().await;
        } else {
            let mut client = Client::prepare(alpn, None, b"");
            let mut tcp = TcpStream::connect(address).await.unwrap();
            client.handshake(&mut tcp).await;
            client.write(&match alpn {
                "h2" => [PREFACE, &http2_request_with(1, "POST", target, &[key])].concat(),
                _ => http1.clone(),
            });
            client.send(&mut tcp).await;
            waiting(1).await;
        }
        waiting(0).await;
        release.send(()).unwrap();
        let again = async {
            loop {
                let response = fetch(address, &text(http1.clone())).await;
                // The name is released in the background.
                if status(&response) != "409" {
                    return response;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let response = timeout(TEST_TIMEOUT, again).await.expect("the key is free again");
        assert_eq!(status(&response), "200", "{alpn}: {response}");
        assert_eq!(upstream.recorded(target).len(), 2, "it and the one that kept it waiting");
        assert_eq!(status(&running.await.unwrap()), "200");
    }
    let log = server.stop().await;
    // Three with the key, and three that kept them waiting.
    assert_eq!(executions(&log, "/pay"), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_request_whose_client_left_after_it_was_sent_stays_used() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, with_rules(key_rules())).await;
    let request = post("/slow", "Idempotency-Key: s");
    let mut client = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(&request);
    client.send(&mut tcp).await;
    upstream.wait_for("/slow").await;
    drop(tcp);
    until("the request's end", || server.has_logged("/slow")).await;
    assert_eq!(status(&fetch(server.address, &text(request)).await), "409");
    let log = server.stop().await;
    assert_eq!((upstream.recorded("/slow").len(), executions(&log, "/slow")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_key_gets_the_routes_limits_and_fields() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |config| {
        let Content::Sites(sites) = &mut config.content else { panic!("sites") };
        let route = &mut sites.sites[0].routes[0];
        route.early = key_rules();
        route.rate_limit =
            Some(RateLimit { requests: 2, per: Duration::from_secs(3600), burst: None });
        route.headers = vec![(HeaderName::from_static("x-a"), HeaderValue::from_static("b"))];
    })
    .await;
    let request = text(post("/pay", "Idempotency-Key: l"));
    for expected in ["200", "409", "429", "429"] {
        let response = fetch(server.address, &request).await;
        assert_eq!(status(&response), expected, "{response}");
        assert!(response.contains("x-a: b\r\n"), "{response}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_can_be_used_once() {
    let upstream = start_upstream();
    let nonce =
        Nonce { header: HeaderName::from_static("x-nonce"), lifetime: Duration::from_secs(60) };
    let rules = EarlyRules { nonce: Some(nonce), ..EarlyRules::default() };
    let server = RunningServer::proxy(&upstream, with_rules(rules)).await;
    let get = |target: &str, field: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{field}\r\n\r\n")
    };
    let early = async |request: String| {
        let session = server.session("http/1.1").await;
        let client = Client::prepare("http/1.1", Some(&session), request.as_bytes());
        status(&client.run(server.address).await).to_owned()
    };
    assert_eq!(early(get("/n?1", "X-Nonce: 1")).await, "200");
    assert_eq!(early(get("/n?1", "X-Nonce: 1")).await, "425");
    assert_eq!(status(&fetch(server.address, &get("/n?1", "X-Nonce: 1")).await), "409");
    // A request without a nonce may run, but not early.
    assert_eq!(early(get("/n?2", "X: y")).await, "200");
    assert_eq!(status(&fetch(server.address, &get("/n?3", "X: y")).await), "200");
    let log = server.stop().await;
    assert_eq!(line(&log, "?2")["held"], "policy");
    assert_eq!((upstream.recorded("?1").len(), executions(&log, "?1")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_can_be_used_once_on_all_nodes_and_not_without_the_store() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let content = || Content::upstream(&upstream.url()).unwrap();
    let (a, b) = (
        cluster.start(content(), with_rules(key_rules())).await,
        cluster.start(content(), with_rules(key_rules())).await,
    );
    cluster.wait_for_early_data(&a, "http/1.1").await;
    cluster.wait_for_early_data(&b, "http/1.1").await;
    let session = a.session("http/1.1").await;
    let request = post("/pay", "Idempotency-Key: n");
    let client = Client::prepare("http/1.1", Some(&session), &request);
    let flight = client.flight.clone();
    let response = client.run(a.address).await;
    assert_eq!(status(&response), "200", "{response}");
    drop(replay(b.address, &flight).await);
    assert_eq!(status(&fetch(b.address, &text(request)).await), "409");
    let session = b.session("http/1.1").await;
    let request = post("/pay", "Idempotency-Key: n");
    let response = Client::prepare("http/1.1", Some(&session), &request).run(b.address).await;
    assert_eq!(status(&response), "409", "{response}");
    cluster.store.freeze();
    let response = fetch(b.address, &text(post("/pay", "Idempotency-Key: m"))).await;
    assert_eq!(status(&response), "503", "{response}");
    assert!(response.to_ascii_lowercase().contains("retry-after:"), "{response}");
    cluster.store.thaw();
    // The frozen store may write the claim nevertheless, which must not keep the request from
    // running later.
    let later = async {
        while status(&fetch(b.address, &text(post("/pay", "Idempotency-Key: m"))).await) != "200" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, later).await.expect("the request runs after all");
    let (a, b) = (a.stop().await, b.stop().await);
    assert_eq!(upstream.recorded("/pay").len(), 2);
    assert_eq!(executions(&a, "/pay") + executions(&b, "/pay"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_a_key_can_be_used_again_after_the_upstreams_425() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, with_rules(key_rules())).await;
    // The server could send a request without a body again. But its handshake may never complete,
    // and its key would be lost.
    let delete = b"DELETE /refuse-early HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\
                   Idempotency-Key: d\r\n\r\n";
    for request in [post("/refuse-early", "Idempotency-Key: e"), delete.to_vec()] {
        let session = server.session("http/1.1").await;
        let client = Client::prepare("http/1.1", Some(&session), &request);
        let response = client.run(server.address).await;
        assert_eq!(status(&response), "425", "{response}");
        assert_eq!(status(&fetch(server.address, &text(request.clone())).await), "200");
        assert_eq!(status(&fetch(server.address, &text(request)).await), "409");
    }
    assert_eq!(upstream.recorded("/refuse-early").len(), 4);
    let log = server.stop().await;
    assert_eq!(executions(&log, "/refuse-early"), 2, "an upstream that responds 425 runs nothing");
}

/// An upstream that responds to one request, and disappears after executing the next one.
///
/// The task returns when the second request has been read, with the listener.
async fn start_vanishing_upstream() -> (String, tokio::task::JoinHandle<TcpListener>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(tcp);
        for response in ["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""] {
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                assert!(stream.read_line(&mut line).await.unwrap() > 0);
            }
            stream.write_all(response.as_bytes()).await.unwrap();
        }
        listener
    });
    (url, serving)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nonce_of_a_request_that_may_have_been_executed_stays_used() {
    let (url, serving) = start_vanishing_upstream().await;
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let nonce =
        Nonce { header: HeaderName::from_static("x-nonce"), lifetime: Duration::from_secs(60) };
    let rules = EarlyRules { nonce: Some(nonce), ..EarlyRules::default() };
    let server =
        RunningServer::start(dir, Content::upstream(&url).unwrap(), with_rules(rules)).await;
    let get =
        |field: &str| format!("GET /n HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{field}\r\n\r\n");
    assert_eq!(status(&fetch(server.address, &get("X: y")).await), "200");
    // A safe request would be sent again over a new connection, but not with a nonce.
    assert_eq!(status(&fetch(server.address, &get("X-Nonce: 1")).await), "502");
    let listener = serving.await.unwrap();
    assert_eq!(status(&fetch(server.address, &get("X-Nonce: 1")).await), "409");
    assert!(listener.accept().now_or_never().is_none(), "nothing was sent again");
    let log = server.stop().await;
    assert_eq!(executions(&log, "/n"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_copy_is_executed_after_a_reload_of_the_policy() {
    let upstream = start_upstream();
    let mode = |mode| move |config: &mut ServerConfig| config.early_data.policy = Policy::new(mode);
    // Held under one policy, with its copy under the other, and the other way round.
    for (before, after, word) in [
        (Mode::Disabled, Mode::Unrestricted, "looser"),
        (Mode::Unrestricted, Mode::Disabled, "stricter"),
    ] {
        let server = RunningServer::proxy(&upstream, mode(before)).await;
        let session = server.session("http/1.1").await;
        let client =
            Client::prepare("http/1.1", Some(&session), &post(&format!("/{word}/1"), "X: y"));
        let flight = client.flight.clone();
        assert_eq!(status(&client.run(server.address).await), "200");
        // This flight is overtaken before the reload, and arrives after it.
        let session = server.session("http/1.1").await;
        let late =
            Client::prepare("http/1.1", Some(&session), &post(&format!("/{word}/2"), "X: y"));
        let overtaking = replay(server.address, &late.flight).await;
        server.reload(mode(after)).await.unwrap();
        drop(replay(server.address, &flight).await);
        let response = late.run(server.address).await;
        assert_eq!(status(&response), "425", "{response}");
        if before == Mode::Unrestricted {
            upstream.wait_for(&format!("/{word}/2")).await;
        }
        drop(overtaking);
        let log = server.stop().await;
        let runs = |n| upstream.recorded(&format!("/{word}/{n}")).len();
        let overtaken = usize::from(before == Mode::Unrestricted);
        assert_eq!((runs(1), runs(2)), (1, overtaken), "{word}");
        assert_eq!(executions(&log, &format!("/{word}/1")), 1);
    }
}
