use firstflight_endpoint::AddressValidated;
use firstflight_quic::Remembered;
use quinn_proto::{ConnectionError, TransportErrorCode, VarInt};

use crate::support::{Client, Server, within};

#[tokio::test]
async fn a_refused_client_gets_connection_refused() {
    let (server, client) = (Server::new(), Client::new());
    for dropped in [false, true] {
        let connecting = client.connect(server.address);
        let incoming = within(server.endpoint.accept()).await.unwrap();
        match dropped {
            true => drop(incoming),
            false => incoming.refuse(),
        }
        let ConnectionError::ConnectionClosed(close) = within(connecting).await.unwrap_err() else {
            panic!("refused");
        };
        assert_eq!(close.error_code, TransportErrorCode::CONNECTION_REFUSED);
    }
    assert_eq!(server.endpoint.open_connections(), 0);
}

#[tokio::test]
async fn rfc9000_8_1_2_a_retry_proves_the_clients_address_once() {
    let (server, client) = (Server::new(), Client::new());
    let connecting = client.connect(server.address);
    let incoming = within(server.endpoint.accept()).await.unwrap();
    assert!(!incoming.remote_address_validated() && incoming.may_retry());
    incoming.retry().unwrap();
    let incoming = within(server.endpoint.accept()).await.unwrap();
    assert!(incoming.remote_address_validated() && !incoming.may_retry());
    let _ours = incoming.accept_with(server.config()).unwrap();
    within(connecting).await.unwrap();

    // Another Retry is an error, and refuses the client.
    let connecting = client.connect(server.address);
    within(server.endpoint.accept()).await.unwrap().retry().unwrap();
    let second = within(server.endpoint.accept()).await.unwrap().retry();
    assert_eq!(second, Err(AddressValidated));
    assert!(matches!(within(connecting).await, Err(ConnectionError::ConnectionClosed(_))));
}

#[tokio::test]
async fn rfc9000_8_1_3_a_token_proves_the_address_of_the_next_connection() {
    let (server, client) = (Server::new(), Client::new());
    let (connecting, inbox) = client.connect_with(server.address, Remembered::default());
    let _ours = server.accept().await;
    let _theirs = within(connecting).await.unwrap();
    let token = within(async {
        loop {
            if let Some(token) = inbox.take_tokens().pop() {
                return token;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    let remembered = Remembered { token: Some(token.await), ..Remembered::default() };
    let (_connecting, _) = client.connect_with(server.address, remembered);
    let incoming = within(server.endpoint.accept()).await.unwrap();
    assert!(incoming.remote_address_validated() && incoming.may_retry());
    incoming.ignore();
}

#[tokio::test]
async fn a_closed_endpoint_closes_its_connections_and_refuses_others() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, _ours) = server.pair(&client).await;
    server.endpoint.close(VarInt::from_u32(3), b"bye");
    assert!(matches!(within(theirs.closed()).await, ConnectionError::ApplicationClosed(_)));
    assert!(within(server.endpoint.accept()).await.is_none());
    // The closed connection is still there for a moment, and so is the socket.
    let refused = within(client.connect(server.address)).await;
    assert!(matches!(refused, Err(ConnectionError::ConnectionClosed(_))), "{refused:?}");
    within(server.endpoint.wait_idle()).await;
}

/// The server may have waited for its store meanwhile.
#[tokio::test]
async fn a_connection_that_was_announced_before_the_close_is_refused() {
    let (server, client) = (Server::new(), Client::new());
    let connecting = client.connect(server.address);
    let incoming = within(server.endpoint.accept()).await.unwrap();
    server.endpoint.close(VarInt::from_u32(3), b"");
    let accepted = incoming.accept_with(server.config()).err();
    assert_eq!(accepted, Some(ConnectionError::LocallyClosed));
    assert!(matches!(within(connecting).await, Err(ConnectionError::ConnectionClosed(_))));
    assert_eq!(server.endpoint.open_connections(), 0);
}

#[tokio::test]
async fn connections_outlive_the_handles_of_their_endpoint() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    drop(server);
    let (mut send, mut recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"hello").await.unwrap();
    send.finish().unwrap();
    tokio::spawn(crate::support::echo(ours));
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"hello");
}
