//! First flights with lost, duplicated or reordered datagrams: each request is executed once.

use std::collections::VecDeque;

use super::relay::Direction;
use super::rustls_client::{Client, get};
use super::setup::Setup;
use crate::support::program::PAGE;

/// Sends an early request over a path with this rule, then one over a good path for another
/// session.
fn request(
    setup: &Setup,
    client: &Client,
    target: &str,
    rule: impl FnMut(Direction, usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static,
) {
    setup.relay.rule(|_, _, datagram| vec![datagram]);
    let mut link = client.connect(setup.port());
    assert_eq!(link.request(get("/index.html?session")).status, 200);
    link.close();
    setup.relay.rule(rule);
    let (link, responses) = client.connect_early(setup.port(), &[get(target)]);
    assert_eq!((responses[0].status, &*responses[0].body), (200, PAGE), "{target}");
    link.close();
}

/// Checks that each target, except those for sessions, was executed once.
fn assert_executed_once(mut setup: Setup, count: usize) {
    let log = setup.end();
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
    let setup = Setup::new(&[]);
    let client = Client::new(&setup.cert);
    for lost in 0..4 {
        request(
            &setup,
            &client,
            &format!("/index.html?up={lost}"),
            move |direction, nth, datagram| {
                if direction == Direction::Up && nth == lost { vec![] } else { vec![datagram] }
            },
        );
    }
    assert_executed_once(setup, 4);
}

#[test]
fn rfc9002_6_each_datagram_of_the_first_response_lost() {
    let setup = Setup::new(&[]);
    let client = Client::new(&setup.cert);
    for lost in 0..4 {
        request(
            &setup,
            &client,
            &format!("/index.html?down={lost}"),
            move |direction, nth, datagram| {
                if direction == Direction::Down && nth == lost { vec![] } else { vec![datagram] }
            },
        );
    }
    assert_executed_once(setup, 4);
}

#[test]
fn duplicated_datagrams_of_a_first_flight() {
    let setup = Setup::new(&[]);
    let client = Client::new(&setup.cert);
    request(&setup, &client, "/index.html?twice", |_, _, datagram| {
        vec![datagram.clone(), datagram]
    });
    // Every earlier datagram to the server is repeated after each datagram.
    let mut before = Vec::new();
    request(&setup, &client, "/index.html?later", move |direction, _, datagram| {
        if direction == Direction::Down {
            return vec![datagram];
        }
        let mut all = vec![datagram.clone()];
        all.extend(before.iter().cloned());
        before.push(datagram);
        all
    });
    assert_executed_once(setup, 2);
}

#[test]
fn early_data_before_its_initial_packet() {
    let setup = Setup::new(&[]);
    let client = Client::new(&setup.cert);
    for held in 1..3 {
        // The first datagram is delayed until after this many others.
        let mut queue = VecDeque::new();
        request(
            &setup,
            &client,
            &format!("/index.html?held={held}"),
            move |direction, nth, datagram| {
                if direction == Direction::Down || nth > held {
                    return vec![datagram];
                }
                queue.push_front(datagram);
                if nth < held { vec![] } else { queue.drain(..).collect() }
            },
        );
    }
    assert_executed_once(setup, 2);
}
