//! quinn's client on rustls and our server.

use rustls::CipherSuite;

use super::rustls_client::{Client, get};
use super::stage::{EARLY, FULL, RESUMED, RETRY, Stage};
use crate::running::PAGE;

#[test]
fn rustls_full_resumed_and_early() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    for _ in 0..2 {
        let mut link = client.connect(stage.port());
        let response = link.ask(get("/index.html"));
        assert_eq!((response.status, &*response.body), (200, PAGE));
        link.close();
    }
    stage.answer_first(2);
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status, &*responses[0].body), (Some(true), 200, PAGE));
    link.close();
    assert_eq!(stage.seen(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn rustls_refused_by_a_server_without_its_keys() {
    let mut stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    client.connect(stage.port()).ask(get("/index.html"));
    stage.restart("", &[]);
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(false), 200));
    link.close();
    assert_eq!(stage.seen(2), [FULL, FULL]);
}

#[test]
fn rfc9001_6_rustls_updates_keys() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    let mut link = client.connect(stage.port());
    for _ in 0..3 {
        assert_eq!(link.ask(get("/index.html")).status, 200);
        link.update_keys();
    }
    assert_eq!(link.ask(get("/index.html")).status, 200);
    link.close();
    assert_eq!(stage.seen(4), [FULL; 4]);
}

#[test]
fn rfc9000_9_rustls_changes_its_address() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    let mut link = client.connect(stage.port());
    let before = link.from();
    assert_eq!(link.ask(get("/index.html")).status, 200);
    assert_ne!(link.move_on(), before);
    assert_eq!(link.ask(get("/index.html")).status, 200);
    assert!(link.path_responses() > 0, "the server asks whether it is there");
    link.close();
    assert_eq!(stage.seen(2), [FULL; 2]);
}

#[test]
fn rustls_with_chacha20() {
    let stage = Stage::new(&[]);
    let chacha = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
    let client = Client::with(&stage.cert, |suite| suite == chacha);
    client.connect(stage.port()).ask(get("/index.html"));
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    assert!(stage.server.lines(2).iter().all(|l| l["cipher"] == "TLS_CHACHA20_POLY1305_SHA256"));
}

#[test]
fn rfc9000_8_1_rustls_shows_its_address_or_a_token() {
    let stage = Stage::configured(RETRY, &[]);
    let client = Client::new(&stage.cert);
    let mut link = client.connect(stage.port());
    assert_eq!(link.ask(get("/index.html")).status, 200);
    link.close();
    assert_eq!(stage.relay.retries(), 1);
    stage.answer_first(1);
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    assert_eq!((stage.relay.retries(), stage.seen(2)), (1, vec![FULL.into(), EARLY.into()]));
}

/// A client that has lost its tokens, and not its session.
#[test]
fn rustls_sends_early_data_again_after_a_retry() {
    let stage = Stage::configured(RETRY, &[]);
    let client = Client::without_tokens(&stage.cert);
    client.connect(stage.port()).ask(get("/index.html"));
    stage.answer_first(1);
    let (link, responses) = client.connect_early(stage.port(), &[get("/index.html")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    assert_eq!((stage.relay.retries(), stage.seen(2)), (2, vec![FULL.into(), EARLY.into()]));
}
