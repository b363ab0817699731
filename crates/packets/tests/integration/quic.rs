//! QUIC connections: labels, early data, round trips, tokens.

use firstflight_packets::{
    AddressToken, EarlyData, FirstResponse, FlowFacts, HandshakeKind, Label, LabelKind,
    LabelTransport, LastResponse, TlsVersion, TokenOrigin,
};
use rustls::CipherSuite;
use rustls::crypto::ring::kx_group;
use rustls::server::ServerSessionMemoryCache;

use crate::quic_path::QuicPath;
use crate::quic_peers::{QuicPeers, http3_frame};
use crate::tcp_path::MS;

pub(crate) fn label(kind: LabelKind) -> Label {
    Label { version: TlsVersion::Tls13, kind, transport: LabelTransport::Quic }
}

/// The round trips to the first response byte and to the last.
pub(crate) fn round_trips(facts: &FlowFacts) -> (u32, u32) {
    let FirstResponse::Seen { round_trips: first, .. } = facts.first_response else {
        panic!("{:?}", facts.first_response);
    };
    let LastResponse::Seen { round_trips: last, .. } = facts.last_response else {
        panic!("{:?}", facts.last_response);
    };
    (first, last)
}

/// The time until `moment` in round trips of 20 ms.
fn by_clock(facts: &FlowFacts, moment: Option<u64>) -> u64 {
    (moment.unwrap() - facts.started + 5 * MS) / (20 * MS)
}

fn check(peers: &QuicPeers, kind: LabelKind, first: u32, last: u32) -> FlowFacts {
    check_on(peers, &QuicPath::new(20 * MS), kind, first, last)
}

fn check_on(
    peers: &QuicPeers,
    path: &QuicPath,
    kind: LabelKind,
    first: u32,
    last: u32,
) -> FlowFacts {
    let facts = peers.facts(path);
    assert_eq!(facts.label(), Ok(label(kind)));
    assert_eq!(round_trips(&facts), (first, last));
    assert_eq!(facts.response_bytes, Some(peers.response.len() as u64));
    let (FirstResponse::Seen { delivered: a, .. }, LastResponse::Seen { delivered: b, .. }) =
        (facts.first_response, facts.last_response)
    else {
        unreachable!()
    };
    // In this simulation only the path takes time.
    assert_eq!((by_clock(&facts, a), by_clock(&facts, b)), (first.into(), last.into()));
    assert_eq!(facts.transport.retransmissions(), 0);
    let quic = facts.quic().unwrap();
    assert_eq!((quic.unopened, quic.duplicates, quic.out_of_order), (0, 0, 0));
    assert_eq!(quic.client_closed.map(|closed| closed.code), Some(0x100));
    assert_eq!(facts.tls.as_ref().unwrap().client_finished, Some(true));
    facts
}

#[test]
fn rfc9001_4_a_full_handshake_takes_two_round_trips() {
    let facts = check(&QuicPeers::ping_pong(), LabelKind::Full, 2, 2);
    assert_eq!(facts.label().unwrap().to_string(), "TLS 1.3 full, QUIC");
    let tls = facts.tls.as_ref().unwrap();
    assert_eq!(
        (tls.kind, tls.alpn.as_deref()),
        (Some(HandshakeKind::Full), Some("firstflight-ping-pong"))
    );
    assert_eq!(tls.server_name.as_deref(), Some("first.test"));
    assert_eq!(tls.certificate.and_then(|facts| facts.certificates), Some(1));
    assert_eq!(tls.early.outcome, EarlyData::NotOffered);
    assert_eq!(by_clock(&facts, facts.connected), 1);
    assert_eq!(by_clock(&facts, facts.setup_done), 1);
    let quic = facts.quic().unwrap();
    assert_eq!((quic.version, quic.retries, quic.token), (Some(1), 0, None));
    // The client sends a single datagram before it hears from the server.
    let flight = facts.first_flight.datagrams().unwrap();
    assert_eq!((flight.len(), flight[0].len()), (1, 1200));
}

#[test]
fn rfc8446_2_2_a_resumed_handshake_takes_two_round_trips() {
    let mut peers = QuicPeers::ping_pong().with_session();
    peers.client.enable_early_data = false;
    let facts = check(&peers, LabelKind::Resumed, 2, 2);
    assert_eq!(facts.tls.unwrap().certificate, None);
}

#[test]
fn rfc9001_4_6_early_data_takes_one_round_trip() {
    let facts = check(&QuicPeers::ping_pong().with_session(), LabelKind::EarlyAccepted, 1, 1);
    let early = facts.tls.as_ref().unwrap().early;
    assert_eq!(
        (early.outcome, early.records, early.plain_bytes),
        (EarlyData::Accepted, 1, Some(4))
    );
    assert_eq!(facts.label().unwrap().to_string(), "TLS 1.3 early data accepted, QUIC");
}

#[test]
fn rfc9114_only_response_frames_of_http3_are_a_response() {
    let mut peers = QuicPeers::http3(600);
    let facts = check(&peers, LabelKind::Full, 2, 2);
    assert_eq!(facts.tls.unwrap().alpn.as_deref(), Some("h3"));
    check(&peers.with_session(), LabelKind::EarlyAccepted, 1, 1);
    // A frame of a reserved type is no response (RFC 9114 section 7.2.8).
    peers = QuicPeers::http3(600);
    let response = peers.response.len() as u64;
    peers.response = [http3_frame(0x21, 30), peers.response].concat();
    assert_eq!(peers.facts(&QuicPath::new(20 * MS)).response_bytes, Some(response));
}

#[test]
fn rfc9000_8_1_without_a_token_the_anti_amplification_limit_adds_a_round_trip() {
    let peers = QuicPeers::http3(10_240).with_session();
    let facts = check(&peers, LabelKind::EarlyAccepted, 1, 2);
    let before = facts.quic().unwrap().before_validation;
    assert_eq!((before.received, before.beyond_limit), (1200, 0));
    assert!((2400..=3600).contains(&before.sent), "{before:?}");
}

#[test]
fn rfc9000_8_1_3_with_a_token_the_page_takes_one_round_trip() {
    let peers = QuicPeers::http3(10_240).mtu(1452).sends_tokens();
    let first = peers.facts(&QuicPath::new(20 * MS));
    let quic = first.quic().unwrap();
    assert_eq!((quic.new_tokens, quic.token), (2, None));
    let facts = check(&peers, LabelKind::EarlyAccepted, 1, 1);
    let bytes = quic.new_token_bytes.unwrap();
    let quic = facts.quic().unwrap();
    assert_eq!(quic.token, Some(AddressToken { origin: TokenOrigin::NewToken, bytes }));
    assert!(quic.before_validation.beyond_limit > 5_000, "{quic:?}");
}

#[test]
fn rfc9000_8_1_2_retry_adds_a_round_trip() {
    let path = QuicPath { retry: true, ..QuicPath::new(20 * MS) };
    let facts = check_on(&QuicPeers::ping_pong(), &path, LabelKind::Full, 3, 3);
    let quic = facts.quic().unwrap();
    assert_eq!(quic.retries, 1);
    assert_eq!(quic.token.map(|token| token.origin), Some(TokenOrigin::Retry));
    assert_eq!(by_clock(&facts, facts.connected), 2);
    let peers = QuicPeers::http3(10_240).mtu(1452).with_session();
    let facts = check_on(&peers, &path, LabelKind::EarlyAccepted, 2, 2);
    // Both 0-RTT packets count, before and after the Retry, but their bytes only once.
    let early = facts.tls.as_ref().unwrap().early;
    assert_eq!((early.records, early.plain_bytes), (2, Some(peers.request.len() as u64)));
    assert_eq!(facts.first_flight.datagrams().unwrap().len(), 1);
}

#[test]
fn rfc9001_4_6_2_refused_early_data_is_sent_again() {
    let refusals: [fn(&mut QuicPeers); 2] = [
        |peers| peers.server.max_early_data_size = 0,
        // The server has lost the sessions of its tickets.
        |peers| peers.server.session_storage = ServerSessionMemoryCache::new(8),
    ];
    for (refuse, kind) in refusals.into_iter().zip([HandshakeKind::Resumed, HandshakeKind::Full]) {
        let mut peers = QuicPeers::http3(600).with_session();
        refuse(&mut peers);
        let facts = check(&peers, LabelKind::EarlyRefused, 2, 2);
        let tls = facts.tls.unwrap();
        assert_eq!((tls.kind, tls.early.plain_bytes), (Some(kind), Some(45)));
    }
}

#[test]
fn rfc8446_4_1_4_a_hello_retry_request_adds_a_round_trip() {
    let (x25519, p256) = (kx_group::X25519, kx_group::SECP256R1);
    let peers = QuicPeers::with("other", None, &[x25519, p256], &[p256]);
    let facts = check(&peers, LabelKind::Full, 3, 3);
    assert_eq!(facts.tls.unwrap().hello_retry_requests, 1);
}

#[test]
fn every_cipher_suite_is_decrypted() {
    for suite in [
        CipherSuite::TLS13_AES_128_GCM_SHA256,
        CipherSuite::TLS13_AES_256_GCM_SHA384,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ] {
        let group = [kx_group::X25519];
        let peers = QuicPeers::with("other", Some(suite), &group, &group).with_session();
        let facts = check(&peers, LabelKind::EarlyAccepted, 1, 1);
        assert_eq!(facts.tls.unwrap().cipher_suite, Some(u16::from(suite)));
    }
}

#[test]
fn rfc9002_7_2_a_response_of_several_windows_takes_a_round_trip_for_each() {
    // Windows of about 12,000 and 24,000 bytes, then the rest. With a token the server may send the
    // first window at once.
    for (peers, first) in
        [(QuicPeers::http3(70_000), 2), (QuicPeers::http3(70_000).sends_tokens().with_session(), 1)]
    {
        let facts = peers.facts(&QuicPath::new(20 * MS));
        let LastResponse::Seen { round_trips: last, delivered, .. } = facts.last_response else {
            panic!();
        };
        assert_eq!(round_trips(&facts).0, first);
        assert!(last >= first + 2, "{last}");
        assert_eq!(by_clock(&facts, delivered), u64::from(last));
    }
}

#[test]
fn rfc9000_8_1_a_long_certificate_waits_for_the_client() {
    let facts = check(&QuicPeers::ping_pong().long_certificate(), LabelKind::Full, 3, 3);
    let before = facts.quic().unwrap().before_validation;
    assert!(before.sent == 3 * 1200 && before.beyond_limit == 0, "{before:?}");
}

#[test]
fn a_slow_server_adds_no_round_trips() {
    for (peers, count) in [(QuicPeers::http3(600), 2), (QuicPeers::http3(600).with_session(), 1)] {
        let path = QuicPath { server_pause: 15 * MS, ..QuicPath::new(20 * MS) };
        assert_eq!(round_trips(&peers.facts(&path)), (count, count));
    }
    // Tickets, acknowledgements and HANDSHAKE_DONE in the meantime add none either.
    let path = QuicPath { server_pause: 75 * MS, ..QuicPath::new(20 * MS) };
    assert_eq!(round_trips(&QuicPeers::http3(600).facts(&path)), (2, 2));
}

#[test]
fn rfc8446_4_6_1_a_request_after_the_tickets_did_not_wait_for_them() {
    let path = QuicPath { initial_pause: 50 * MS, ..QuicPath::new(20 * MS) };
    assert_eq!(round_trips(&QuicPeers::ping_pong().facts(&path)), (2, 2));
}
