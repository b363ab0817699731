//! A client and a server, connected in memory.

use firstflight_tls::{
    EarlyData, EarlyDataReason, KeyLogLines, MAX_EARLY_DATA, Progress, Session, SteadyClock,
    TlsError, Trust, Version,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Pair, Setup, server_read};

#[test]
fn full_handshake_then_resumption_in_every_version() {
    for version in Version::ALL {
        let setup = Setup { min: version, max: version, ..Setup::default() };
        let mut first = Pair::new(&setup, None, false);
        first.complete();
        let facts = first.client.facts();
        assert_eq!(facts.version, Some(version));
        assert!(!facts.resumed, "{version}");
        assert!(facts.cipher.is_some());
        let session = first.sessions().pop().expect("a ticket");
        let mut second = Pair::new(&setup, Some(session), false);
        second.complete();
        assert!(second.client.facts().resumed && second.server.facts().resumed, "{version}");
        assert_eq!(second.client.facts().early_data, EarlyData::NotOffered);
    }
}

#[test]
fn rfc8446_8_3_a_session_that_claims_to_be_older_is_resumed_without_early_data() {
    let setup = Setup::default();
    let session = setup.session();
    let older = session.issued_earlier(100).unwrap();
    assert_eq!(session.issued_and_lifetime().0 - older.issued_and_lifetime().0, 100);
    let mut pair = Pair::new(&setup, Some(older), true);
    assert_eq!(pair.client.handshake().unwrap(), Progress::Done(()));
    assert_eq!(pair.client.write(b"GET").unwrap(), Progress::Done(3));
    pair.complete();
    let facts = pair.server.facts();
    assert!(facts.resumed);
    assert_eq!(facts.early_data_reason, EarlyDataReason::TicketAgeSkew);
    assert!((99..=101).contains(&facts.ticket_age_skew), "{}", facts.ticket_age_skew);
    assert_eq!(pair.client.facts().early_data, EarlyData::Refused);
}

#[test]
fn the_skew_of_an_offer_comes_with_the_time_of_its_measurement() {
    let setup = Setup::default();
    let older = setup.session().issued_earlier(100).unwrap();
    let mut pair = Pair::new(&setup, Some(older), true);
    pair.client.handshake().unwrap();
    assert_eq!(pair.client.write(b"GET").unwrap(), Progress::Done(3));
    let before = SteadyClock::unix_micros();
    pair.client_to_server();
    assert_eq!(pair.server.handshake().unwrap(), Progress::NeedsInput);
    let after = SteadyClock::unix_micros();
    let measured_at = |pair: &Pair| pair.server.facts().offered_flight.unwrap().measured_at;
    let measured = measured_at(&pair);
    assert!((before..=after).contains(&measured), "{before} {measured} {after}");
    // The client's Finished, which may come much later, does not change it.
    pair.complete();
    assert_eq!(measured_at(&pair), measured);
}

#[test]
fn a_session_can_state_a_smaller_or_larger_age() {
    let session = Setup::default().session();
    let issued = |session: &Session| session.issued_and_lifetime().0;
    let older = session.issued_earlier(100).unwrap();
    let younger = older.issued_later(30).unwrap();
    assert_eq!(issued(&session) - issued(&younger), 70);
    assert_eq!(issued(&session) - issued(&older), 100, "only the copy is changed");
}

#[test]
fn rfc8446_4_2_11_1_a_session_from_the_future_is_not_offered() {
    let setup = Setup::default();
    let younger = setup.session().issued_later(100).unwrap();
    let mut pair = Pair::new(&setup, Some(younger), true);
    pair.complete();
    assert!(!pair.server.facts().resumed);
    assert_eq!(pair.client.facts().early_data, EarlyData::NotOffered);
}

#[test]
fn rfc8446_2_3_early_data_arrives_with_the_first_flight_and_gets_a_response_before_finished() {
    let setup = Setup::default();
    let session = setup.session();
    let mut pair = Pair::new(&setup, Some(session), true);
    assert_eq!(pair.client.handshake().unwrap(), Progress::Done(()));
    assert!(pair.client.outgoing().len() > 200, "the hello waits to leave with the request");
    assert_eq!(pair.client.write(b"GET").unwrap(), Progress::Done(3));
    assert_eq!(pair.client.facts().early_data, EarlyData::Pending);
    pair.client_to_server();

    assert_eq!(pair.server.handshake().unwrap(), Progress::Done(()));
    assert!(pair.server.in_early_data() && !pair.server.is_complete());
    assert_eq!(server_read(&mut pair.server).unwrap(), b"GET");
    assert_eq!(pair.server.write(b"200").unwrap(), Progress::Done(3));
    pair.server_to_client();

    let mut response = [0; 8];
    assert_eq!(pair.client.read(&mut response).unwrap(), Progress::Done(3));
    assert_eq!(&response[..3], b"200");
    assert_eq!(pair.client.facts().early_data, EarlyData::Accepted);
    assert!(!pair.server.is_complete(), "half-RTT data came before the client's Finished");
    pair.complete();
    assert_eq!(pair.server.facts().early_data_reason, EarlyDataReason::Accepted);
    assert_eq!(pair.server.facts().client_random, pair.client.facts().client_random);
    assert!(pair.server.facts().ticket_age_skew.abs() <= 1);
    assert_eq!(pair.sessions().len(), 1, "in place of the one that was used");
}

#[test]
fn rfc8446_4_2_10_refused_early_data_is_written_again_after_the_handshake() {
    // The server lost its ticket key: it cannot resume, so it has to refuse.
    let session = Setup::default().session();
    let mut pair = Pair::new(&Setup { sealer_key: 2, ..Setup::default() }, Some(session), true);
    refused_and_sent_again(&mut pair);
    assert!(!pair.client.facts().resumed);
}

#[test]
fn early_data_can_be_refused_for_one_connection_and_its_tickets_still_allow_it() {
    let setup = Setup::default();
    let mut pair =
        Pair::new(&Setup { decline: true, ..setup.clone() }, Some(setup.session()), true);
    refused_and_sent_again(&mut pair);
    assert!(pair.client.facts().resumed);
    assert_eq!(pair.server.facts().early_data_reason, EarlyDataReason::Disabled);
    let next = pair.sessions().pop().expect("a ticket");
    assert!(next.early_data_capable());
    let mut pair = Pair::new(&setup, Some(next), true);
    pair.complete();
    assert_eq!(pair.client.facts().early_data, EarlyData::Accepted);
}

fn refused_and_sent_again(pair: &mut Pair) {
    pair.client.handshake().unwrap();
    assert_eq!(pair.client.write(b"GET").unwrap(), Progress::Done(3));
    assert_eq!(pair.client.early_bytes_written(), 3);
    pair.client_to_server();
    assert_eq!(pair.server.handshake().unwrap(), Progress::NeedsInput);
    pair.complete();
    assert_eq!(pair.client.facts().early_data, EarlyData::Refused);
    assert_eq!(server_read(&mut pair.server).unwrap(), b"GET", "once, after the handshake");
    assert!(server_read(&mut pair.server).is_none(), "and only once");
}

#[test]
fn rfc8446_4_2_11_1_the_stated_ticket_age_is_never_too_large() {
    let setup = Setup::default();
    // Ages in whole seconds are a second too large around the turn of a second.
    for _ in 0..3 {
        let sleep_until = |part: i64| {
            let wait = (part - SteadyClock::unix_micros()).rem_euclid(1_000_000);
            std::thread::sleep(Duration::from_micros(wait as u64));
        };
        sleep_until(950_000);
        let issued = SteadyClock::unix_micros();
        let session = setup.session();
        sleep_until(0);
        let mut pair = Pair::new(&setup, Some(session), true);
        pair.complete();
        assert_eq!(pair.client.facts().early_data, EarlyData::Accepted);
        // The server's whole seconds say that one has passed, and the client says that none has.
        let passed = SteadyClock::unix_micros() - issued;
        let skew = pair.server.facts().ticket_age_skew;
        assert!(skew < 0 || passed >= 1_000_000, "{skew} s after {passed} us");
    }
}

#[test]
fn a_serialized_session_resumes_with_early_data() {
    let setup = Setup::default();
    let bytes = setup.session().to_bytes().unwrap();
    let session = Session::from_bytes(&bytes).unwrap();
    assert!(session.early_data_capable() && session.single_use());
    assert_eq!(session.version(), Some(Version::Tls13));
    let mut pair = Pair::new(&setup, Some(session), true);
    pair.complete();
    assert_eq!(pair.client.facts().early_data, EarlyData::Accepted);
    for cut in 0..bytes.len() {
        assert!(Session::from_bytes(&bytes[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn more_than_the_limit_of_early_data_is_written_after_the_handshake() {
    let setup = Setup::default();
    let mut pair = Pair::new(&setup, Some(setup.session()), true);
    pair.client.handshake().unwrap();
    let data = vec![7; MAX_EARLY_DATA + 5_000];
    let mut written = 0;
    while let Progress::Done(count) = pair.client.write(&data[written..]).unwrap() {
        written += count;
        assert!(written <= MAX_EARLY_DATA);
    }
    assert_eq!(written, MAX_EARLY_DATA);
    assert_eq!(pair.client.early_bytes_written(), MAX_EARLY_DATA);
    pair.client_to_server();
    pair.server.handshake().unwrap();
    let mut got = Vec::new();
    while let Some(bytes) = server_read(&mut pair.server) {
        got.extend(bytes);
    }
    pair.server_to_client();
    while written < data.len() {
        match pair.client.write(&data[written..]).unwrap() {
            Progress::Done(count) => written += count,
            _ => pair.exchange(),
        }
    }
    pair.client_to_server();
    while let Some(bytes) = server_read(&mut pair.server) {
        got.extend(bytes);
    }
    assert_eq!(got.len(), data.len());
    assert_eq!(pair.client.facts().early_data, EarlyData::Accepted);
}

#[test]
fn rfc8446_4_2_10_another_protocol_after_a_refusal_is_a_distinct_error() {
    let h2 = Setup { alpn: vec![b"h2".to_vec()], ..Setup::default() };
    let session = h2.session();
    let server = Setup { alpn: vec![b"http/1.1".to_vec()], ..Setup::default() };
    let client = Setup { alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()], ..Setup::default() };
    let mut pair = Pair::between(&client, &server, Some(session), true);
    pair.client.handshake().unwrap();
    pair.client.write(b"PRI").unwrap();
    let error = loop {
        pair.exchange();
        if let Err(error) = pair.client.handshake() {
            break error;
        }
    };
    assert!(matches!(error, TlsError::AlpnChanged { .. }), "{error}");
}

#[test]
fn rfc8446_d_3_a_server_downgraded_to_tls12_leads_to_a_retry_without_early_data() {
    let session = Setup::default().session();
    let server = Setup { max: Version::Tls12, ..Setup::default() };
    let mut pair = Pair::between(&Setup::default(), &server, Some(session), true);
    pair.client.handshake().unwrap();
    pair.client.write(b"GET").unwrap();
    let error = pair.fails_on_client();
    assert!(matches!(error, TlsError::RetryWithoutEarlyData), "{error}");
}

#[test]
fn the_key_log_has_the_early_secret_and_group_and_cipher_are_configurable() {
    let log = Arc::new(KeyLogLines::default());
    let mut setup = Setup { key_log: Some(log.clone()), ..Setup::default() };
    setup.ciphers.groups = Some("P-256".into());
    setup.ciphers.tls13_ciphers = Some("TLS_CHACHA20_POLY1305_SHA256".into());
    let session = setup.session();
    log.take();
    let mut pair = Pair::new(&setup, Some(session), true);
    pair.complete();
    let lines = log.take();
    for label in ["CLIENT_EARLY_TRAFFIC_SECRET ", "SERVER_TRAFFIC_SECRET_0 "] {
        assert!(lines.contains(label), "{label}");
    }
    let facts = pair.client.facts();
    assert_eq!(facts.group, Some("P-256"));
    assert_eq!(facts.cipher, Some("TLS_CHACHA20_POLY1305_SHA256"));
}

#[test]
fn an_untrusted_certificate_is_rejected_with_the_fix() {
    let mut pair = Pair::new(&Setup { trust: Trust::System, ..Setup::default() }, None, false);
    let error = pair.fails_on_client();
    assert!(error.to_string().contains("--cacert"), "{error}");
}

#[test]
fn a_peer_that_disconnects_during_the_handshake_is_a_clear_error() {
    let mut pair = Pair::new(&Setup::default(), None, false);
    pair.client.handshake().unwrap();
    pair.client.feed_eof();
    assert!(matches!(pair.client.handshake(), Err(TlsError::ClosedInHandshake)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_never_complete_a_handshake(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut pair = Pair::new(&Setup::default(), None, false);
        pair.server.feed(&bytes);
        prop_assert!(!matches!(pair.server.handshake(), Ok(Progress::Done(()))));
    }

    #[test]
    fn a_first_flight_with_one_wrong_byte_is_never_early_data(at in 0usize..600, flip in 1u8..=255) {
        let setup = Setup::default();
        let mut pair = Pair::new(&setup, Some(setup.session()), true);
        pair.client.handshake().unwrap();
        pair.client.write(b"GET").unwrap();
        let mut flight = pair.client.outgoing().to_vec();
        let at = at % flight.len();
        // The minor version of the first record is ignored (RFC 8446 section 5.1).
        prop_assume!(at != 2);
        flight[at] ^= flip;
        pair.server.feed(&flight);
        if let Ok(Progress::Done(())) = pair.server.handshake() {
            // The ClientHello is intact, so the wrong byte is in the early data.
            let mut buffer = [0; 64];
            let read = pair.server.read(&mut buffer);
            prop_assert!(!matches!(read, Ok(Progress::Done(_))), "byte {at} wrong: {buffer:?}");
        }
    }
}
