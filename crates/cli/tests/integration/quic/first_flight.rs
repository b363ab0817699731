//! First flights that the path loses, doubles or turns round: each request is executed once.

use std::collections::VecDeque;

use super::relay::Way;
use super::rustls_client::{Client, get};
use super::test_server::Stage;
use crate::support::program::PAGE;

/// Asks early over a path of this rule, and again over a good one, for another session.
fn ask(
    stage: &Stage,
    client: &Client,
    target: &str,
    rule: impl FnMut(Way, usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static,
) {
    stage.relay.rule(|_, _, datagram| vec![datagram]);
    let mut link = client.connect(stage.port());
    assert_eq!(link.ask(get("/index.html?session")).status, 200);
    link.close();
    stage.relay.rule(rule);
    let (link, responses) = client.connect_early(stage.port(), &[get(target)]);
    assert_eq!((responses[0].status, &*responses[0].body), (200, PAGE), "{target}");
    link.close();
}

/// Each target that is not for a session only was executed once.
fn executed_once(mut stage: Stage, count: usize) {
    let log = stage.end();
    let mut targets: Vec<_> = log
        .iter()
        .filter(|line| line["executed"] == true && line["target"] != "/index.html?session")
        .map(|line| line["target"].as_str().unwrap())
        .collect();
    assert_eq!(targets.len(), count, "{targets:?}");
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(targets.len(), count, "{targets:?}");
}

#[test]
fn rfc9002_6_each_datagram_of_a_first_flight_lost() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    for lost in 0..4 {
        ask(&stage, &client, &format!("/index.html?up={lost}"), move |way, nth, datagram| {
            if way == Way::Up && nth == lost { vec![] } else { vec![datagram] }
        });
    }
    executed_once(stage, 4);
}

#[test]
fn rfc9002_6_each_datagram_of_the_first_response_lost() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    for lost in 0..4 {
        ask(&stage, &client, &format!("/index.html?down={lost}"), move |way, nth, datagram| {
            if way == Way::Down && nth == lost { vec![] } else { vec![datagram] }
        });
    }
    executed_once(stage, 4);
}

#[test]
fn every_datagram_twice_at_once_and_later() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    ask(&stage, &client, "/index.html?twice", |_, _, datagram| vec![datagram.clone(), datagram]);
    // All that went up before, once more behind each.
    let mut before = Vec::new();
    ask(&stage, &client, "/index.html?later", move |way, _, datagram| {
        if way == Way::Down {
            return vec![datagram];
        }
        let mut all = vec![datagram.clone()];
        all.extend(before.iter().cloned());
        before.push(datagram);
        all
    });
    executed_once(stage, 2);
}

#[test]
fn early_data_before_its_initial() {
    let stage = Stage::new(&[]);
    let client = Client::new(&stage.cert);
    for held in 1..3 {
        // The first datagram after so many others.
        let mut queue = VecDeque::new();
        ask(&stage, &client, &format!("/index.html?held={held}"), move |way, nth, datagram| {
            if way == Way::Down || nth > held {
                return vec![datagram];
            }
            queue.push_front(datagram);
            if nth < held { vec![] } else { queue.drain(..).collect() }
        });
    }
    executed_once(stage, 2);
}
