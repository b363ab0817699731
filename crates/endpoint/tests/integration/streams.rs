use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use firstflight_endpoint::{ReadError, WriteError};
use quinn_proto::VarInt;

use crate::support::{Client, Server, request, within};

#[tokio::test]
async fn a_response_returns_on_its_requests_stream() {
    let (server, client) = (Server::new(), Client::new());
    server.echo();
    let connection = within(client.connect(server.address)).await.unwrap();
    assert_eq!(request(&connection, b"first").await, b"first");
    // More than the windows of stream and connection at first.
    let long = vec![7; 3 << 20];
    assert_eq!(request(&connection, &long).await, long);
}

#[tokio::test]
async fn stopped_returns_once_the_client_has_acknowledged_a_finished_stream() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let (mut send, _recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"request").await.unwrap();
    let (mut send, _recv) = within(ours.accept_bi()).await.unwrap();
    send.write_all(b"response").await.unwrap();
    assert_eq!(send.stop_code(), None);
    let stopped = send.stopped();
    send.finish().unwrap();
    assert_eq!(within(stopped).await, Ok(None));
    assert!(send.finish().is_err(), "finished before");
}

#[tokio::test]
async fn rfc9000_3_5_writing_to_a_stopped_stream_fails_with_its_code() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let (mut send, mut recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"request").await.unwrap();
    let (mut ours, _recv) = within(ours.accept_bi()).await.unwrap();
    recv.stop(VarInt::from_u32(5)).unwrap();
    assert_eq!(within(ours.stopped()).await, Ok(Some(VarInt::from_u32(5))));
    assert_eq!(ours.stop_code(), Some(VarInt::from_u32(5)));
    let written = within(ours.write_all(b"response")).await;
    assert_eq!(written, Err(WriteError::Stopped(VarInt::from_u32(5))));
}

#[tokio::test]
async fn a_reset_stream_fails_to_be_read_and_waiting_readers_wake() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let (mut send, _recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"part").await.unwrap();
    let (_send, mut recv) = within(ours.accept_bi()).await.unwrap();
    let reading = tokio::spawn(async move { recv.read_to_end(100).await });
    tokio::task::yield_now().await;
    send.reset(VarInt::from_u32(9)).unwrap();
    assert_eq!(within(reading).await.unwrap(), Err(ReadError::Reset(VarInt::from_u32(9))));
}

#[tokio::test]
async fn a_stream_that_is_longer_than_allowed_is_not_read_further() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let (mut send, _recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"hello").await.unwrap();
    send.finish().unwrap();
    let (_send, mut recv) = within(ours.accept_bi()).await.unwrap();
    assert_eq!(within(recv.read_to_end(4)).await, Err(ReadError::TooLong));
}

#[tokio::test]
async fn dropped_streams_are_finished_and_stopped() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let (mut send, mut recv) = theirs.open_bi().await.unwrap();
    send.write_all(b"request").await.unwrap();
    let (mut response, request) = within(ours.accept_bi()).await.unwrap();
    response.write_all(b"part").await.unwrap();
    drop((response, request));
    assert_eq!(within(recv.read_to_end(100)).await.unwrap(), b"part");
    assert_eq!(within(send.stopped()).await, Ok(Some(VarInt::from_u32(0))));
}

#[tokio::test]
async fn the_server_opens_streams_as_far_as_the_client_allows() {
    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    // quinn allows 100.
    let mut streams = Vec::new();
    let open = || std::future::poll_fn(|cx| ours.poll_open_uni(cx));
    for _ in 0..100 {
        let mut stream = within(open()).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.finish().unwrap();
        streams.push(stream);
    }
    // The client allows further ones once some have ended.
    let reading = async {
        for _ in 0..100 {
            let mut recv = theirs.accept_uni().await.unwrap();
            assert_eq!(recv.read_to_end(10).await.unwrap(), b"x");
        }
    };
    let (opened, ()) = within(async { tokio::join!(open(), reading) }).await;
    assert!(opened.is_ok());
}

/// A long connection has many streams, so nothing may be left of a dropped one.
#[tokio::test]
async fn dropped_streams_leave_no_wakers() {
    struct Counted;
    impl Wake for Counted {
        fn wake(self: Arc<Self>) {}
    }

    let (server, client) = (Server::new(), Client::new());
    let (theirs, ours) = server.pair(&client).await;
    let (mut request, _response) = theirs.open_bi().await.unwrap();
    request.write_all(b"request").await.unwrap();
    let (mut send, mut recv) = within(ours.accept_bi()).await.unwrap();
    let wakers = Arc::new(Counted);
    let waker = Waker::from(wakers.clone());
    let cx = &mut Context::from_waker(&waker);
    assert!(within(std::future::poll_fn(|cx| recv.poll_read(cx, 10))).await.unwrap().is_some());
    assert!(recv.poll_read(cx, 10).is_pending());
    while send.poll_write(cx, &[0; 1 << 16]).is_ready() {}
    assert!(pin!(send.stopped()).poll(cx).is_pending());
    assert_eq!(Arc::strong_count(&wakers), 4, "the reader and the writer wait");
    drop((send, recv));
    assert_eq!(Arc::strong_count(&wakers), 2);
}
