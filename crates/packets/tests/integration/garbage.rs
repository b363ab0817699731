//! Arbitrary bytes: no panic, bounded memory, no wrong label.

use std::sync::OnceLock;

use firstflight_packets::{Direction, FirstResponse, LastResponse, Limits, Observer, Packet};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::peers::PeerConfig;
use crate::tcp_path::{Captured, MS, Path, Segment, Tfo, feed};

/// A connection with accepted early data over Fast Open, and its key log.
fn sample() -> &'static (Vec<Captured>, String) {
    static SAMPLE: OnceLock<(Vec<Captured>, String)> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let peers = PeerConfig::default().peers().with_session();
        let path = Path { segment: 300, ..Path::new(20 * MS).tfo(Tfo::Accepted) };
        (peers.capture(&path), peers.key_log())
    })
}

pub(crate) fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::ToServer), Just(Direction::ToClient)]
}

/// Changes to a captured connection.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    /// A packet, one of its bytes, and the byte's new value.
    bytes: Vec<(Index, Index, u8)>,
    /// A packet and its new length.
    cut: Option<(Index, Index)>,
    /// The packet that is captured twice.
    twice: Index,
    lost: Option<Index>,
}

pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    let bytes = prop::collection::vec(any::<(Index, Index, u8)>(), 1..8);
    (bytes, any::<Option<(Index, Index)>>(), any::<Index>(), any::<Option<Index>>())
        .prop_map(|(bytes, cut, twice, lost)| Damage { bytes, cut, twice, lost })
}

/// Analyzes a capture after this damage.
pub(crate) fn check_damaged(
    capture: &[Captured],
    key_log: &str,
    damage: &Damage,
) -> Result<(), TestCaseError> {
    let mut capture = capture.to_vec();
    for (packet, byte, value) in &damage.bytes {
        *byte.get_mut(&mut packet.get_mut(&mut capture).frame) = *value;
    }
    if let Some((packet, length)) = damage.cut {
        let frame = &mut packet.get_mut(&mut capture).frame;
        frame.truncate(length.index(frame.len()));
    }
    capture.push(damage.twice.get(&capture).clone());
    if let Some(lost) = damage.lost {
        capture.remove(lost.index(capture.len()));
    }
    let mut observer = Observer::new();
    feed(&mut observer, &capture);
    observer.add_secrets(key_log);
    check(&mut observer)
}

/// Checks what holds for any capture.
pub(crate) fn check(observer: &mut Observer) -> Result<(), TestCaseError> {
    for (facts, trace) in observer.finish_traced(|_| true) {
        prop_assert!(facts.round_trips().is_none_or(|count| count >= 1));
        if let (
            FirstResponse::Seen { round_trips: first, .. },
            LastResponse::Seen { round_trips: last, .. },
        ) = (facts.first_response, facts.last_response)
        {
            prop_assert!(first <= last);
        }
        let trace = trace.unwrap();
        prop_assert!(trace.packets.iter().all(|packet| !packet.carries.is_empty()));
        let _ = (facts.label(), serde_json::to_string(&(facts, trace)).unwrap());
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_frames_are_ignored(
        frames in prop::collection::vec(
            (direction(), any::<u64>(), any::<Option<u64>>(), prop::collection::vec(any::<u8>(), 0..120)),
            0..40
        ),
        key_log in "\\PC{0,200}"
    ) {
        let mut observer = Observer::new();
        observer.add_secrets(&key_log);
        for (direction, arrived, delivered, frame) in &frames {
            observer.packet(&Packet {
                direction: *direction, arrived: *arrived, delivered: *delivered, frame,
            });
        }
        observer.finish();
    }

    #[test]
    fn random_segments_of_one_connection_are_analyzed_without_panic(
        segments in prop::collection::vec(
            (
                direction(), any::<u16>(), any::<Option<u16>>(),
                (0u32..3000, any::<Option<u32>>(), any::<bool>(), any::<bool>()),
                prop::collection::vec(any::<u8>(), 0..60)
            ),
            0..60
        )
    ) {
        let path = Path::new(MS);
        let mut observer = Observer::new();
        let syn = Segment { syn: true, ..Segment::default() };
        let mut capture = vec![(Direction::ToServer, 0, Some(1), syn)];
        for (direction, arrived, delivered, (at, ack, syn, fin), payload) in segments {
            let segment = Segment { at, ack, syn, fin, options: Vec::new(), payload };
            capture.push((direction, arrived.into(), delivered.map(u64::from), segment));
        }
        for (direction, arrived, delivered, segment) in capture {
            let frame = path.frame(direction, &segment);
            observer.packet(&Packet { direction, arrived, delivered, frame: &frame });
        }
        for analyzed in observer.finish_traced(|_| true) {
            let _ = (analyzed.0.label(), serde_json::to_string(&analyzed).unwrap());
        }
    }

    #[test]
    fn damaged_connections_are_analyzed_without_panic(damage in damage()) {
        let (capture, key_log) = sample();
        check_damaged(capture, key_log, &damage)?;
    }
}

#[test]
fn random_bytes_as_client_hello_are_not_tls() {
    let path = Path::new(MS);
    let max = 1 << 18;
    let limits = Limits { bytes_per_direction: max, ..Limits::default() };
    let mut observer = Observer::with_limits(limits);
    let mut state = 1u32;
    let mut at = 1;
    let syn = Segment { syn: true, ..Segment::default() };
    let syn_ack = Segment { syn: true, ack: Some(1), ..Segment::default() };
    let mut send = |direction, segment: &Segment| {
        let frame = path.frame(direction, segment);
        observer.packet(&Packet { direction, arrived: 1, delivered: Some(2), frame: &frame });
    };
    send(Direction::ToServer, &syn);
    send(Direction::ToClient, &syn_ack);
    for _ in 0..1000 {
        let payload: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(1000)
        .collect();
        send(Direction::ToServer, &Segment { at, ack: Some(1), payload, ..Segment::default() });
        at += 1000;
    }
    let facts = observer.finish().remove(0);
    assert!(facts.tls.is_none());
    assert!(facts.first_flight.bytes() <= max);
    assert!(facts.label().unwrap_err().to_string().contains("ClientHello"));
}
