use std::sync::Arc;
use std::sync::atomic::Ordering;

use quinn_proto::VarInt;

use crate::support::{Client, Layer, LayerState, Server, request, within};

/// Returns the number of calls.
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
async fn a_full_socket_loses_nothing_and_delays_everything() {
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
    // The driver has ended, so nobody takes what is queued now.
    let _ = recv.stop(VarInt::from_u32(0));
    let _ = send.reset(VarInt::from_u32(0));
    drop((send, recv, ours));
    assert_eq!(Arc::strong_count(&state), 1);
}
