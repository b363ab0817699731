//! First flights over QUIC, recorded from an honest client and sent by an attacker.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use firstflight_quic::{FirstFlight, FirstFlights, FirstFlightsLimits, Remembered};
use http::Method;
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use super::TEST_TIMEOUT;
use super::quic::{Quic, UdpRelay, request};

/// Sends datagrams from another address.
pub(crate) async fn send(server: SocketAddr, datagrams: &[Vec<u8>]) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    for datagram in datagrams {
        socket.send_to(datagram, server).await.unwrap();
    }
    socket
}

/// Like [`send`], and waits until the server responds, so that it has processed the flight. A
/// server that already has the connection takes them for its packets from another address and does
/// not respond.
pub(crate) async fn replay(server: SocketAddr, datagrams: &[Vec<u8>]) -> UdpSocket {
    let socket = send(server, datagrams).await;
    let mut response = [0; 2000];
    timeout(TEST_TIMEOUT, socket.recv(&mut response)).await.expect("the server responds").unwrap();
    socket
}

/// A client's first flight with this request, delivered to nobody: everything sent until the client
/// paused.
pub(crate) async fn first_flight(
    server: SocketAddr,
    remembered: Remembered,
    target: &str,
) -> Vec<Vec<u8>> {
    assert!(remembered.early_data, "the session allows early data");
    let relay = UdpRelay::to(server).await;
    relay.drop_client_datagrams(true);
    let mut client = Quic::connect_small(relay.address, remembered).await;
    let _stream = client.send_head(request(Method::GET, target), true).await;
    sent_datagrams(&client, &relay).await
}

/// The datagrams that the client has sent, once they hold its request.
pub(crate) async fn sent_datagrams(client: &Quic, relay: &UdpRelay) -> Vec<Vec<u8>> {
    let sending = async {
        let mut before = 0;
        loop {
            // The end of the request may follow in a frame of its own.
            sleep(Duration::from_millis(20)).await;
            let (stats, sent) = (client.connection.stats(), relay.client_datagrams());
            let datagrams = stats.udp_tx.datagrams;
            // Its control stream, the two of QPACK and the request.
            if stats.frame_tx.stream >= 4 && datagrams == before && datagrams == sent.len() as u64 {
                break sent;
            }
            before = datagrams;
        }
    };
    timeout(TEST_TIMEOUT, sending).await.expect("the client sends its request")
}

pub(crate) fn bytes(datagrams: &[Vec<u8>]) -> usize {
    datagrams.iter().map(Vec::len).sum()
}

/// The connection id of a first flight, and its ClientHello.
pub(crate) fn client_hello(datagrams: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let mut flights = FirstFlights::new(FirstFlightsLimits::default());
    let remote = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let id =
        datagrams.iter().find_map(|sent| flights.process_datagram(remote, sent, Duration::ZERO));
    let id = id.expect("a whole ClientHello");
    match flights.take(remote, &id) {
        FirstFlight::Whole { client_hello, .. } => (id.to_vec(), client_hello),
        other => panic!("{other:?}"),
    }
}
