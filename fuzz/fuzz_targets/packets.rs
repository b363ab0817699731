//! Any packets and any key log: the judge says something about them, within its limits, traces
//! them, and they can be written to a capture.
#![no_main]

use firstflight_fuzz::{Event, Flags};
use firstflight_packets::pcapng::{Metadata, Writer};
use firstflight_packets::{FirstResponse as Response, LastResponse as Last, Limits, Observer};
use libfuzzer_sys::fuzz_target;

// Small, so that short inputs reach them.
const LIMITS: Limits = Limits {
    connections: 4,
    bytes_per_direction: 1 << 13,
    packets_per_connection: 48,
    total_bytes: 1 << 14,
    secrets: 4,
};

fuzz_target!(|bytes: &[u8]| {
    let mut observer = Observer::with_limits(LIMITS);
    let mut file = Writer::new(Vec::new(), &Metadata::default()).expect("memory");
    let mut now = 0;
    for event in Event::all(bytes) {
        now += 1_000 * u64::from(event.gap);
        if event.flags.has(Flags::SECRETS) {
            observer.add_secrets(&String::from_utf8_lossy(event.body));
        } else {
            let frame = event.frame();
            let packet = event.packet(&frame, now);
            observer.packet(&packet);
            let comment = String::from_utf8_lossy(event.body);
            file.packet(now, packet.direction, &frame, event.seq.into(), &comment).expect("memory");
        }
        assert!(observer.connections() <= LIMITS.connections);
    }
    let mut all = observer.take_finished_traced(|_| true);
    all.extend(observer.finish_traced(|_| true));
    assert!(all.len() <= LIMITS.connections);
    for (facts, trace) in &all {
        if let Some(tls) = &facts.tls {
            file.secrets(observer.key_log().lines_for(&tls.client_random)).expect("memory");
        }
        let _ = (facts.label(), facts.round_trips());
        if let (Response::Seen { round_trips: first, .. }, Last::Seen { round_trips: last, .. }) =
            (facts.first_response, facts.last_response)
        {
            assert!(first <= last);
        }
        let trace = trace.as_ref().expect("a trace that was asked for");
        // As many that count as others.
        assert!(trace.packets.len() <= 2 * LIMITS.packets_per_connection);
        for packet in &trace.packets {
            assert!(
                packet.carries.iter().map(|carried| carried.to_string().len()).sum::<usize>() > 0
            );
        }
    }
    assert_eq!(observer.connections(), 0);
    assert!(file.finish().expect("memory").len().is_multiple_of(4));
});
