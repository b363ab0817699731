use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use firstflight_quic::Burst;
use quinn_proto::{ConnectionError, IdleTimeout, TransportConfig, VarInt};

use crate::support::{Client, Layer, LayerState, Server, request, within};

#[tokio::test]
async fn a_close_reaches_the_other_side_with_its_code_and_reason() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    assert_eq!(ours.close_reason(), None);
    ours.close(VarInt::from_u32(7), b"done");
    assert_eq!(ours.close_reason(), Some(ConnectionError::LocallyClosed));
    let ConnectionError::ApplicationClosed(close) = within(theirs.closed()).await else {
        panic!("closed by the server");
    };
    assert_eq!((close.error_code, &close.reason[..]), (VarInt::from_u32(7), &b"done"[..]));

    let (theirs, ours) = server.pair(&client).await;
    let accepting =
        tokio::spawn(async move { (ours.accept_bi().await.err(), ours.close_reason()) });
    tokio::task::yield_now().await;
    theirs.close(VarInt::from_u32(8), b"");
    let (accepted, reason) = within(accepting).await.unwrap();
    assert!(matches!(accepted, Some(ConnectionError::ApplicationClosed(_))), "{accepted:?}");
    assert_eq!(accepted, reason);
}

#[tokio::test]
async fn a_connection_without_handles_is_closed() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let copy = ours.clone();
    drop(ours);
    let (mut send, _recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"request").await.unwrap();
    let streams = within(copy.accept_bi()).await.unwrap();
    drop(copy);
    // The streams keep it open.
    assert_eq!(theirs.close_reason(), None);
    drop(streams);
    assert!(matches!(within(theirs.closed()).await, ConnectionError::ApplicationClosed(_)));
}

#[tokio::test]
async fn a_close_is_sent_although_the_congestion_window_is_full() {
    let change = |transport: &mut TransportConfig| {
        transport.congestion_controller_factory(Arc::new(Burst::default()));
    };
    let state = Arc::new(LayerState::default());
    let layer = |socket| Layer { socket, state: state.clone() };
    let (server, client) = (Server::with(layer, change), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let mut stream = within(std::future::poll_fn(|cx| ours.poll_open_uni(cx))).await.unwrap();
    // The client acknowledges nothing of what is lost.
    state.last.store(state.calls.load(Ordering::SeqCst), Ordering::SeqCst);
    stream.write_all(&vec![0; 500_000]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    state.last.store(0, Ordering::SeqCst);
    ours.close(VarInt::from_u32(7), b"");
    let closed = tokio::time::timeout(Duration::from_secs(5), theirs.closed()).await;
    assert!(matches!(closed, Ok(ConnectionError::ApplicationClosed(_))), "{closed:?}");
}

#[tokio::test]
async fn a_silent_connection_times_out_and_is_forgotten() {
    let change = |transport: &mut TransportConfig| {
        transport.max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(200))));
    };
    let (server, client) = (Server::with(|socket| socket, change), Client::new());
    let (_theirs, ours) = server.pair(&client).await;
    let ended = within(ours.accept_bi()).await.err();
    assert_eq!(ended, Some(ConnectionError::TimedOut));
    within(server.endpoint.wait_idle()).await;
}

#[tokio::test]
async fn many_connections_share_a_socket() {
    let (server, client) = (Server::new(), Client::new());
    server.echo();
    let connecting = (0..100u8).map(|number| {
        let connecting = client.connect(server.address);
        tokio::spawn(async move {
            let connection = within(connecting).await.unwrap();
            assert_eq!(request(&connection, &[number; 5000]).await, [number; 5000]);
            connection.close(VarInt::from_u32(0), b"");
        })
    });
    for connection in connecting.collect::<Vec<_>>() {
        connection.await.unwrap();
    }
    within(server.endpoint.wait_idle()).await;
    assert_eq!(server.endpoint.open_connections(), 0);
}

#[test]
fn connections_end_with_their_runtime() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (server_runtime, client_runtime) = (runtime(), runtime());
    let server = server_runtime.block_on(async { Server::new() });
    let (_theirs, ours) = client_runtime.block_on(async { server.pair(&Client::new()).await });
    server_runtime.shutdown_timeout(Duration::from_secs(10));
    assert_eq!(ours.close_reason(), Some(ConnectionError::LocallyClosed));
    assert!(client_runtime.block_on(within(server.endpoint.accept())).is_none());
}
