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
    let relay = UdpRelay::to(server).await;
    relay.drop_client_datagrams(true);
    assert!(remembered.early_data, "the session allows early data");
    let mut client = Quic::connect_small(relay.address, remembered).await;
    let _stream = client.send_head(request(Method::GET, target), true).await;
    // Its control stream, the two of QPACK and the request.
    while client.connection.stats().frame_tx.stream < 4 {
        sleep(Duration::from_millis(1)).await;
    }
    sent_datagrams(&relay).await
}

/// The datagrams that the client has sent, once it waits for a response.
pub(crate) async fn sent_datagrams(relay: &UdpRelay) -> Vec<Vec<u8>> {
    // A long header of type 0-RTT.
    while !relay.up().iter().any(|datagram| has_early(datagram)) {
        sleep(Duration::from_millis(1)).await;
    }
    loop {
        let before = relay.up().len();
        sleep(Duration::from_millis(20)).await;
        let all = relay.up();
        if all.len() == before {
            return all;
        }
    }
}

pub(crate) fn has_early(datagram: &[u8]) -> bool {
    // 0-RTT packets may follow an Initial packet in its datagram; that is at least 600 bytes long.
    datagram[0] & 0xf0 == 0xd0 || datagram.len() > 600 && datagram[0] & 0xf0 != 0xc0
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
