//! Two servers that share a real store and their ticket keys. A flight is executed once over both.
//! Without the store's reply its early data is refused, and the request runs after the handshake.

use std::time::{Duration, Instant, SystemTime};

use firstflight_config::{Content, KeySource};
use firstflight_testkit::skipped_without;
use firstflight_tickets::{KeyFile, Schedule, UnixTime};
use firstflight_tls::{EarlyData, Session};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::cluster::{Cluster, replay_until_lost, request, send_accepted};
use crate::support::quic::{Quic, first_visit};
use crate::support::{
    Client, RunningServer, TEST_TIMEOUT, executions, fetch, get, line, lines, replay,
    start_upstream, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_2_a_flight_is_executed_once_over_all_nodes() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = (cluster.node(&upstream).await, cluster.node(&upstream).await);
    let mut targets = Vec::new();
    for alpn in ["http/1.1", "h2"] {
        cluster.wait_for_early_data(&a, alpn).await;
        cluster.wait_for_early_data(&b, alpn).await;
        for round in 0..5 {
            let prefix = format!("/once?{alpn}.{round}.");
            let (target, client, _tcp) =
                send_accepted(&a, alpn, &prefix, |target| request(alpn, target)).await;
            let mut open = Vec::new();
            for node in [&b, &a, &b] {
                open.push(replay_until_lost(node, &client.flight).await);
            }
            upstream.wait_for(&target).await;
            drop(open);
            targets.push(target);
        }
    }
    let (a, b) = (a.stop().await, b.stop().await);
    for target in &targets {
        assert_eq!(upstream.recorded(target).len(), 1, "{target}");
        assert_eq!((executions(&a, target), executions(&b, target)), (1, 0), "{target}");
    }
    let lines_of_b: Vec<_> =
        b.iter().filter(|l| l["target"].as_str().unwrap().contains("/once")).collect();
    assert_eq!(lines_of_b.len(), 2 * 2 * 5, "the copies reached the gate");
    assert!(
        lines_of_b.iter().all(|l| l["claim"] == "lost" && l["held"] == "replayed"),
        "{lines_of_b:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_an_original_overtaken_by_a_copy_on_another_node_gets_425() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = (cluster.node(&upstream).await, cluster.node(&upstream).await);
    cluster.wait_for_early_data(&a, "http/1.1").await;
    cluster.wait_for_early_data(&b, "http/1.1").await;
    let end = Instant::now() + TEST_TIMEOUT;
    let mut attempt = 0;
    let (target, client, copy) = loop {
        assert!(Instant::now() < end, "no copy was accepted");
        let target = format!("/overtaken.{attempt}.");
        let session = a.session("http/1.1").await;
        let client = Client::prepare("http/1.1", Some(&session), &get(&target));
        let copy = replay(b.address, &client.flight).await;
        // The copy does not run if its claim exceeds the store's budget.
        if timeout(Duration::from_secs(2), upstream.wait_for(&target)).await.is_ok() {
            break (target, client, copy);
        }
        attempt += 1;
    };
    let response = client.run(a.address).await;
    assert!(response.starts_with("HTTP/1.1 425"), "{response}");
    drop(copy);
    let (a, b) = (a.stop().await, b.stop().await);
    assert_eq!(upstream.recorded(&target).len(), 1);
    assert_eq!((executions(&a, &target), executions(&b, &target)), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_race_the_original_on_both_nodes_are_executed_once_in_total() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = (cluster.node(&upstream).await, cluster.node(&upstream).await);
    cluster.wait_for_early_data(&a, "http/1.1").await;
    cluster.wait_for_early_data(&b, "http/1.1").await;
    let claims_won = || {
        let won = [("result", "won")];
        let count =
            |node: &RunningServer| node.handle.metrics().sum("firstflight_claims_total", &won);
        count(&a) + count(&b)
    };
    let (mut races, mut executed) = (Vec::new(), 0);
    while executed < 20 {
        let round = races.len();
        let target = format!("/race?{round}.");
        let session = a.session("http/1.1").await;
        let won_before = claims_won();
        let client = Client::prepare("http/1.1", Some(&session), &get(&target));
        let copies: Vec<_> = [b.address, a.address, b.address]
            .map(|node| {
                let flight = client.flight.clone();
                tokio::spawn(async move { replay(node, &flight).await })
            })
            .into();
        let response = client.run([a.address, b.address][round % 2]).await;
        let mut open = Vec::new();
        for copy in copies {
            open.push(copy.await.unwrap());
        }
        // On a machine that stalls, a claim may come too late to run anywhere.
        if claims_won() > won_before {
            upstream.wait_for(&target).await;
            executed += 1;
        }
        drop(open);
        let status = response.get(9..12).unwrap_or_default();
        assert!(
            ["200", "425"].contains(&status),
            "the honest client gets a response: {response:?}"
        );
        races.push(target);
        assert!(races.len() < 100, "nearly all claims come too late");
    }
    a.stop().await;
    b.stop().await;
    for target in &races {
        assert!(upstream.recorded(target).len() <= 1, "{target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_store_a_node_refuses_early_data_and_executes_nothing_unrecorded() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let mut cluster = Cluster::new();
    let node = cluster.node(&upstream).await;
    for alpn in ["http/1.1", "h2"] {
        cluster.wait_for_early_data(&node, alpn).await;
    }
    let mut sessions = Vec::new();
    for alpn in ["http/1.1", "h2"] {
        for _ in 0..5 {
            sessions.push(node.session(alpn).await);
        }
    }
    cluster.store.kill();
    for alpn in ["http/1.1", "h2"] {
        for round in 0..5 {
            let target = format!("/absent?{alpn}.{round}.");
            let session = sessions.remove(0);
            let mut client = Client::prepare(alpn, Some(&session), &request(alpn, &target));
            let copy = replay(node.address, &client.flight).await;
            let mut tcp = TcpStream::connect(node.address).await.unwrap();
            client.handshake(&mut tcp).await;
            assert_eq!(client.machine.facts().early_data, EarlyData::Refused);
            assert!(client.machine.facts().resumed);
            // What the client resends gets 425.
            let response = client.read_until(&mut tcp, |bytes| !bytes.is_empty()).await;
            assert!(!response.is_empty());
            drop(copy);
        }
    }
    // The store restarts empty: claims may be lost, so none count during the recording window.
    cluster.store.restart();
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        assert!(Instant::now() < end, "the node does not reconnect to its store");
        let sessions = node.sessions_of("localhost", "http/1.1").await;
        let Some(session) = sessions.iter().find(|session| session.early_data_capable()) else {
            continue;
        };
        let client = Client::prepare("http/1.1", Some(session), &get("/window"));
        let response = client.run(node.address).await;
        let status = response.get(9..12).unwrap_or_default();
        assert!(["200", "425"].contains(&status), "{response}");
        let log = lines(&node.dir.path().join("access.log"));
        if log.iter().any(|line| line["early_data"] == "store_window") {
            assert_eq!(
                status, "200",
                "the store has the record, though its claims do not count yet"
            );
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let log = node.stop().await;
    for alpn in ["http/1.1", "h2"] {
        for round in 0..5 {
            let word = format!("/absent?{alpn}.{round}.");
            assert_eq!((upstream.recorded(&word).len(), executions(&log, &word)), (0, 0), "{word}");
            let line = line(&log, &word);
            assert_eq!((&line["early"], &line["resumed"]), (&false.into(), &true.into()));
            assert_eq!(line["early_data"], "store_down", "{line}");
            assert_eq!((&line["status"], &line["executed"]), (&425.into(), &false.into()));
        }
    }
    let windows = log.iter().filter(|line| line["target"] == "/window");
    assert!({ windows }.all(|line| line["early"] == false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_store_times_out_and_then_counts_as_absent_and_nothing_unrecorded_runs() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new().budget(Duration::from_millis(100));
    let node = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let mut sessions = Vec::new();
    for _ in 0..10 {
        sessions.push(node.session("http/1.1").await);
    }
    cluster.store.freeze();
    for (round, session) in sessions.iter().enumerate() {
        let target = format!("/frozen?{round}.");
        let client = Client::prepare("http/1.1", Some(session), &get(&target));
        // The frozen store has no record of the copy.
        let copy = replay(node.address, &client.flight).await;
        let response = client.run(node.address).await;
        assert!(response.starts_with("HTTP/1.1 425"), "{response}");
        drop(copy);
    }
    cluster.store.thaw();
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let log = node.stop().await;
    for round in 0..10 {
        let word = format!("/frozen?{round}.");
        assert_eq!((upstream.recorded(&word).len(), executions(&log, &word)), (0, 0), "{word}");
        let why = line(&log, &word)["early_data"].as_str().unwrap().to_owned();
        assert!(["store_timeout", "store_down"].contains(&why.as_str()), "{word}: {why}");
    }
}

/// Each offer of early data would end with a 425, which not all clients repeat.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_4_6_1_tickets_allow_no_early_data_while_the_store_is_unreachable() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let mut cluster = Cluster::new();
    let node = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let early = node.session("http/1.1").await;
    cluster.store.kill();
    let client = Client::prepare("http/1.1", Some(&early), &get("/early"));
    let response = client.run(node.address).await;
    assert!(response.starts_with("HTTP/1.1 425"), "{response}");
    // The node knows now that the store is unreachable.
    let sessions = node.sessions_of("localhost", "http/1.1").await;
    assert!(!sessions.iter().any(|session| session.early_data_capable()));
    let mut client = Client::prepare("http/1.1", sessions.first(), b"");
    let mut tcp = TcpStream::connect(node.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(&get("/late"));
    let response = client.finish(&mut tcp).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let facts = client.machine.facts();
    assert_eq!((facts.resumed, facts.early_data), (true, EarlyData::NotOffered));
    let remembered = first_visit(node.address).await;
    assert!(!remembered.early_data);
    let mut client = Quic::connect(node.address, remembered).await;
    assert_eq!(client.get("/late-quic").await.status, 200);
    assert!(client.handshake().resumed);
    client.close().await;
    cluster.store.restart();
    cluster.wait_for_early_data(&node, "http/1.1").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_use_ticket_without_its_store_costs_a_full_handshake() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let mut cluster = Cluster::new();
    let content = Content::upstream(&upstream.url()).unwrap();
    let node = cluster.start(content, |config| config.tickets.single_use = true).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let session = node.session("http/1.1").await;
    cluster.store.kill();
    let client = Client::prepare("http/1.1", Some(&session), &get("/single"));
    let copy = replay(node.address, &client.flight).await;
    let response = client.run(node.address).await;
    // The session may have been taken by another node that reaches the store.
    assert!(response.starts_with("HTTP/1.1 425"), "{response}");
    drop(copy);
    let log = node.stop().await;
    assert_eq!((upstream.recorded("/single").len(), executions(&log, "/single")), (0, 0));
    let line = line(&log, "/single");
    assert_eq!((&line["resumed"], &line["early"]), (&false.into(), &false.into()), "{line}");
    assert_eq!(line["early_data"], "store_down", "{line}");
}

/// This node does not know the flight's exact time, and the node that issued the ticket can still
/// open it.
#[tokio::test(flavor = "multi_thread")]
async fn a_flight_on_a_ticket_that_cannot_be_opened_is_recorded_for_the_life_of_a_ticket() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let a = cluster.node(&upstream).await;
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("other");
    KeyFile::new(&keys).write_new(Schedule::default(), UnixTime::from(SystemTime::now())).unwrap();
    let content = Content::upstream(&upstream.url()).unwrap();
    let b = cluster.start(content, |config| config.tickets.keys = KeySource::File(keys)).await;
    cluster.wait_for_early_data(&a, "http/1.1").await;
    cluster.wait_for_early_data(&b, "http/1.1").await;
    let session = a.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/unopened"));
    let response = client.run(b.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let remaining = cluster.longest_record();
    let log = b.stop().await;
    assert_eq!(line(&log, "/unopened")["early_data"], "session_not_resumed");
    assert!(remaining >= Schedule::default().lifetime(), "{remaining:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_accepts_new_passwords_of_the_store_but_no_other_store() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let node = cluster.node(&upstream).await;
    let new_password = node.reload(|config| {
        config.store.as_mut().unwrap().password = Some("new".to_owned());
    });
    new_password.await.unwrap();
    let other_store = node.reload(|config| config.store.as_mut().unwrap().prefix.push('x'));
    let error = other_store.await.unwrap_err().to_string();
    assert!(error.contains("[store] cannot change"), "{error}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_needs_no_recording_window() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let first = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&first, "http/1.1").await;
    let session = first.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/before"));
    let flight = client.flight.clone();
    assert!(client.run(first.address).await.starts_with("HTTP/1.1 200"));
    first.stop().await;

    let second = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&second, "http/1.1").await;
    drop(replay_until_lost(&second, &flight).await);
    let log = second.stop().await;
    assert_eq!(upstream.recorded("/before").len(), 1);
    let copy = line(&log, "/before");
    assert_eq!((&copy["claim"], &copy["executed"]), (&"lost".into(), &false.into()), "{copy}");
    assert!(log.iter().all(|line| line["early_data"] != "ticket_epoch"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_3_a_stale_flight_is_refused_by_tls_and_still_recorded() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = (cluster.node(&upstream).await, cluster.node(&upstream).await);
    cluster.wait_for_early_data(&a, "http/1.1").await;
    cluster.wait_for_early_data(&b, "http/1.1").await;
    let session = a.session("http/1.1").await.issued_earlier(30).unwrap();
    let client = Client::prepare("http/1.1", Some(&session), &get("/stale"));
    let flight = client.flight.clone();
    let response = client.run(a.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    drop(replay(b.address, &flight).await);
    let (a, b) = (a.stop().await, b.stop().await);
    let honest = line(&a, "/stale");
    assert_eq!((&honest["early_data"], &honest["early"]), (&"age".into(), &false.into()));
    let copy = line(&b, "/stale");
    assert_eq!((&copy["claim"], &copy["executed"]), (&"lost".into(), &false.into()), "{copy}");
    assert_eq!(upstream.recorded("/stale").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_held_by_policy_runs_after_the_handshake() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let node = cluster.node(&upstream).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let post = |target: &str| {
        let fields = "Host: h\r\nContent-Length: 1\r\nConnection: close";
        format!("POST {target} HTTP/1.1\r\n{fields}\r\n\r\nx").into_bytes()
    };
    let (target, mut client, mut tcp) = send_accepted(&node, "http/1.1", "/pay?", post).await;
    let response = client.finish(&mut tcp).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    drop(replay(node.address, &client.flight).await);
    let log = node.stop().await;
    let (held, copies): (Vec<_>, Vec<_>) =
        log.iter().filter(|line| line["target"] == *target).partition(|l| l["executed"] == true);
    assert_eq!((held.len(), copies.len(), upstream.recorded(&target).len()), (1, 1, 1));
    assert_eq!((&held[0]["held"], &held[0]["claim"]), (&"policy".into(), &"won".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_are_claimed_too() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let cluster = Cluster::new();
    let a = cluster.start(Content::PingPong, |_| {}).await;
    let b = cluster.start(Content::PingPong, |_| {}).await;
    cluster.wait_for_early_data(&a, "ping-pong").await;
    cluster.wait_for_early_data(&b, "ping-pong").await;
    let ping = |_: &str| b"PING".to_vec();
    let (_, mut client, mut tcp) = send_accepted(&a, "ping-pong", "", ping).await;
    let pong = client.read_until(&mut tcp, |response| response.len() >= 4).await;
    assert_eq!(pong, b"PONG");
    drop(replay_until_lost(&b, &client.flight).await);
    let random = hex::encode(client.machine.facts().client_random);
    drop((client, tcp));
    let (a, b) = (a.stop().await, b.stop().await);
    let of_flight = |log: &[serde_json::Value]| {
        log.iter().filter(|line| line["client_random"] == *random).cloned().collect::<Vec<_>>()
    };
    let (ran, held) = (of_flight(&a), of_flight(&b));
    assert_eq!((ran.len(), held.len()), (1, 1));
    assert_eq!((&ran[0]["executed"], &ran[0]["claim"]), (&true.into(), &"won".into()));
    assert_eq!((&held[0]["executed"], &held[0]["held"]), (&false.into(), &"replayed".into()));
}

async fn sessions(node: &RunningServer, count: usize) -> Vec<Session> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        sessions.push(node.session("http/1.1").await);
    }
    sessions
}

/// Clients whose early data was refused because the store is frozen neither complete their handshakes
/// nor leave, until the server's time limit ends them.
#[tokio::test(flavor = "multi_thread")]
async fn a_flight_whose_handshake_takes_too_long_is_recorded_once_the_store_replies() {
    // More than the commands that reach the store while it is frozen and run later.
    const FLIGHTS: usize = 12;
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new().budget(Duration::from_millis(100));
    let content = Content::upstream(&upstream.url()).unwrap();
    let limit = Duration::from_secs(3);
    let node = cluster.start(content, |config| config.limits.header_timeout = limit).await;
    let sessions = sessions(&node, FLIGHTS).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let before = cluster.keys();
    cluster.store.freeze();
    let mut open = Vec::new();
    for session in &sessions {
        let client = Client::prepare("http/1.1", Some(session), &get("/late"));
        open.push(replay(node.address, &client.flight).await);
    }
    for mut tcp in open {
        let mut received = Vec::new();
        let ended = timeout(TEST_TIMEOUT, tcp.read_to_end(&mut received)).await;
        let _ = ended.expect("the server ends the connection");
    }
    cluster.store.thaw();
    until("all flights are recorded", || cluster.keys().difference(&before).count() >= FLIGHTS)
        .await;
    node.stop().await;
}

/// A client whose early data was refused by a frozen store leaves, as Chromium does, and sends its
/// request on another connection. Copies come when the store replies again.
#[tokio::test(flavor = "multi_thread")]
async fn a_flight_whose_client_disconnected_is_recorded_once_the_store_replies() {
    // More than the commands that reach the store while it is frozen and run later.
    const FLIGHTS: usize = 12;
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new().budget(Duration::from_millis(100));
    let node = cluster.node(&upstream).await;
    let sessions = sessions(&node, FLIGHTS).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let before = cluster.keys();
    cluster.store.freeze();
    let mut flights = Vec::new();
    for (number, session) in sessions.iter().enumerate() {
        let target = format!("/left/{number}.");
        let client = Client::prepare("http/1.1", Some(session), &get(&target));
        drop(replay(node.address, &client.flight).await);
        let response = fetch(node.address, &String::from_utf8(get(&target)).unwrap()).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        flights.push((client.flight, target));
    }
    cluster.store.thaw();
    // On a busy machine the records may come later: then the copies are too old.
    let end = Instant::now() + Duration::from_secs(10);
    while cluster.keys().difference(&before).count() < FLIGHTS && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let mut open = Vec::new();
    for (flight, _) in &flights {
        open.push(replay(node.address, flight).await);
    }
    drop(open);
    node.stop().await;
    for (_, target) in &flights {
        assert_eq!(upstream.recorded(target).len(), 1, "{target}");
    }
}
