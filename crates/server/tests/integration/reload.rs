//! Reloads: what changes, what stays, and what is refused.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use firstflight_config::{CertificateSource, Content, Listener, Mode, Policy, ServerConfig};
use firstflight_server::Server;
use firstflight_testkit::free_port;
use tokio::net::TcpStream;

use crate::support::{
    Client, RunningServer, TEST_TIMEOUT, executions, fetch, get, line, replay, start_upstream,
};

/// An address of this machine without a listener.
fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

type Change = Box<dyn Fn(&mut ServerConfig)>;

fn page(target: &str) -> String {
    String::from_utf8(get(target)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_are_added_and_removed_and_connections_stay() {
    let server = RunningServer::files(|_| {}).await;
    let (kept_address, new_address) = (server.address, free_address());
    // Stays open from before the first reload until after the last.
    let mut kept = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(kept_address).await.unwrap();
    kept.handshake(&mut tcp).await;

    server.reload(|config| config.listeners.push(Listener::new(new_address))).await.unwrap();
    assert_eq!(server.handle.status().addresses, [kept_address, new_address]);
    assert!(fetch(new_address, &page("/new")).await.starts_with("HTTP/1.1 404"));
    assert!(fetch(kept_address, &page("/")).await.starts_with("HTTP/1.1 200"));

    server.reload(|config| config.listeners = vec![Listener::new(new_address)]).await.unwrap();
    assert_eq!(server.handle.status().addresses, [new_address]);
    let refused = async {
        while TcpStream::connect(kept_address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, refused).await.expect("nobody listens there any more");
    kept.write(&get("/?kept"));
    assert!(kept.finish(&mut tcp).await.starts_with("HTTP/1.1 200"));
    assert_eq!(server.handle.status().generation, 3);
    let log = server.stop().await;
    assert_eq!(line(&log, "/?kept")["status"], 200);
}

#[tokio::test]
async fn a_reload_before_the_server_runs_waits_for_it() {
    let content = Content::files(std::env::temp_dir());
    let config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), content);
    let server = Server::bind(config.clone()).await.unwrap();
    let (address, handle) = (server.local_addrs()[0], server.handle());
    let reloading = {
        let handle = handle.clone();
        tokio::spawn(async move { handle.reload(config).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let running = tokio::spawn(server.run(std::future::pending()));
    tokio::time::timeout(TEST_TIMEOUT, reloading).await.unwrap().unwrap().unwrap();
    assert_eq!(handle.status().addresses, [address]);
    handle.stop();
    tokio::time::timeout(TEST_TIMEOUT, running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_configuration_changes_nothing() {
    let server = RunningServer::files(|_| {}).await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (used, other) = (taken.local_addr().unwrap(), free_address());
    let no_file = |config: &mut ServerConfig| {
        let nowhere = config.access_log.as_ref().unwrap().file.clone().unwrap().join("no");
        config.certificate = CertificateSource::Files { cert: nowhere.clone(), key: nowhere };
    };
    let changes: [(&str, Change); 7] = [
        (
            "is in use already",
            Box::new(move |config| {
                config.listeners.extend([Listener::new(other), Listener::new(used)]);
            }),
        ),
        ("cannot read", Box::new(no_file)),
        ("0 connections", Box::new(|config| config.limits.connections = 0)),
        (
            "early_data.freshness cannot change",
            Box::new(|config| {
                config.early_data.freshness = Duration::from_secs(3);
            }),
        ),
        ("[log] cannot change", Box::new(|config| config.log.level = "debug".to_owned())),
        ("limits.backlog cannot change", Box::new(|config| config.limits.backlog += 1)),
        (
            "tls.self_signed and tls.save_self_signed cannot change",
            Box::new(|config| {
                let names = vec!["new.test".to_owned()];
                config.certificate = CertificateSource::SelfSigned { names, save: None };
            }),
        ),
    ];
    for (words, change) in changes {
        let error = server.reload(|config| {
            config.limits.keep_alive = false;
            change(config);
        });
        let error = error.await.expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
        let status = server.handle.status();
        assert_eq!((status.generation, status.ready), (1, true));
        assert_eq!(status.last_reload.unwrap().error, Some(error));
        assert_eq!(status.addresses, [server.address]);
        assert!(TcpStream::connect(other).await.is_err());
    }
    // The old configuration is in use: connections are kept alive.
    let response = fetch(
        server.address,
        "GET / HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\
                                    Connection: close\r\n\r\n",
    );
    assert!(response.await.contains("HTTP/1.1 404"));
    server.reload(|_| {}).await.unwrap();
    assert_eq!(server.handle.status().last_reload.unwrap().error, None);
}

/// A renewed certificate does not wait for the restart that a change of the configuration needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_reload_reads_the_files_of_the_configuration_in_use_again() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let write = |year| {
        let key_pair = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["h".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        std::fs::write(&cert, params.self_signed(&key_pair).unwrap().pem()).unwrap();
        std::fs::write(&key, key_pair.serialize_pem()).unwrap();
    };
    write(2050);
    let files = CertificateSource::Files { cert: cert.clone(), key: key.clone() };
    let server = RunningServer::files(|config| config.certificate = files).await;
    let expires =
        || server.handle.metrics().sum("firstflight_certificate_expiry_timestamp_seconds", &[]);
    let before = expires();
    write(2051);
    server.reload(|config| config.limits.backlog += 1).await.unwrap_err();
    assert!(expires() > before);
    write(2052);
    let before = expires();
    server.handle.reload_failed("it cannot be parsed").await;
    assert!(expires() > before);
}

/// A reload replaces a pool whose settings change.
#[tokio::test(flavor = "multi_thread")]
async fn the_counters_of_an_upstream_do_not_go_back() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    fetch(server.address, &page("/")).await;
    let counted = || server.handle.upstreams().remove(0).servers.remove(0).totals;
    let before = counted();
    assert_eq!((before.requests, before.responses[1]), (1, 1));
    server.reload(|config| config.limits.upstream_timeout *= 2).await.unwrap();
    assert_eq!(counted(), before);
    fetch(server.address, &page("/")).await;
    assert_eq!(counted().requests, 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_trusted_proxies_determine_the_client_on_open_connections() {
    let server = RunningServer::files(|_| {}).await;
    let mut client = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    let forwarded = |target: &str, connection: &str| {
        format!(
            "GET {target} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.7\r\n\
             Connection: {connection}\r\n\r\n"
        )
    };
    client.write(forwarded("/?before", "keep-alive").as_bytes());
    client.read_until(&mut tcp, |response| response.ends_with(b"hello\n")).await;
    let trusted = vec!["127.0.0.0/8".parse().unwrap()];
    server.reload(|config| config.trusted_proxies = trusted).await.unwrap();
    client.write(forwarded("/?after", "close").as_bytes());
    client.finish(&mut tcp).await;
    let log = server.stop().await;
    let before = line(&log, "?before")["client"].as_str().unwrap();
    assert!(before.starts_with("127.0.0.1:"), "{before}");
    assert_eq!(line(&log, "?after")["client"], "192.0.2.7");
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_flights_are_remembered_across_reloads() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let (session, other) = (server.session("http/1.1").await, server.session("http/1.1").await);
    let client = Client::prepare("http/1.1", Some(&session), &get("/flight=1"));
    let flight = client.flight.clone();
    assert!(client.run(server.address).await.starts_with("HTTP/1.1 200"));
    server.reload(|_| {}).await.unwrap();
    drop(replay(server.address, &flight).await);
    // A ticket from before the reload allows early data after it.
    let client = Client::prepare("http/1.1", Some(&other), &get("/flight=2"));
    assert!(client.run(server.address).await.starts_with("HTTP/1.1 200"));
    let log = server.stop().await;
    assert_eq!(executions(&log, "flight=1"), 1);
    assert_eq!(upstream.recorded("flight=1").len(), 1);
    let line = line(&log, "flight=2");
    assert_eq!((&line["early"], &line["early_data"]), (&true.into(), &"accepted".into()));
}

/// A request that the old policy held ran after its handshake; its copy must not run early under
/// the new policy.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_a_wider_policy_executes_no_copy_that_was_held_before() {
    let upstream = start_upstream();
    let strict = |config: &mut ServerConfig| {
        config.early_data.policy = Policy::new(Mode::Disabled);
    };
    let server = RunningServer::proxy(&upstream, strict).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/flight=1"));
    let flight = client.flight.clone();
    assert!(client.run(server.address).await.starts_with("HTTP/1.1 200"));
    server
        .reload(|config| config.early_data.policy = Policy::new(Mode::Unrestricted))
        .await
        .unwrap();
    for _ in 0..3 {
        drop(replay(server.address, &flight).await);
    }
    let log = server.stop().await;
    assert_eq!(executions(&log, "flight=1"), 1);
    assert_eq!(upstream.recorded("flight=1").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_limit_applies_after_connections_have_ended() {
    let server = RunningServer::files(|_| {}).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        let mut client = Client::prepare("http/1.1", None, b"");
        client.handshake(&mut tcp).await;
        held.push((client, tcp));
    }
    server.reload(|config| config.limits.connections = 2).await.unwrap();
    let waiting = tokio::spawn(fetch_page(server.address));
    // It is accepted once fewer than two connections are open.
    let last = held.pop();
    for (mut client, mut tcp) in held {
        assert!(!waiting.is_finished() && server.handle.status().connections <= 3);
        client.write(&get("/"));
        assert!(client.finish(&mut tcp).await.starts_with("HTTP/1.1 200"));
    }
    let response = tokio::time::timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    drop(last);
    server.stop().await;
}

async fn fetch_page(address: SocketAddr) -> String {
    fetch(address, &page("/")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_serves_connections_from_the_backlog() {
    let mut server = RunningServer::files(|config| config.limits.connections = 1).await;
    // The only permit is taken, so the next connections stay in the backlog.
    let mut first = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    first.handshake(&mut tcp).await;
    let mut waiting = Vec::new();
    // More than a task of the runtime may accept in a row.
    for _ in 0..150 {
        let tcp = TcpStream::connect(server.address).await.unwrap();
        waiting.push((Client::prepare("http/1.1", None, b""), tcp));
    }
    // A first connection may be served before the server has finished starting.
    tokio::time::timeout(TEST_TIMEOUT, server.handle.wait_until_serving()).await.unwrap();
    assert!(server.handle.status().ready);
    server.start_stop();
    for (mut client, mut tcp) in waiting {
        client.handshake(&mut tcp).await;
        client.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let response = client.finish(&mut tcp).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.contains("connection: close"), "{response}");
    }
    let status = server.handle.status();
    assert_eq!((status.ready, status.not_ready_because.is_some()), (false, true));
    drop((first, tcp));
    server.stop().await;
}
