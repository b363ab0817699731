//! Loss, reordering and captures with gaps.

use firstflight_packets::{
    Direction, FirstResponse, LabelKind, Limits, Observer, Unknown, Unlabelled,
};

use crate::peers::{PeerConfig, analyze};
use crate::tcp_path::{Captured, MS, Path, Tfo, feed, in_reported_order, with_copies};

#[test]
fn a_lost_request_is_counted_but_takes_no_additional_round_trip() {
    // Payload packets of the client: ClientHello, Finished with request.
    for lost in [0, 1] {
        let peers = PeerConfig::default().peers();
        let path = Path { drop_to_server: vec![lost], ..Path::new(20 * MS) };
        let facts = peers.facts(&path);
        assert_eq!(facts.round_trips(), Some(3), "packet {lost}");
        assert_eq!(
            (facts.tcp().unwrap().client_retransmissions, facts.tcp().unwrap().dropped),
            (1, 1)
        );
        let FirstResponse::Seen { arrived, .. } = facts.first_response else { panic!() };
        assert!(arrived - facts.started > 200 * MS, "nothing was lost");
    }
}

#[test]
fn the_delay_that_a_dropped_packet_causes_is_reported() {
    let stall =
        |path: &Path| PeerConfig::default().peers().with_session().facts(path).transport.stall();
    let path = Path::new(20 * MS);
    assert_eq!(stall(&path), None);
    for (path, direction, retry) in [
        (path.clone().tfo(Tfo::Lost), Direction::ToServer, 1000 * MS),
        (Path { drop_to_server: vec![0], ..path.clone() }, Direction::ToServer, 240 * MS),
        (Path { drop_to_client: vec![0], ..path.clone() }, Direction::ToClient, 240 * MS),
    ] {
        let stall = stall(&path).unwrap();
        assert_eq!(stall.direction, direction);
        assert_eq!(stall.recovered, Some(stall.dropped + retry + 10 * MS));
    }
}

#[test]
fn a_client_hello_that_is_always_dropped_leaves_the_connection_unlabelled() {
    // The client sends its ClientHello three times and gives up.
    let peers = PeerConfig::default().peers().with_session();
    let whole = peers.capture(&Path { segment: 300, ..Path::new(20 * MS) });
    let is_hello = |p: &&Captured| p.direction == Direction::ToServer && p.frame.len() > 100;
    let first = whole.iter().position(|p| is_hello(&p)).unwrap();
    let hello: Vec<_> = whole.iter().skip(first).filter(is_hello).take(2).collect();
    let mut capture = whole[..first].to_vec();
    for attempt in [0, 200, 600] {
        capture.extend(hello.iter().map(|p| Captured {
            arrived: p.arrived + attempt * MS,
            delivered: None,
            ..(*p).clone()
        }));
    }
    let mut observer = Observer::new();
    observer.add_secrets(&peers.key_log());
    feed(&mut observer, &capture);
    let facts = observer.finish().remove(0);
    assert_eq!(facts.label(), Err(Unlabelled::NoServerHello));
    assert_eq!((facts.tcp().unwrap().dropped, facts.tcp().unwrap().client_retransmissions), (6, 4));
    let stall = facts.tcp().unwrap().stall.unwrap();
    assert_eq!((stall.dropped, stall.recovered), (hello[0].arrived, None));
    assert!(facts.tls.unwrap().early.extension);
    assert_eq!((facts.first_response, facts.setup_done), (FirstResponse::None, None));
}

#[test]
fn a_lost_response_is_timed_by_its_delivered_copy() {
    // Payload packets of the server: its flight in one or more, then tickets with the response.
    let payloads = PeerConfig::default()
        .peers()
        .capture(&Path::new(20 * MS))
        .iter()
        .filter(|p| p.direction == Direction::ToClient && p.frame.len() > 100)
        .count();
    assert!(payloads > 1);
    for lost in 0..payloads {
        let path = Path { drop_to_client: vec![lost], ..Path::new(20 * MS) };
        let facts = PeerConfig::default().peers().facts(&path);
        assert_eq!(facts.label().unwrap().kind, LabelKind::Full);
        assert_eq!(facts.round_trips(), Some(3), "packet {lost}");
        assert_eq!(
            (facts.tcp().unwrap().server_retransmissions, facts.tcp().unwrap().dropped),
            (1, 1)
        );
        let FirstResponse::Seen { arrived, delivered, .. } = facts.first_response else {
            panic!("no response");
        };
        let late = if lost == payloads - 1 { 2 * 20 * MS + 200 * MS } else { 0 };
        assert_eq!(delivered, Some(arrived + 10 * MS + late));
    }
}

#[test]
fn loss_of_early_data_does_not_change_the_label() {
    let mut peers = PeerConfig::default().peers().with_session();
    peers.request = vec![b'x'; 5000];
    // If the ClientHello is lost, nothing else happens meanwhile. If later early data is lost, the
    // server's flight and the client's Finished arrive before the request is complete.
    for (lost, round_trips) in [(vec![0], 2), (vec![2], 3), (vec![1, 3], 3)] {
        let count = lost.len() as u32;
        let path = Path { drop_to_server: lost, ..Path::new(20 * MS) };
        let facts = peers.facts(&path);
        assert_eq!(facts.label().unwrap().kind, LabelKind::EarlyAccepted);
        assert_eq!(facts.round_trips(), Some(round_trips));
        assert_eq!(facts.tcp().unwrap().client_retransmissions, count);
        assert_eq!(facts.tls.unwrap().early.plain_bytes, Some(5000));
    }
}

#[test]
fn packets_out_of_order_are_put_in_order() {
    let mut peers = PeerConfig::default().peers();
    peers.response = vec![b'y'; 20_000];
    let path = Path { swap_to_client: true, segment: 300, ..Path::new(20 * MS) };
    let facts = peers.facts(&path);
    assert_eq!(facts.label().unwrap().kind, LabelKind::Full);
    assert_eq!(facts.round_trips(), Some(3));
    assert!(facts.tcp().unwrap().out_of_order > 3);
    assert_eq!(facts.tcp().unwrap().server_retransmissions, 0);
}

#[test]
fn input_in_the_order_of_delivery_gives_the_same_facts() {
    let peers = PeerConfig::default().peers().with_session();
    let mut capture = peers.capture(&Path::new(20 * MS));
    let by_arrival = analyze(&capture, &peers.key_log());
    capture.sort_by_key(|captured| captured.delivered);
    assert_eq!(analyze(&capture, &peers.key_log()), by_arrival);
}

#[test]
fn rfc7413_packets_dropped_before_the_syn_ack_is_delivered_are_not_missed() {
    for lost in [0, 1] {
        let mut peers = PeerConfig::default().peers().with_session();
        peers.response = vec![b'y'; 3_000];
        let path = Path { drop_to_client: vec![lost], ..Path::new(20 * MS).tfo(Tfo::Accepted) };
        let capture = peers.capture(&path);
        let facts = analyze(&in_reported_order(capture.clone()), &peers.key_log());
        let tcp = facts.tcp().unwrap();
        assert_eq!((tcp.server_retransmissions, tcp.out_of_order, tcp.dropped), (1, 0, 1));
        assert_eq!(facts, analyze(&capture, &peers.key_log()), "packet {lost}");
    }
}

#[test]
fn copies_that_the_path_makes_are_not_retransmissions() {
    let peers = PeerConfig::default().peers().with_session();
    let capture = peers.capture(&Path::new(20 * MS));
    let once = analyze(&capture, &peers.key_log());
    let late = |delivered: Option<u64>| delivered.map(|at| at + 3 * MS);
    for copied in [with_copies(&capture, late), with_copies(&capture, |_| None)] {
        let facts = analyze(&copied, &peers.key_log());
        let tcp = facts.tcp().unwrap();
        assert_eq!((tcp.client_retransmissions, tcp.server_retransmissions), (0, 0));
        assert_eq!(facts, once);
    }
}

#[test]
fn a_gap_in_the_capture_is_reported() {
    let peers = PeerConfig::default().peers();
    let mut capture = peers.capture(&Path::new(20 * MS));
    let first = capture
        .iter()
        .position(|p| p.direction == Direction::ToClient && p.frame.len() > 200)
        .unwrap();
    capture.remove(first);
    let facts = analyze(&capture, &peers.key_log());
    assert_eq!(facts.first_response, FirstResponse::Unknown(Unknown::CaptureGap));
    assert!(facts.label().is_err());
}

#[test]
fn a_snap_length_that_cuts_the_server_flight_is_reported() {
    let peers = PeerConfig::default().peers();
    let mut capture = peers.capture(&Path::new(20 * MS));
    capture.iter_mut().for_each(|captured| captured.frame.truncate(400));
    let facts = analyze(&capture, &peers.key_log());
    assert_eq!(facts.first_response, FirstResponse::Unknown(Unknown::CaptureGap));
}

#[test]
fn limits_bound_what_is_stored_and_are_reported() {
    let mut peers = PeerConfig::default().peers();
    peers.response = vec![b'y'; 200_000];
    let capture = peers.capture(&Path::new(20 * MS));
    let analyze = |limits| {
        let mut observer = Observer::with_limits(limits);
        observer.add_secrets(&peers.key_log());
        feed(&mut observer, &capture);
        observer.take_finished().remove(0)
    };
    // The response starts within the limit, so bytes beyond it do not matter here.
    let enough = analyze(Limits { bytes_per_direction: 16_000 + 8000, ..Limits::default() });
    assert_eq!(enough.round_trips(), Some(3));
    for limits in [
        Limits { bytes_per_direction: 500, ..Limits::default() },
        Limits { packets_per_connection: 4, ..Limits::default() },
        Limits { total_bytes: 700, ..Limits::default() },
    ] {
        let facts = analyze(limits);
        assert_eq!(facts.first_response, FirstResponse::Unknown(Unknown::CaptureGap));
    }
}

#[test]
fn repeated_payload_counts_once_towards_the_limit_in_any_order() {
    let mut peers = PeerConfig::default().peers();
    peers.response = vec![b'y'; 20_000];
    let mut capture = peers.capture(&Path::new(20 * MS));
    let is_response = |p: &Captured| p.direction == Direction::ToClient && p.frame.len() > 1000;
    let first = capture.iter().position(is_response).unwrap();
    let again = |n: u64| {
        let original = &capture[first];
        let delivered = original.delivered.map(|at| at + n);
        Captured { arrived: original.arrived + n, delivered, ..original.clone() }
    };
    let repeated: Vec<_> = (1..=20).map(again).collect();
    capture.splice(first + 1..first + 1, repeated);
    let expected = analyze(&capture, &peers.key_log());
    assert!(expected.tcp().unwrap().server_retransmissions >= 20);
    assert_eq!(expected.response_bytes, Some(20_000));
    for _ in 0..2 {
        let limits = Limits { bytes_per_direction: 30_000, ..Limits::default() };
        let mut observer = Observer::with_limits(limits);
        observer.add_secrets(&peers.key_log());
        feed(&mut observer, &capture);
        assert_eq!(observer.take_finished().remove(0), expected);
        // The second time the original is reported last.
        capture[first..=first + 20].reverse();
    }
}

#[test]
fn a_response_that_was_never_delivered_has_no_time_of_delivery() {
    let peers = PeerConfig::default().peers().with_session();
    let mut capture = peers.capture(&Path::new(20 * MS));
    let clean = analyze(&capture, &peers.key_log());
    let FirstResponse::Seen { arrived, .. } = clean.first_response else { panic!() };
    for captured in capture.iter_mut().filter(|captured| captured.arrived == arrived) {
        captured.delivered = None;
    }
    let facts = analyze(&capture, &peers.key_log());
    let expected = FirstResponse::Seen { round_trips: 2, arrived, delivered: None };
    assert_eq!(facts.first_response, expected);
}
