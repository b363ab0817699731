//! Several connections: of one socket, and copies of one that an attacker sends.

use std::net::SocketAddr;

use firstflight_packets::{Direction, EarlyData, FirstFlight, LabelKind, Observer};

use crate::path::{Captured, MS, feed};
use crate::quic::{label, round_trips};
use crate::quic_path::{SERVER, Way, frame};
use crate::quic_peers::{QuicWorld, judge_quic};

/// The same, `later` by so much.
fn shifted(mut capture: Vec<Captured>, later: u64) -> Vec<Captured> {
    for captured in &mut capture {
        captured.arrived += later;
        captured.delivered = captured.delivered.map(|delivered| delivered + later);
    }
    capture
}

#[test]
fn rfc9000_5_2_connections_of_one_socket_are_told_apart() {
    let world = QuicWorld::http3(3_000);
    let way = Way { requests: 2, ..Way::new(20 * MS) };
    let one = world.capture(&way);
    let two = shifted(world.capture(&way), 7 * MS);
    let three = shifted(world.capture(&way), 9 * MS);
    let mut all = [one.clone(), two.clone(), three].concat();
    all.sort_by_key(|captured| captured.arrived);
    let mut observer = Observer::new();
    feed(&mut observer, &all);
    observer.add_secrets(&world.key_log());
    let taken = observer.take_finished();
    assert_eq!((taken.len(), observer.connections()), (3, 0));
    assert_eq!(taken[0].label(), Ok(label(LabelKind::Full)));
    for facts in &taken[1..] {
        assert_eq!(facts.label(), Ok(label(LabelKind::EarlyAccepted)));
        assert_eq!((round_trips(facts).0, facts.quic().unwrap().unopened), (1, 0));
        assert_eq!(facts.response_bytes, Some(2 * world.response.len() as u64));
    }
    for (own, facts) in [one, two].iter().zip(&taken) {
        let owned = all.iter().filter(|captured| facts.owns(&captured.packet())).count();
        assert_eq!(owned, own.len());
        assert!(own.iter().all(|captured| facts.owns(&captured.packet())));
    }
}

#[test]
fn rfc9000_9_connections_of_one_socket_that_move_are_told_apart() {
    // Both use connection IDs at their new address that only opened packets have shown.
    let world = QuicWorld::http3(600);
    let to = SocketAddr::from(([10, 77, 1, 9], 50_000));
    // Nobody moves before the handshake is confirmed.
    let way = Way { requests: 2, moves_to: Some(to), rest: 50 * MS, ..Way::new(20 * MS) };
    let captures = [world.capture(&way), shifted(world.capture(&way), 3 * MS)];
    let mut all = captures.concat();
    all.sort_by_key(|captured| captured.arrived);
    let mut observer = Observer::new();
    feed(&mut observer, &all);
    observer.add_secrets(&world.key_log());
    let taken = observer.finish();
    assert_eq!(taken.len(), 2);
    for (facts, capture) in taken.iter().zip(&captures) {
        let quic = facts.quic().unwrap();
        assert_eq!((quic.migrations, quic.unopened), (1, 0));
        let datagrams = quic.to_server.packets + quic.to_client.packets;
        assert_eq!(datagrams as usize, capture.len());
        assert_eq!(facts.response_bytes, Some(2 * world.response.len() as u64));
    }
}

#[test]
fn a_resent_first_flight_is_a_connection_of_its_own() {
    let world = QuicWorld::http3(600).meet();
    let mut capture = world.capture(&Way::new(20 * MS));
    let (original, _) = judge_quic(&capture, &world.key_log());
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
    observer.add_secrets(&world.key_log());
    let taken = observer.finish();
    assert_eq!(taken.len(), 2);
    assert_eq!(taken[0], original);
    let copy = taken[1].tls.as_ref().unwrap();
    assert_eq!(copy.client_random, original.tls.as_ref().unwrap().client_random);
    assert_eq!(copy.early.plain_bytes, Some(world.request.len() as u64));
    assert!(matches!(copy.early.verdict, EarlyData::Unknown(_)));
    assert_eq!((taken[1].client, copy.client_finished), (attacker, None));
}

#[test]
fn an_open_connection_stays_until_it_is_closed() {
    let world = QuicWorld::ping_pong();
    let capture = world.capture(&Way::new(20 * MS));
    let mut observer = Observer::new();
    observer.add_secrets(&world.key_log());
    feed(&mut observer, &capture[..capture.len() - 2]);
    assert!(observer.take_finished().is_empty());
    feed(&mut observer, &capture[capture.len() - 2..]);
    assert_eq!((observer.take_finished().len(), observer.connections()), (1, 0));
}

#[test]
fn what_is_no_quic_is_passed_over() {
    let client = SocketAddr::from(([10, 77, 1, 1], 40_000));
    let mut observer = Observer::new();
    // A query of DNS whose number looks like a long header, and a short one from nowhere.
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
    assert_eq!((observer.connections(), observer.not_followed()), (0, 0));
}
