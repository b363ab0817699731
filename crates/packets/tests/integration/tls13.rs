//! TLS 1.3 over TCP without Fast Open: full, resumed, early data, retry.

use firstflight_packets::{
    EarlyData, FastOpen, FirstResponse, HandshakeKind, Label, LabelKind, LabelTransport,
    TlsVersion, Unknown, Unlabelled,
};
use rustls::CipherSuite;
use rustls::crypto::ring::kx_group;

use crate::peers::{PeerConfig, REQUEST, analyze};
use crate::tcp_path::{MS, Path};

fn label(kind: LabelKind) -> Result<Label, Unlabelled> {
    Ok(Label { version: TlsVersion::Tls13, kind, transport: LabelTransport::Tcp(FastOpen::Off) })
}

#[test]
fn rfc8446_2_a_full_handshake_takes_three_round_trips() {
    let facts = PeerConfig::default().peers().facts(&Path::new(20 * MS));
    assert_eq!(facts.label(), label(LabelKind::Full));
    assert_eq!(facts.round_trips(), Some(3));
    let tls = facts.tls.as_ref().unwrap();
    assert_eq!(tls.server_name.as_deref(), Some("first.test"));
    assert_eq!(tls.alpn.as_deref(), Some("http/1.1"));
    assert_eq!(tls.alpn_offered, ["http/1.1"]);
    assert_eq!((tls.kind, tls.client_finished), (Some(HandshakeKind::Full), Some(true)));
    assert_eq!((tls.early.extension, tls.early.records), (false, 0));
    assert!(
        facts.tcp().unwrap().client_fin
            && facts.tcp().unwrap().server_fin
            && facts.tcp().unwrap().syn_ack
    );
    assert_eq!(
        (facts.tcp().unwrap().client_retransmissions, facts.tcp().unwrap().server_retransmissions),
        (0, 0)
    );
}

#[test]
fn times_are_those_of_the_tap() {
    let path = Path::new(20 * MS);
    let facts = PeerConfig::default().peers().facts(&path);
    assert_eq!(facts.started, path.start);
    let FirstResponse::Seen { arrived, delivered, .. } = facts.first_response else {
        panic!("no response");
    };
    assert_eq!(delivered, Some(arrived + 10 * MS));
    let total = delivered.unwrap() - facts.started;
    assert!((60 * MS..61 * MS).contains(&total), "{total}");
    assert!(facts.ended > arrived);
}

#[test]
fn rfc8446_2_2_a_resumed_handshake_takes_three_round_trips() {
    let mut peers = PeerConfig::default().peers().with_session();
    peers.change_client(|client| client.enable_early_data = false);
    let facts = peers.facts(&Path::new(20 * MS));
    assert_eq!(facts.label(), label(LabelKind::Resumed));
    assert_eq!(facts.round_trips(), Some(3));
}

#[test]
fn rfc8446_2_3_early_data_takes_two_round_trips() {
    for suite in [
        CipherSuite::TLS13_AES_128_GCM_SHA256,
        CipherSuite::TLS13_AES_256_GCM_SHA384,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ] {
        let config = PeerConfig { suite: Some(suite), ..PeerConfig::default() };
        let facts = config.peers().with_session().facts(&Path::new(20 * MS));
        assert_eq!(facts.label(), label(LabelKind::EarlyAccepted));
        assert_eq!(facts.round_trips(), Some(2));
        let tls = facts.tls.as_ref().unwrap();
        assert_eq!(tls.cipher_suite, Some(suite.into()));
        assert_eq!((tls.early.extension, tls.early.records), (true, 1));
        assert_eq!(tls.early.plain_bytes, Some(REQUEST.len() as u64));
        // Header, content type and tag.
        assert_eq!(tls.early.wire_bytes, REQUEST.len() as u64 + 5 + 1 + 16);
        assert_eq!(tls.client_finished, Some(true));
    }
}

#[test]
fn the_first_flight_is_what_an_attacker_can_replay() {
    let peers = PeerConfig::default().peers().with_session();
    let capture = peers.capture(&Path::new(20 * MS));
    let facts = analyze(&capture, &peers.key_log());
    // ClientHello, ChangeCipherSpec and early data, up to its last byte.
    let flight = facts.first_flight.stream().unwrap();
    let hello = 5 + usize::from(u16::from_be_bytes([flight[3], flight[4]]));
    let early = facts.tls.as_ref().unwrap().early.wire_bytes as usize;
    let change_cipher_spec = 6;
    assert_eq!(flight.len(), hello + change_cipher_spec + early);
    assert_eq!((flight[0], flight[hello], flight[hello + change_cipher_spec]), (22, 20, 23));
    // The first flight is not serialized.
    let json = serde_json::to_value(&facts).unwrap();
    assert!(json.get("first_flight").is_none());
    assert_eq!(json["tls"]["client_random"].as_str().unwrap().len(), 64);
    assert_eq!(json["tls"]["version"], "1.3");
}

#[test]
fn rfc8446_4_2_10_refused_early_data_takes_three_round_trips() {
    let mut peers = PeerConfig::default().peers().with_session();
    peers.refuse_early_data();
    let facts = peers.facts(&Path::new(20 * MS));
    assert_eq!(facts.label(), label(LabelKind::EarlyRefused));
    assert_eq!(facts.round_trips(), Some(3));
    let tls = facts.tls.as_ref().unwrap();
    assert_eq!((tls.kind, tls.client_finished), (Some(HandshakeKind::Resumed), Some(true)));
    assert_eq!((tls.early.records, tls.early.plain_bytes), (1, Some(REQUEST.len() as u64)));
}

#[test]
fn rfc8446_4_1_4_a_retry_adds_a_round_trip() {
    let config = PeerConfig { server_groups: vec![kx_group::SECP256R1], ..PeerConfig::default() };
    let facts = config.peers().facts(&Path::new(20 * MS));
    assert_eq!(facts.label(), label(LabelKind::Full));
    assert_eq!(facts.round_trips(), Some(4));
    assert_eq!(facts.tls.unwrap().hello_retry_requests, 1);
}

#[test]
fn rfc8446_4_2_10_a_retry_refuses_early_data() {
    let mut first = PeerConfig::default().peers().with_session();
    let config = PeerConfig { server_groups: vec![kx_group::SECP256R1], ..PeerConfig::default() };
    let mut second = config.peers();
    let sessions = first.sessions();
    second.change_server(|server| server.session_storage = sessions);
    second.swap_client(&mut first);
    let capture = second.capture(&Path::new(20 * MS));
    let facts = analyze(&capture, &second.key_log());
    assert_eq!(facts.label(), label(LabelKind::EarlyRefused));
    assert_eq!(facts.round_trips(), Some(4));
    let tls = facts.tls.as_ref().unwrap();
    assert_eq!((tls.hello_retry_requests, tls.early.records), (1, 1));
    assert_eq!(tls.client_finished, Some(true));
    // The retry shows the refusal without any secret.
    let blind = analyze(&capture, "");
    assert_eq!(blind.tls.unwrap().early.outcome, EarlyData::Refused);
}

#[test]
fn without_secrets_nothing_is_guessed() {
    let peers = PeerConfig::default().peers().with_session();
    let capture = peers.capture(&Path::new(20 * MS));
    let blind = analyze(&capture, "");
    assert_eq!(blind.first_response, FirstResponse::Unknown(Unknown::NoSecrets));
    assert_eq!(blind.round_trips(), None);
    assert_eq!(blind.label(), Err(Unlabelled::EarlyData(Unknown::NoSecrets)));
    let tls = blind.tls.unwrap();
    assert_eq!(tls.kind, Some(HandshakeKind::Resumed));
    assert_eq!((tls.early.records, tls.early.plain_bytes), (1, None));
    assert_eq!(tls.client_finished, None);
}

#[test]
fn wrong_secrets_are_distinguished_from_missing_ones() {
    let peers = PeerConfig::default().peers().with_session();
    let capture = peers.capture(&Path::new(20 * MS));
    let wrong: String = peers
        .key_log()
        .lines()
        .map(|line| {
            let (start, secret) = line.rsplit_once(' ').unwrap();
            format!("{start} {}\n", "5a".repeat(secret.len() / 2))
        })
        .collect();
    let facts = analyze(&capture, &wrong);
    assert_eq!(facts.first_response, FirstResponse::Unknown(Unknown::WrongSecrets));
    // The right secrets are found among wrong ones.
    let facts = analyze(&capture, &(wrong + &peers.key_log()));
    assert_eq!(facts.label(), label(LabelKind::EarlyAccepted));
}

#[test]
fn rfc8446_4_6_1_tickets_add_no_round_trip_for_a_client_that_pauses() {
    let mut peers = PeerConfig::default().peers();
    peers.client_pause = 50 * MS;
    let facts = peers.facts(&Path::new(2 * MS));
    assert_eq!(facts.round_trips(), Some(3));
    let FirstResponse::Seen { arrived, .. } = facts.first_response else { panic!() };
    assert!(arrived - facts.started > 50 * MS, "the client did not pause");
}

#[test]
fn rfc8446_4_6_3_a_key_update_before_the_response_is_followed() {
    let mut peers = PeerConfig::default().peers();
    peers.update_keys = true;
    let facts = peers.facts(&Path::new(20 * MS));
    assert_eq!(facts.round_trips(), Some(3));
}

#[test]
fn rfc8446_5_1_small_segments_and_long_requests_do_not_change_the_label() {
    let mut peers = PeerConfig::default().peers().with_session();
    peers.request = vec![b'x'; 9000];
    peers.response = vec![b'y'; 40_000];
    for segment in [100, 536, 1400] {
        let path = Path { segment, ..Path::new(20 * MS) };
        let facts = peers.facts(&path);
        assert_eq!(facts.label(), label(LabelKind::EarlyAccepted), "{segment}");
        assert_eq!(facts.round_trips(), Some(2));
        let early = facts.tls.unwrap().early;
        assert_eq!(early.plain_bytes, Some(9000));
        assert!(facts.first_flight.bytes() as u64 > early.wire_bytes);
    }
}
