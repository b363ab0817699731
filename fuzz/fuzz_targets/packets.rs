//! Any packets and any key log: the judge says something about them, within its limits.
#![no_main]

use firstflight_fuzz::{Event, Flags};
use firstflight_wire::{Limits, Observer};
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
    let mut now = 0;
    for event in Event::all(bytes) {
        now += 1_000 * u64::from(event.gap);
        if event.flags.has(Flags::SECRETS) {
            observer.add_secrets(&String::from_utf8_lossy(event.body));
        } else {
            let frame = event.frame();
            observer.packet(&event.packet(&frame, now));
        }
        assert!(observer.connections() <= LIMITS.connections);
    }
    let mut all = observer.take_finished();
    all.extend(observer.finish());
    assert!(all.len() <= LIMITS.connections);
    for facts in &all {
        let _ = (facts.label(), facts.round_trips());
    }
    assert_eq!(observer.connections(), 0);
});
