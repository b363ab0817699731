//! Tickets that are used up when their client has proved that it knows their secret.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use firstflight_tls::{
    AcceptState, Accepting, ConnectOptions, EarlyData, EarlyDataReason, Handshake, OpenedTicket,
    PskOffer, Session, TicketSealer, TicketUse, TlsStream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::support::Setup;

/// Hides nothing, and remembers which tickets are used up.
#[derive(Default)]
struct OnceSealer {
    used: Mutex<HashSet<Vec<u8>>>,
    /// What happens between the reading of the next ticket and its use.
    between: Mutex<Option<Event>>,
    handed_over: Mutex<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// Another connection uses it.
    Use,
    /// Another process gets the keys.
    HandOver,
}

impl TicketSealer for OnceSealer {
    fn max_overhead(&self) -> usize {
        0
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        Some(session.to_vec())
    }

    fn open(&self, _: &[u8]) -> OpenedTicket {
        panic!("the ticket is of TLS 1.3");
    }

    fn uses_up_tickets(&self) -> bool {
        true
    }

    fn read_once(&self, ticket: &[u8], offer: &PskOffer) -> OpenedTicket {
        if *self.handed_over.lock().unwrap() {
            assert!(offer.proves(ticket));
            return OpenedTicket::NeedsLookup(ticket.to_vec());
        }
        match self.used.lock().unwrap().contains(ticket) {
            true => OpenedTicket::AlreadyUsed,
            false => OpenedTicket::Session(ticket.to_vec()),
        }
    }

    fn use_up(&self, ticket: &[u8]) -> TicketUse {
        match self.between.lock().unwrap().take() {
            Some(Event::Use) => drop(self.used.lock().unwrap().insert(ticket.to_vec())),
            Some(Event::HandOver) => *self.handed_over.lock().unwrap() = true,
            None => {}
        }
        if *self.handed_over.lock().unwrap() {
            return TicketUse::HandedOver;
        }
        match self.used.lock().unwrap().insert(ticket.to_vec()) {
            true => TicketUse::First,
            false => TicketUse::Again,
        }
    }
}

fn setup() -> (Arc<OnceSealer>, Setup) {
    let sealer = Arc::new(OnceSealer::default());
    let setup = Setup { sealer: Some(sealer.clone()), ..Setup::default() };
    (sealer, setup)
}

/// A client that has sent a request as early data, and the server's end of its connection.
async fn first_flight(setup: &Setup, session: Session) -> (TlsStream<DuplexStream>, DuplexStream) {
    let (client_io, server_io) = duplex(1 << 20);
    let offer =
        ConnectOptions { host: "localhost".into(), session: Some(session), early_data: true };
    let mut client = TlsStream::connect(&setup.connector(), client_io, &offer).await.unwrap();
    client.write_all(b"PING").await.unwrap();
    client.flush().await.unwrap();
    (client, server_io)
}

/// Completes the handshake of a server that has refused early data, and reads the request that the
/// client sends again.
async fn answer(
    mut accepting: Accepting<DuplexStream>,
    mut client: TlsStream<DuplexStream>,
) -> Handshake {
    let server = async move {
        assert_eq!(accepting.advance().await.unwrap(), AcceptState::Complete);
        let facts = accepting.facts();
        let mut server = accepting.into_stream();
        let mut request = [0; 4];
        server.read_exact(&mut request).await.unwrap();
        assert!(&request == b"PING" && !server.reading_early());
        server.write_all(b"PONG").await.unwrap();
        server.flush().await.unwrap();
        facts
    };
    let mut response = [0; 4];
    let (read, facts) = tokio::join!(client.read_exact(&mut response), server);
    read.unwrap();
    assert_eq!(&response, b"PONG");
    assert_eq!(client.facts().early_data, EarlyData::Refused);
    assert_eq!(facts.resumed, client.facts().resumed);
    facts
}

#[tokio::test]
async fn a_ticket_is_used_up_before_its_early_data_is_read() {
    let (sealer, setup) = setup();
    let (_client, io) = first_flight(&setup, setup.session()).await;
    let mut accepting = Accepting::new(&setup.acceptor(), io, true).unwrap();
    assert_eq!(accepting.advance().await.unwrap(), AcceptState::EarlyData);
    assert_eq!(sealer.used.lock().unwrap().len(), 1);
    assert!(accepting.facts().ticket_used_up);
}

#[tokio::test]
async fn a_ticket_is_used_up_although_early_data_is_refused() {
    let (sealer, setup) = setup();
    let (client, io) = first_flight(&setup, setup.session()).await;
    let mut accepting = Accepting::new(&setup.acceptor(), io, true).unwrap();
    assert_eq!(accepting.advance().await.unwrap(), AcceptState::EarlyData);
    accepting.refuse_early_data().unwrap();
    assert!(answer(accepting, client).await.resumed);
    let (client, io) = first_flight(&setup, setup.session()).await;
    let declining = Accepting::new(&setup.acceptor(), io, false).unwrap();
    assert!(answer(declining, client).await.resumed);
    assert_eq!(sealer.used.lock().unwrap().len(), 2);
}

/// Both have read the ticket before one of them uses it up.
#[tokio::test]
async fn of_two_connections_at_the_same_time_the_slower_makes_a_full_handshake() {
    for early_data in [true, false] {
        let (sealer, setup) = setup();
        let session = setup.session();
        let (client, io) = first_flight(&setup, session.clone()).await;
        *sealer.between.lock().unwrap() = Some(Event::Use);
        let mut accepting = Accepting::new(&setup.acceptor(), io, early_data).unwrap();
        assert_eq!(accepting.advance().await.unwrap(), AcceptState::TicketUsed);
        assert!(!accepting.facts().ticket_used_up);
        let why = match early_data {
            true => EarlyDataReason::TicketUsed,
            false => EarlyDataReason::Disabled,
        };
        let facts = answer(accepting, client).await;
        assert_eq!((facts.resumed, facts.early_data_reason), (false, why));
        // Nor does a later one.
        let (client, io) = first_flight(&setup, session).await;
        let mut accepting = Accepting::new(&setup.acceptor(), io, early_data).unwrap();
        assert_eq!(accepting.advance().await.unwrap(), AcceptState::TicketUsed);
        assert!(!answer(accepting, client).await.resumed);
    }
}

/// Another process has got the keys since the ticket was read: it decides.
#[tokio::test]
async fn keys_that_are_handed_over_meanwhile_lead_to_a_lookup() {
    let (sealer, setup) = setup();
    let (client, io) = first_flight(&setup, setup.session()).await;
    *sealer.between.lock().unwrap() = Some(Event::HandOver);
    let mut accepting = Accepting::new(&setup.acceptor(), io, true).unwrap();
    let AcceptState::NeedsSession(session) = accepting.advance().await.unwrap() else {
        panic!("the other process has the keys");
    };
    accepting.provide_session(OpenedTicket::UsedUp(session));
    assert_eq!(accepting.advance().await.unwrap(), AcceptState::EarlyData);
    accepting.refuse_early_data().unwrap();
    assert!(answer(accepting, client).await.resumed);
    assert!(sealer.used.lock().unwrap().is_empty());
}

/// Whoever has seen a ticket on the wire, and does not know its secret. Where the session is not
/// resumed, because the server has other ciphers, BoringSSL does not verify the binder.
#[tokio::test]
async fn rfc8446_4_2_11_2_only_a_valid_binder_uses_a_ticket_up() {
    for (ciphers, resumed) in [(None, true), (Some("TLS_CHACHA20_POLY1305_SHA256"), false)] {
        for valid in [false, true] {
            let (sealer, mut setup) = setup();
            let session = setup.session();
            let client = setup.connector();
            setup.ciphers.tls13_ciphers = ciphers.map(str::to_owned);
            let offer = ConnectOptions {
                host: "localhost".into(),
                session: Some(session),
                early_data: true,
            };
            let mut client = client.connection(&offer).unwrap();
            client.handshake().unwrap();
            let mut flight = client.outgoing().to_vec();
            if !valid {
                // The binder's last byte is that of the first record.
                let end = 5 + usize::from(u16::from_be_bytes([flight[3], flight[4]]));
                flight[end - 1] ^= 1;
            }
            let (mut client_io, io) = duplex(1 << 20);
            client_io.write_all(&flight).await.unwrap();
            let mut accepting = Accepting::new(&setup.acceptor(), io, true).unwrap();
            let advanced = tokio::select! {
                advanced = accepting.advance() => Some(advanced),
                // It waits for the client.
                () = tokio::time::sleep(Duration::from_millis(200)) => None,
            };
            match (resumed, valid) {
                (true, true) => assert_eq!(advanced.unwrap().unwrap(), AcceptState::EarlyData),
                (true, false) => {
                    let error = advanced.unwrap().unwrap_err().to_string();
                    assert!(error.contains("digest check failed"), "{error}");
                }
                (false, _) => assert!(advanced.is_none(), "{advanced:?}"),
            }
            assert_eq!(sealer.used.lock().unwrap().len(), usize::from(valid), "{ciphers:?}");
        }
    }
}
