use std::sync::Arc;
use std::sync::atomic::Ordering;

use firstflight_quic::{Remembered, ResumptionInbox};
use firstflight_tls::Handshake;
use quinn_proto::ConnectionError;

use crate::support::{Client, Layer, LayerState, Server, within};

/// What a full handshake leaves for the next connection.
async fn remembered(inbox: &ResumptionInbox) -> Remembered {
    within(async {
        loop {
            if let Some(resumption) = inbox.take_resumptions().pop() {
                return Remembered { resumption: Some(resumption), token: None, early_data: true };
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await
}

async fn session(server: &Server, client: &Client) -> Remembered {
    let (connecting, inbox) = client.connect_with(server.address, Remembered::default());
    let _ours = server.accept().await;
    let _theirs = within(connecting).await.unwrap();
    remembered(&inbox).await
}

#[tokio::test]
async fn streams_are_early_until_the_finished_is_verified() {
    let (server, client) = (Server::new(), Client::new());
    let remembered = session(&server, &client).await;
    let (connecting, _) = client.connect_with(server.address, remembered);
    let (theirs, accepted) = connecting.into_0rtt().unwrap_or_else(|_| panic!("a session"));
    let (mut send, _recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"early").await.unwrap();
    send.finish().unwrap();
    let ours = server.accept().await;
    let facts = within(ours.handshake_data()).await.unwrap().downcast::<Handshake>().unwrap();
    assert!(facts.resumed);
    let (_send, mut recv) = within(ours.accept_bi()).await.unwrap();
    assert!(recv.opened_early());
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"early");
    assert!(within(accepted).await);
    within(ours.handshake_complete()).await.unwrap();
    let (mut send, _recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"late").await.unwrap();
    let (_send, recv) = within(ours.accept_bi()).await.unwrap();
    assert!(!recv.opened_early());
}

#[tokio::test]
async fn streams_of_a_connection_that_closed_during_its_handshake_are_early() {
    let (server, client) = (Server::new(), Client::new());
    let remembered = session(&server, &client).await;
    let (connecting, _) = client.connect_with(server.address, remembered);
    let (theirs, _) = connecting.into_0rtt().unwrap_or_else(|_| panic!("a session"));
    let (mut send, _recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"early").await.unwrap();
    let ours = server.accept().await;
    ours.close(0u32.into(), b"");
    let (_send, recv) = within(ours.accept_bi()).await.unwrap();
    assert!(recv.opened_early());
    let completed = within(ours.handshake_complete()).await;
    assert_eq!(completed, Err(ConnectionError::LocallyClosed));
}

/// The response leaves with the server's handshake, in one call to the kernel.
#[tokio::test]
async fn a_response_to_early_data_leaves_with_the_handshake() {
    let state = Arc::new(LayerState::default());
    let server = Server::on(|socket| Layer { socket, state: state.clone() });
    let client = Client::new();
    let remembered = session(&server, &client).await;
    let (connecting, _) = client.connect_with(server.address, remembered);
    let (theirs, _) = connecting.into_0rtt().unwrap_or_else(|_| panic!("a session"));
    let (mut send, mut recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"early").await.unwrap();
    send.finish().unwrap();
    let incoming = within(server.endpoint.accept()).await.unwrap();
    let before = state.calls.load(Ordering::SeqCst);
    let ours = incoming.accept_with(server.config()).unwrap();
    let (mut response, mut request) = within(ours.accept_bi()).await.unwrap();
    let read = within(request.read_to_end(10)).await.unwrap();
    assert_eq!(state.calls.load(Ordering::SeqCst), before, "nothing is sent before the response");
    state.last.store(before + 1, Ordering::SeqCst);
    response.write_all(&read).await.unwrap();
    response.finish().unwrap();
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"early");
}
