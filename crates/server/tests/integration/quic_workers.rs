//! Several workers share one port, each with its own connections.

use std::collections::HashMap;
use std::time::Duration;

use firstflight_quic::{Remembered, Steering};
use tokio::time::{sleep, timeout};

use crate::support::quic::{UdpRelay, config, endpoint, head};
use crate::support::{RunningServer, TEST_TIMEOUT, until};

/// The kernel merges datagrams of several connections from one port and gives them to the worker of
/// the first one. None may be lost or get a stateless reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rfc9000_10_3_merged_datagrams_reset_no_connection_of_another_worker() {
    let server = RunningServer::files(|_| {}).await;
    let relay = UdpRelay::to(server.address).await;
    let endpoint = endpoint();
    let mut connections = Vec::new();
    for _ in 0..12 {
        let (config, _inbox) = config("h3", Remembered::default());
        let connecting = endpoint.connect_with(config, relay.address, "localhost").unwrap();
        let connection = timeout(TEST_TIMEOUT, connecting).await.unwrap().unwrap();
        let mut control = connection.open_uni().await.unwrap();
        control.write_all(&[0, 4, 0]).await.unwrap();
        connections.push((connection, control));
    }
    // The handshakes' packets have to be exchanged first.
    wait_until_quiet(&relay).await;
    relay.drop_client_datagrams(true);
    let before = relay.client_datagrams().len();
    let mut responses = Vec::new();
    for (connection, _) in &connections {
        let (mut send, receive) = connection.open_bi().await.unwrap();
        send.write_all(&head("GET", "/")).await.unwrap();
        send.finish().unwrap();
        responses.push(receive);
    }
    let all_sent = || count_connections(&relay.client_datagrams()[before..]) >= connections.len();
    until("each connection sends its request", all_sent).await;
    let mut by_length = HashMap::<usize, Vec<Vec<u8>>>::new();
    for datagram in relay.client_datagrams().split_off(before) {
        by_length.entry(datagram.len()).or_default().push(datagram);
    }
    let batch = by_length.into_values().max_by_key(Vec::len).expect("datagrams");
    let mut workers = batch.iter().map(|sent| Steering::new(4).worker(sent)).collect::<Vec<_>>();
    workers.sort_unstable();
    workers.dedup();
    assert!(workers.len() > 1, "requests for several workers");
    relay.inject_merged(&batch);
    relay.drop_client_datagrams(false);
    for mut receive in responses {
        let response =
            timeout(TEST_TIMEOUT, receive.read_to_end(10_000)).await.expect("a response");
        assert!(response.expect("no reset").ends_with(b"hello\n"));
    }
    server.stop().await;
}

/// The number of connections that sent these datagrams, by the ids in their short headers.
fn count_connections(datagrams: &[Vec<u8>]) -> usize {
    let mut ids = datagrams.iter().map(|datagram| &datagram[1..9]).collect::<Vec<_>>();
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

/// Waits until no datagram has arrived for a while.
async fn wait_until_quiet(relay: &UdpRelay) {
    let waiting = async {
        loop {
            let before = (relay.client_datagrams().len(), relay.server_datagrams().len());
            sleep(Duration::from_millis(100)).await;
            if (relay.client_datagrams().len(), relay.server_datagrams().len()) == before {
                return;
            }
        }
    };
    timeout(TEST_TIMEOUT, waiting).await.expect("the handshakes' packets end");
}
