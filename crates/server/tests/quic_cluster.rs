//! Two servers that share a real store and their ticket keys, over QUIC: a flight is executed once
//! over both, an address token counts once, and a rush of strangers is asked for its addresses.

mod rig;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use firstflight_quic::foreign::{crypto_frame, initial_packet};
use firstflight_quic::{FirstFlight, FirstFlights, FirstFlightsLimits, Remembered};
use firstflight_server::{Content, ServerConfig};
use http::{Method, StatusCode};
use rig::cluster::Cluster;
use rig::quic::{Quic, Wire, remembered, reply, request};
use rig::{PATIENCE, Rig, Upstream, executions, line};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

/// Sends datagrams from an address of its own.
async fn send(server: SocketAddr, datagrams: &[Vec<u8>]) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    for datagram in datagrams {
        socket.send_to(datagram, server).await.unwrap();
    }
    socket
}

/// The same, and waits until the server answers: it has seen the flight then. To a server that has
/// the connection already, it is the connection's, from a strange address, and nothing is answered.
async fn replay(server: SocketAddr, datagrams: &[Vec<u8>]) -> UdpSocket {
    let socket = send(server, datagrams).await;
    let mut answer = [0; 2000];
    timeout(PATIENCE, socket.recv(&mut answer)).await.expect("the server answers").unwrap();
    socket
}

/// A client's first flight with this request, which reached nobody: what it sent until nothing came
/// for a while.
async fn first_flight(server: SocketAddr, remembered: Remembered, target: &str) -> Vec<Vec<u8>> {
    let wire = Wire::to(server).await;
    wire.lose_up(true);
    let mut client = Quic::connect_small(wire.address, remembered).await;
    let _stream = client.begin(request(Method::GET, target), true).await;
    gathered(&wire).await
}

/// What the client has sent, once it waits for an answer.
async fn gathered(wire: &Wire) -> Vec<Vec<u8>> {
    // A long header of type 0-RTT.
    while !wire.up().iter().any(|datagram| has_early(datagram)) {
        sleep(Duration::from_millis(1)).await;
    }
    loop {
        let before = wire.up().len();
        sleep(Duration::from_millis(20)).await;
        let all = wire.up();
        if all.len() == before {
            return all;
        }
    }
}

fn has_early(datagram: &[u8]) -> bool {
    // 0-RTT packets may follow an Initial packet in its datagram; that is at least 600 bytes long.
    datagram[0] & 0xf0 == 0xd0 || datagram.len() > 600 && datagram[0] & 0xf0 != 0xc0
}

fn bytes(datagrams: &[Vec<u8>]) -> usize {
    datagrams.iter().map(Vec::len).sum()
}

async fn two(cluster: &Cluster, upstream: &Upstream) -> (Rig, Rig) {
    let nodes = (cluster.node(upstream).await, cluster.node(upstream).await);
    cluster.runs_early(&nodes.0, "http/1.1").await;
    cluster.runs_early(&nodes.1, "http/1.1").await;
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_2_a_flight_runs_once_over_all_nodes() {
    let upstream = Upstream::start().await;
    let cluster = Cluster::new();
    let (a, b) = two(&cluster, &upstream).await;
    for round in 0..5 {
        let target = format!("/once?{round}.");
        let wire = Wire::to(a.address).await;
        // With a token that was used, a copy would get no further than to a Retry.
        let remembered = Remembered { token: None, ..remembered(a.address).await };
        let mut client = Quic::connect(wire.address, remembered).await;
        assert_eq!(client.get(&target).await.status, StatusCode::OK);
        assert!(client.accepted().await, "round {round}");
        let sent = wire.up();
        let mut open = Vec::new();
        open.push(replay(b.address, &sent).await);
        open.push(send(a.address, &sent).await);
        client.close().await;
    }
    let (a, b) = (a.stop().await, b.stop().await);
    for round in 0..5 {
        let word = format!("/once?{round}.");
        assert_eq!(upstream.seen(&word).len(), 1, "{word}");
        assert_eq!((executions(&a, &word), executions(&b, &word)), (1, 0), "{word}");
    }
    let copies = a.iter().chain(&b).filter(|l| l["target"].as_str().unwrap().contains("/once"));
    let copies = copies.filter(|line| line["executed"] == false).collect::<Vec<_>>();
    assert_eq!(copies.len(), 5, "the copies got as far as the gate");
    assert!(copies.iter().all(|l| l["claim"] == "lost" && l["held"] == "replayed"), "{copies:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_an_original_that_a_copy_overtook_on_another_node_is_answered_425() {
    let upstream = Upstream::start().await;
    let cluster = Cluster::new();
    let (a, b) = two(&cluster, &upstream).await;
    let wire = Wire::to(a.address).await;
    wire.lose_up(true);
    let mut client = Quic::connect(wire.address, remembered(a.address).await).await;
    let stream = client.begin(request(Method::GET, "/overtaken"), true).await;
    let copy = replay(b.address, &gathered(&wire).await).await;
    upstream.wait_for("/overtaken").await;
    wire.lose_up(false);
    let answer = reply(stream).await.unwrap();
    assert_eq!(answer.status, StatusCode::TOO_EARLY);
    drop(copy);
    let (a, b) = (a.stop().await, b.stop().await);
    assert_eq!(upstream.seen("/overtaken").len(), 1);
    assert_eq!((executions(&a, "/overtaken"), executions(&b, "/overtaken")), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_race_the_original_on_both_nodes_execute_once_in_all() {
    let upstream = Upstream::start().await;
    let cluster = Cluster::new();
    let (a, b) = two(&cluster, &upstream).await;
    for round in 0..10 {
        let target = format!("/race?{round}.");
        let flight = first_flight(a.address, remembered(a.address).await, &target).await;
        let copies = [a.address, b.address].map(|node| {
            let flight = flight.clone();
            tokio::spawn(async move { (replay(node, &flight).await, send(node, &flight).await) })
        });
        let mut open = Vec::new();
        for copy in copies {
            open.push(copy.await.unwrap());
        }
        upstream.wait_for(&target).await;
    }
    a.stop().await;
    b.stop().await;
    for round in 0..10 {
        assert_eq!(upstream.seen(&format!("/race?{round}.")).len(), 1, "round {round}");
    }
}

/// Sends a request in the first flight, which the server refuses, and again as the client has to.
async fn refused(node: &Rig, remembered: Remembered, target: &str) {
    let mut client = Quic::refused(node.address, remembered, target).await;
    assert_eq!(client.get(target).await.status, StatusCode::OK);
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_store_a_node_refuses_by_tls_and_loses_no_request() {
    let upstream = Upstream::start().await;
    let mut cluster = Cluster::new();
    let node = cluster.node(&upstream).await;
    cluster.runs_early(&node, "http/1.1").await;
    cluster.store.kill();
    for round in 0..3 {
        let remembered = remembered(node.address).await;
        refused(&node, remembered, &format!("/absent?{round}.")).await;
    }
    let log = node.stop().await;
    for round in 0..3 {
        let word = format!("/absent?{round}.");
        assert_eq!((upstream.seen(&word).len(), executions(&log, &word)), (1, 1), "{word}");
        let line = line(&log, &word);
        assert_eq!((&line["early"], &line["resumed"]), (&false.into(), &true.into()));
        assert_eq!(line["early_data"], "store_absent", "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_store_is_slow_and_costs_no_request() {
    let upstream = Upstream::start().await;
    let cluster = Cluster::new().budget(Duration::from_millis(100));
    let node = cluster.node(&upstream).await;
    cluster.runs_early(&node, "http/1.1").await;
    let remembered = remembered(node.address).await;
    cluster.store.freeze();
    let flight = Remembered { token: None, ..remembered };
    refused(&node, flight, "/frozen").await;
    let log = node.stop().await;
    assert_eq!((upstream.seen("/frozen").len(), executions(&log, "/frozen")), (1, 1));
    assert_eq!(line(&log, "/frozen")["early_data"], "store_slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_use_ticket_is_used_once() {
    let upstream = Upstream::start().await;
    let cluster = Cluster::new();
    let single = |config: &mut ServerConfig| config.tickets.single_use = true;
    let a = cluster.start(Content::Upstream(upstream.url()), single).await;
    let b = cluster.start(Content::Upstream(upstream.url()), single).await;
    cluster.runs_early(&a, "http/1.1").await;
    cluster.runs_early(&b, "http/1.1").await;
    let ticket = remembered(a.address).await;
    let again = Remembered { token: None, ..ticket.clone() };
    let mut client = Quic::connect(b.address, ticket).await;
    assert_eq!(client.get("/single").await.status, StatusCode::OK);
    assert!(client.accepted().await);
    client.close().await;
    refused(&a, again, "/again").await;
    // Without early data it is still a resumption, once.
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

/// What the server sends to a client's first flight that it hears nothing after: how much, and
/// whether it begins with a Retry.
async fn answered(server: SocketAddr, flight: &[Vec<u8>]) -> (usize, bool) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    for datagram in flight {
        socket.send_to(datagram, server).await.unwrap();
    }
    let (mut all, mut buffer) = (Vec::new(), vec![0; 65_536]);
    let mut patience = PATIENCE;
    while let Ok(count) = timeout(patience, socket.recv(&mut buffer)).await {
        all.push(buffer[..count.unwrap()].to_vec());
        patience = Duration::from_millis(300);
    }
    (bytes(&all), all[0][0] & 0xf0 == 0xf0)
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9000_8_1_4_an_address_token_counts_once_in_the_whole_cluster() {
    let cluster = Cluster::new();
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("big"), vec![b'x'; 1 << 20]).unwrap();
    std::fs::write(root.path().join("index.html"), "hello\n").unwrap();
    let files = || Content::Files(root.path().to_owned());
    let a = cluster.start(files(), |_| {}).await;
    let b = cluster.start(files(), |_| {}).await;
    cluster.runs_early(&a, "http/1.1").await;
    cluster.runs_early(&b, "http/1.1").await;
    let token = remembered(a.address).await.token;
    let flight = async |token: Option<_>| {
        let remembered = Remembered { token, ..remembered(a.address).await };
        first_flight(a.address, remembered, "/big").await
    };
    // Without a token, a stranger is sent three times what he sent; the library fills the datagram
    // that crosses the line.
    let stranger = flight(None).await;
    let (count, retry) = answered(b.address, &stranger).await;
    let limit = |flight: &[Vec<u8>]| 3 * bytes(flight) + 1200;
    assert!(count <= limit(&stranger) && !retry, "{count} of {}", bytes(&stranger));
    // Issued by one node, accepted by another.
    let first = flight(token.clone()).await;
    let (count, retry) = answered(b.address, &first).await;
    assert!(count > limit(&first) && !retry, "{count} of {}", bytes(&first));
    // The node that has accepted it knows by itself.
    let second = flight(token.clone()).await;
    let (count, retry) = answered(b.address, &second).await;
    assert!(count <= limit(&second) && !retry, "{count} of {}", bytes(&second));
    // The other one asks the store, and then the client for its address.
    let third = flight(token).await;
    let (_, retry) = answered(a.address, &third).await;
    assert!(retry, "spent elsewhere");
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9000_8_1_2_after_a_retry_early_data_is_claimed_and_runs() {
    let upstream = Upstream::start().await;
    let cluster = Cluster::new();
    let strict = |config: &mut ServerConfig| config.http3.retry_above = 0;
    let shared = cluster.start(Content::Upstream(upstream.url()), strict).await;
    cluster.runs_early(&shared, "http/1.1").await;
    let alone = Rig::proxy(&upstream, strict).await;
    for (name, node) in [("shared", shared), ("alone", alone)] {
        let known = remembered(node.address).await;
        let stranger = Remembered { token: None, ..remembered(node.address).await };
        for (word, remembered, retried) in [("known", known, false), ("stranger", stranger, true)] {
            let target = format!("/{name}-{word}");
            let wire = Wire::to(node.address).await;
            let mut client = Quic::connect(wire.address, remembered).await;
            assert_eq!(client.get(&target).await.status, StatusCode::OK);
            assert!(client.accepted().await, "{target}");
            // Each datagram of a ClientHello may be answered by one; the client takes the first.
            let seen = wire.down().iter().any(|datagram| datagram[0] & 0xf0 == 0xf0);
            assert_eq!(seen, retried, "{target}");
            client.close().await;
        }
        let log = node.stop().await;
        for word in ["known", "stranger"] {
            let target = format!("/{name}-{word}");
            let line = line(&log, &target);
            assert_eq!(
                (&line["early_data"], &line["executed"]),
                (&"accepted".into(), &true.into())
            );
            assert_eq!(upstream.seen(&target).len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn above_its_bound_a_server_answers_no_more_strangers() {
    let rig = Rig::files(|config| config.http3.refuse_above = 1).await;
    // A handshake that does not go on.
    let stuck = Wire::to(rig.address).await;
    stuck.hold_down();
    let address = stuck.address;
    let first = tokio::spawn(async move { Quic::connect(address, Remembered::default()).await });
    while stuck.down().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    let ignored = Wire::to(rig.address).await;
    let address = ignored.address;
    let second = tokio::spawn(async move { Quic::connect(address, Remembered::default()).await });
    // A flight, and another after the client has waited in vain.
    while ignored.up().len() < 4 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(ignored.down().is_empty(), "not a word");
    stuck.release_down().await;
    for client in [first, second] {
        let mut client = timeout(PATIENCE, client).await.expect("there is room again").unwrap();
        assert_eq!(client.get("/").await.status, StatusCode::OK);
    }
    rig.stop().await;
}

/// The connection id of a first flight, and its ClientHello.
fn client_hello(datagrams: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let mut flights = FirstFlights::new(FirstFlightsLimits::default());
    let remote = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let id = datagrams.iter().find_map(|sent| flights.see(remote, sent, Duration::ZERO));
    let id = id.expect("a whole ClientHello");
    match flights.take(remote, &id) {
        FirstFlight::Whole { client_hello, .. } => (id.to_vec(), client_hello),
        other => panic!("{other:?}"),
    }
}

/// A Retry's token from a server that asks everybody, for another port than it will be used from.
async fn retry_token(server: SocketAddr, flight: &[Vec<u8>]) -> Vec<u8> {
    let socket = send(server, &flight[..1]).await;
    let mut retry = vec![0; 2000];
    let count = timeout(PATIENCE, socket.recv(&mut retry)).await.unwrap().unwrap();
    let retry = &retry[..count];
    assert_eq!(retry[0] & 0xf0, 0xf0, "a Retry");
    let source = 6 + usize::from(retry[5]);
    retry[source + 1 + usize::from(retry[source])..count - 16].to_vec()
}

/// The attacker has a ClientHello of his own read beside quinn, which drops its packet for the
/// token of another port, and has quinn read a copy of the victim's. His own flight is fresh, so
/// its claim is won.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_does_not_run_on_the_claim_of_another_flight() {
    let upstream = Upstream::start().await;
    let cluster = Cluster::new();
    let (a, b) = two(&cluster, &upstream).await;
    let strict = |config: &mut ServerConfig| config.http3.retry_above = 0;
    let c = cluster.start(Content::Upstream(upstream.url()), strict).await;
    for round in 0..3 {
        let target = format!("/victim?{round}.");
        let wire = Wire::to(b.address).await;
        let victims = Remembered { token: None, ..remembered(b.address).await };
        let mut victim = Quic::connect(wire.address, victims).await;
        assert_eq!(victim.get(&target).await.status, StatusCode::OK);
        assert!(victim.accepted().await);
        let copy = wire.up();
        victim.close().await;
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
        // First it closes what came with the token, then it begins a handshake with the copy.
        let mut answer = vec![0; 2000];
        let mut longest = 0;
        while longest < 1200 {
            let answered = timeout(PATIENCE, socket.recv(&mut answer)).await;
            longest = longest.max(answered.expect("the copy is answered").unwrap());
        }
    }
    a.stop().await;
    b.stop().await;
    c.stop().await;
    for round in 0..3 {
        assert_eq!(upstream.seen(&format!("/victim?{round}.")).len(), 1, "round {round}");
    }
    assert!(upstream.seen("/attacker").is_empty());
}

/// ngtcp2's client: another stack's Initial packets, read, retried and claimed.
#[tokio::test(flavor = "multi_thread")]
async fn another_stacks_client_is_asked_for_its_address_and_runs_early() {
    let upstream = Upstream::start().await;
    let cluster = Cluster::new();
    let strict = |config: &mut ServerConfig| config.http3.retry_above = 0;
    let node = cluster.start(Content::Upstream(upstream.url()), strict).await;
    cluster.runs_early(&node, "http/1.1").await;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let ask = async |target: &str| {
        let mut client = std::process::Command::new("timeout");
        client.args(["30", "gtlsclient", "--exit-on-all-streams-close", "--no-quic-dump"]);
        // Of its tokens this version says that it cannot read the files it has written.
        for flag in ["session-file", "tp-file"] {
            client.arg(format!("--{flag}={}", file(flag)));
        }
        client.arg("127.0.0.1").arg(node.address.port().to_string());
        client.arg(format!("https://localhost{target}"));
        let output = tokio::task::spawn_blocking(move || client.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        said
    };
    let said = ask("/stranger").await;
    assert!(said.contains("Retry"), "{said}");
    let said = ask("/resumed").await;
    assert!(said.contains("Retry"), "{said}");
    let log = node.stop().await;
    assert_eq!(line(&log, "/stranger")["early_data"], "no_session_offered");
    let line = line(&log, "/resumed");
    assert_eq!((&line["early_data"], &line["executed"]), (&"accepted".into(), &true.into()));
    assert_eq!(upstream.seen("/resumed").len(), 1);
}
