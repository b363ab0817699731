//! Early requests over QUIC: executed immediately, held, refused, replayed.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use firstflight_config::{Content, KeySource, ServerConfig};
use firstflight_quic::Remembered;
use firstflight_testkit::Upstream;
use firstflight_tickets::{KeyFile, Schedule, UnixTime};
use http::{Method, StatusCode};
use quinn::VarInt;
use serde_json::Value;

use crate::support::quic::{Quic, UdpRelay, config, endpoint, remembered, reply, request};
use crate::support::{RunningServer, executions, line, process_keys, start_upstream, until};

/// Long enough for a handshake on a busy machine.
const SHORT_TIMEOUT: Duration = Duration::from_secs(4);

fn field(line: &Value, name: &str) -> String {
    line[name].to_string().trim_matches('"').to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_get_runs_before_the_handshake_is_complete() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let remembered = remembered(server.address).await;
    let relay = UdpRelay::to(server.address).await;
    relay.hold_server_datagrams();
    let mut client = Quic::connect(relay.address, remembered).await;
    let stream = client.send_head(request(Method::GET, "/early"), true).await;
    upstream.wait_for("early").await;
    relay.release_server_datagrams().await;
    let response = reply(stream).await.unwrap();
    assert_eq!((response.status, &response.body[..]), (StatusCode::OK, &b"upstream\n"[..]));
    assert!(client.accepted().await);
    assert_eq!(client.get("/late").await.status, StatusCode::OK);
    client.close().await;
    let (early, late) = (upstream.recorded("early"), upstream.recorded("late"));
    assert_eq!(early[0].headers.get("early-data").map(String::as_str), Some("1"));
    assert_eq!(early[0].headers["via"], "3.0 firstflight");
    assert!(!late[0].headers.contains_key("early-data"));
    let log = server.stop().await;
    let early = line(&log, "/early");
    for (name, value) in
        [("early", "true"), ("claim", "won"), ("early_data", "accepted"), ("held", "null")]
    {
        assert_eq!(field(early, name), value, "{early}");
    }
    assert_eq!(field(line(&log, "/late"), "early"), "false");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_held_by_policy_waits_for_the_handshake() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let remembered = remembered(server.address).await;
    let relay = UdpRelay::to(server.address).await;
    relay.hold_server_datagrams();
    let mut client = Quic::connect(relay.address, remembered).await;
    let mut post = client.send_head(request(Method::POST, "/post"), false).await;
    post.send_data(Bytes::from_static(b"body")).await.unwrap();
    post.finish().await.unwrap();
    let get = client.send_head(request(Method::GET, "/get"), true).await;
    upstream.wait_for("get").await;
    assert!(upstream.recorded("post").is_empty(), "the POST came first, and waits");
    relay.release_server_datagrams().await;
    assert!(reply(get).await.unwrap().status.is_success());
    assert!(reply(post).await.unwrap().status.is_success());
    client.close().await;
    let recorded = upstream.recorded("post");
    assert_eq!((recorded.len(), &recorded[0].body[..]), (1, &b"body"[..]));
    assert!(!recorded[0].headers.contains_key("early-data"));
    let log = server.stop().await;
    let post = line(&log, "/post");
    for (name, value) in [("early", "true"), ("held", "policy"), ("executed", "true")] {
        assert_eq!(field(post, name), value, "{post}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replayed_datagrams_are_not_executed() {
    let upstream = start_upstream();
    // Copies never complete their handshake, and stopping waits for them.
    let server = RunningServer::proxy(&upstream, |config| {
        config.limits.header_timeout = SHORT_TIMEOUT;
        process_keys(config);
    })
    .await;
    let remembered = remembered(server.address).await;
    let relay = UdpRelay::to(server.address).await;
    relay.hold_server_datagrams();
    let mut client = Quic::connect(relay.address, remembered).await;
    let stream = client.send_head(request(Method::GET, "/once"), true).await;
    upstream.wait_for("once").await;
    let flight = relay.client_datagrams();
    let copy = async || {
        let copy = UdpRelay::to(server.address).await;
        for datagram in &flight {
            copy.inject(datagram).await;
        }
        copy
    };
    // The original's connection receives the copies and drops them until it is forgotten.
    let _concurrent = (copy().await, copy().await);
    relay.release_server_datagrams().await;
    assert!(reply(stream).await.unwrap().status.is_success());
    client.close().await;
    // A copy's request is logged when its connection has ended.
    let held = async {
        while !server.has_logged(r#""held":"replayed""#) {
            copy().await.server_datagrams_after_pause().await;
        }
    };
    tokio::time::timeout(crate::support::TEST_TIMEOUT, held)
        .await
        .expect("a copy opens a connection, and its request is held");
    let log = server.stop().await;
    assert_eq!((upstream.recorded("once").len(), executions(&log, "once")), (1, 1));
    let held = log.iter().filter(|line| field(line, "held") == "replayed").collect::<Vec<_>>();
    assert!(!held.is_empty(), "{log:?}");
    assert!(held.iter().all(|line| field(line, "claim") == "lost" && line["status"].is_null()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_original_overtaken_by_a_copy_gets_425_and_the_connection_closes() {
    let upstream = start_upstream();
    // The copy never completes its handshake, and stopping waits for it.
    let server = RunningServer::proxy(&upstream, |config| {
        config.limits.header_timeout = SHORT_TIMEOUT;
        process_keys(config);
    })
    .await;
    let remembered = remembered(server.address).await;
    let relay = UdpRelay::to(server.address).await;
    relay.drop_client_datagrams(true);
    let mut client = Quic::connect(relay.address, remembered).await;
    let get = client.send_head(request(Method::GET, "/once"), true).await;
    let mut post = client.send_head(request(Method::POST, "/post"), false).await;
    post.send_data(Bytes::from_static(b"body")).await.unwrap();
    post.finish().await.unwrap();
    let copy = UdpRelay::to(server.address).await;
    let overtaking = async {
        let mut sent = 0;
        while upstream.recorded("once").is_empty() {
            for datagram in relay.client_datagrams().split_off(sent) {
                copy.inject(&datagram).await;
                sent += 1;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::support::TEST_TIMEOUT, overtaking).await.expect("the copy runs");
    relay.drop_client_datagrams(false);
    assert_eq!(reply(get).await.unwrap().status, StatusCode::TOO_EARLY);
    // The policy holds the request here; under another policy the copy may have run.
    assert_eq!(reply(post).await.unwrap().status, StatusCode::TOO_EARLY);
    let closed =
        tokio::time::timeout(crate::support::TEST_TIMEOUT, client.driver).await.unwrap().unwrap();
    assert!(closed.is_h3_no_error(), "{closed}");
    let log = server.stop().await;
    assert_eq!((upstream.recorded("once").len(), upstream.recorded("post").len()), (1, 0));
    assert_eq!(executions(&log, "once"), 1);
}

/// Sends a request whose early data the server refuses, and sends it again as clients do. Returns
/// the log.
async fn refused(server: RunningServer, upstream: &Upstream, remembered: Remembered) -> Vec<Value> {
    let mut client = Quic::refused(server.address, remembered, "/again").await;
    assert!(client.get("/again").await.status.is_success());
    client.close().await;
    let log = server.stop().await;
    assert_eq!(upstream.recorded("again").len(), 1);
    let line = line(&log, "/again");
    assert_eq!((field(line, "early"), field(line, "claim")), ("false".into(), "none".into()));
    log
}

fn key_file(path: &Path) -> KeySource {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let file = KeyFile::new(path);
    if !path.exists() {
        file.write_new(Schedule::default(), UnixTime(now)).unwrap();
    }
    KeySource::File(path.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_early_data_is_sent_again_and_is_executed_once() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    type Change = Box<dyn Fn(&mut ServerConfig)>;
    let none = || -> Change { Box::new(|_| {}) };
    let with_keys = |zone: &'static str| -> Change {
        let keys = keys.clone();
        Box::new(move |config| {
            config.tickets.keys = key_file(&keys);
            config.tickets.zone = Some(zone.to_owned());
        })
    };
    let full: Change = Box::new(|config| config.early_data.register_capacity = 0);
    for (before, after, why, resumed) in [
        (none(), Some(none()), "session_not_resumed", false),
        (with_keys("a"), Some(with_keys("a")), "ticket_epoch", true),
        (with_keys("a"), Some(with_keys("b")), "zone", true),
        (full, None, "register_full", true),
    ] {
        let upstream = start_upstream();
        let first = RunningServer::proxy(&upstream, |config| before(config)).await;
        let remembered = remembered(first.address).await;
        let server = match after {
            Some(after) => {
                first.stop().await;
                RunningServer::proxy(&upstream, |config| after(config)).await
            }
            None => first,
        };
        let log = refused(server, &upstream, remembered).await;
        let line = line(&log, "/again");
        assert_eq!((field(line, "early_data").as_str(), &line["resumed"]), (why, &resumed.into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_are_executed_early_and_once() {
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let server = RunningServer::start(dir, Content::PingPong, |_| {}).await;
    let log = server.dir.path().join("access.log");
    let ping = async |remembered: Remembered| {
        let early = remembered.early_data;
        let relay = UdpRelay::to(server.address).await;
        let (config, inbox) = config("firstflight-ping-pong", remembered);
        let endpoint = endpoint();
        if early {
            // Before the first packet leaves: the library sends it from another thread.
            relay.hold_server_datagrams();
        }
        let connecting = endpoint.connect_with(config, relay.address, "localhost").unwrap();
        let connection = match early {
            true => connecting.into_0rtt().unwrap_or_else(|_| panic!("early data")).0,
            false => connecting.await.unwrap(),
        };
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(b"PING").await.unwrap();
        send.finish().unwrap();
        if early {
            relay.wait_for_server_bytes(1300).await;
            // The server's datagrams do not show when the ping is read, but its log line does.
            // Without the server's flight, the client cannot complete the handshake before.
            let is_logged = || std::fs::read_to_string(&log).unwrap().lines().count() >= 2;
            until("the ping is read early", is_logged).await;
            relay.release_server_datagrams().await;
        }
        assert_eq!(recv.read_to_end(10).await.unwrap(), b"PONG");
        let mut resumption = None;
        let has_ticket = || {
            resumption = inbox.take_resumptions().pop();
            resumption.is_some()
        };
        until("a ticket comes", has_ticket).await;
        let remembered = Remembered { resumption, token: None, early_data: true };
        connection.close(VarInt::from_u32(0), b"");
        endpoint.wait_idle().await;
        remembered
    };
    let remembered = ping(Remembered::default()).await;
    ping(remembered).await;
    let log = server.stop().await;
    assert_eq!(log.len(), 2, "{log:?}");
    assert_eq!((field(&log[0], "early"), field(&log[0], "claim")), ("false".into(), "none".into()));
    let second = (field(&log[1], "early"), field(&log[1], "claim"));
    assert_eq!(second, ("true".into(), "won".into()), "{log:?}");
    assert_eq!(field(&log[1], "protocol"), "ping-pong");
}
