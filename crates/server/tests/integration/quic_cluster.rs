//! Two servers that share a real store and their ticket keys, over QUIC. A flight is executed once
//! over both. Without the store's reply its early data is refused, and the request runs after the
//! handshake.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_config::{Content, ServerConfig};
use firstflight_quic::Remembered;
use firstflight_quic::test_packets::{crypto_frame, initial_packet};
use firstflight_replay::SharedConfig;
use firstflight_testkit::{Upstream, skipped_without};
use firstflight_tls::SteadyClock;
use http::{Method, StatusCode};
use tokio::time::{sleep, timeout};

use crate::support::cluster::Cluster;
use crate::support::flights::{client_hello, first_flight, replay, send, sent_datagrams};
use crate::support::quic::{Quic, UdpRelay, head, remembered, reply, request};
use crate::support::{RunningServer, TEST_TIMEOUT, executions, line, start_upstream};

async fn two_nodes(cluster: &Cluster, upstream: &Upstream) -> (RunningServer, RunningServer) {
    let nodes = (cluster.node(upstream).await, cluster.node(upstream).await);
    cluster.wait_for_early_data(&nodes.0, "http/1.1").await;
    cluster.wait_for_early_data(&nodes.1, "http/1.1").await;
    nodes
}

/// Sends early GETs over a relay until the node accepts one: on a machine that stalls, a claim may
/// exceed the store's budget. Each has a session and a target of its own, which starts with
/// `prefix`. Returns the accepted request's target, its client and the relay.
async fn send_accepted(node: &RunningServer, prefix: &str) -> (String, Quic, UdpRelay) {
    let end = Instant::now() + TEST_TIMEOUT;
    let mut attempt = 0;
    loop {
        let target = format!("{prefix}{attempt}.");
        let relay = UdpRelay::to(node.address).await;
        // With a spent token, a copy would only get a Retry.
        let remembered = Remembered { token: None, ..remembered(node.address).await };
        let mut client = Quic::connect(relay.address, remembered).await;
        let response = client.request(Method::GET, &target).await;
        if client.accepted().await {
            assert_eq!(response.unwrap().status, StatusCode::OK);
            return (target, client, relay);
        }
        assert!(Instant::now() < end, "the node accepts no early data");
        attempt += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_2_a_flight_is_executed_once_over_all_nodes() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = two_nodes(&cluster, &upstream).await;
    let mut targets = Vec::new();
    for round in 0..5 {
        let (target, client, relay) = send_accepted(&a, &format!("/once?{round}.")).await;
        let sent = relay.client_datagrams();
        let mut open = Vec::new();
        open.push(replay(b.address, &sent).await);
        open.push(send(a.address, &sent).await);
        client.close().await;
        targets.push(target);
    }
    let (a, b) = (a.stop().await, b.stop().await);
    for target in &targets {
        assert_eq!(upstream.recorded(target).len(), 1, "{target}");
        assert_eq!((executions(&a, target), executions(&b, target)), (1, 0), "{target}");
    }
    let copies = a.iter().chain(&b).filter(|l| l["target"].as_str().unwrap().contains("/once"));
    let copies = copies.filter(|line| line["executed"] == false).collect::<Vec<_>>();
    // On a busy machine some flights may exceed the store's budget and be refused.
    assert!((1..=5).contains(&copies.len()), "copies got as far as the gate: {copies:?}");
    assert!(copies.iter().all(|l| l["claim"] == "lost" && l["held"] == "replayed"), "{copies:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_an_original_overtaken_by_a_copy_on_another_node_gets_425() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = two_nodes(&cluster, &upstream).await;
    let relay = UdpRelay::to(a.address).await;
    relay.drop_client_datagrams(true);
    let mut client = Quic::connect(relay.address, remembered(a.address).await).await;
    let stream = client.send_head(request(Method::GET, "/overtaken"), true).await;
    let copy = replay(b.address, &sent_datagrams(&client, &relay).await).await;
    upstream.wait_for("/overtaken").await;
    relay.drop_client_datagrams(false);
    let response = reply(stream).await.unwrap();
    assert_eq!(response.status, StatusCode::TOO_EARLY);
    drop(copy);
    let (a, b) = (a.stop().await, b.stop().await);
    assert_eq!(upstream.recorded("/overtaken").len(), 1);
    assert_eq!((executions(&a, "/overtaken"), executions(&b, "/overtaken")), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_race_the_original_on_both_nodes_are_executed_once_in_total() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = two_nodes(&cluster, &upstream).await;
    let claims = |labels: &[(&str, &str)]| {
        let count =
            |node: &RunningServer| node.handle.metrics().sum("firstflight_claims_total", labels);
        count(&a) + count(&b)
    };
    let (mut races, mut executed) = (Vec::new(), 0);
    while executed < 10 {
        let target = format!("/race?{}.", races.len());
        let (won, all) = (claims(&[("result", "won")]), claims(&[]));
        let flight = first_flight(a.address, remembered(a.address).await, &target).await;
        let copies = [a.address, b.address].map(|node| {
            let flight = flight.clone();
            tokio::spawn(async move { (replay(node, &flight).await, send(node, &flight).await) })
        });
        let mut open = Vec::new();
        for copy in copies {
            open.push(copy.await.unwrap());
        }
        let decided = async {
            while claims(&[("result", "won")]) == won && claims(&[]) < all + 2.0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(TEST_TIMEOUT, decided).await.expect("the claims are decided");
        // On a busy machine a claim may come too late to run anywhere, and this test does not
        // retry.
        if claims(&[("result", "won")]) > won {
            upstream.wait_for(&target).await;
            executed += 1;
        }
        races.push(target);
        assert!(races.len() < 100, "nearly all claims come too late");
    }
    a.stop().await;
    b.stop().await;
    for target in &races {
        assert!(upstream.recorded(target).len() <= 1, "{target}");
    }
    let recorded: usize = races.iter().map(|target| upstream.recorded(target).len()).sum();
    assert_eq!(recorded, 10, "one execution for each claim that was won");
}

/// Sends a request in a first flight that the server refuses, and sends it again as clients do.
async fn send_refused(node: &RunningServer, remembered: Remembered, target: &str) -> StatusCode {
    let mut client = Quic::refused(node.address, remembered, target).await;
    let status = client.get(target).await.status;
    client.close().await;
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_store_a_node_refuses_early_data_and_executes_nothing_unrecorded() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let mut cluster = Cluster::new();
    let node = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let mut flights = Vec::new();
    for _ in 0..3 {
        flights.push(remembered(node.address).await);
    }
    cluster.store.kill();
    for (round, remembered) in flights.into_iter().enumerate() {
        let status = send_refused(&node, remembered, &format!("/absent?{round}.")).await;
        assert_eq!(status, StatusCode::TOO_EARLY);
    }
    let log = node.stop().await;
    for round in 0..3 {
        let word = format!("/absent?{round}.");
        assert_eq!((upstream.recorded(&word).len(), executions(&log, &word)), (0, 0), "{word}");
        let line = line(&log, &word);
        assert_eq!((&line["early"], &line["resumed"]), (&false.into(), &true.into()));
        assert_eq!(line["early_data"], "store_down", "{line}");
    }
}

/// An attacker delays the second datagram of a ClientHello. TLS measures the ticket's age when it
/// has arrived, so the exact time must not be computed from the first one.
#[tokio::test(flavor = "multi_thread")]
async fn the_record_of_a_flight_does_not_end_earlier_if_its_client_hello_is_slow() {
    const PAUSE: Duration = Duration::from_secs(2);
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let node = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let mut remembered = Remembered { token: None, ..remembered(node.address).await };
    let resumption = remembered.resumption.as_mut().unwrap();
    // TLS refuses its early data. No other flight's record lives as long.
    resumption.session = resumption.session.issued_earlier(100).unwrap();
    let relay = UdpRelay::to(node.address).await;
    relay.delay_after_next_client_datagram(PAUSE);
    let arrived_at = SteadyClock::unix_micros() + PAUSE.as_micros() as i64;
    let mut client = Quic::refused_over(relay, "localhost", remembered, "/slow").await;
    assert_eq!(client.get("/slow").await.status, StatusCode::OK);
    let remaining = cluster.longest_record();
    let ends_at = SteadyClock::unix_micros() + remaining.as_micros() as i64;
    client.close().await;
    let log = node.stop().await;
    assert_eq!((upstream.recorded("/slow").len(), executions(&log, "/slow")), (1, 1));
    let slow = line(&log, "/slow");
    assert_eq!(slow["early_data"], "ticket_age_skew", "{slow}");
    let skew = slow["ticket_age_skew"].as_i64().unwrap();
    let lifetime = SharedConfig::default().record_lifetime();
    let missing = arrived_at + skew * 1_000_000 + lifetime.as_micros() as i64 - ends_at;
    // The store has its own clock, and a resolution of milliseconds.
    assert!(missing < PAUSE.as_micros() as i64 / 2, "the record ends {missing} us early");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_store_times_out_and_nothing_unrecorded_runs() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new().budget(Duration::from_millis(100));
    let node = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let remembered = remembered(node.address).await;
    cluster.store.freeze();
    let flight = Remembered { token: None, ..remembered };
    assert_eq!(send_refused(&node, flight, "/frozen").await, StatusCode::TOO_EARLY);
    let log = node.stop().await;
    assert_eq!((upstream.recorded("/frozen").len(), executions(&log, "/frozen")), (0, 0));
    let why = line(&log, "/frozen")["early_data"].as_str().unwrap();
    assert!(["store_timeout", "store_down"].contains(&why), "{why}");
}

/// A rejection would say that nobody has executed the request, but a copy may have been executed on
/// another node.
#[tokio::test(flavor = "multi_thread")]
async fn rfc9114_5_2_a_goaway_rejects_no_request_while_its_flight_is_unrecorded() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new().budget(Duration::from_millis(100));
    let node = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let flight = Remembered { token: None, ..remembered(node.address).await };
    cluster.store.freeze();
    let mut client = Quic::refused(node.address, flight, "/first").await;
    let first = client.send_head(request(Method::GET, "/first"), true).await;
    node.handle.stop();
    let mut waiting = Vec::new();
    // From a GOAWAY on, the library sends no further request.
    let receives_goaway = async {
        while let Ok(stream) = client.requests.send_request(request(Method::GET, "/probe")).await {
            waiting.push(stream);
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, receives_goaway).await.expect("a GOAWAY comes");
    // As if its packet had been lost before.
    let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
    send.write_all(&head("GET", "/second")).await.unwrap();
    send.finish().unwrap();
    let second = timeout(TEST_TIMEOUT, recv.read_to_end(4096)).await.unwrap();
    assert!(second.is_ok(), "{second:?}");
    assert_eq!(reply(first).await.unwrap().status, StatusCode::TOO_EARLY);
    drop(waiting);
    client.close().await;
    let log = node.stop().await;
    for target in ["/first", "/second"] {
        assert_eq!((upstream.recorded(target).len(), executions(&log, target)), (0, 0));
    }
    assert_eq!(line(&log, "/second")["status"], 425);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_use_ticket_is_used_once() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let single_use = |config: &mut ServerConfig| config.tickets.single_use = true;
    let a = cluster.start(Content::upstream(&upstream.url()).unwrap(), single_use).await;
    let b = cluster.start(Content::upstream(&upstream.url()).unwrap(), single_use).await;
    cluster.wait_for_early_data(&a, "http/1.1").await;
    cluster.wait_for_early_data(&b, "http/1.1").await;
    let ticket = remembered(a.address).await;
    let again = Remembered { token: None, ..ticket.clone() };
    let mut client = Quic::connect(b.address, ticket).await;
    assert_eq!(client.get("/single").await.status, StatusCode::OK);
    assert!(client.accepted().await);
    client.close().await;
    assert_eq!(send_refused(&a, again, "/again").await, StatusCode::OK);
    // A single-use ticket resumes once without early data, too.
    let late = Remembered { early_data: false, token: None, ..remembered(a.address).await };
    for (round, resumed) in [(1, true), (2, false)] {
        let mut client = Quic::connect(b.address, late.clone()).await;
        assert_eq!(client.get(&format!("/late?{round}")).await.status, StatusCode::OK);
        assert_eq!(client.handshake().resumed, resumed, "round {round}");
        client.close().await;
    }
    let (a, b) = (a.stop().await, b.stop().await);
    assert_eq!(executions(&b, "/single"), 1);
    assert_eq!(line(&b, "/single")["early_data"], "accepted");
    let again = line(&a, "/again");
    assert_eq!((&again["resumed"], &again["executed"]), (&false.into(), &true.into()), "{again}");
}

/// The Retry token of a server that validates every address, for another port than the one it is
/// used from.
async fn retry_token(server: SocketAddr, flight: &[Vec<u8>]) -> Vec<u8> {
    let socket = send(server, &flight[..1]).await;
    let mut retry = vec![0; 2000];
    let count = timeout(TEST_TIMEOUT, socket.recv(&mut retry)).await.unwrap().unwrap();
    let retry = &retry[..count];
    assert_eq!(retry[0] & 0xf0, 0xf0, "a Retry");
    let source = 6 + usize::from(retry[5]);
    retry[source + 1 + usize::from(retry[source])..count - 16].to_vec()
}

/// The attacker's ClientHello is recorded before quinn drops its packet because the token is for
/// another port. Then quinn reads a copy of the victim's ClientHello. The attacker's flight is
/// fresh, so its claim is won.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_does_not_run_on_the_claim_of_another_flight() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = two_nodes(&cluster, &upstream).await;
    let strict = |config: &mut ServerConfig| config.http3.retry_above = 0;
    let c = cluster.start(Content::upstream(&upstream.url()).unwrap(), strict).await;
    let mut targets = Vec::new();
    for round in 0..3 {
        let (target, victim, relay) = send_accepted(&b, &format!("/victim?{round}.")).await;
        let copy = relay.client_datagrams();
        victim.close().await;
        targets.push(target);
        let attackers = Remembered { token: None, ..remembered(a.address).await };
        let own = first_flight(a.address, attackers, "/attacker").await;
        let token = retry_token(c.address, &own).await;
        let (id, _) = client_hello(&copy);
        let (_, own) = client_hello(&own);
        let mut payload = crypto_frame(0, &own);
        payload.resize(payload.len().max(1200), 0);
        let mut attack = vec![initial_packet(&id, &token, 0, &payload)];
        attack.extend(copy);
        let socket = send(a.address, &attack).await;
        // The server first closes the connection that came with the token, then it starts a
        // handshake with the copy.
        let mut response = vec![0; 2000];
        let mut longest = 0;
        while longest < 1200 {
            let received = timeout(TEST_TIMEOUT, socket.recv(&mut response)).await;
            longest = longest.max(received.expect("the copy gets a response").unwrap());
        }
    }
    a.stop().await;
    b.stop().await;
    c.stop().await;
    for target in &targets {
        assert_eq!(upstream.recorded(target).len(), 1, "{target}");
    }
    assert!(upstream.recorded("/attacker").is_empty());
}
