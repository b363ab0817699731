//! When the connection was set up, and where its response starts and ends.

use firstflight_packets::{
    CertificateFacts, Direction, FirstResponse, FlowFacts, LabelKind, LastResponse, NamedGroup,
    TcpOptions, Unknown,
};
use rustls::CipherSuite;
use rustls::crypto::ring::kx_group;

use crate::peers::{PeerConfig, Peers, REQUEST, RESPONSE, analyze};
use crate::tcp_path::{Captured, MS, Path, Tfo};

/// Whole round trips of 20 ms from the first SYN to `time`.
fn round_trips(facts: &FlowFacts, time: Option<u64>) -> u64 {
    let took = time.unwrap() - facts.started;
    assert!(took % (20 * MS) < MS, "{took} ns are no whole round trips");
    took / (20 * MS)
}

fn early() -> Peers {
    PeerConfig::default().peers().with_session()
}

#[test]
fn rfc8446_2_the_set_up_ends_with_the_servers_finished() {
    let resumed = || {
        let mut peers = early();
        peers.change_client(|client| client.enable_early_data = false);
        peers
    };
    let cases = [
        (PeerConfig::default().peers(), 2),
        (resumed(), 2),
        (early(), 2),
        (PeerConfig::tls12().peers(), 3),
        (PeerConfig::tls12().peers().with_session(), 2),
    ];
    for (peers, set_up) in cases {
        let facts = peers.facts(&Path::new(20 * MS));
        assert_eq!(round_trips(&facts, facts.connected), 1);
        assert_eq!(round_trips(&facts, facts.setup_done), set_up, "{}", facts.label().unwrap());
    }
    let facts = early().facts(&Path::new(20 * MS).tfo(Tfo::Accepted));
    assert_eq!(round_trips(&facts, facts.setup_done), 1);
}

#[test]
fn a_set_up_with_a_gap_ends_when_the_gap_is_filled() {
    // The server's flight in small segments, of which the first is lost.
    let path = Path { segment: 200, drop_to_client: vec![0], ..Path::new(20 * MS) };
    let facts = PeerConfig::default().peers().facts(&path);
    let late = facts.setup_done.unwrap() - facts.started;
    assert!(late >= 2 * 20 * MS + 240 * MS, "{late}");
}

#[test]
fn without_secrets_the_set_up_of_tls13_is_not_known() {
    let peers = PeerConfig::default().peers();
    let blind = analyze(&peers.capture(&Path::new(20 * MS)), "");
    assert_eq!((blind.setup_done, blind.response_bytes), (None, None));
    assert_eq!(blind.last_response, LastResponse::Unknown(Unknown::NoSecrets));
    let peers = PeerConfig::tls12().peers();
    let blind = analyze(&peers.capture(&Path::new(20 * MS)), "");
    assert_eq!(round_trips(&blind, blind.setup_done), 3);
    assert_eq!(blind.response_bytes, Some(RESPONSE.len() as u64));
}

#[test]
fn a_short_response_ends_in_its_first_packet() {
    for peers in [PeerConfig::default().peers(), early(), PeerConfig::tls12().peers()] {
        let facts = peers.facts(&Path::new(20 * MS));
        let FirstResponse::Seen { round_trips, arrived, delivered } = facts.first_response else {
            panic!("no response");
        };
        assert_eq!(facts.last_response, LastResponse::Seen { round_trips, arrived, delivered });
        assert_eq!(facts.response_bytes, Some(RESPONSE.len() as u64));
    }
}

#[test]
fn a_long_response_ends_with_its_last_record() {
    let mut peers = early();
    peers.response = vec![b'y'; 300_000];
    let facts = peers.facts(&Path::new(20 * MS));
    let FirstResponse::Seen { arrived: first, .. } = facts.first_response else { panic!() };
    let LastResponse::Seen { round_trips, arrived, delivered } = facts.last_response else {
        panic!("{:?}", facts.last_response);
    };
    // The simulated server has no congestion window, and sends all at once.
    assert_eq!((round_trips, facts.response_bytes), (2, Some(300_000)));
    assert!(arrived > first + 200_000);
    assert_eq!(delivered, Some(arrived + 10 * MS));
    assert!(facts.tcp().unwrap().to_client.payload_bytes > 300_000);
}

#[test]
fn rfc5681_3_1_a_response_of_several_windows_takes_a_round_trip_for_each() {
    // Windows of ten segments: the first also has the server's flight, and six follow.
    let response = 6 * 14_000;
    for (mut peers, first) in [(early(), 2), (PeerConfig::default().peers(), 3)] {
        peers.response = vec![b'y'; response];
        let path = Path { window: 10, ..Path::new(20 * MS) };
        let facts = peers.facts(&path);
        assert_eq!(facts.round_trips(), Some(first));
        let LastResponse::Seen { round_trips: last, delivered, .. } = facts.last_response else {
            panic!("{:?}", facts.last_response);
        };
        assert_eq!(last, first + 6);
        assert_eq!(round_trips(&facts, delivered), u64::from(last));
        assert_eq!(facts.response_bytes, Some(response as u64));
    }
}

#[test]
fn a_response_with_a_gap_ends_when_the_gap_is_filled() {
    let mut peers = early();
    peers.response = vec![b'y'; 50_000];
    let path = Path { drop_to_client: vec![5], ..Path::new(20 * MS) };
    let facts = peers.facts(&path);
    let LastResponse::Seen { arrived, delivered, .. } = facts.last_response else { panic!() };
    assert!(delivered.unwrap() > arrived + 200 * MS);
}

/// When the first byte of the response was sent, and when it was delivered.
fn first_byte(facts: &FlowFacts) -> (u64, u64) {
    let FirstResponse::Seen { arrived, delivered, .. } = facts.first_response else {
        panic!("{:?}", facts.first_response);
    };
    (arrived, delivered.unwrap())
}

#[test]
fn a_response_after_a_gap_is_delivered_when_the_gap_is_filled() {
    // The server's flight in small segments, of which the first is lost and the second has the
    // response.
    let path = Path { segment: 200, drop_to_client: vec![0], ..Path::new(20 * MS) };
    let facts = early().facts(&path);
    let (arrived, delivered) = first_byte(&facts);
    assert!(arrived > facts.tcp().unwrap().stall.unwrap().dropped, "another segment");
    assert!(delivered > arrived + 200 * MS);
    assert!(Some(delivered) >= facts.setup_done);
}

#[test]
fn rfc9293_3_10_7_3_a_client_discards_data_before_the_syn_ack() {
    let peers = early();
    let mut capture = peers.capture(&Path::new(20 * MS).tfo(Tfo::Accepted));
    let before = analyze(&capture, &peers.key_log());
    // The SYN-ACK is lost, and the server sends all again a second later.
    let from_server = |captured: &&Captured| captured.direction == Direction::ToClient;
    let again = |captured: &Captured| Captured {
        arrived: captured.arrived + 1_000 * MS,
        delivered: captured.delivered.map(|at| at + 1_000 * MS),
        ..captured.clone()
    };
    let later: Vec<Captured> = capture.iter().filter(from_server).map(again).collect();
    capture.iter_mut().find(|c| c.direction == Direction::ToClient).unwrap().delivered = None;
    capture.extend(later);
    capture.sort_by_key(|captured| captured.arrived);
    let facts = analyze(&capture, &peers.key_log());
    assert_eq!(first_byte(&facts).1, first_byte(&before).1 + 1_000 * MS);
    assert_eq!(facts.setup_done, before.setup_done.map(|at| at + 1_000 * MS));
}

#[test]
fn a_response_beyond_the_snap_length_is_not_guessed() {
    let mut peers = early();
    peers.response = vec![b'y'; 50_000];
    let mut capture = peers.capture(&Path::new(20 * MS));
    let last = capture.iter().rposition(|p| p.frame.len() > 1000).unwrap();
    capture[last].frame.truncate(200);
    let facts = analyze(&capture, &peers.key_log());
    assert_eq!(facts.round_trips(), Some(2));
    assert_eq!(facts.last_response, LastResponse::Unknown(Unknown::CaptureGap));
    assert_eq!(facts.response_bytes, None);
}

/// A frame of HTTP/2 (RFC 9113 section 4.1).
fn frame(kind: u8, stream: u8, len: u8) -> Vec<u8> {
    let mut frame = vec![0, 0, len, kind, 0, 0, 0, 0, stream];
    frame.extend(vec![7; usize::from(len)]);
    frame
}

#[test]
fn rfc9113_3_4_the_servers_settings_are_no_response() {
    let settings = frame(4, 0, 18);
    let response = [frame(1, 1, 40), frame(0, 1, 200)].concat();
    let mut peers = PeerConfig::default().peers().alpn("h2");
    peers.greeting = settings.clone();
    peers.response = [response.clone(), frame(7, 0, 8)].concat();
    let path = Path::new(20 * MS);
    let facts = peers.facts(&path);
    assert_eq!(facts.tls.as_ref().unwrap().alpn.as_deref(), Some("h2"));
    assert_eq!(facts.round_trips(), Some(3));
    assert_eq!(facts.response_bytes, Some(response.len() as u64));
    // Without HTTP/2 the same bytes are a response, which starts earlier.
    for (mut peers, round_trips) in
        [(PeerConfig::default().peers(), 2), (PeerConfig::tls12().peers(), 3)]
    {
        peers.greeting = settings.clone();
        peers.response = response.clone();
        assert_eq!(peers.facts(&path).round_trips(), Some(round_trips));
    }
}

#[test]
fn rfc9113_3_4_before_tls13_settings_are_recognized_only_with_secrets() {
    let response = [frame(1, 1, 40), frame(0, 1, 200)].concat();
    for suite in [
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ] {
        let mut peers = PeerConfig { suite: Some(suite), ..PeerConfig::tls12() }.peers().alpn("h2");
        peers.greeting = frame(4, 0, 18);
        peers.response = response.clone();
        let capture = peers.capture(&Path::new(20 * MS));
        let facts = analyze(&capture, &peers.key_log());
        assert_eq!((facts.round_trips(), facts.response_bytes), (Some(4), Some(249 + 9)));
        let wrong: String = peers
            .key_log()
            .lines()
            .map(|line| format!("{} {}\n", line.rsplit_once(' ').unwrap().0, "5a".repeat(48)))
            .collect();
        for (key_log, why) in [("", Unknown::NoSecrets), (&wrong, Unknown::WrongSecrets)] {
            let facts = analyze(&capture, key_log);
            assert_eq!(facts.first_response, FirstResponse::Unknown(why));
            assert_eq!(facts.label().unwrap().kind, LabelKind::Full);
        }
    }
}

#[test]
fn the_key_exchange_and_the_certificate_are_reported() {
    for (peers, full) in [
        (PeerConfig::default().peers(), true),
        (early(), false),
        (PeerConfig::tls12().peers(), true),
    ] {
        let tls = peers.facts(&Path::new(20 * MS)).tls.unwrap();
        assert_eq!(tls.group, Some(NamedGroup::X25519));
        let Some(CertificateFacts { message_bytes, certificates }) = tls.certificate else {
            assert!(!full);
            continue;
        };
        assert!(full && (200..2000).contains(&message_bytes), "{message_bytes}");
        assert_eq!(certificates, Some(1));
        // ecdsa_secp256r1_sha256.
        assert_eq!(tls.signature_scheme, Some(0x0403));
    }
    assert!(
        PeerConfig::tls12()
            .peers()
            .with_session()
            .facts(&Path::new(MS))
            .tls
            .unwrap()
            .group
            .is_none()
    );
}

#[test]
fn rfc8446_4_1_4_after_a_retry_the_group_is_the_one_that_the_server_requested() {
    let config = PeerConfig { server_groups: vec![kx_group::SECP256R1], ..PeerConfig::default() };
    let facts = config.peers().facts(&Path::new(20 * MS));
    assert_eq!(round_trips(&facts, facts.setup_done), 3);
    let tls = facts.tls.unwrap();
    assert_eq!(tls.key_shares_offered, [NamedGroup::X25519]);
    assert_eq!(tls.group, Some(NamedGroup::P256));
    assert_eq!(serde_json::to_value(tls.group).unwrap(), "P-256");
}

#[test]
fn packets_and_bytes_are_counted_in_each_direction() {
    let peers = early();
    let path = Path { drop_to_server: vec![0], ..Path::new(20 * MS) };
    let capture = peers.capture(&path);
    let facts = analyze(&capture, &peers.key_log());
    for (direction, traffic) in [
        (Direction::ToServer, facts.tcp().unwrap().to_server),
        (Direction::ToClient, facts.tcp().unwrap().to_client),
    ] {
        let frames = capture.iter().filter(|p| p.direction == direction);
        let bytes: usize = frames.clone().map(|p| p.frame.len()).sum();
        assert_eq!(traffic.packets as usize, frames.count());
        assert_eq!(traffic.wire_bytes as usize, bytes);
    }
    // The lost flight and its copy.
    assert!(facts.tcp().unwrap().to_server.payload_bytes > 2 * (300 + REQUEST.len() as u64));
    let expected = TcpOptions {
        mss: Some(1400),
        window_scale: Some(7),
        sack_permitted: true,
        ..TcpOptions::default()
    };
    assert_eq!(facts.tcp().unwrap().client_options, expected);
    assert_eq!(facts.tcp().unwrap().server_options, Some(expected));
}

#[test]
fn a_connection_owns_its_packets_and_not_those_of_the_next() {
    let peers = PeerConfig::default().peers();
    let first = Path::new(20 * MS);
    let capture = peers.capture(&first);
    let facts = analyze(&capture, &peers.key_log());
    assert!(capture.iter().all(|captured| facts.contains(&captured.packet())));
    let next = peers.capture(&Path { start: 5_000 * MS, ..first.clone() });
    assert!(!next.iter().any(|captured| facts.contains(&captured.packet())));
    let mut other = first;
    other.client.set_port(1);
    assert!(!peers.capture(&other).iter().any(|captured| facts.contains(&captured.packet())));
}
