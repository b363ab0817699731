//! Many connections at a time, and the same addresses again.

use firstflight_packets::{Direction, LabelKind, Limits, Observer};

use crate::path::{Captured, MS, Path, Segment, feed};
use crate::peers::Made;

#[test]
fn interleaved_connections_are_kept_apart() {
    let world = Made::default().world().meet();
    let mut capture: Vec<Captured> = Vec::new();
    for n in 0..40u16 {
        let mut path = Path::new(20 * MS);
        path.client.set_port(30_000 + n);
        path.start += u64::from(n) * MS;
        path.isn = (u32::from(n).wrapping_mul(0x9e37_79b9), u32::from(n) << 24);
        capture.extend(world.capture(&path));
    }
    capture.sort_by_key(|captured| captured.arrived);
    let mut observer = Observer::new();
    feed(&mut observer, &capture);
    assert_eq!(observer.connections(), 40);
    observer.add_secrets(&world.key_log());
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
fn rfc9293_the_same_addresses_again_are_another_connection() {
    let world = Made::default().world();
    let first = Path::new(20 * MS);
    let second = Path { start: 2000 * MS, isn: (77, 5_000_000), ..first.clone() };
    let mut observer = Observer::new();
    feed(&mut observer, &world.capture(&first));
    feed(&mut observer, &world.capture(&second));
    observer.add_secrets(&world.key_log());
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
fn an_unfinished_connection_waits_until_all_are_taken() {
    let path = Path::new(20 * MS);
    let syn = Segment { syn: true, ..Segment::default() };
    let frame = path.frame(Direction::ToServer, &syn);
    let captured = Captured { direction: Direction::ToServer, arrived: 9, delivered: None, frame };
    let mut observer = Observer::new();
    feed(&mut observer, &[captured.clone(), captured]);
    assert!(observer.take_finished().is_empty());
    let facts = observer.finish().remove(0);
    assert_eq!((facts.tcp().unwrap().syn_retransmissions, facts.tcp().unwrap().dropped), (1, 2));
    assert!(facts.tls.is_none() && !facts.tcp().unwrap().syn_ack && facts.round_trips().is_none());
}

#[test]
fn connections_beyond_the_limit_are_counted() {
    let world = Made::default().world();
    let mut observer = Observer::with_limits(Limits { connections: 2, ..Limits::default() });
    for n in 0..5 {
        let mut path = Path::new(20 * MS);
        path.client.set_port(30_000 + n);
        feed(&mut observer, &world.capture(&path));
    }
    assert_eq!((observer.connections(), observer.not_followed()), (2, 3));
    assert_eq!(observer.take_finished().len(), 2);
    assert_eq!(observer.connections(), 0);
}
