use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quinn_proto::VarInt;
use quinn_udp::RecvMeta;

use crate::support::{Client, Layer, LayerState, Server, request, within};

/// Sends a long request and response through a layer. Returns the number of send calls.
async fn echoes_over(state: LayerState) -> usize {
    let (state, client) = (Arc::new(state), Client::new());
    let server = Server::on(|socket| Layer { socket, state: state.clone() });
    server.echo();
    let connection = within(client.connect(server.address)).await.unwrap();
    let long = vec![3; 300_000];
    assert_eq!(request(&connection, &long).await, long);
    state.calls.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_full_socket_delays_packets_and_loses_none() {
    for full in [2, 3, 7] {
        assert!(echoes_over(LayerState { full, ..LayerState::default() }).await > full);
    }
}

#[tokio::test]
async fn rfc9002_lost_packets_are_sent_again() {
    for lose in [5, 25] {
        echoes_over(LayerState { lose, ..LayerState::default() }).await;
    }
}

#[tokio::test]
async fn a_socket_that_fails_is_read_again() {
    echoes_over(LayerState { failures: AtomicUsize::new(2), ..LayerState::default() }).await;
}

/// The kernel refuses to send responses to them.
#[tokio::test]
async fn datagrams_that_cannot_have_a_response_get_none() {
    type Change = fn(&mut RecvMeta);
    let changes: [(Change, usize); 5] = [
        (|_| {}, 1),
        (|meta| meta.addr.set_port(0), 0),
        (|meta| meta.dst_ip = Some(Ipv4Addr::BROADCAST.into()), 0),
        (|meta| meta.dst_ip = Some(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into()), 0),
        (|meta| meta.dst_ip = Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into()), 0),
    ];
    // A version that the server does not know.
    let mut datagram = [&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8][..], &[1; 8], &[8], &[2; 8]].concat();
    datagram.resize(1200, 0);
    for (change, responses) in changes {
        let state = Arc::new(LayerState { change: Some(change), ..LayerState::default() });
        let server = Server::on(|socket| Layer { socket, state: state.clone() });
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        client.send_to(&datagram, server.address).unwrap();
        within(async {
            while state.received.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        // On the only thread, the driver has processed what it has received.
        assert_eq!(state.calls.load(Ordering::SeqCst), responses);
    }
}

/// A reload may close ports, whose memory must not stay.
#[tokio::test]
async fn a_closed_endpoint_leaves_nothing_behind() {
    let state = Arc::new(LayerState::default());
    let (server, client) =
        (Server::on(|socket| Layer { socket, state: state.clone() }), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let (mut request, _response) = theirs.open_bi().await.unwrap();
    request.write_all(b"request").await.unwrap();
    let (mut send, mut recv) = within(ours.accept_bi()).await.unwrap();
    server.endpoint.close(VarInt::from_u32(0), b"");
    within(server.endpoint.wait_idle()).await;
    drop(server);
    // The driver has ended, so connections that are queued now are never taken.
    let _ = recv.stop(VarInt::from_u32(0));
    let _ = send.reset(VarInt::from_u32(0));
    drop((send, recv, ours));
    assert_eq!(Arc::strong_count(&state), 1);
}
