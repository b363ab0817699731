//! Several sites on one address: certificates, tickets and rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use firstflight_config::{
    Action, CertificateSource, Content, FileSettings, Mode, Route, ServerConfig, Site, Sites,
};
use firstflight_quic::Remembered;
use http::{HeaderValue, Request, StatusCode, header};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::support::quic::{Quic, reply};
use crate::support::{Client, RunningServer, executions, line, replay};

/// `one.test`, whose certificate covers `shared.two.test` too, and `*.two.test`, where `/pay` is
/// never run early. Each serves files with its name.
async fn two_sites() -> RunningServer {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut one = site(&dir, "one", &["one.test"], &["one.test", "shared.two.test"]);
    let mut two = site(&dir, "two", &["*.two.test", "two.test"], &["two.test", "*.two.test"]);
    one.headers = vec![(header::SERVER, HeaderValue::from_static("one"))];
    let mut pay = two.routes[0].clone();
    pay.path = "/pay".to_owned();
    pay.early.mode = Some(Mode::Disabled);
    two.routes.push(pay);
    let content = Content::Sites(Sites { sites: vec![one, two], upstreams: BTreeMap::new() });
    RunningServer::start(dir, content, |_: &mut ServerConfig| {}).await
}

fn site(dir: &TempDir, name: &str, names: &[&str], covered: &[&str]) -> Site {
    let root = dir.path().join(name);
    std::fs::create_dir(&root).unwrap();
    for file in ["index.html", "pay"] {
        std::fs::write(root.join(file), format!("{name}\n")).unwrap();
    }
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let made = rcgen::generate_simple_self_signed(owned(covered)).unwrap();
    let (cert, key) = (root.with_extension("pem"), root.with_extension("key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let files = Action::Files(FileSettings::new(root));
    Site {
        names: owned(names),
        certificate: Some(CertificateSource::Files { cert, key }),
        ..Site::new(vec![Route::new("/", files)])
    }
}

fn get(host: &str, target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes()
}

/// Sends a request after a full handshake.
async fn fetch(server: &RunningServer, server_name: &str, request: &[u8]) -> String {
    let mut client = Client::for_host(server_name, "http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(request);
    client.finish(&mut tcp).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_selects_the_site_if_the_certificate_covers_it() {
    let server = two_sites().await;
    for (server_name, host, status, body) in [
        ("one.test", "one.test", "200 OK", "one\n"),
        ("two.test", "two.test", "200 OK", "two\n"),
        ("a.two.test", "b.two.test:443", "200 OK", "two\n"),
        ("one.test", "shared.two.test", "200 OK", "two\n"),
        ("one.test", "two.test", "421 Misdirected Request", "421 Misdirected Request\n"),
        ("two.test", "one.test", "421 Misdirected Request", "421 Misdirected Request\n"),
        ("unknown.test", "unknown.test", "200 OK", "one\n"),
        ("127.0.0.1", "127.0.0.1", "200 OK", "one\n"),
        ("one.test", "one.test\r\nHost: one.test", "400 Bad Request", "400 Bad Request\n"),
    ] {
        let response = fetch(&server, server_name, &get(host, "/")).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{host}: {response}");
        assert!(response.ends_with(&format!("\r\n\r\n{body}")), "{host}: {response}");
        assert_eq!(response.contains("server: one\r\n"), body == "one\n", "{host}: {response}");
    }
    for head in
        ["GET / HTTP/1.1\r\nConnection: close", "GET / HTTP/1.1\r\nHost:\r\nConnection: close"]
    {
        let response = fetch(&server, "one.test", format!("{head}\r\n\r\n").as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 400 "), "{head}: {response}");
    }
    crate::metrics::assert_metrics(&server, "requests_misdirected_total protocol=http1.1 2").await;
    let http10 = fetch(&server, "one.test", b"GET / HTTP/1.0\r\n\r\n").await;
    assert!(http10.ends_with("one\n"), "{http10}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http3_has_the_same_sites() {
    let server = two_sites().await;
    for (server_name, host, status) in [
        ("one.test", "one.test", StatusCode::OK),
        ("one.test", "shared.two.test", StatusCode::OK),
        ("one.test", "two.test", StatusCode::MISDIRECTED_REQUEST),
    ] {
        let mut client = Quic::connect_to(server_name, server.address, Remembered::default()).await;
        let request = Request::builder().uri(format!("https://{host}/")).body(()).unwrap();
        let response = reply(client.send_head(request, true).await).await.unwrap();
        assert_eq!(response.status, status, "{host}");
        let body = if host == "one.test" { "one\n" } else { "two\n" };
        assert!(status != StatusCode::OK || response.body == body, "{host}: {:?}", response.body);
        client.close().await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_of_one_site_allows_no_early_data_on_another() {
    let server = two_sites().await;
    for (issued, requested) in [
        ("one.test", "one.test"),
        ("two.test", "a.two.test"),
        ("one.test", "two.test"),
        ("two.test", "one.test"),
    ] {
        let session = server.session_of(issued, "http/1.1").await;
        let request = get(requested, &format!("/?{issued}-{requested}"));
        let client = Client::for_host(requested, "http/1.1", Some(&session), &request);
        let response = client.run(server.address).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{issued} {requested}: {response}");
    }
    let log = server.stop().await;
    for (word, early_data, early) in [
        ("?one.test-one.test", "accepted", true),
        ("?two.test-a.two.test", "accepted", true),
        ("?one.test-two.test", "session_not_resumed", false),
        ("?two.test-one.test", "session_not_resumed", false),
    ] {
        let line = line(&log, word);
        assert_eq!((&line["early_data"], &line["early"]), (&early_data.into(), &early.into()));
    }
}

/// Offers each site's ticket to the other site, which no honest client does if a ticket does not
/// allow it. The sites share a certificate, and `across_names` is set. `strict`: whether the second
/// site has a stricter rule.
async fn swap_tickets(strict: bool) -> Vec<serde_json::Value> {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let one = site(&dir, "one", &["one.test"], &["one.test", "two.test"]);
    let mut two = Site {
        certificate: one.certificate.clone(),
        ..site(&dir, "two", &["two.test"], &["two.test"])
    };
    two.routes[0].early.mode = strict.then_some(Mode::Strict);
    let content = Content::Sites(Sites { sites: vec![one, two], upstreams: BTreeMap::new() });
    let change = |config: &mut ServerConfig| config.tickets.across_names = true;
    let server = RunningServer::start(dir, content, change).await;
    for (issued, requested) in [("one.test", "two.test"), ("two.test", "one.test")] {
        let session = server.session_of(issued, "http/1.1").await;
        let request = get(requested, &format!("/?{issued}"));
        let client = Client::for_host(requested, "http/1.1", Some(&session), &request);
        assert!(client.run(server.address).await.starts_with("HTTP/1.1 200 OK\r\n"), "{issued}");
    }
    server.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_not_valid_for_a_site_with_another_policy() {
    for (strict, early_data) in [(true, "session_not_resumed"), (false, "accepted")] {
        let log = swap_tickets(strict).await;
        for word in ["?one.test", "?two.test"] {
            assert_eq!(line(&log, word)["early_data"], early_data, "{word}, strict: {strict}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quic_ticket_of_one_site_allows_no_early_data_on_another() {
    let server = two_sites().await;
    let mut first = Quic::connect_to("two.test", server.address, Remembered::default()).await;
    let request = |host: &str| Request::builder().uri(format!("https://{host}/")).body(()).unwrap();
    let stream = first.send_head(request("two.test"), true).await;
    assert_eq!(reply(stream).await.unwrap().body, "two\n");
    let remembered = first.remember().await;
    first.close().await;
    let mut own = Quic::connect_to("a.two.test", server.address, remembered.clone()).await;
    let stream = own.send_head(request("a.two.test"), true).await;
    assert!(own.accepted().await);
    assert_eq!(reply(stream).await.unwrap().body, "two\n");
    own.close().await;
    let other = Quic::refused_as("one.test", server.address, remembered, "/").await;
    assert!(!other.handshake().resumed);
    other.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_decides_what_runs_early_on_every_connection() {
    let server = two_sites().await;
    for (host, target) in [("one.test", "/pay?one"), ("shared.two.test", "/pay?two")] {
        let session = server.session_of("one.test", "http/1.1").await;
        let client = Client::for_host("one.test", "http/1.1", Some(&session), &get(host, target));
        assert!(client.run(server.address).await.starts_with("HTTP/1.1 200 OK\r\n"), "{target}");
    }
    let log = server.stop().await;
    assert!(line(&log, "/pay?one")["held"].is_null());
    assert_eq!(line(&log, "/pay?two")["held"], "policy");
}

/// The refused flight has no record; after a reload of the sites' names TLS would accept it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_flight_is_not_executed_after_its_host_moved_to_the_tickets_site() {
    let server = two_sites().await;
    let session = server.session_of("one.test", "http/1.1").await;
    let request = get("two.test", "/?moved");
    let client = Client::for_host("two.test", "http/1.1", Some(&session), &request);
    let copy = client.flight.clone();
    assert!(client.run(server.address).await.ends_with("two\n"));
    let moved = server.reload(|config| {
        let Content::Sites(content) = &mut config.content else { unreachable!() };
        content.sites[1].names.retain(|name| name != "two.test");
        content.sites[0].names.push("two.test".to_owned());
    });
    moved.await.unwrap();
    drop(replay(server.address, &copy).await);
    let log = server.stop().await;
    assert_eq!(executions(&log, "?moved"), 1, "{log:#?}");
}
