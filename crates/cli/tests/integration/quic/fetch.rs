//! `firstflight fetch --http3-only` with other QUIC servers. The tests check the servers' reports
//! of handshakes, packets and requests.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::relay::Relay;
use super::rustls_server::ServerOptions;
use super::{aioquic, ngtcp2, rustls_server};
use firstflight_testkit::skipped_without;

use crate::support::peer::certificate;
use crate::support::program::{Ended, PAGE, TEST_TIMEOUT, fetch, fields, site, within};

const FACTS: &str = "http_version http_code tls_resumed early_data num_retries";

pub(super) const FULL: &str = "3 200 0 none 0";
pub(super) const RESUMED: &str = "3 200 1 none 0";
pub(super) const EARLY: &str = "3 200 1 accepted 0";
pub(super) const REFUSED: &str = "3 200 1 refused 0";
/// Early data is refused, and no session resumed, because the server has lost its keys.
pub(super) const KEYS_LOST: &str = "3 200 0 refused 0";

pub(super) fn certified_site() -> TempDir {
    let site = site();
    certificate(site.path());
    site
}

/// Fetches a target. Returns what fetch reports, and its output.
pub(super) fn request(dir: &Path, port: u16, target: &str, flags: &[&str]) -> (String, Ended) {
    let url = format!("https://localhost:{port}{target}");
    let flags = [&["--http3-only"], flags].concat();
    let fetched = fetch(dir, &dir.join("cert.pem"), &url, &flags);
    (fields(&fetched.facts, FACTS), fetched.ended)
}

pub(super) fn facts(dir: &Path, port: u16, target: &str, flags: &[&str]) -> String {
    request(dir, port, target, flags).0
}

/// Sends requests until early data is accepted. GnuTLS refuses tickets that seem older than the
/// server, and a ticket age in whole seconds may be up to a second too great.
fn early(dir: &Path, port: u16, target: &str) {
    let mut last = String::new();
    let accepted = within(TEST_TIMEOUT, Duration::from_millis(250), || {
        last = facts(dir, port, target, &EARLY_DATA);
        last == EARLY
    });
    assert!(accepted, "{last}");
}

pub(super) const EARLY_DATA: [&str; 1] = ["--tls-earlydata"];

fn serve_with_rustls(options: ServerOptions) -> (TempDir, rustls_server::Server) {
    let site = certified_site();
    let server = rustls_server::Server::start(site.path(), options);
    (site, server)
}

#[test]
fn rustls_full_resumed_early_and_refused() {
    let (site, server) = serve_with_rustls(ServerOptions::default());
    let dir = site.path();
    let relay = Relay::start(([127, 0, 0, 1], server.port).into());
    assert_eq!(facts(dir, relay.port, "/1", &[]), FULL);
    assert_eq!(facts(dir, relay.port, "/2", &[]), RESUMED);
    let logged = server.requests();
    relay.hold_until(move || logged.lock().unwrap().len() > 2);
    assert_eq!(facts(dir, relay.port, "/3", &EARLY_DATA), EARLY);
    server.refuse_early_data();
    assert_eq!(facts(dir, relay.port, "/4", &EARLY_DATA), REFUSED);
    let logged: Vec<_> =
        server.logged().iter().map(|logged| (logged.target.clone(), logged.early)).collect();
    let expected = [("/1", false), ("/2", false), ("/3", true), ("/4", false)];
    assert_eq!(logged, expected.map(|(target, early)| (target.to_owned(), early)));
}

#[test]
fn rfc9000_8_1_rustls_server_sends_a_retry() {
    let options = ServerOptions { retry: true, ..ServerOptions::default() };
    let (site, server) = serve_with_rustls(options);
    let dir = site.path();
    assert_eq!(facts(dir, server.port, "/1", &[]), FULL);
    // The second connection has a token and gets no Retry.
    assert_eq!(facts(dir, server.port, "/2", &EARLY_DATA), EARLY);
    let logged: Vec<_> =
        server.logged().iter().map(|logged| (logged.retried, logged.validated)).collect();
    assert_eq!(logged, [(true, true), (false, true)]);
}

#[test]
fn rfc9001_6_rustls_updates_keys() {
    let options = ServerOptions { new_keys: true, ..ServerOptions::default() };
    let (site, server) = serve_with_rustls(options);
    assert_eq!(facts(site.path(), server.port, "/1", &[]), FULL);
    assert_eq!(server.logged().len(), 1);
}

#[test]
fn rustls_with_chacha20() {
    let options = ServerOptions { chacha: true, ..ServerOptions::default() };
    let (site, server) = serve_with_rustls(options);
    let dir = site.path();
    assert_eq!(facts(dir, server.port, "/1", &[]), FULL);
    assert_eq!(facts(dir, server.port, "/2", &EARLY_DATA), EARLY);
}

#[test]
fn ngtcp2_full_resumed_early_and_refused() {
    if skipped_without(&["gtlsserver"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = ngtcp2::Server::start(dir, &[]);
    let relay = Relay::start(([127, 0, 0, 1], server.port).into());
    let target = "/index.html";
    for expected in [FULL, RESUMED] {
        let (facts, ended) = request(dir, relay.port, target, &[]);
        assert_eq!((&*facts, &*ended.out), (expected, PAGE), "{ended:?}");
    }
    early(dir, relay.port, target);
    assert!(server.received("0RTT") > 0);
    // An early response may arrive before the next ticket. Without early data, the ticket comes
    // first.
    request(dir, relay.port, target, &[]);
    drop(server);
    let server = ngtcp2::Server::start(dir, &[]);
    relay.forward_to(([127, 0, 0, 1], server.port).into());
    assert_eq!(facts(dir, relay.port, target, &EARLY_DATA), KEYS_LOST);
    assert_eq!(server.targets(), [target]);
}

#[test]
fn rfc9000_8_1_ngtcp2_server_sends_a_retry() {
    if skipped_without(&["gtlsserver"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = ngtcp2::Server::start(dir, &["--validate-addr"]);
    assert_eq!(facts(dir, server.port, "/index.html", &[]), FULL);
    let retries = server.count("Retry");
    assert!(retries > 0);
    // The second connection has a token and gets no Retry.
    early(dir, server.port, "/index.html");
    assert_eq!(server.count("Retry"), retries);
}

#[test]
fn ngtcp2_with_chacha20() {
    if skipped_without(&["gtlsserver"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let flags = ["--ciphers=NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+CHACHA20-POLY1305"];
    let server = ngtcp2::Server::start(dir, &flags);
    assert_eq!(facts(dir, server.port, "/index.html", &[]), FULL);
    early(dir, server.port, "/index.html");
    assert!(server.count("Negotiated cipher suite is CHACHA20-POLY1305") > 1);
}

#[test]
fn rfc9000_9_ngtcp2_sees_the_address_change() {
    if skipped_without(&["gtlsserver"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    fs::write(dir.join("root/long"), vec![b'x'; 300_000]).unwrap();
    let server = ngtcp2::Server::start(dir, &[]);
    let relay = Relay::start(([127, 0, 0, 1], server.port).into());
    relay.rebind_at(6);
    let (facts, ended) = request(dir, relay.port, "/long", &[]);
    assert_eq!((&*facts, ended.out.len()), (FULL, 300_000));
    assert!(server.count("PATH_RESPONSE") > 0);
}

#[test]
fn aioquic_full_resumed_early_and_refused() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = aioquic::Server::start(dir, &[]);
    let relay = Relay::start(([127, 0, 0, 1], server.port).into());
    assert_eq!(facts(dir, relay.port, "/1", &[]), FULL);
    assert_eq!(facts(dir, relay.port, "/2", &[]), RESUMED);
    assert_eq!(facts(dir, relay.port, "/3", &EARLY_DATA), EARLY);
    let logged: Vec<_> = server.handshakes().iter().map(|h| fields(h, "resumed early")).collect();
    assert_eq!(logged, ["false false", "true false", "true true"]);
    drop(server);
    let server = aioquic::Server::start(dir, &[]);
    relay.forward_to(([127, 0, 0, 1], server.port).into());
    assert_eq!(facts(dir, relay.port, "/4", &EARLY_DATA), KEYS_LOST);
    let logged: Vec<_> = server.requests().iter().map(|r| fields(r, "path early")).collect();
    assert_eq!(logged, ["/4 false"]);
}

#[test]
fn rfc9000_8_1_aioquic_server_sends_a_retry() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = aioquic::Server::start(dir, &["--retry"]);
    assert_eq!(facts(dir, server.port, "/1", &[]), FULL);
    assert_eq!(facts(dir, server.port, "/2", &EARLY_DATA), EARLY);
    assert!(server.handshakes().iter().all(|handshake| handshake["retried"] == true));
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn aioquic_with_chacha20() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = aioquic::Server::start(dir, &["--chacha"]);
    assert_eq!(facts(dir, server.port, "/1", &[]), FULL);
}

#[test]
fn rfc9000_9_aioquic_sees_the_address_change() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = aioquic::Server::start(dir, &[]);
    let relay = Relay::start(([127, 0, 0, 1], server.port).into());
    relay.rebind_at(6);
    let (facts, ended) = request(dir, relay.port, "/long/300000", &[]);
    assert_eq!((&*facts, ended.out.len()), (FULL, 300_000));
    let ends: Vec<Value> = server.ends();
    assert_eq!(ends[0]["addresses"], 2, "{ends:?}");
    assert_eq!(ends[0]["validated"], true, "{ends:?}");
}

#[test]
fn rfc9000_6_aioquic_has_no_version_in_common() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = aioquic::Server::start(dir, &["--versions", "6b3343cf"]);
    let url = format!("https://localhost:{}/1", server.port);
    let flags = ["--http3-only", "--retry", "0"];
    let fetched = fetch(dir, &dir.join("cert.pem"), &url, &flags[..1]);
    assert_ne!(fetched.ended.code, Some(0), "{:?}", fetched.ended);
    assert!(fetched.ended.err.contains("version"), "{:?}", fetched.ended);
}
