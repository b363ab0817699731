//! First flights are read before quinn reads them: TLS submits the previewed ClientHello to the judge,
//! and early data without a preview is not accepted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use firstflight_quic::test_packets::{crypto_frame, initial_packet};
use firstflight_quic::{
    FirstFlight, FirstFlightPreview, FirstFlights, FirstFlightsLimits, Remembered,
};
use firstflight_tls::{CipherPolicy, EarlyData, OpenedTicket};
use quinn_proto::ConnectionId;

use crate::support::{Admission, Pair, Setup, facts};

/// Reads each datagram before quinn does, and accepts only the early data that it has previewed.
struct PreviewingServer {
    flights: Arc<Mutex<FirstFlights>>,
    /// The client randoms that were previewed.
    previewed: Arc<Mutex<Vec<[u8; 32]>>>,
    /// The client randoms that TLS submitted to the judge.
    judged: Arc<Mutex<Vec<[u8; 32]>>>,
}

impl PreviewingServer {
    /// Installs the reader before `pair`'s server. `retry`: whether the server sends a Retry first.
    fn install(pair: &mut Pair, retry: bool) -> Self {
        let flights = FirstFlights::new(FirstFlightsLimits::default());
        let flights = Arc::new(Mutex::new(flights));
        let (previewed, judged) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
        let previewing = Self { flights, previewed, judged };
        let (flights, client) = (previewing.flights.clone(), pair.client.address);
        pair.losses = Box::new(move |from_client, datagram| {
            if from_client {
                flights.lock().unwrap().process_datagram(client, datagram, Duration::ZERO);
            }
            false
        });
        let (flights, previewed) = (previewing.flights.clone(), previewing.previewed.clone());
        let (judged, crypto, setup) =
            (previewing.judged.clone(), pair.crypto.clone(), pair.setup.clone());
        pair.policy = Box::new(move |incoming| {
            let mut flights = flights.lock().unwrap();
            let remote = incoming.remote_address();
            if retry && incoming.may_retry() {
                flights.forget(remote, incoming.orig_dst_cid());
                return Admission::Retry;
            }
            let id = match incoming.may_retry() {
                true => *incoming.orig_dst_cid(),
                false => flights.connection_id_after_retry(remote).expect("a flight with a token"),
            };
            let FirstFlight::Whole { client_hello, token } = flights.take(remote, &id) else {
                let refusing = crypto.for_connection(Box::new(|_| false), None);
                return Admission::Accept(setup.server_config(refusing));
            };
            assert_eq!(token.is_empty(), incoming.may_retry());
            let mut session = None;
            let mut preview = crypto.preview(&client_hello, None).unwrap();
            if let FirstFlightPreview::NeedsSession(key) = &preview {
                // The key is the ticket: one byte, then the session.
                session = Some(OpenedTicket::Session(key[1..].to_vec()));
                preview = crypto.preview(&client_hello, session.clone()).unwrap();
            }
            let expected = match preview {
                FirstFlightPreview::EarlyData(facts) => Some(facts.client_random),
                _ => None,
            };
            previewed.lock().unwrap().extend(expected);
            let judged = judged.clone();
            let judge = Box::new(move |facts: &firstflight_quic::Handshake| {
                judged.lock().unwrap().push(facts.client_random);
                expected == Some(facts.client_random)
            });
            Admission::Accept(setup.server_config(crypto.for_connection(judge, session)))
        });
        previewing
    }

    fn previewed(&self) -> Vec<[u8; 32]> {
        self.previewed.lock().unwrap().clone()
    }

    fn judged(&self) -> Vec<[u8; 32]> {
        self.judged.lock().unwrap().clone()
    }
}

/// A client whose ClientHello takes two datagrams if `post_quantum`, else one.
fn setup(post_quantum: bool) -> Setup {
    let mut setup = Setup::default();
    if !post_quantum {
        let groups = CipherPolicy { groups: Some("X25519".to_owned()), ..setup.ciphers };
        setup.ciphers = groups;
    }
    setup
}

#[test]
fn the_judge_gets_the_previewed_client_hello() {
    for opens in [crate::support::Opens::Session, crate::support::Opens::NeedsLookup] {
        for post_quantum in [true, false] {
            for retry in [false, true] {
                let setup = Setup { opens, ..setup(post_quantum) };
                let mut plain = setup.clone();
                plain.opens = crate::support::Opens::Session;
                let remembered = plain.remembered();
                let mut pair = setup.pair();
                let previewing = PreviewingServer::install(&mut pair, retry);
                let started = pair.start(remembered);
                pair.send(started.client, b"early");
                pair.drive();
                let connected = pair.connected(started);
                assert_eq!(pair.received(connected.server), [b"early"]);
                let seen = facts(pair.server(connected.server));
                assert_eq!(seen.early_data, EarlyData::Accepted, "{opens:?} {retry}");
                assert_eq!(previewing.previewed(), [seen.client_random]);
                assert_eq!(previewing.judged(), [seen.client_random]);
            }
        }
    }
}

#[test]
fn a_full_handshake_needs_no_decision() {
    let mut pair = setup(true).pair();
    let previewing = PreviewingServer::install(&mut pair, false);
    pair.connect(Remembered::default());
    assert!(previewing.previewed().is_empty() && previewing.judged().is_empty());
}

/// The ClientHello of a client's first flight, and its connection id.
fn client_hello(pair: &mut Pair, remembered: Remembered) -> (Vec<u8>, ConnectionId) {
    pair.start(remembered);
    pair.exchange();
    let mut flights = FirstFlights::new(FirstFlightsLimits::default());
    let remote = pair.client.address;
    let sent = pair.wire.drain(..).collect::<Vec<_>>();
    let id = sent
        .iter()
        .find_map(|(_, datagram)| flights.process_datagram(remote, datagram, Duration::ZERO));
    let id = id.expect("a whole ClientHello");
    match flights.take(remote, &id) {
        FirstFlight::Whole { client_hello, .. } => (client_hello, id),
        other => panic!("{other:?}"),
    }
}

#[test]
fn early_data_is_refused_if_another_client_hello_was_previewed() {
    let setup = setup(false);
    let (attacked, attackers) = (setup.remembered(), setup.remembered());
    let (forged, _) = client_hello(&mut setup.pair(), attackers);
    let mut pair = setup.pair();
    let previewing = PreviewingServer::install(&mut pair, false);
    let started = pair.start(attacked);
    pair.send(started.client, b"early");
    // Only the preview reads the attacker's packet, ahead of the client's: as if quinn had rejected
    // its length or checksum.
    let (flights, client) = (previewing.flights.clone(), pair.client.address);
    pair.losses = Box::new(move |from_client, datagram| {
        if from_client && datagram[0] & 0xb0 == 0x80 {
            let id = &datagram[6..6 + usize::from(datagram[5])];
            let mut payload = crypto_frame(0, &forged);
            payload.resize(1200, 0);
            let mut flights = flights.lock().unwrap();
            flights.process_datagram(client, &initial_packet(id, b"", 0, &payload), Duration::ZERO);
            flights.process_datagram(client, datagram, Duration::ZERO);
        }
        false
    });
    pair.drive();
    let connected = pair.connected(started);
    let seen = facts(pair.server(connected.server));
    assert_eq!(previewing.previewed().len(), 1, "the attacker's ClientHello was previewed");
    assert_ne!(previewing.previewed()[0], seen.client_random);
    assert_eq!(previewing.judged(), [seen.client_random]);
    assert_eq!(seen.early_data, EarlyData::Refused);
    assert!(pair.received(connected.server).is_empty());
}

#[test]
fn a_forged_packet_that_both_readers_accept_yields_no_early_data() {
    let setup = setup(false);
    let (forged, _) = client_hello(&mut setup.pair(), setup.remembered());
    for cut in [4, 20, 38, 60, 200, forged.len()] {
        let mut pair = setup.pair();
        let previewing = PreviewingServer::install(&mut pair, false);
        let started = pair.start(setup.remembered());
        pair.send(started.client, b"early");
        pair.exchange();
        // The server gets the forged bytes before the client's, and the rest after them.
        let id = pair.wire[0].1[6..][..usize::from(pair.wire[0].1[5])].to_vec();
        let mut payload = crypto_frame(0, &forged[..cut]);
        payload.resize(1200, 0);
        let packet = initial_packet(&id, b"", 7, &payload);
        let mut flights = FirstFlights::new(FirstFlightsLimits::default());
        flights.process_datagram(pair.client.address, &packet, Duration::ZERO);
        for (from_client, datagram) in &pair.wire {
            assert!(from_client);
            flights.process_datagram(pair.client.address, datagram, Duration::ZERO);
        }
        *previewing.flights.lock().unwrap() = flights;
        let at = pair.server.inbound[0].0;
        pair.server.inbound.push_front((at, packet));
        pair.drive();
        let server = *pair.accepted.last().expect("an accepted connection");
        // Either TLS rejects the mixed ClientHello, or it is the complete forged one: then the early
        // data of the other client does not decrypt.
        assert!(pair.received(server).is_empty(), "{cut} bytes");
        for judged in previewing.judged() {
            assert!(previewing.previewed().contains(&judged), "{cut} bytes");
        }
        assert!(!pair.client(started.client).accepted_0rtt());
    }
}
