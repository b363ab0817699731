//! ngtcp2's client and our server.

use firstflight_testkit::skipped_without;

use super::ngtcp2;
use super::stage::{EARLY, FULL, RESUMED, RETRY, Stage};

#[test]
fn ngtcp2_full_resumed_and_early() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let stage = Stage::new(&[]);
    let full = ngtcp2::client(stage.dir(), stage.port(), &[], &["/index.html"]);
    assert_eq!(full.statuses(), ["200"], "{}", full.story());
    let late = ["--disable-early-data"];
    let resumed = ngtcp2::client(stage.dir(), stage.port(), &late, &["/index.html"]);
    assert_eq!((resumed.statuses(), resumed.sent("0RTT")), (vec!["200"], 0), "{}", resumed.story());
    stage.answer_first(2);
    let early = ngtcp2::client(stage.dir(), stage.port(), &[], &["/index.html"]);
    assert_eq!(early.statuses(), ["200"], "{}", early.story());
    assert!(early.sent("0RTT") > 0 && !early.said(REJECTED), "{}", early.story());
    assert_eq!(stage.seen(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn ngtcp2_refused_by_a_server_without_its_keys() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let mut stage = Stage::new(&[]);
    ngtcp2::client(stage.dir(), stage.port(), &[], &["/index.html"]);
    stage.restart("", &[]);
    let early = ngtcp2::client(stage.dir(), stage.port(), &[], &["/index.html"]);
    assert!(early.sent("0RTT") > 0 && early.said(REJECTED), "{}", early.story());
    assert_eq!(early.statuses(), ["200"], "{}", early.story());
    assert_eq!(stage.seen(2), [FULL, FULL]);
}

const REJECTED: &str = "Early data was rejected";

#[test]
fn rfc9001_6_ngtcp2_updates_keys() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let stage = Stage::new(&[]);
    let flags = ["--key-update=1ms", "--delay-stream=50ms"];
    let said = ngtcp2::client(stage.dir(), stage.port(), &flags, &["/index.html"]);
    let (left, came) = said.under_new_keys();
    assert!(left > 0 && came > 0 && said.said("key update confirmed"), "{}", said.story());
    assert_eq!(said.statuses(), ["200"], "{}", said.story());
    assert_eq!(stage.seen(1), [FULL]);
}

#[test]
fn rfc9000_9_ngtcp2_changes_its_address() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let stage = Stage::new(&[]);
    // Whoever moves on purpose asks whether the path is there; behind a NAT it is the server.
    for (nat, frame) in [(None, "PATH_RESPONSE"), (Some("--nat-rebinding"), "PATH_CHALLENGE")] {
        let mut flags = vec!["--change-local-addr=1ms", "--delay-stream=50ms"];
        flags.extend(["--disable-early-data"].into_iter().chain(nat));
        let said = ngtcp2::client(stage.dir(), stage.port(), &flags, &["/index.html"]);
        assert!(said.said("Changing local address"), "{}", said.story());
        assert!(said.received_frame(frame), "{}", said.story());
        assert_eq!(said.statuses(), ["200"], "{}", said.story());
    }
    assert_eq!(stage.seen(2), [FULL, RESUMED]);
}

#[test]
fn ngtcp2_with_chacha20() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let stage = Stage::new(&[]);
    let flags = ["--ciphers=NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+CHACHA20-POLY1305"];
    for early in [false, true] {
        if early {
            stage.answer_first(1);
        }
        let said = ngtcp2::client(stage.dir(), stage.port(), &flags, &["/index.html"]);
        assert_eq!(said.statuses(), ["200"], "{}", said.story());
    }
    assert_eq!(stage.seen(2), [FULL, EARLY]);
    assert!(stage.server.log().iter().all(|line| line["cipher"] == CHACHA20));
}

const CHACHA20: &str = "TLS_CHACHA20_POLY1305_SHA256";

#[test]
fn ngtcp2_with_a_client_hello_of_two_packets() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let stage = Stage::new(&[]);
    let flags = ["--groups=-GROUP-ALL:+GROUP-FFDHE8192:+GROUP-X25519"];
    for early in [false, true] {
        if early {
            stage.answer_first(1);
        }
        let said = ngtcp2::client(stage.dir(), stage.port(), &flags, &["/index.html"]);
        assert!(said.said("Initial CRYPTO(0x06) offset=0") && said.sent("Initial") > 1);
        assert_eq!(said.statuses(), ["200"], "{}", said.story());
    }
    assert_eq!(stage.seen(2), [FULL, EARLY]);
}

#[test]
fn rfc9000_6_ngtcp2_negotiates_the_version() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let stage = Stage::new(&[]);
    let flags = ["--version=0x1a2a3a4a", "--preferred-versions=v1", "--other-versions=v1"];
    let said = ngtcp2::client(stage.dir(), stage.port(), &flags, &["/index.html"]);
    assert_eq!(said.statuses(), ["200"], "{}", said.story());
    assert_eq!(stage.seen(1), [FULL]);
}

#[test]
fn rfc9000_8_1_2_ngtcp2_shows_its_address() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let stage = Stage::configured(RETRY, &[]);
    for early in [false, true] {
        if early {
            stage.answer_first(1);
        }
        let said = ngtcp2::client(stage.dir(), stage.port(), &[], &["/index.html"]);
        assert_eq!((said.received("Retry"), said.statuses()), (1, vec!["200"]), "{}", said.story());
    }
    assert_eq!(stage.seen(2), [FULL, EARLY]);
}
