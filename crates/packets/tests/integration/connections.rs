//! Simultaneous connections, connections with the same addresses, and a replayed first flight.

use std::net::SocketAddr;

use firstflight_packets::{Direction, EarlyData, FirstFlight, LabelKind, Limits, Observer};

use crate::peers::PeerConfig;
use crate::quic::{label, round_trips};
use crate::quic_path::{QuicPath, SERVER, frame};
use crate::quic_peers::{QuicPeers, analyze_quic};
use crate::tcp_path::{Captured, MS, Path, Segment, feed};

#[test]
fn interleaved_connections_are_kept_apart() {
    let peers = PeerConfig::default().peers().with_session();
    let mut capture: Vec<Captured> = Vec::new();
    for n in 0..40u16 {
        let mut path = Path::new(20 * MS);
        path.client.set_port(30_000 + n);
        path.start += u64::from(n) * MS;
        path.isn = (u32::from(n).wrapping_mul(0x9e37_79b9), u32::from(n) << 24);
        capture.extend(peers.capture(&path));
    }
    capture.sort_by_key(|captured| captured.arrived);
    let mut observer = Observer::new();
    feed(&mut observer, &capture);
    assert_eq!(observer.connections(), 40);
    observer.add_secrets(&peers.key_log());
    let taken = observer.take_finished();
    let ports: Vec<_> = taken.iter().map(|facts| facts.client.port()).collect();
    assert_eq!(ports, (30_000..30_040).collect::<Vec<_>>());
    for facts in &taken {
        assert_eq!(facts.label().unwrap().kind, LabelKind::EarlyAccepted);
        assert_eq!(facts.round_trips(), Some(2));
    }
    assert!(observer.finish().is_empty());
}

#[test]
fn rfc9293_a_syn_with_reused_addresses_starts_another_connection() {
    let peers = PeerConfig::default().peers();
    let first = Path::new(20 * MS);
    let second = Path { start: 2000 * MS, isn: (77, 5_000_000), ..first.clone() };
    let mut observer = Observer::new();
    feed(&mut observer, &peers.capture(&first));
    feed(&mut observer, &peers.capture(&second));
    observer.add_secrets(&peers.key_log());
    let taken = observer.take_finished();
    let seen: Vec<_> = taken
        .iter()
        .map(|facts| (facts.started, facts.label().unwrap().kind, facts.round_trips()))
        .collect();
    let expected = [
        (first.start, LabelKind::Full, Some(3)),
        (second.start, LabelKind::EarlyAccepted, Some(2)),
    ];
    assert_eq!(seen, expected);
    for facts in &taken {
        assert_eq!((facts.client, facts.server), first.key());
    }
}

#[test]
fn an_unfinished_connection_is_returned_only_at_the_end() {
    let path = Path::new(20 * MS);
    let syn = Segment { syn: true, ..Segment::default() };
    let frame = path.frame(Direction::ToServer, &syn);
    let captured = Captured { direction: Direction::ToServer, arrived: 9, delivered: None, frame };
    let mut observer = Observer::new();
    let again = Captured { arrived: 9 + 1_000 * MS, ..captured.clone() };
    feed(&mut observer, &[captured, again]);
    assert!(observer.take_finished().is_empty());
    let facts = observer.finish().remove(0);
    assert_eq!((facts.tcp().unwrap().syn_retransmissions, facts.tcp().unwrap().dropped), (1, 2));
    assert_eq!(facts.transport.retransmissions(), 1);
    assert!(facts.tls.is_none() && !facts.tcp().unwrap().syn_ack && facts.round_trips().is_none());
}

#[test]
fn connections_beyond_the_limit_are_counted() {
    let peers = PeerConfig::default().peers();
    let mut observer = Observer::with_limits(Limits { connections: 2, ..Limits::default() });
    for n in 0..5 {
        let mut path = Path::new(20 * MS);
        path.client.set_port(30_000 + n);
        feed(&mut observer, &peers.capture(&path));
    }
    assert_eq!((observer.connections(), observer.untracked()), (2, 3));
    assert_eq!(observer.take_finished().len(), 2);
    assert_eq!(observer.connections(), 0);
}

/// The capture, shifted in time.
fn delayed(mut capture: Vec<Captured>, delay_ns: u64) -> Vec<Captured> {
    for captured in &mut capture {
        captured.arrived += delay_ns;
        captured.delivered = captured.delivered.map(|delivered| delivered + delay_ns);
    }
    capture
}

#[test]
fn rfc9000_5_2_connections_of_one_socket_are_distinguished() {
    let peers = QuicPeers::http3(3_000);
    let path = QuicPath { requests: 2, ..QuicPath::new(20 * MS) };
    let first = peers.capture(&path);
    let second = delayed(peers.capture(&path), 7 * MS);
    let third = delayed(peers.capture(&path), 9 * MS);
    let mut all = [first.clone(), second.clone(), third].concat();
    all.sort_by_key(|captured| captured.arrived);
    let mut observer = Observer::new();
    feed(&mut observer, &all);
    observer.add_secrets(&peers.key_log());
    let taken = observer.take_finished();
    assert_eq!((taken.len(), observer.connections()), (3, 0));
    assert_eq!(taken[0].label(), Ok(label(LabelKind::Full)));
    for facts in &taken[1..] {
        assert_eq!(facts.label(), Ok(label(LabelKind::EarlyAccepted)));
        assert_eq!((round_trips(facts).0, facts.quic().unwrap().unopened), (1, 0));
        assert_eq!(facts.response_bytes, Some(2 * peers.response.len() as u64));
    }
    for (own, facts) in [first, second].iter().zip(&taken) {
        let owned = all.iter().filter(|captured| facts.contains(&captured.packet())).count();
        assert_eq!(owned, own.len());
        assert!(own.iter().all(|captured| facts.contains(&captured.packet())));
    }
}

#[test]
fn rfc9000_9_connections_of_one_socket_that_move_are_distinguished() {
    // At their new address both use connection IDs that were issued in encrypted packets.
    let peers = QuicPeers::http3(600);
    let to = SocketAddr::from(([10, 77, 1, 9], 50_000));
    // A client may move only after the handshake is confirmed.
    let path = QuicPath {
        requests: 2,
        moves_to: Some(to),
        request_gap: 50 * MS,
        ..QuicPath::new(20 * MS)
    };
    let captures = [peers.capture(&path), delayed(peers.capture(&path), 3 * MS)];
    let mut all = captures.concat();
    all.sort_by_key(|captured| captured.arrived);
    let mut observer = Observer::new();
    feed(&mut observer, &all);
    observer.add_secrets(&peers.key_log());
    let taken = observer.finish();
    assert_eq!(taken.len(), 2);
    for (facts, capture) in taken.iter().zip(&captures) {
        let quic = facts.quic().unwrap();
        assert_eq!((quic.migrations, quic.unopened), (1, 0));
        let datagrams = quic.to_server.packets + quic.to_client.packets;
        assert_eq!(datagrams as usize, capture.len());
        assert_eq!(facts.response_bytes, Some(2 * peers.response.len() as u64));
    }
}

#[test]
fn a_resent_first_flight_is_a_separate_connection() {
    let peers = QuicPeers::http3(600).with_session();
    let mut capture = peers.capture(&QuicPath::new(20 * MS));
    let (original, _) = analyze_quic(&capture, &peers.key_log());
    let FirstFlight::Datagrams(flight) = &original.first_flight else { panic!() };
    let attacker = SocketAddr::from(([10, 77, 1, 66], 6_666));
    for (n, datagram) in flight.iter().enumerate() {
        let arrived = 12 * MS + n as u64;
        capture.push(Captured {
            direction: Direction::ToServer,
            arrived,
            delivered: Some(arrived),
            frame: frame(attacker, SERVER.into(), datagram),
        });
    }
    capture.sort_by_key(|captured| captured.arrived);
    let mut observer = Observer::new();
    feed(&mut observer, &capture);
    observer.add_secrets(&peers.key_log());
    let taken = observer.finish();
    assert_eq!(taken.len(), 2);
    assert_eq!(taken[0], original);
    let copy = taken[1].tls.as_ref().unwrap();
    assert_eq!(copy.client_random, original.tls.as_ref().unwrap().client_random);
    assert_eq!(copy.early.plain_bytes, Some(peers.request.len() as u64));
    assert!(matches!(copy.early.outcome, EarlyData::Unknown(_)));
    assert_eq!((taken[1].client, copy.client_finished), (attacker, None));
}

#[test]
fn an_open_connection_stays_until_it_is_closed() {
    let peers = QuicPeers::ping_pong();
    let capture = peers.capture(&QuicPath::new(20 * MS));
    let mut observer = Observer::new();
    observer.add_secrets(&peers.key_log());
    feed(&mut observer, &capture[..capture.len() - 2]);
    assert!(observer.take_finished().is_empty());
    feed(&mut observer, &capture[capture.len() - 2..]);
    assert_eq!((observer.take_finished().len(), observer.connections()), (1, 0));
}

#[test]
fn datagrams_that_are_not_quic_are_ignored() {
    let client = SocketAddr::from(([10, 77, 1, 1], 40_000));
    let mut observer = Observer::new();
    // A DNS query whose ID looks like a long header, a short header of no connection, and nothing.
    for payload in [&[0xc0, 0x01, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3][..], &[0x40; 60], &[]] {
        let frame = frame(client, SERVER.into(), payload);
        let (direction, delivered) = (Direction::ToServer, Some(1));
        observer.packet(&firstflight_packets::Packet {
            direction,
            arrived: 0,
            delivered,
            frame: &frame,
        });
    }
    assert_eq!((observer.connections(), observer.untracked()), (0, 0));
}
