//! The stream on an in-memory socket: what leaves in one write, early and later reads, closing.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use firstflight_tls::{ConnectOptions, EarlyData, TlsError, TlsStream, split_driver};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::time::timeout;

use crate::support::Setup;

/// Counts the writes that reach the socket.
struct CountingSocket(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for CountingSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for CountingSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn counting_pair() -> (CountingSocket, CountingSocket, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (a, b) = duplex(1 << 20);
    let (writes_a, writes_b) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    (CountingSocket(a, writes_a.clone()), CountingSocket(b, writes_b.clone()), writes_a, writes_b)
}

/// A client that has sent `PING` as early data.
async fn early_ping(setup: &Setup, io: CountingSocket) -> TlsStream<CountingSocket> {
    let offer = early_offer(setup);
    let mut client = TlsStream::connect(&setup.connector(), io, &offer).await.unwrap();
    client.write_all(b"PING").await.unwrap();
    client.flush().await.unwrap();
    client
}

fn early_offer(setup: &Setup) -> ConnectOptions {
    ConnectOptions { host: "localhost".into(), session: Some(setup.session()), early_data: true }
}

#[tokio::test]
async fn client_hello_and_request_leave_in_one_write_and_so_do_flight_and_response() {
    let setup = Setup::default();
    let (client_io, server_io, client_writes, server_writes) = counting_pair();
    let (connector, acceptor) = (setup.connector(), setup.acceptor());
    let mut client = TlsStream::connect(&connector, client_io, &early_offer(&setup)).await.unwrap();
    assert_eq!(client_writes.load(Ordering::SeqCst), 0);
    client.write_all(b"PING").await.unwrap();
    client.flush().await.unwrap();
    assert_eq!(client_writes.load(Ordering::SeqCst), 1);

    let mut server = TlsStream::accept(&acceptor, server_io, true).await.unwrap();
    let mut ping = [0; 4];
    server.read_exact(&mut ping).await.unwrap();
    assert!(server.reading_early() && !server.is_complete());
    server.write_all(b"PONG").await.unwrap();
    server.flush().await.unwrap();
    assert_eq!(server_writes.load(Ordering::SeqCst), 1);

    let mut pong = [0; 4];
    client.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"PONG");
    assert_eq!(client.facts().early_data, EarlyData::Accepted);
    assert!(!client.take_sessions().is_empty(), "the next ticket arrived with the response");
}

#[tokio::test]
async fn a_library_that_reads_before_it_responds_does_not_send_the_flight_alone() {
    let setup = Setup::default();
    let (client_io, server_io, _, server_writes) = counting_pair();
    let acceptor = setup.acceptor();
    let mut client = early_ping(&setup, client_io).await;
    let (mut io, driver) =
        split_driver(TlsStream::accept(&acceptor, server_io, true).await.unwrap());
    let mut ping = [0; 4];
    io.read_exact(&mut ping).await.unwrap();
    poll_fn(|cx| {
        let mut more = [0; 16];
        let mut more = ReadBuf::new(&mut more);
        assert!(Pin::new(&mut io).poll_read(cx, &mut more).is_pending());
        Poll::Ready(())
    })
    .await;
    assert_eq!(server_writes.load(Ordering::SeqCst), 0, "the flight waits for the response");
    io.write_all(b"PONG").await.unwrap();
    io.flush().await.unwrap();
    assert_eq!(server_writes.load(Ordering::SeqCst), 1);
    let mut pong = [0; 4];
    client.read_exact(&mut pong).await.unwrap();
    client.flush().await.unwrap();
    let peer = async {
        poll_fn(|cx| client.poll_complete(cx)).await.unwrap();
        client.flush().await.unwrap();
    };
    let (done, ()) = tokio::join!(poll_fn(|cx| driver.poll_complete(cx)), peer);
    done.unwrap();
}

#[tokio::test]
async fn early_and_later_bytes_are_never_mixed_and_the_reader_yields_between() {
    let setup = Setup::default();
    let (client_io, server_io, ..) = counting_pair();
    let (connector, acceptor) = (setup.connector(), setup.acceptor());
    let mut client = TlsStream::connect(&connector, client_io, &early_offer(&setup)).await.unwrap();
    client.write_all(b"early").await.unwrap();
    client.flush().await.unwrap();
    let mut server = TlsStream::accept(&acceptor, server_io, true).await.unwrap();
    server.flush().await.unwrap();
    poll_fn(|cx| client.poll_complete(cx)).await.unwrap();
    client.write_all(b"later").await.unwrap();
    client.flush().await.unwrap();
    // The server completes the handshake before anybody reads; the early bytes wait.
    poll_fn(|cx| server.poll_complete(cx)).await.unwrap();
    assert!(server.is_complete() && server.reading_early());
    let mut buffer = [0; 64];
    assert_eq!(server.read(&mut buffer).await.unwrap(), 5);
    assert_eq!(&buffer[..5], b"early");
    assert!(server.reading_early(), "a request parsed now was early, though Finished is here");
    let mut yielded = false;
    let count = poll_fn(|cx| {
        let mut read = ReadBuf::new(&mut buffer);
        let poll = pin!(&mut server).poll_read(cx, &mut read);
        yielded |= poll.is_pending();
        poll.map(|done| done.map(|()| read.filled().len()))
    })
    .await
    .unwrap();
    assert!(yielded);
    assert_eq!(&buffer[..count], b"later");
    assert!(!server.reading_early());
}

#[tokio::test]
async fn the_driver_completes_the_handshake_while_nobody_reads_or_writes() {
    let setup = Setup::default();
    let (client_io, server_io, ..) = counting_pair();
    let (connector, acceptor) = (setup.connector(), setup.acceptor());
    let mut client = TlsStream::connect(&connector, client_io, &early_offer(&setup)).await.unwrap();
    client.write_all(&[1; 10_000]).await.unwrap();
    client.flush().await.unwrap();
    let server = TlsStream::accept(&acceptor, server_io, true).await.unwrap();
    let (mut io, driver) = split_driver(server);
    let peer = async {
        poll_fn(|cx| client.poll_complete(cx)).await.unwrap();
        client.flush().await.unwrap();
    };
    let (completed, ()) = tokio::join!(poll_fn(|cx| driver.poll_complete(cx)), peer);
    completed.unwrap();
    assert!(driver.is_complete() && driver.reading_early());
    let mut got = vec![0; 10_000];
    io.read_exact(&mut got).await.unwrap();
    assert!(got.iter().all(|byte| *byte == 1));
}

#[tokio::test]
async fn buffered_flushes_leave_in_one_write_when_the_driver_sends() {
    let setup = Setup::default();
    let (client_io, server_io, _, server_writes) = counting_pair();
    let acceptor = setup.acceptor();
    let mut client = early_ping(&setup, client_io).await;
    let (mut io, driver) =
        split_driver(TlsStream::accept(&acceptor, server_io, true).await.unwrap());
    driver.buffer_writes();
    let mut ping = [0; 4];
    io.read_exact(&mut ping).await.unwrap();
    for part in [&b"PO"[..], b"NG"] {
        io.write_all(part).await.unwrap();
        io.flush().await.unwrap();
    }
    assert_eq!(server_writes.load(Ordering::SeqCst), 0, "a flush sends nothing");
    poll_fn(|cx| driver.poll_send(cx)).await.unwrap();
    assert_eq!(server_writes.load(Ordering::SeqCst), 1);
    let mut pong = [0; 4];
    client.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"PONG");
}

#[tokio::test]
async fn closing_after_an_early_response_reads_to_finished_and_sends_close_notify() {
    let setup = Setup::default();
    let (client_io, server_io, ..) = counting_pair();
    let acceptor = setup.acceptor();
    let mut client = early_ping(&setup, client_io).await;
    let server = async {
        let mut server = TlsStream::accept(&acceptor, server_io, true).await.unwrap();
        server.write_all(b"PONG").await.unwrap();
        server.shutdown().await.unwrap();
        assert!(server.is_complete());
    };
    let reader = async {
        let mut response = Vec::new();
        client.read_to_end(&mut response).await.unwrap();
        assert_eq!(response, b"PONG", "close_notify ends it, no reset");
    };
    tokio::join!(server, reader);
}

#[tokio::test]
async fn a_close_notify_with_the_finished_completes_the_handshake() {
    let setup = Setup::default();
    let (client_io, server_io, ..) = counting_pair();
    let acceptor = setup.acceptor();
    let mut client = early_ping(&setup, client_io).await;
    let mut server = TlsStream::accept(&acceptor, server_io, true).await.unwrap();
    server.write_all(b"PONG").await.unwrap();
    server.flush().await.unwrap();
    // The client's Finished is written, and sent with its close_notify.
    client.read_exact(&mut [0; 4]).await.unwrap();
    client.shutdown().await.unwrap();
    poll_fn(|cx| server.poll_complete(cx)).await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0, "the server's close_notify");
}

#[tokio::test]
async fn an_end_without_close_notify_is_an_error() {
    let setup = Setup::default();
    let (client_io, server_io, ..) = counting_pair();
    let (connector, acceptor) = (setup.connector(), setup.acceptor());
    let offer = ConnectOptions { host: "localhost".into(), ..ConnectOptions::default() };
    let client = async {
        let mut client = TlsStream::connect(&connector, client_io, &offer).await.unwrap();
        client.flush().await.unwrap();
        client.read(&mut [0; 8]).await.unwrap_err()
    };
    let server = async {
        drop(TlsStream::accept(&acceptor, server_io, true).await.unwrap());
    };
    let (error, ()) = tokio::join!(client, server);
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

/// A client and a server whose handshake is complete. The server has been read until it had to wait.
async fn idle_pair<C: AsyncRead + AsyncWrite + Unpin>(
    client_io: C,
    server_io: DuplexStream,
) -> (TlsStream<C>, TlsStream<DuplexStream>) {
    let setup = Setup::default();
    let (connector, acceptor) = (setup.connector(), setup.acceptor());
    let offer = ConnectOptions { host: "localhost".into(), ..ConnectOptions::default() };
    let client = async {
        let mut client = TlsStream::connect(&connector, client_io, &offer).await.unwrap();
        client.flush().await.unwrap();
        client
    };
    let server = async { TlsStream::accept(&acceptor, server_io, true).await.unwrap() };
    let (client, mut server) = tokio::join!(client, server);
    for _ in 0..2 {
        let mut space = [0; 8];
        let mut buffer = ReadBuf::new(&mut space);
        let read = poll_fn(|cx| Poll::Ready(Pin::new(&mut server).poll_read(cx, &mut buffer)));
        assert!(read.await.is_pending());
    }
    (client, server)
}

/// Reads what is there already.
async fn read_at_once(
    stream: &mut TlsStream<DuplexStream>,
    buffer: &mut [u8],
) -> io::Result<usize> {
    timeout(Duration::from_secs(60), stream.read(buffer)).await.expect("it does not wait")
}

#[tokio::test]
async fn an_idle_connection_notices_data_and_close_notify() {
    let (client_io, server_io) = duplex(1 << 20);
    let (mut client, mut server) = idle_pair(client_io, server_io).await;
    client.write_all(b"PING").await.unwrap();
    client.flush().await.unwrap();
    let mut ping = [0; 4];
    assert_eq!(read_at_once(&mut server, &mut ping[..2]).await.unwrap(), 2);
    assert_eq!(read_at_once(&mut server, &mut ping[2..]).await.unwrap(), 2);
    assert_eq!(&ping, b"PING", "the rest of a record needs no further bytes");
    client.shutdown().await.unwrap();
    for _ in 0..2 {
        assert_eq!(read_at_once(&mut server, &mut [0; 8]).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn an_idle_connection_notices_its_end_and_invalid_bytes_each_time() {
    let (client_io, server_io) = duplex(1 << 20);
    let (client, mut server) = idle_pair(client_io, server_io).await;
    drop(client);
    for _ in 0..2 {
        let error = read_at_once(&mut server, &mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
    let (mut client_io, server_io) = duplex(1 << 20);
    let (_, mut server) = idle_pair(&mut client_io, server_io).await;
    let record_of_20_bytes = [&[23, 3, 3, 0, 20][..], &[7; 20]].concat();
    client_io.write_all(&record_of_20_bytes).await.unwrap();
    for _ in 0..2 {
        let error = read_at_once(&mut server, &mut [0; 8]).await.unwrap_err();
        assert!(error.to_string().contains("decryption failed"), "{error}");
    }
}

#[tokio::test]
async fn a_megabyte_of_noise_gives_one_clear_error_and_an_alert() {
    let (mut noisy, server_io, _, server_writes) = counting_pair();
    let acceptor = Setup::default().acceptor();
    let noise: Vec<u8> =
        (0..1_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    noisy.write_all(&noise).await.unwrap();
    let error = TlsStream::accept(&acceptor, server_io, true).await.err().expect("no TLS");
    assert!(matches!(error, TlsError::Handshake(_)), "{error}");
    assert_eq!(server_writes.load(Ordering::SeqCst), 1, "the alert");
}
