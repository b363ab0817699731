//! Replayed first flights over QUIC: each is executed once.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use super::attacker::resend;
use super::initial::{ZERO_RTT, packets};
use super::relay::Direction;
use super::rustls_client::{Client, get};
use super::setup::Setup;
use crate::support::program::{TEST_TIMEOUT, fields, within};

/// A first flight that was executed, and its unique target.
struct Recorded {
    datagrams: Vec<Vec<u8>>,
    target: String,
}

/// Sends early requests through the relay, and returns the flights that were executed early.
fn record(setup: &Setup, client: &Client, count: usize) -> Vec<Recorded> {
    client.connect(setup.port()).request(get("/index.html"));
    let record_flight = |number: usize| {
        let target = format!("/index.html?flight={number}");
        let (link, responses) = client.connect_early(setup.port(), &[get(&target)]);
        assert_eq!((link.early, responses[0].status), (Some(true), 200));
        link.close_with_ticket();
        let whole = setup.relay.flight_precedes_response();
        whole.then(|| Recorded { datagrams: setup.relay.flight(), target })
    };
    // On a busy machine the server may respond, or the handshake be complete, before the request is
    // written.
    let mut all: Vec<_> = (0..MAX_ATTEMPTS).filter_map(record_flight).take(count).collect();
    assert_eq!(all.len(), count, "hardly any flight precedes the response");
    let last = all[count - 1].target.clone();
    let logged = || setup.server.log().iter().any(|line| line["target"] == *last);
    assert!(within(TEST_TIMEOUT, Duration::from_millis(50), logged), "{last} is not logged");
    let early = setup.server.log();
    let early = counts(&early, "claim", "won");
    all.retain(|flight| early.contains_key(&*flight.target));
    assert!(all.len() > count / 4, "hardly any request is early: {early:?}");
    all
}

/// More attempts than a busy machine needs for the flights of a test.
const MAX_ATTEMPTS: usize = 1_000;

/// The number of log lines for each target with this value, such as executed requests or lost
/// claims.
fn counts<'a>(log: &'a [Value], field: &str, value: impl Into<Value>) -> HashMap<&'a str, usize> {
    let value = value.into();
    let mut counts = HashMap::new();
    for line in log.iter().filter(|line| line[field] == value) {
        *counts.entry(line["target"].as_str().unwrap()).or_default() += 1;
    }
    counts
}

/// Checks that each flight was executed once, and that an honest client is still served.
fn assert_executed_once(setup: &mut Setup, recorded: &[Recorded], client: &Client) {
    let (link, responses) = client.connect_early(setup.port(), &[get("/index.html?honest")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    let log = setup.end();
    let executed = counts(&log, "executed", true);
    for flight in recorded {
        assert_eq!(executed[&*flight.target], 1, "{}", flight.target);
    }
    assert_eq!(executed["/index.html?honest"], 1);
}

#[test]
fn rfc9001_9_2_ten_thousand_replays_over_quic_execute_nothing() {
    // While a copy's connection lives, the server treats other copies of its flight as its packets.
    let mut setup = Setup::configured(FRESH, &["--header-timeout", "4s"]);
    let client = Client::new(&setup.cert);
    let recorded = record(&setup, &client, 40);
    let flights: Vec<_> = recorded.iter().map(|one| one.datagrams.clone()).collect();
    for round in 1..=2 {
        resend(setup.server.address, &flights, 5_000_usize.div_ceil(flights.len()));
        // Waits until at least `round` copies of each flight have connected, and reached the gate.
        let all = within(TEST_TIMEOUT, Duration::from_millis(250), || {
            resend(setup.server.address, &flights, 1);
            let log = setup.server.log();
            let lost = counts(&log, "claim", "lost");
            recorded.iter().all(|one| lost.get(&*one.target).is_some_and(|lost| *lost >= round))
        });
        let log = setup.server.log();
        let lost = counts(&log, "claim", "lost");
        let missing = |one: &&Recorded| lost.get(&*one.target).is_none_or(|lost| *lost < round);
        let missing: Vec<_> = recorded.iter().filter(missing).map(|one| &one.target).collect();
        let of_missing = |line: &&Value| missing.iter().any(|one| line["target"] == ***one);
        let lines: Vec<_> = log.iter().filter(of_missing).map(Value::to_string).collect();
        assert!(all, "round {round}: {missing:?} do not reach the strike register: {lines:#?}");
    }
    assert_executed_once(&mut setup, &recorded, &client);
}

/// Tickets stay fresh for as long as TLS permits, and copies get as far as the strike register.
const FRESH: &str = "[early_data]\nfreshness = \"60s\"\n[tickets]\nkeys = \"process\"\n";

/// Lost early data is sent again after the handshake, where it looks like a new request. An
/// attacker who has kept the lost packets must not have them executed as well.
#[test]
fn rfc9001_9_2_a_replay_of_lost_early_data_executes_nothing() {
    let mut setup = Setup::configured(FRESH, &["--header-timeout", "4s"]);
    let client = Client::new(&setup.cert);
    client.connect(setup.port()).request(get("/index.html"));
    setup.relay.rule(|direction, _, datagram| match direction {
        Direction::Up => without_early_data(&datagram).into_iter().collect(),
        Direction::Down => vec![datagram],
    });
    let (link, responses) = client.connect_early(setup.port(), &[get("/index.html?lost")]);
    assert_eq!((link.early, responses[0].status), (Some(true), 200));
    link.close();
    let line = setup.server.lines(2).remove(1);
    assert_eq!(fields(&line, "early executed"), "false true");
    let flight = [setup.relay.flight()];
    let held = within(TEST_TIMEOUT, Duration::from_millis(250), || {
        resend(setup.server.address, &flight, 1);
        setup.server.log().len() > 2
    });
    assert!(held, "no copy reaches the gate");
    let log = setup.end();
    assert_eq!(counts(&log, "executed", true)["/index.html?lost"], 1, "{log:#?}");
}

/// The datagram without its 0-RTT packets, padded to its size, or `None` if it contained nothing
/// else.
fn without_early_data(datagram: &[u8]) -> Option<Vec<u8>> {
    let all = packets(datagram);
    if all.iter().all(|(header, _)| header.kind != Some(ZERO_RTT)) {
        return Some(datagram.to_vec());
    }
    let kept = all.iter().filter(|(header, _)| header.kind != Some(ZERO_RTT));
    let mut kept = kept.flat_map(|(_, packet)| packet.iter().copied()).collect::<Vec<_>>();
    if kept.is_empty() {
        return None;
    }
    kept.resize(datagram.len(), 0);
    Some(kept)
}
