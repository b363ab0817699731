//! Early data over QUIC: accepted, refused, and what follows from it.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use firstflight_quic::Remembered;
use firstflight_tls::{EarlyData, EarlyDataReason};
use support::{Answer, Setup, facts, resuming};

#[test]
fn a_full_handshake_brings_its_tickets() {
    let setup = Setup::default();
    let mut pair = setup.pair();
    let connected = pair.connect(Remembered::default());
    let resumptions = connected.inbox.take_resumptions();
    assert_eq!(resumptions.len(), 2);
    assert!(resumptions.iter().all(|found| found.session.early_data_capable()));
    assert!(resumptions.iter().all(|found| !found.transport_parameters.is_empty()));
    let stream = pair.send(connected.client, b"hello");
    pair.drive();
    assert_eq!(pair.received(connected.server), [b"hello"]);
    assert_eq!(stream.index(), 0);
    let facts = facts(pair.server(connected.server));
    assert_eq!(facts.alpn.as_deref(), Some(&b"test"[..]));
    assert_eq!(facts.server_name.as_deref(), Some("localhost"));
    assert!(facts.complete && !facts.resumed);
}

#[test]
fn rfc9001_4_6_early_data_arrives_before_the_handshake_is_complete() {
    let setup = Setup::default();
    let mut pair = setup.pair();
    let begun = pair.begin(setup.remembered());
    assert!(pair.client(begun.client).has_0rtt());
    pair.send(begun.client, b"early");
    // One way: the ClientHello and the early data.
    pair.exchange();
    pair.now += support::LATENCY;
    pair.exchange();
    let connected = pair.connected(begun);
    assert!(pair.server(connected.server).is_handshaking());
    assert_eq!(pair.received(connected.server), [b"early"]);
    pair.drive();
    assert!(pair.client(connected.client).accepted_0rtt());
    let seen = facts(pair.client(connected.client));
    assert_eq!(seen.early_data, EarlyData::Accepted);
    assert!(seen.resumed && seen.complete);
    assert_eq!(facts(pair.server(connected.server)).early_data, EarlyData::Accepted);
    assert_eq!(connected.inbox.take_resumptions().len(), 2);
}

#[test]
fn refused_by_the_judge_it_arrives_once_and_late() {
    let setup = Setup::default();
    let remembered = setup.remembered();
    let mut pair = setup.pair();
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, crypto, made) = (asked.clone(), pair.crypto.clone(), setup.clone());
    pair.policy = Box::new(move |_| {
        let count = count.clone();
        let judged = crypto.for_connection(
            Box::new(move |facts| {
                assert_eq!(facts.early_data, EarlyData::Accepted);
                assert!(facts.resumed && !facts.complete);
                count.fetch_add(1, Ordering::Relaxed);
                false
            }),
            None,
        );
        Answer::Accept(made.server_config(judged))
    });
    let begun = pair.begin(remembered);
    pair.send(begun.client, b"early");
    pair.exchange();
    pair.now += support::LATENCY;
    pair.exchange();
    let connected = pair.connected(begun);
    assert!(pair.received(connected.server).is_empty());
    pair.drive();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert!(!pair.client(connected.client).accepted_0rtt());
    assert_eq!(facts(pair.client(connected.client)).early_data, EarlyData::Refused);
    let seen = facts(pair.server(connected.server));
    assert_eq!(seen.early_data, EarlyData::Refused);
    assert_eq!(seen.early_data_reason, EarlyDataReason::Disabled);
    assert!(seen.resumed);
    // quinn gives rejected streams back to the application, which sends again.
    assert!(pair.received(connected.server).is_empty());
    pair.send(connected.client, b"again");
    pair.drive();
    assert_eq!(pair.received(connected.server), [b"again"]);
    // Its tickets allow early data next time.
    let next = connected.inbox.take_resumptions().pop().unwrap();
    pair.judge(true);
    let next = pair.connect(resuming(next));
    assert!(pair.client(next.client).accepted_0rtt());
}
