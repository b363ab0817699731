//! Admission of QUIC connections: an address token counts once in a cluster, and under load clients
//! without a token get a Retry.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use firstflight_config::{Content, ServerConfig};
use firstflight_quic::Remembered;
use firstflight_testkit::skipped_without;
use http::StatusCode;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::support::cluster::Cluster;
use crate::support::flights::{bytes, first_flight};
use crate::support::quic::{Quic, UdpRelay, remembered};
use crate::support::{RunningServer, TEST_TIMEOUT, line, start_upstream, until};

/// The server's response to a first flight whose client sends nothing else: its size in bytes, and
/// whether it starts with a Retry.
async fn measure_response(server: SocketAddr, flight: &[Vec<u8>]) -> (usize, bool) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    for datagram in flight {
        socket.send_to(datagram, server).await.unwrap();
    }
    let (mut all, mut buffer) = (Vec::new(), vec![0; 65_536]);
    let mut limit = TEST_TIMEOUT;
    while let Ok(count) = timeout(limit, socket.recv(&mut buffer)).await {
        all.push(buffer[..count.unwrap()].to_vec());
        limit = Duration::from_millis(300);
    }
    (bytes(&all), all[0][0] & 0xf0 == 0xf0)
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9000_8_1_4_an_address_token_counts_once_in_the_whole_cluster() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let cluster = Cluster::new();
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("big"), vec![b'x'; 1 << 20]).unwrap();
    std::fs::write(root.path().join("index.html"), "hello\n").unwrap();
    let files = || Content::files(root.path().to_owned());
    let a = cluster.start(files(), |_| {}).await;
    let b = cluster.start(files(), |_| {}).await;
    cluster.wait_for_early_data(&a, "http/1.1").await;
    cluster.wait_for_early_data(&b, "http/1.1").await;
    let token = remembered(a.address).await.token;
    let flight = async |token: Option<_>| {
        for _ in 0..50 {
            let remembered = Remembered { token: token.clone(), ..remembered(a.address).await };
            let flight = first_flight(a.address, remembered, "/big").await;
            // A slow client's retransmissions would raise the limit above the server's initial
            // congestion window.
            if bytes(&flight) <= 4_000 {
                return flight;
            }
        }
        panic!("all of 50 clients retransmitted their flights")
    };
    // Without a token, a client gets three times what it sent; the library completes the datagram
    // that crosses the limit.
    let new_client = flight(None).await;
    let (count, retry) = measure_response(b.address, &new_client).await;
    let limit = |flight: &[Vec<u8>]| 3 * bytes(flight) + 1200;
    assert!(count <= limit(&new_client) && !retry, "{count} of {}", bytes(&new_client));
    // Issued by one node, accepted by another.
    let first = flight(token.clone()).await;
    let (count, retry) = measure_response(b.address, &first).await;
    assert!(count > limit(&first) && !retry, "{count} of {}", bytes(&first));
    // The node that has accepted it remembers that.
    let second = flight(token.clone()).await;
    let (count, retry) = measure_response(b.address, &second).await;
    assert!(count <= limit(&second) && !retry, "{count} of {}", bytes(&second));
    // The other node checks the store and sends a Retry.
    let third = flight(token).await;
    let (_, retry) = measure_response(a.address, &third).await;
    assert!(retry, "the token is spent at the other node");
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9000_8_1_2_after_a_retry_early_data_is_claimed_and_runs() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let strict = |config: &mut ServerConfig| config.http3.retry_above = 0;
    let shared = cluster.start(Content::upstream(&upstream.url()).unwrap(), strict).await;
    cluster.wait_for_early_data(&shared, "http/1.1").await;
    let alone = RunningServer::proxy(&upstream, strict).await;
    for (name, node) in [("shared", shared), ("alone", alone)] {
        let known = remembered(node.address).await;
        let new_client = Remembered { token: None, ..remembered(node.address).await };
        for (word, remembered, retried) in [("known", known, false), ("stranger", new_client, true)]
        {
            let target = format!("/{name}-{word}");
            let relay = UdpRelay::to(node.address).await;
            let mut client = Quic::connect(relay.address, remembered).await;
            assert_eq!(client.get(&target).await.status, StatusCode::OK);
            assert!(client.accepted().await, "{target}");
            // The server may send a Retry for each datagram of a ClientHello; the client accepts
            // the first one.
            let got_retry =
                relay.server_datagrams().iter().any(|datagram| datagram[0] & 0xf0 == 0xf0);
            assert_eq!(got_retry, retried, "{target}");
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
            assert_eq!(upstream.recorded(&target).len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn above_its_limit_a_server_ignores_clients_without_a_token() {
    let limits = |config: &mut ServerConfig| {
        (config.http3.retry_above, config.http3.refuse_above) = (0, 1);
    };
    let server = RunningServer::files(limits).await;
    // A handshake that stalls, of a client that needs no Retry.
    let known = remembered(server.address).await;
    let stuck = UdpRelay::to(server.address).await;
    stuck.hold_server_datagrams();
    let address = stuck.address;
    let first = tokio::spawn(async move { Quic::connect(address, known).await });
    until("the server sends its flight", || !stuck.server_datagrams().is_empty()).await;
    let ignored = UdpRelay::to(server.address).await;
    let address = ignored.address;
    let second = tokio::spawn(async move { Quic::connect(address, Remembered::default()).await });
    // A flight, and a retransmission after the client has waited in vain.
    until("the client sends its flight again", || ignored.client_datagrams().len() >= 4).await;
    assert!(ignored.server_datagrams().is_empty(), "the server sends nothing");
    stuck.release_server_datagrams().await;
    for client in [first, second] {
        let mut client = timeout(TEST_TIMEOUT, client).await.expect("there is room again").unwrap();
        assert_eq!(client.get("/").await.status, StatusCode::OK);
    }
    server.stop().await;
}

/// The client of ngtcp2, another QUIC implementation: its Initial packets are read, retried and
/// claimed.
#[tokio::test(flavor = "multi_thread")]
async fn another_implementations_client_gets_a_retry_and_runs_early() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let strict = |config: &mut ServerConfig| config.http3.retry_above = 0;
    let node = cluster.start(Content::upstream(&upstream.url()).unwrap(), strict).await;
    cluster.wait_for_early_data(&node, "http/1.1").await;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let request = async |target: &str| {
        let mut client = std::process::Command::new("timeout");
        client.args(["30", "gtlsclient", "--exit-on-all-streams-close", "--no-quic-dump"]);
        // No token file: this version cannot read the token files that it has written.
        for flag in ["session-file", "tp-file"] {
            client.arg(format!("--{flag}={}", file(flag)));
        }
        client.arg("127.0.0.1").arg(node.address.port().to_string());
        client.arg(format!("https://localhost{target}"));
        let output = tokio::task::spawn_blocking(move || client.output()).await.unwrap().unwrap();
        let reply = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{reply}");
        reply
    };
    let reply = request("/stranger").await;
    assert!(reply.contains("Retry"), "{reply}");
    let reply = request("/resumed").await;
    assert!(reply.contains("Retry"), "{reply}");
    let log = node.stop().await;
    assert_eq!(line(&log, "/stranger")["early_data"], "no_session_offered");
    let line = line(&log, "/resumed");
    assert_eq!((&line["early_data"], &line["executed"]), (&"accepted".into(), &true.into()));
    assert_eq!(upstream.recorded("/resumed").len(), 1);
}
