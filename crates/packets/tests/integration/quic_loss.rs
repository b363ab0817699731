//! Loss, reordering, copies, key updates, migration, missing secrets, arbitrary bytes.

use std::net::SocketAddr;
use std::sync::OnceLock;

use firstflight_packets::{
    Direction, EarlyData, FirstResponse, FlowFacts, LabelKind, LastResponse, Limits, Observer,
    Packet, TokenOrigin, Unknown, Unlabelled,
};
use proptest::prelude::*;

use crate::garbage::{check, check_damaged, damage, direction};
use crate::quic::{label, round_trips};
use crate::quic_path::{DRAFT_29, QuicPath, frame};
use crate::quic_peers::{QuicPeers, analyze_quic};
use crate::tcp_path::{Captured, MS, feed, with_copies};

/// The retransmissions of client and server.
fn retransmissions(facts: &FlowFacts) -> (u32, u32) {
    let quic = facts.quic().unwrap();
    (quic.client_retransmissions, quic.server_retransmissions)
}

#[test]
fn rfc9002_6_loss_changes_no_label() {
    for (early, kind) in [(false, LabelKind::Full), (true, LabelKind::EarlyAccepted)] {
        for lost in 0..4 {
            for direction in [Direction::ToServer, Direction::ToClient] {
                let mut peers = QuicPeers::http3(5_000);
                if early {
                    peers = peers.with_session();
                }
                let mut path = QuicPath::new(20 * MS);
                match direction {
                    Direction::ToServer => path.drop_to_server = vec![lost],
                    Direction::ToClient => path.drop_to_client = vec![lost],
                }
                let facts = peers.facts(&path);
                assert_eq!(facts.label(), Ok(label(kind)), "{direction:?} {lost}");
                assert_eq!(facts.transport.dropped(), 1);
                assert_eq!(facts.response_bytes, Some(peers.response.len() as u64));
                let (first, last) = round_trips(&facts);
                assert!(first >= if early { 1 } else { 2 } && first <= last);
            }
        }
    }
}

#[test]
fn rfc9002_6_2_a_lost_first_datagram_is_reported_as_a_stall() {
    let path = QuicPath { drop_to_server: vec![0], ..QuicPath::new(20 * MS) };
    let facts = QuicPeers::ping_pong().with_session().facts(&path);
    assert_eq!(facts.label(), Ok(label(LabelKind::EarlyAccepted)));
    assert!(retransmissions(&facts).0 > 0, "{:?}", facts.quic());
    let stall = facts.transport.stall().unwrap();
    assert_eq!((stall.direction, stall.dropped), (Direction::ToServer, facts.started));
    assert!(stall.recovered.unwrap() > facts.started + 300 * MS, "a probe timeout later");
    // An attacker could replay the lost datagrams and their retransmissions.
    assert!(facts.first_flight.datagrams().unwrap().len() > 1);
}

#[test]
fn timers_that_are_shorter_than_the_path_are_distinguished_from_loss() {
    // quinn's first timer expires after a second.
    let facts = QuicPeers::ping_pong().facts(&QuicPath::new(1500 * MS));
    assert_eq!((facts.label(), round_trips(&facts).0), (Ok(label(LabelKind::Full)), 2));
    let resent = facts.transport.retransmissions();
    assert!(resent > 0, "{:?}", facts.quic());
    assert_eq!(facts.quic().unwrap().premature_retransmissions, resent);
    let path = QuicPath { drop_to_server: vec![0], ..QuicPath::new(20 * MS) };
    let facts = QuicPeers::ping_pong().facts(&path);
    assert!(facts.transport.retransmissions() > 0, "{:?}", facts.quic());
    assert_eq!(facts.quic().unwrap().premature_retransmissions, 0);
}

#[test]
fn datagrams_that_arrive_twice_are_duplicates_and_not_retransmissions() {
    let peers = QuicPeers::http3(5_000).with_session();
    let once = peers.facts(&QuicPath::new(20 * MS));
    let path = QuicPath { twice: true, ..QuicPath::new(20 * MS) };
    let facts = peers.facts(&path);
    assert_eq!(facts.label(), once.label());
    assert_eq!(round_trips(&facts).0, 1);
    let quic = facts.quic().unwrap();
    assert!(quic.duplicates > 10, "{quic:?}");
    assert_eq!((retransmissions(&facts), facts.response_bytes), ((0, 0), once.response_bytes));
    let (early, once) = (facts.tls.unwrap().early, once.tls.unwrap().early);
    assert_eq!(early.plain_bytes, Some(peers.request.len() as u64));
    assert_eq!(early.records, once.records);
    // The sizes of the two connections differ by some bytes.
    assert!(early.wire_bytes < once.wire_bytes * 3 / 2, "{early:?}");
}

#[test]
fn copies_that_the_path_makes_are_not_counted() {
    let peers = QuicPeers::http3(10_240).with_session();
    let capture = peers.capture(&QuicPath::new(20 * MS));
    let (once, _) = analyze_quic(&capture, &peers.key_log());
    let late = |delivered: Option<u64>| delivered.map(|at| at + 3 * MS);
    for copied in [with_copies(&capture, late), with_copies(&capture, |_| None)] {
        let (facts, _) = analyze_quic(&copied, &peers.key_log());
        let quic = facts.quic().unwrap();
        assert_eq!((quic.before_validation.beyond_limit, quic.duplicates), (0, 0));
        assert_eq!(facts, once);
    }
}

#[test]
fn rfc9000_8_1_2_a_lost_retry_is_followed_by_another() {
    let path = QuicPath { retry: true, drop_to_client: vec![0], ..QuicPath::new(20 * MS) };
    let facts = QuicPeers::ping_pong().facts(&path);
    assert_eq!((facts.label(), round_trips(&facts).0), (Ok(label(LabelKind::Full)), 3));
    let quic = facts.quic().unwrap();
    let origin = quic.token.map(|token| token.origin);
    assert_eq!((quic.retries, origin), (1, Some(TokenOrigin::Retry)));
}

#[test]
fn overtaken_datagrams_are_put_in_order() {
    let peers = QuicPeers::http3(9_000);
    let path = QuicPath { late: 3 * MS, ..QuicPath::new(20 * MS) };
    let facts = peers.facts(&path);
    assert_eq!((facts.label(), round_trips(&facts).0), (Ok(label(LabelKind::Full)), 2));
    assert!(facts.transport.out_of_order() > 0);
    assert_eq!(facts.response_bytes, Some(peers.response.len() as u64));
}

#[test]
fn the_order_of_input_changes_nothing() {
    for peers in [QuicPeers::http3(5_000), QuicPeers::http3(5_000).with_session()] {
        let mut capture = peers.capture(&QuicPath::new(20 * MS));
        let (facts, _) = analyze_quic(&capture, &peers.key_log());
        // By delivery, as a tap behind the delay would report them.
        capture.sort_by_key(|captured| captured.delivered);
        assert_eq!(analyze_quic(&capture, &peers.key_log()).0, facts);
    }
}

#[test]
fn rfc9001_6_key_updates_are_followed() {
    let peers = QuicPeers::http3(600);
    // An endpoint updates again only when it has discarded the old keys.
    let path = QuicPath {
        requests: 4,
        update_keys: true,
        request_gap: 1000 * MS,
        ..QuicPath::new(20 * MS)
    };
    let facts = peers.facts(&path);
    let quic = facts.quic().unwrap();
    assert_eq!((quic.client_key_updates, quic.server_key_updates, quic.unopened), (3, 3, 0));
    assert_eq!(facts.response_bytes, Some(4 * peers.response.len() as u64));
}

#[test]
fn rfc9001_6_5_packets_of_the_previous_key_phase_are_decrypted() {
    let peers = QuicPeers::http3(600);
    let path = QuicPath {
        requests: 3,
        update_keys: true,
        request_gap: 1000 * MS,
        ..QuicPath::new(20 * MS)
    };
    let capture = peers.capture(&path);
    // Each packet of the client in turn reaches the tap after its successor.
    for to_server in (0..capture.len()).filter(|at| capture[*at].direction == Direction::ToServer) {
        let mut capture = capture.clone();
        let later = capture[to_server..].iter().filter(|c| c.direction == Direction::ToServer);
        let Some(next) = later.map(|captured| captured.arrived).nth(1) else { continue };
        capture[to_server].arrived = next + 1;
        let (facts, _) = analyze_quic(&capture, &peers.key_log());
        let quic = facts.quic().unwrap();
        assert_eq!((quic.client_key_updates, quic.unopened), (2, 0), "{to_server}");
    }
}

#[test]
fn rfc9000_9_a_client_that_moves_is_followed() {
    let to = SocketAddr::from(([10, 77, 1, 9], 50_000));
    let path = QuicPath { requests: 2, moves_to: Some(to), ..QuicPath::new(20 * MS) };
    let peers = QuicPeers::http3(600);
    let capture = peers.capture(&path);
    let (facts, _) = analyze_quic(&capture, &peers.key_log());
    let quic = facts.quic().unwrap();
    assert_eq!((quic.migrations, quic.client_addresses.clone()), (1, vec![path.client, to]));
    assert_eq!(facts.client, path.client);
    assert_eq!((facts.label(), quic.unopened), (Ok(label(LabelKind::Full)), 0));
    assert_eq!(facts.response_bytes, Some(2 * peers.response.len() as u64));
    assert!(capture.iter().all(|captured| facts.contains(&captured.packet())));
}

#[test]
fn rfc9000_6_version_negotiation_is_reported() {
    let peers = QuicPeers::ping_pong();
    let path = QuicPath { requests: 0, ..QuicPath::new(20 * MS) };
    let mut capture = peers.capture_of_version(&path, DRAFT_29);
    let (facts, trace) = analyze_quic(&capture, &peers.key_log());
    let quic = facts.quic().unwrap();
    assert_eq!((quic.version_negotiations, quic.version), (1, None));
    assert_eq!(facts.label(), Err(Unlabelled::NotTls));
    assert!(trace.packets[1].carries[0].to_string().contains("Version Negotiation"));
    // A Version Negotiation packet that does not reach the client does not count.
    capture.iter_mut().for_each(|captured| captured.delivered = None);
    let (facts, _) = analyze_quic(&capture, &peers.key_log());
    assert_eq!(facts.quic().unwrap().version_negotiations, 0);
}

#[test]
fn missing_secrets_are_reported() {
    let peers = QuicPeers::ping_pong().with_session();
    let capture = peers.capture(&QuicPath::new(20 * MS));
    let analyze = |keys: &str| analyze_quic(&capture, keys).0;
    let facts = analyze("");
    let unknown = Unknown::NoSecrets;
    assert_eq!(facts.label(), Err(Unlabelled::EarlyData(unknown)));
    assert_eq!(facts.first_response, FirstResponse::Unknown(unknown));
    assert_eq!(facts.last_response, LastResponse::Unknown(unknown));
    assert_eq!((facts.response_bytes, facts.setup_done), (None, None));
    let tls = facts.tls.as_ref().unwrap();
    assert_eq!((tls.client_finished, tls.early.records), (None, 1));
    assert!(facts.quic().unwrap().unopened > 2);
    // Wrong secrets for this connection's random.
    let wrong: String = peers
        .key_log()
        .lines()
        .map(|line| {
            let (head, secret) = line.rsplit_once(' ').unwrap();
            format!("{head} {}\n", secret.chars().rev().collect::<String>())
        })
        .collect();
    assert_eq!(analyze(&wrong).first_response, FirstResponse::Unknown(Unknown::WrongSecrets));
    // The right secrets are found among wrong ones.
    let facts = analyze(&(wrong + &peers.key_log()));
    assert_eq!(facts.label(), Ok(label(LabelKind::EarlyAccepted)));
    // Without the client's packets it is not known what they caused.
    let log = peers.key_log();
    let server: Vec<_> = log.lines().filter(|line| line.starts_with("SERVER")).collect();
    let full = QuicPeers::ping_pong();
    let capture = full.capture(&QuicPath::new(20 * MS));
    let log = full.key_log();
    let of_server = log.lines().filter(|line| line.starts_with("SERVER")).collect::<Vec<_>>();
    assert!(!server.is_empty());
    let (facts, _) = analyze_quic(&capture, &of_server.join("\n"));
    assert_eq!(facts.label(), Ok(label(LabelKind::Full)));
    assert_eq!(facts.first_response, FirstResponse::Unknown(unknown));
}

#[test]
fn a_server_that_never_responds_leaves_the_connection_unlabelled() {
    let peers = QuicPeers::ping_pong().with_session();
    let mut capture = peers.capture(&QuicPath::new(20 * MS));
    capture.retain(|captured| captured.direction == Direction::ToServer);
    let (facts, _) = analyze_quic(&capture[..1], &peers.key_log());
    assert_eq!(facts.label(), Err(Unlabelled::NoServerHello));
    assert_eq!(facts.tls.unwrap().early.outcome, EarlyData::Unknown(Unknown::NoServerHello));
    assert_eq!(facts.first_response, FirstResponse::None);
}

#[test]
fn limits_bound_what_is_stored_and_are_reported() {
    let peers = QuicPeers::http3(60_000);
    let capture = peers.capture(&QuicPath::new(20 * MS));
    for limits in [
        Limits { packets_per_connection: 20, ..Limits::default() },
        Limits { bytes_per_direction: 20_000, ..Limits::default() },
        Limits { total_bytes: 20_000, ..Limits::default() },
    ] {
        let mut observer = Observer::with_limits(limits);
        feed(&mut observer, &capture);
        observer.add_secrets(&peers.key_log());
        let (facts, trace) = observer.finish_traced(|_| true).remove(0);
        assert_eq!(facts.label(), Ok(label(LabelKind::Full)));
        assert_eq!(facts.last_response, LastResponse::Unknown(Unknown::CaptureGap));
        assert_eq!(facts.response_bytes, None);
        assert!(trace.unwrap().left_out > 0);
    }
    let mut observer = Observer::with_limits(Limits { connections: 0, ..Limits::default() });
    feed(&mut observer, &capture);
    assert_eq!(observer.connections(), 0);
    assert!(observer.untracked() > 0);
}

#[test]
fn datagrams_that_the_capture_truncated_are_reported() {
    let peers = QuicPeers::http3(5_000).with_session();
    let mut capture = peers.capture(&QuicPath::new(20 * MS));
    for captured in &mut capture {
        captured.frame.truncate(600);
    }
    let (facts, _) = analyze_quic(&capture, &peers.key_log());
    // The Initial packets are short enough, but the early data after the first is lost.
    assert_eq!(facts.label(), Err(Unlabelled::EarlyData(Unknown::CaptureGap)));
    assert!(matches!(facts.last_response, LastResponse::Unknown(_)), "{:?}", facts.last_response);
    assert!(facts.first_flight.is_empty());
}

/// A connection with a Retry and accepted early data, and its key log.
fn sample() -> &'static (Vec<Captured>, String) {
    static SAMPLE: OnceLock<(Vec<Captured>, String)> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let peers = QuicPeers::http3(2_000).with_session();
        let path = QuicPath { retry: true, ..QuicPath::new(20 * MS) };
        (peers.capture(&path), peers.key_log())
    })
}

proptest! {
    #[test]
    fn random_datagrams_are_analyzed_without_panic(
        datagrams in prop::collection::vec(
            (
                direction(), any::<u16>(), any::<Option<u16>>(),
                prop_oneof![Just(0xc3u8), Just(0xd3), Just(0xe3), Just(0xf3), Just(0x43)],
                prop_oneof![Just(1u32), Just(0x6b33_43cf), Just(0), any::<u32>()],
                prop::collection::vec(any::<u8>(), 0..80)
            ),
            0..40
        )
    ) {
        let mut observer = Observer::new();
        for (direction, arrived, delivered, first, version, rest) in datagrams {
            let client = QuicPath::new(MS).client;
            let server = SocketAddr::from(crate::quic_path::SERVER);
            // Connection IDs of two bytes each, all the same.
            let header = [&[first][..], &version.to_be_bytes(), &[2, 1, 1, 2, 1, 1]].concat();
            let bytes = [&header[..], &rest].concat();
            let frame = match direction {
                Direction::ToServer => frame(client, server, &bytes),
                Direction::ToClient => frame(server, client, &bytes),
            };
            let delivered = delivered.map(u64::from);
            observer.packet(&Packet { direction, arrived: arrived.into(), delivered, frame: &frame });
        }
        check(&mut observer)?;
    }

    #[test]
    fn damaged_connections_are_analyzed_without_panic(damage in damage()) {
        let (capture, key_log) = sample();
        check_damaged(capture, key_log, &damage)?;
    }

    #[test]
    fn any_order_gives_the_same_label(order in Just((0..40usize).collect::<Vec<_>>()).prop_shuffle()) {
        // The first datagrams come first: they identify the connection.
        let (capture, key_log) = sample();
        let mut observer = Observer::new();
        let (first, shuffled) = capture.split_at(4);
        feed(&mut observer, first);
        for at in order {
            observer.packet(&match shuffled.get(at) {
                Some(captured) => captured.packet(),
                None => continue,
            });
        }
        observer.add_secrets(key_log);
        let facts = observer.finish().remove(0);
        prop_assert_eq!(facts.label(), Ok(label(LabelKind::EarlyAccepted)));
        prop_assert_eq!(round_trips(&facts), (2, 2));
    }
}
