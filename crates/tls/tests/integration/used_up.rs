//! Single-use tickets: used up once their client has proved that it knows their secret.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use firstflight_tls::{
    AcceptState, Accepting, ConnectOptions, Connector, EarlyData, EarlyDataReason, Handshake,
    OpenedTicket, PskOffer, Session, TicketSealer, TicketUse, TlsStream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::support::Setup;

/// Does not encrypt tickets, and remembers which are used up.
#[derive(Default)]
struct OnceSealer {
    used: Mutex<HashSet<Vec<u8>>>,
    /// What happens between the reading of the next ticket and its use.
    between: Mutex<Option<Event>>,
    handed_over: Mutex<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// Another connection uses the ticket.
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
async fn respond(
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
    assert!(respond(accepting, client).await.resumed);
    let (client, io) = first_flight(&setup, setup.session()).await;
    let declining = Accepting::new(&setup.acceptor(), io, false).unwrap();
    assert!(respond(declining, client).await.resumed);
    assert_eq!(sealer.used.lock().unwrap().len(), 2);
}

/// Both connections have read the ticket before one of them uses it up.
#[tokio::test]
async fn of_two_concurrent_connections_with_a_ticket_the_slower_makes_a_full_handshake() {
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
        let facts = respond(accepting, client).await;
        assert_eq!((facts.resumed, facts.early_data_reason), (false, why));
        // A later connection does not resume it either.
        let (client, io) = first_flight(&setup, session).await;
        let mut accepting = Accepting::new(&setup.acceptor(), io, early_data).unwrap();
        assert_eq!(accepting.advance().await.unwrap(), AcceptState::TicketUsed);
        assert!(!respond(accepting, client).await.resumed);
    }
}

/// Another process has taken over the keys since the ticket was read, so that process decides.
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
    assert!(respond(accepting, client).await.resumed);
    assert!(sealer.used.lock().unwrap().is_empty());
}

/// An attacker has seen a ticket on the wire, but does not know its secret. BoringSSL does not
/// verify the binder if the session is not resumed because the server has other ciphers.
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
                // The server waits for the client.
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

/// A record that ends the connection follows the first flight, and BoringSSL reads both in one step. The
/// server's flight tells the client that its early data was refused, so it sends the request again. Later a
/// copy of its first flight could be accepted.
#[tokio::test]
async fn rfc8446_8_a_refused_flight_with_an_invalid_record_uses_its_ticket_up() {
    const INVALID: &[u8] = &[23, 9, 9, 0, 0];
    const CLOSE_NOTIFY: &[u8] = &[21, 3, 3, 0, 2, 1, 0];
    for last in [INVALID, CLOSE_NOTIFY] {
        for (early_data, groups) in [(false, None), (true, Some("P-384"))] {
            let (sealer, mut setup) = setup();
            let session = setup.session();
            let client = setup.connector();
            setup.ciphers.groups = groups.map(str::to_owned);
            let (mut client_io, io) = send_first_flight(&client, session, last).await;
            let accepting = Accepting::new(&setup.acceptor(), io, early_data).unwrap();
            run_until_error(accepting).await;
            assert_eq!(sealer.used.lock().unwrap().len(), 1, "{groups:?}, {last:?}");
            let mut flight = Vec::new();
            client_io.read_to_end(&mut flight).await.unwrap();
        }
    }
}

/// The flight's session is not resumed, and another connection uses its ticket at the same time.
#[tokio::test]
async fn nothing_is_sent_twice_if_an_invalid_record_follows_a_lost_ticket() {
    let (sealer, mut setup) = setup();
    let session = setup.session();
    let client = setup.connector();
    setup.ciphers.tls13_ciphers = Some("TLS_CHACHA20_POLY1305_SHA256".to_owned());
    *sealer.between.lock().unwrap() = Some(Event::Use);
    let (mut client, io) = send_first_flight(&client, session, &[23, 9, 9, 0, 0]).await;
    run_until_error(Accepting::new(&setup.acceptor(), io, true).unwrap()).await;
    let mut sent = Vec::new();
    client.read_to_end(&mut sent).await.unwrap();
    let is_server_hello = |record: &[u8]| record.first() == Some(&22) && record.get(5) == Some(&2);
    let mut hellos = 0;
    let mut rest = sent.as_slice();
    while let Some(header) = rest.first_chunk::<5>() {
        hellos += usize::from(is_server_hello(rest));
        rest =
            &rest[(5 + usize::from(u16::from_be_bytes([header[3], header[4]]))).min(rest.len())..];
    }
    assert!(hellos <= 1, "{hellos}");
}

/// Sends a ClientHello and these last bytes at once, then EOF. Returns both ends.
async fn send_first_flight(
    client: &Connector,
    session: Session,
    last: &[u8],
) -> (DuplexStream, DuplexStream) {
    let offer =
        ConnectOptions { host: "localhost".into(), session: Some(session), early_data: true };
    let mut client = client.connection(&offer).unwrap();
    client.handshake().unwrap();
    let (mut client_io, io) = duplex(1 << 20);
    // The early data is skipped where it is refused, and would have to be valid.
    let hello = client.outgoing();
    let length = 5 + usize::from(u16::from_be_bytes([hello[3], hello[4]]));
    client_io.write_all(&[&hello[..length], last].concat()).await.unwrap();
    client_io.shutdown().await.unwrap();
    (client_io, io)
}

/// Runs a handshake that fails or is closed, and drops the connection.
async fn run_until_error(mut accepting: Accepting<DuplexStream>) {
    loop {
        match accepting.advance().await {
            Ok(AcceptState::TicketUsed) => {}
            Ok(AcceptState::Complete) => panic!("the client has sent no Finished"),
            Ok(state) => panic!("{state:?}"),
            Err(_) => return,
        }
    }
}
