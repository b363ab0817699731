use std::sync::Arc;
use std::sync::atomic::Ordering;

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
