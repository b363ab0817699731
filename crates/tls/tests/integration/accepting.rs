//! A server's connection before its early data is accepted or refused: it sends nothing, and can
//! restart the handshake from the bytes that it has read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use firstflight_tls::{
    AcceptState, Accepting, Acceptor, ConnectOptions, EarlyData, EarlyDataReason, MAX_EARLY_DATA,
    OpenedTicket, Session, TlsStream, Version, WithheldReason,
};
use proptest::prelude::*;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};

use crate::support::{Opens, Setup};

/// A server's socket that counts written bytes, and reads at most `max_read` bytes at a time.
struct CountingSocket {
    io: DuplexStream,
    written: Arc<AtomicUsize>,
    max_read: usize,
}

impl AsyncRead for CountingSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut space = vec![0; self.max_read.min(buffer.remaining())];
        let mut part = ReadBuf::new(&mut space);
        let read = Pin::new(&mut self.io).poll_read(cx, &mut part);
        buffer.put_slice(part.filled());
        read
    }
}

impl AsyncWrite for CountingSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written.fetch_add(data.len(), Ordering::SeqCst);
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A client that has sent its first flight, and the server's socket with its count of written
/// bytes.
async fn first_flight(
    setup: &Setup,
    session: Session,
    records: &[Vec<u8>],
    max_read: usize,
) -> (TlsStream<DuplexStream>, CountingSocket, Arc<AtomicUsize>) {
    let (client_io, io) = duplex(1 << 20);
    let offer =
        ConnectOptions { host: "localhost".into(), session: Some(session), early_data: true };
    let mut client = TlsStream::connect(&setup.connector(), client_io, &offer).await.unwrap();
    for record in records {
        client.write_all(record).await.unwrap();
    }
    client.flush().await.unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    (client, CountingSocket { io, written: written.clone(), max_read }, written)
}

/// Refuses the early data of a connection that offers some. Returns both ends after the request
/// was sent again and got a response, and the request that the server read.
async fn refuse_early_data(
    acceptor: &Acceptor,
    client: TlsStream<DuplexStream>,
    socket: CountingSocket,
    written: &AtomicUsize,
    request: usize,
) -> (TlsStream<DuplexStream>, TlsStream<CountingSocket>, Vec<u8>) {
    let mut accepting = Accepting::new(acceptor, socket, true).unwrap();
    let mut step = accepting.advance().await.unwrap();
    if let AcceptState::NeedsSession(ticket) = step {
        accepting.provide_session(OpenedTicket::Session(ticket[1..].to_vec()));
        step = accepting.advance().await.unwrap();
    }
    assert_eq!(step, AcceptState::EarlyData);
    assert!(accepting.facts().resumed);
    accepting.refuse_early_data().unwrap();
    assert_eq!(written.load(Ordering::SeqCst), 0, "no byte before the decision");
    let server = async move {
        assert_eq!(accepting.advance().await.unwrap(), AcceptState::Complete);
        let mut server = accepting.into_stream();
        assert!(!server.reading_early() && server.is_complete());
        let mut got = vec![0; request];
        server.read_exact(&mut got).await.unwrap();
        server.write_all(b"PONG").await.unwrap();
        server.flush().await.unwrap();
        (server, got)
    };
    let client = async move {
        let mut client = client;
        let mut pong = [0; 4];
        client.read_exact(&mut pong).await.unwrap();
        assert_eq!(&pong, b"PONG");
        client
    };
    let (client, (server, got)) = tokio::join!(client, server);
    (client, server, got)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    // First flights in one record or many, delivered in small segments or in a burst.
    #[test]
    fn rfc8446_4_2_10_early_data_can_be_refused_after_the_client_hello_was_processed(
        records in prop::collection::vec(1_usize..1800, 1..8),
        max_read in prop_oneof![Just(1_usize), 2_usize..600, Just(1400), Just(1 << 20)],
    ) {
        let records: Vec<Vec<u8>> =
            records.iter().enumerate().map(|(i, length)| vec![i as u8; *length]).collect();
        let request = records.concat();
        prop_assert!(request.len() <= MAX_EARLY_DATA);
        runtime().block_on(async {
            let setup = Setup::default();
            let (client, socket, written) =
                first_flight(&setup, setup.session(), &records, max_read).await;
            let (mut client, server, got) =
                refuse_early_data(&setup.acceptor(), client, socket, &written, request.len()).await;
            assert!(got == request, "received once and complete, after the handshake");
            assert_eq!(client.facts().early_data, EarlyData::Refused);
            let facts = server.facts();
            assert!(facts.resumed);
            assert_eq!(facts.early_data_reason, EarlyDataReason::Disabled);
            assert_eq!(facts.client_random, client.facts().client_random);
            let next = client.take_sessions().pop().expect("a ticket arrived with the response");
            assert!(next.early_data_capable());
        });
    }
}

#[tokio::test]
async fn early_data_that_is_accepted_later_is_still_read_and_gets_an_early_response() {
    let setup = Setup::default();
    let (mut client, socket, written) =
        first_flight(&setup, setup.session(), &[b"PING".to_vec()], 1 << 20).await;
    let mut accepting = Accepting::new(&setup.acceptor(), socket, true).unwrap();
    assert_eq!(accepting.advance().await.unwrap(), AcceptState::EarlyData);
    assert_eq!(accepting.advance().await.unwrap(), AcceptState::EarlyData, "may be called again");
    assert_eq!(written.load(Ordering::SeqCst), 0);
    let mut server = accepting.into_stream();
    assert!(server.reading_early() && !server.is_complete());
    let mut ping = [0; 4];
    server.read_exact(&mut ping).await.unwrap();
    server.write_all(b"PONG").await.unwrap();
    server.flush().await.unwrap();
    let mut pong = [0; 4];
    client.read_exact(&mut pong).await.unwrap();
    assert_eq!(client.facts().early_data, EarlyData::Accepted);
}

#[tokio::test]
async fn early_data_without_a_decision_is_refused() {
    let setup = Setup::default();
    let (mut client, socket, _) =
        first_flight(&setup, setup.session(), &[b"PING".to_vec()], 1 << 20).await;
    let mut server = Accepting::new(&setup.acceptor(), socket, true).unwrap().into_stream();
    let server = async {
        echo(&mut server).await;
        assert!(!server.reading_early(), "sent again after the handshake");
    };
    let mut pong = [0; 4];
    let (read, ()) = tokio::join!(client.read_exact(&mut pong), server);
    read.unwrap();
    assert_eq!(client.facts().early_data, EarlyData::Refused);
}

#[tokio::test]
async fn a_ticket_without_early_data_is_resumed_and_the_next_one_allows_it_again() {
    let setup = Setup { opens: Opens::WithoutEarlyData, ..Setup::default() };
    let (mut client, socket, _) =
        first_flight(&setup, setup.session(), &[b"PING".to_vec()], 1 << 20).await;
    let mut accepting = Accepting::new(&setup.acceptor(), socket, true).unwrap();
    let server = async {
        assert_eq!(accepting.advance().await.unwrap(), AcceptState::Complete);
        let facts = accepting.facts();
        assert!(facts.resumed);
        assert_eq!(facts.early_data_reason, EarlyDataReason::Withheld(WithheldReason::Zone));
        let mut server = accepting.into_stream();
        echo(&mut server).await;
    };
    let response = async {
        client.read_exact(&mut [0; 4]).await.unwrap();
        assert_eq!(client.facts().early_data, EarlyData::Refused);
        client.take_sessions().pop().expect("a ticket")
    };
    let ((), next) = tokio::join!(server, response);
    assert!(next.early_data_capable());
    let plain = Setup::default();
    let (_client, socket, _) = first_flight(&plain, next, &[b"PING".to_vec()], 1 << 20).await;
    let mut accepting = Accepting::new(&plain.acceptor(), socket, true).unwrap();
    assert_eq!(accepting.advance().await.unwrap(), AcceptState::EarlyData);
}

#[tokio::test]
async fn a_looked_up_session_is_resumed_like_one_in_its_ticket() {
    let setup = Setup { opens: Opens::NeedsLookup, ..Setup::default() };
    let session = Setup::default().session();
    let (_client, socket, written) =
        first_flight(&setup, session, &[b"PING".to_vec()], 1 << 20).await;
    let mut accepting = Accepting::new(&setup.acceptor(), socket, true).unwrap();
    let AcceptState::NeedsSession(ticket) = accepting.advance().await.unwrap() else {
        panic!("the session has to be looked up");
    };
    accepting.provide_session(OpenedTicket::Session(ticket[1..].to_vec()));
    assert_eq!(accepting.advance().await.unwrap(), AcceptState::EarlyData);
    assert_eq!(written.load(Ordering::SeqCst), 0);
    let mut server = accepting.into_stream();
    let mut ping = [0; 4];
    server.read_exact(&mut ping).await.unwrap();
    assert!(server.reading_early());
}

#[tokio::test]
async fn a_looked_up_session_is_still_resumed_after_its_early_data_is_refused() {
    let setup = Setup { opens: Opens::NeedsLookup, ..Setup::default() };
    let session = Setup::default().session();
    let (client, socket, written) =
        first_flight(&setup, session, &[b"PING".to_vec()], 1 << 20).await;
    let (client, server, got) =
        refuse_early_data(&setup.acceptor(), client, socket, &written, 4).await;
    assert_eq!(got, b"PING");
    assert!(server.facts().resumed && client.facts().resumed);
}

#[tokio::test]
async fn rfc5077_3_4_a_failed_lookup_leads_to_a_full_handshake_in_every_version_with_tickets() {
    for version in [Version::Tls12, Version::Tls13] {
        let plain = Setup { min: version, max: version, ..Setup::default() };
        let setup = Setup { opens: Opens::NeedsLookup, ..plain.clone() };
        for resumed in [false, true] {
            let (client_io, server_io) = duplex(1 << 20);
            let offer = ConnectOptions {
                host: "localhost".into(),
                session: Some(plain.session()),
                early_data: false,
            };
            let connector = setup.connector();
            let mut accepting = Accepting::new(&setup.acceptor(), server_io, true).unwrap();
            let server = async {
                let AcceptState::NeedsSession(ticket) = accepting.advance().await.unwrap() else {
                    panic!("the session has to be looked up");
                };
                accepting.provide_session(match resumed {
                    true => OpenedTicket::Session(ticket[1..].to_vec()),
                    // A second `NeedsLookup` counts as not found.
                    false => OpenedTicket::NeedsLookup(ticket),
                });
                assert_eq!(accepting.advance().await.unwrap(), AcceptState::Complete);
                let mut server = accepting.into_stream();
                server.flush().await.unwrap();
                assert_eq!(server.facts().resumed, resumed, "{version}");
            };
            let client = async {
                let mut client = TlsStream::connect(&connector, client_io, &offer).await.unwrap();
                client.flush().await.unwrap();
                std::future::poll_fn(|cx| client.poll_complete(cx)).await.unwrap();
                client.flush().await.unwrap();
                assert_eq!(client.facts().resumed, resumed, "{version}");
            };
            tokio::join!(server, client);
        }
    }
}

#[tokio::test]
async fn accept_without_a_lookup_makes_a_full_handshake() {
    let setup = Setup { opens: Opens::NeedsLookup, ..Setup::default() };
    let session = Setup::default().session();
    let (mut client, socket, _) = first_flight(&setup, session, &[b"PING".to_vec()], 1 << 20).await;
    let acceptor = setup.acceptor();
    let server = async {
        let mut server = TlsStream::accept(&acceptor, socket, true).await.unwrap();
        assert!(!server.facts().resumed);
        echo(&mut server).await;
    };
    let mut pong = [0; 4];
    let (read, ()) = tokio::join!(client.read_exact(&mut pong), server);
    read.unwrap();
    assert_eq!(client.facts().early_data, EarlyData::Refused);
}

/// Sends four bytes back.
async fn echo(server: &mut TlsStream<CountingSocket>) {
    let mut ping = [0; 4];
    server.read_exact(&mut ping).await.unwrap();
    server.write_all(&ping).await.unwrap();
    server.flush().await.unwrap();
}

/// Puts each byte into a record of its own, so that a server has to buffer six times the length.
fn one_byte_records(handshake: &[u8]) -> Vec<u8> {
    handshake.iter().flat_map(|byte| [22, 3, 1, 0, 1, *byte]).collect()
}

#[tokio::test]
async fn the_buffer_for_a_client_hello_is_bounded() {
    let setup = Setup::default();
    let (mut client, io) = duplex(1 << 20);
    // The first 9,000 bytes of a ClientHello of 16,000 bytes: 54 KB in records of one byte.
    let hello = [&[1, 0, 0x3e, 0x80][..], &[0; 9_000]].concat();
    client.write_all(&one_byte_records(&hello)).await.unwrap();
    let socket = CountingSocket { io, written: Arc::default(), max_read: 1 << 20 };
    let mut accepting = Accepting::new(&setup.acceptor(), socket, true).unwrap();
    let error = accepting.advance().await.unwrap_err();
    assert!(error.to_string().contains("too many records"), "{error}");
}

#[tokio::test]
async fn a_client_hello_in_records_of_one_byte_is_accepted() {
    let setup = Setup::default();
    let (client_io, mut relay_in) = duplex(1 << 20);
    let offer = ConnectOptions {
        host: "localhost".into(),
        session: Some(setup.session()),
        early_data: true,
    };
    let mut client = TlsStream::connect(&setup.connector(), client_io, &offer).await.unwrap();
    client.flush().await.unwrap();
    let mut flight = vec![0; 1 << 16];
    let count = relay_in.read(&mut flight).await.unwrap();
    let length = 5 + usize::from(u16::from_be_bytes([flight[3], flight[4]]));
    let (mut relay_out, io) = duplex(1 << 20);
    relay_out.write_all(&one_byte_records(&flight[5..length])).await.unwrap();
    relay_out.write_all(&flight[length..count]).await.unwrap();
    let socket = CountingSocket { io, written: Arc::default(), max_read: 1 << 20 };
    let mut accepting = Accepting::new(&setup.acceptor(), socket, true).unwrap();
    assert_eq!(accepting.advance().await.unwrap(), AcceptState::EarlyData);
}

#[test]
fn secrets_stay_out_of_debug() {
    for opened in [
        OpenedTicket::Session(b"secret".to_vec()),
        OpenedTicket::WithoutEarlyData(b"secret".to_vec(), WithheldReason::Zone),
        OpenedTicket::NeedsLookup(b"secret".to_vec()),
    ] {
        assert!(!format!("{opened:?}").contains("115"), "{opened:?}");
    }
}

#[tokio::test]
async fn rfc8446_4_2_10_an_offer_of_early_data_is_recorded_accepted_or_not() {
    let setup = Setup::default();
    for (early_data, allowed) in [(true, true), (true, false), (false, true)] {
        let (client_io, server_io) = duplex(1 << 16);
        let session = Some(setup.session());
        let offer = ConnectOptions { host: "localhost".into(), session, early_data };
        let client = async {
            let connector = setup.connector();
            let mut client = TlsStream::connect(&connector, client_io, &offer).await.unwrap();
            client.write_all(b"PING").await.unwrap();
            client.flush().await.unwrap();
            client.read_exact(&mut [0; 4]).await.unwrap();
        };
        let server = async {
            let mut accepting = Accepting::new(&setup.acceptor(), server_io, allowed).unwrap();
            accepting.advance().await.unwrap();
            let mut server = accepting.into_stream();
            server.write_all(b"PONG").await.unwrap();
            server.flush().await.unwrap();
            server.facts()
        };
        let ((), facts) = tokio::join!(client, server);
        assert_eq!(facts.offered_flight.is_some(), early_data, "{facts:?}");
        assert!(facts.resumed);
    }
}
