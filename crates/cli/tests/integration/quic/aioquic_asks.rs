//! aioquic's client and our server.

use std::fs;

use serde_json::Value;

use super::aioquic;
use super::stage::{EARLY, FULL, RESUMED, RETRY, Stage};
use crate::running::{PAGE, fields};

/// aioquic, for this target.
fn aio(stage: &Stage, flags: &[&str]) -> Value {
    let flags = [flags, &["/index.html"]].concat();
    aioquic::client(stage.dir(), &stage.cert, stage.port(), &flags)
}

/// resumed, early, key phases, version; and how many answers with the page.
fn outcome(said: &Value) -> (String, usize) {
    let responses = said["answers"].as_array().unwrap();
    let pages = responses.iter().filter(|a| a["status"] == 200 && a["body"] == PAGE).count();
    (fields(said, "resumed early key_phase version"), pages)
}

#[test]
fn aioquic_full_resumed_and_early() {
    let stage = Stage::new(&[]);
    assert_eq!(outcome(&aio(&stage, &[])), ("false false [0,0] 1".into(), 1));
    assert_eq!(outcome(&aio(&stage, &[])), ("true true [0,0] 1".into(), 1));
    stage.answer_first(2);
    let said = aio(&stage, &["--early"]);
    assert_eq!(outcome(&said), ("true true [0,0] 1".into(), 1), "{said}");
    // The second one offered early data and had none.
    assert_eq!(stage.seen(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn aioquic_refused_by_a_server_without_its_keys() {
    let mut stage = Stage::new(&[]);
    aio(&stage, &[]);
    stage.restart("", &[]);
    assert_eq!(outcome(&aio(&stage, &["--early"])), ("false false [0,0] 1".into(), 1));
    assert_eq!(stage.seen(2), [FULL, FULL]);
}

#[test]
fn rfc9001_6_aioquic_updates_keys() {
    let stage = Stage::new(&[]);
    let said = aio(&stage, &["--key-update"]);
    assert_eq!(outcome(&said), ("false false [1,1] 1".into(), 2));
    assert_eq!(stage.seen(2), [FULL, FULL]);
}

#[test]
fn rfc9000_9_aioquic_changes_its_address() {
    let stage = Stage::new(&[]);
    let said = aio(&stage, &["--migrate"]);
    assert_eq!(outcome(&said), ("false false [0,0] 1".into(), 2));
    assert_ne!(said["ports"][0], said["ports"][1]);
    assert_eq!(stage.seen(2), [FULL, FULL]);
}

#[test]
fn rfc9000_3_5_aioquic_stops_a_response_and_is_sent_its_own_code() {
    let stage = Stage::new(&[]);
    fs::write(stage.dir().join("root/long"), vec![b'x'; 100_000]).unwrap();
    let said = aioquic::client(stage.dir(), &stage.cert, stage.port(), &["--stop", "268", "/long"]);
    assert_eq!(said["resets"], serde_json::json!([268]), "{said}");
}

#[test]
fn aioquic_with_chacha20() {
    let stage = Stage::new(&[]);
    assert_eq!(outcome(&aio(&stage, &["--chacha"])), ("false false [0,0] 1".into(), 1));
    assert_eq!(stage.server.lines(1)[0]["cipher"], "TLS_CHACHA20_POLY1305_SHA256");
}

#[test]
fn aioquic_with_a_client_hello_of_two_packets() {
    let stage = Stage::new(&[]);
    for early in [false, true] {
        if early {
            stage.answer_first(1);
        }
        let said = aio(&stage, &["--early", "--quantum"]);
        assert_eq!(outcome(&said).1, 1, "{said}");
    }
    assert_eq!(stage.seen(2), [FULL, EARLY]);
}

#[test]
fn rfc9000_6_aioquic_negotiates_the_version() {
    let stage = Stage::new(&[]);
    let said = aio(&stage, &["--begin-with", "6b3343cf"]);
    assert_eq!(outcome(&said), ("false false [0,0] 1".into(), 1));
    assert_eq!(stage.seen(1), [FULL]);
}

#[test]
fn rfc9000_8_1_aioquic_shows_its_address_or_a_token() {
    let stage = Stage::configured(RETRY, &[]);
    let full = aio(&stage, &[]);
    assert_eq!((outcome(&full).1, &full["retried"]), (1, &true.into()), "{full}");
    stage.answer_first(1);
    let early = aio(&stage, &["--early"]);
    assert_eq!((outcome(&early).1, &early["retried"]), (1, &false.into()), "{early}");
    assert_eq!((stage.relay.retries(), stage.seen(2)), (1, vec![FULL.into(), EARLY.into()]));
}
