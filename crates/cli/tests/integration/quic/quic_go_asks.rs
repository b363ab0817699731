//! quic-go's client and our server, and `fetch` and quic-go's server.

use std::fs;

use firstflight_testkit::skipped_without;
use serde_json::Value;

use super::fetch_asks::{EARLY_DATA, ask, facts, stage};
use super::relay::Relay;
use super::stage::{EARLY, FULL, RESUMED, RETRY, Stage};
use super::{fetch_asks as fetched, quic_go};
use crate::running::{PAGE, fields};

const FACTS: &str = "status resumed early retries";

/// The client, for this target; what it said of its one connection.
fn go(stage: &Stage, flags: &[&str], path: &str) -> Value {
    let mut said = quic_go::client(stage.dir(), &stage.cert, stage.port(), flags, path);
    assert_eq!(said.len(), 1, "{said:?}");
    said.remove(0)
}

fn page(stage: &Stage, flags: &[&str]) -> String {
    let said = go(stage, flags, "/index.html");
    assert_eq!(said["body"], PAGE, "{said}");
    fields(&said, FACTS)
}

#[test]
fn quic_go_full_resumed_and_early() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let stage = Stage::new(&[]);
    assert_eq!(page(&stage, &[]), "200 false false 0");
    assert_eq!(page(&stage, &[]), "200 true true 0");
    stage.answer_first(2);
    assert_eq!(page(&stage, &["-early"]), "200 true true 0");
    // The second one offered early data and had none.
    assert_eq!(stage.seen(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn quic_go_refused_by_a_server_without_its_keys() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let mut stage = Stage::new(&[]);
    page(&stage, &[]);
    stage.restart("", &[]);
    let said = quic_go::client(stage.dir(), &stage.cert, stage.port(), &["-early"], "/index.html");
    assert_eq!((&said[0]["refused"], said.len()), (&true.into(), 2), "{said:?}");
    // The new server's ticket came all the same.
    assert_eq!(fields(&said[1], FACTS), "200 true true 0");
    assert_eq!(stage.seen(2), [FULL, RESUMED]);
}

#[test]
fn rfc9000_8_1_quic_go_shows_its_address_or_a_token() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let stage = Stage::configured(RETRY, &[]);
    let said =
        quic_go::client(stage.dir(), &stage.cert, stage.port(), &["-times", "2"], "/index.html");
    let said: Vec<_> = said.iter().map(|said| fields(said, "status resumed retries")).collect();
    assert_eq!(said, ["200 false 1", "200 true 0"]);
    assert_eq!(stage.seen(2), [FULL, RESUMED]);
}

#[test]
fn rfc9001_6_quic_go_updates_keys() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let stage = Stage::new(&[]);
    // It does so after a hundred packets.
    fs::write(stage.dir().join("root/long"), vec![b'x'; 600_000]).unwrap();
    let said = go(&stage, &[], "/long");
    assert_eq!(said["body"].as_str().unwrap().len(), 600_000);
    assert!(said["key_updates"].as_i64().unwrap() > 0, "{}", said["key_updates"]);
    assert_eq!(stage.seen(1), [FULL]);
}

#[test]
fn fetch_asks_quic_go_full_resumed_early_and_refused() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let site = stage();
    let dir = site.path();
    let server = quic_go::Server::start(dir, &[]);
    let relay = Relay::start(([127, 0, 0, 1], server.port).into());
    assert_eq!(facts(dir, relay.port, "/1", &[]), fetched::FULL);
    assert_eq!(facts(dir, relay.port, "/2", &[]), fetched::RESUMED);
    assert_eq!(facts(dir, relay.port, "/3", &EARLY_DATA), fetched::EARLY);
    let seen: Vec<_> = server.requests().iter().map(|r| fields(r, "path early")).collect();
    assert_eq!(seen, ["/1 false", "/2 false", "/3 true"]);
    drop(server);
    // One that resumes and wants no early data, and one that has other keys.
    for (flag, expected) in
        [(&["-no-early"][..], fetched::REFUSED), (&["-ticket-key", "1"], fetched::GONE)]
    {
        let server = quic_go::Server::start(dir, flag);
        relay.turn_to(([127, 0, 0, 1], server.port).into());
        assert_eq!(facts(dir, relay.port, "/4", &EARLY_DATA), expected);
        let seen: Vec<_> = server.requests().iter().map(|r| fields(r, "path early")).collect();
        assert_eq!(seen, ["/4 false"]);
        // The next one needs a session of the first server's key that allows early data.
        drop(server);
        let server = quic_go::Server::start(dir, &[]);
        relay.turn_to(([127, 0, 0, 1], server.port).into());
        facts(dir, relay.port, "/5", &[]);
    }
}

#[test]
fn rfc9000_8_1_fetch_shows_quic_go_its_address_or_a_token() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let site = stage();
    let dir = site.path();
    let server = quic_go::Server::start(dir, &["-retry"]);
    assert_eq!(facts(dir, server.port, "/1", &[]), fetched::FULL);
    // The second one brings a token, and is not asked.
    assert_eq!(facts(dir, server.port, "/2", &EARLY_DATA), fetched::EARLY);
    let retries: Vec<_> = server.requests().iter().map(|r| r["retries"].clone()).collect();
    assert_eq!(retries[0], retries[1], "{retries:?}");
    assert!(retries[0].as_i64().unwrap() > 0);
}

#[test]
fn rfc9001_6_fetch_follows_quic_go_to_new_keys() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let site = stage();
    let dir = site.path();
    let server = quic_go::Server::start(dir, &[]);
    let (facts, ended) = ask(dir, server.port, "/long/600000", &[]);
    assert_eq!((&*facts, ended.out.len()), (fetched::FULL, 600_000));
    assert!(server.key_updates() > 0);
}
