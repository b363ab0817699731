//! Handshakes without packets: what TLS guarantees for any CRYPTO frames.

use std::sync::Arc;

use firstflight_quic::Remembered;
use firstflight_tls::{CipherPolicy, EarlyData, KeyLogLines, Trust};
use proptest::prelude::*;
use quinn_proto::crypto::Session;

use crate::support::sessions::{DATA, HANDSHAKE, INITIAL, Peer, Peers, client_hello, server};
use crate::support::{Setup, resuming};

/// The kinds of handshakes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Full,
    Early,
    Refused,
    HelloRetryRequest,
    EarlyThenHelloRetryRequest,
}

impl Kind {
    fn peers(self) -> Peers {
        let plain = Setup::default();
        let other_group = Setup { server_groups: Some("P-384".to_owned()), ..Setup::default() };
        match self {
            Self::Full => Peers::new(&plain, Remembered::default(), true),
            Self::Early => Peers::new(&plain, plain.session_remembered(), true),
            Self::Refused => Peers::new(&plain, plain.session_remembered(), false),
            Self::HelloRetryRequest => Peers::new(&other_group, Remembered::default(), true),
            Self::EarlyThenHelloRetryRequest => {
                Peers::new(&other_group, plain.session_remembered(), true)
            }
        }
    }

    fn early_data(self) -> EarlyData {
        match self {
            Self::Full | Self::HelloRetryRequest => EarlyData::NotOffered,
            Self::Early => EarlyData::Accepted,
            Self::Refused | Self::EarlyThenHelloRetryRequest => EarlyData::Refused,
        }
    }
}

const KINDS: [Kind; 5] = [
    Kind::Full,
    Kind::Early,
    Kind::Refused,
    Kind::HelloRetryRequest,
    Kind::EarlyThenHelloRetryRequest,
];

impl Setup {
    /// What a client remembers of a handshake without packets.
    fn session_remembered(&self) -> Remembered {
        let mut peers = Peers::new(self, Remembered::default(), true);
        peers.complete();
        resuming(peers.inbox.take_resumptions().pop().expect("a ticket"))
    }
}

fn assert_done(kind: Kind, peers: &Peers) {
    assert!(peers.client.complete() && peers.server.complete(), "{kind:?}");
    assert_eq!(peers.client.facts().early_data, kind.early_data(), "{kind:?}");
    // A resumed connection replaces the ticket that it used.
    let tickets = if kind.early_data() == EarlyData::NotOffered { 2 } else { 1 };
    assert_eq!(peers.inbox.take_resumptions().len(), tickets, "{kind:?}");
    let retried = matches!(kind, Kind::HelloRetryRequest | Kind::EarlyThenHelloRetryRequest);
    assert_eq!(peers.server.facts().hello_retry_request, retried, "{kind:?}");
    assert_eq!(exported(&*peers.client.session), exported(&*peers.server.session), "{kind:?}");
    assert_eq!(peers.client.facts().client_random, peers.server.facts().client_random);
}

fn exported(session: &dyn Session) -> [u8; 40] {
    let mut bytes = [0; 40];
    session.export_keying_material(&mut bytes, b"EXPERIMENTAL label", b"context").unwrap();
    bytes
}

#[test]
fn handshakes_of_all_kinds_and_suites_complete() {
    for kind in KINDS {
        let mut peers = kind.peers();
        peers.complete();
        assert_done(kind, &peers);
    }
    for suite in
        ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
    {
        let ciphers =
            CipherPolicy { tls13_ciphers: Some(suite.to_owned()), ..CipherPolicy::default() };
        let setup = Setup { ciphers, ..Setup::default() };
        let mut peers = Peers::new(&setup, setup.session_remembered(), true);
        peers.complete();
        assert_done(Kind::Early, &peers);
        assert_eq!(peers.server.facts().cipher, Some(suite));
    }
}

/// The secret decrypts the first flight, and a connection may last long.
#[test]
fn the_secret_of_early_data_is_not_kept() {
    let mut peers = Kind::Early.peers();
    let hello = std::mem::take(&mut peers.client.out[INITIAL]);
    peers.server.read(&hello).unwrap();
    for peer in [&peers.client, &peers.server] {
        assert!(peer.session.early_crypto().is_some());
        assert!(peer.session.early_crypto().is_none());
    }
    peers.complete();
    assert_done(Kind::Early, &peers);
}

/// A NewSessionTicket message with its header (RFC 8446 section 4.6.1).
fn new_session_ticket(number: u8) -> Vec<u8> {
    let (lifetime, age_add, nonce) = (3600_u32.to_be_bytes(), [0; 4], [1, number]);
    let fields = [&lifetime[..], &age_add, &nonce, &[0, 32], &[number; 32], &[0, 0]].concat();
    [&[4, 0, 0, fields.len() as u8], &fields[..]].concat()
}

#[test]
fn the_newest_16_tickets_of_a_server_are_kept() {
    let mut peers = Peers::new(&Setup::default(), Remembered::default(), true);
    peers.complete();
    for number in 0..200 {
        peers.client.read(&new_session_ticket(number)).unwrap();
    }
    let kept = peers.inbox.take_resumptions();
    assert_eq!(kept.len(), 16);
    for (number, resumption) in (184..200).zip(kept) {
        let bytes = resumption.session.to_bytes().unwrap();
        assert!(bytes.windows(32).any(|ticket| ticket == [number; 32]), "{number}");
    }
    assert!(peers.inbox.take_resumptions().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn rfc9001_4_1_3_crypto_frames_may_be_cut_anywhere(
        kind in proptest::sample::select(&KINDS[..]),
        sizes in proptest::collection::vec(1..400_usize, 1..20),
    ) {
        let mut peers = kind.peers();
        let mut sizes = sizes.into_iter().cycle();
        peers.exchange(&mut || sizes.next().unwrap()).unwrap();
        assert_done(kind, &peers);
    }

    #[test]
    fn a_changed_byte_of_any_flight_fails_the_handshake_with_an_alert(
        kind in proptest::sample::select(&KINDS[..]),
        flight in 0..5_usize,
        at: proptest::sample::Index,
        flip in 1..=255_u8,
    ) {
        let mut peers = kind.peers();
        // The flights in order, as (from the client, space).
        let order =
            [(true, INITIAL), (false, INITIAL), (false, HANDSHAKE), (true, HANDSHAKE), (false, DATA)];
        let mut failed = false;
        for (number, (from_client, space)) in order.into_iter().enumerate() {
            let (from, to) = match from_client {
                true => (&mut peers.client, &mut peers.server),
                false => (&mut peers.server, &mut peers.client),
            };
            let mut bytes = std::mem::take(&mut from.out[space]);
            if bytes.is_empty() {
                continue;
            }
            if number == flight {
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
            if let Err(error) = to.read(&bytes) {
                let code = u64::from(error.code);
                prop_assert!((0x100..0x200).contains(&code) && !error.reason.is_empty());
                failed = true;
                break;
            }
        }
        // Unlike all other messages, tickets are not in the transcript.
        prop_assert!(failed || flight == 4 || !peers.client.complete() || !peers.server.complete());
    }

    #[test]
    fn any_crypto_bytes_are_processed_without_panic(
        kind in proptest::sample::select(&KINDS[..]),
        steps in 0..4_usize,
        to_server: bool,
        bytes in proptest::collection::vec(any::<u8>(), 1..2000),
    ) {
        let mut peers = kind.peers();
        for step in 0..steps {
            let (from, to) = match step % 2 {
                0 => (&mut peers.client, &mut peers.server),
                _ => (&mut peers.server, &mut peers.client),
            };
            for space in INITIAL..=DATA {
                let bytes = std::mem::take(&mut from.out[space]);
                if !bytes.is_empty() {
                    to.read(&bytes).unwrap();
                }
            }
        }
        let to = if to_server { &mut peers.server } else { &mut peers.client };
        if to.read(&bytes).is_ok() {
            let _ = to.read(&bytes);
        }
        let _ = to.session.transport_parameters();
        let _ = to.session.early_crypto();
    }
}

fn code(result: Result<bool, quinn_proto::TransportError>) -> u64 {
    u64::from(result.expect_err("an alert").code)
}

#[test]
fn rfc9001_6_a_key_update_message_is_an_error() {
    for to_server in [true, false] {
        let mut peers = Kind::Full.peers();
        peers.complete();
        let to = if to_server { &mut peers.server } else { &mut peers.client };
        assert_eq!(code(to.read(&[24, 0, 0, 1, 0])), 0x010a);
    }
}

#[test]
fn rfc9001_4_1_3_bytes_at_a_level_that_has_ended_are_an_error() {
    let mut peers = Kind::Full.peers();
    let hello = std::mem::take(&mut peers.client.out[INITIAL]);
    // As for one packet with two frames: quinn collects the session's output only after the packet.
    peers.server.session.read_handshake(&hello).unwrap();
    let more = std::mem::take(&mut peers.client.out[HANDSHAKE]);
    assert!(more.is_empty());
    assert_eq!(code(peers.server.session.read_handshake(&[20, 0, 0, 32])), 0x010a);
}

#[test]
fn rfc9001_8_1_a_handshake_without_a_common_protocol_fails() {
    let nothing = Setup { server_alpn: Vec::new(), ..Setup::default() };
    let other = Setup { server_alpn: vec![b"other".to_vec()], ..Setup::default() };
    for setup in [nothing, other] {
        let mut peers = Peers::new(&setup, Remembered::default(), true);
        let hello = std::mem::take(&mut peers.client.out[INITIAL]);
        assert_eq!(code(peers.server.read(&hello)), 0x0178);
    }
}

#[test]
fn the_error_for_an_unknown_certificate_names_the_fix() {
    let setup = Setup { trust: Trust::System, ..Setup::default() };
    let mut peers = Peers::new(&setup, Remembered::default(), true);
    let error = peers.exchange(&mut || usize::MAX).expect_err("a certificate error");
    assert!((0x0100..0x0200).contains(&u64::from(error.code)));
    assert!(error.reason.contains("--cacert"), "{}", error.reason);
}

#[test]
fn a_discarded_handshake_is_not_in_the_key_log() {
    for (accepts, early_lines) in [(true, 1), (false, 0)] {
        let (log, client_log) =
            (Arc::new(KeyLogLines::default()), Arc::new(KeyLogLines::default()));
        let setup = Setup {
            server_log: Some(log.clone()),
            client_log: Some(client_log.clone()),
            ..Setup::default()
        };
        let remembered = setup.session_remembered();
        let _ = (log.take(), client_log.take());
        let mut peers = Peers::new(&setup, remembered, accepts);
        peers.complete();
        let (server, client) = (log.take(), client_log.take());
        let early = |line: &&str| line.starts_with("CLIENT_EARLY_TRAFFIC_SECRET ");
        assert_eq!(server.lines().filter(early).count(), early_lines);
        for label in ["CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_TRAFFIC_SECRET_0"] {
            let line_of = |log: &str| {
                let mut found = log.lines().filter(|line| line.starts_with(label));
                let line = found.next().map(str::to_owned);
                assert_eq!(found.next(), None);
                line.expect("a line")
            };
            assert_eq!(line_of(&server), line_of(&client));
        }
    }
}

#[test]
fn an_incomplete_client_hello_yields_no_keys() {
    let setup = Setup::default();
    let mut server: Peer = server(setup.server());
    let hello = client_hello(&setup, Remembered::default());
    server.read(&hello[..hello.len() - 1]).unwrap();
    assert_eq!(server.space, INITIAL);
    assert!(server.session.handshake_data().is_none());
    assert!(server.read(&hello[hello.len() - 1..]).unwrap());
    assert_eq!(server.space, DATA);
}
