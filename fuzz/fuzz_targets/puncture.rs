//! Any bytes as the state of punctured ticket keys, which a process leaves to the next.
#![no_main]

use firstflight_puncture::{Limits, PuncturableFunction, TicketIndex};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { epoch_seconds: 60, max_bytes: 1 << 20 };
    let Ok(mut function) = PuncturableFunction::restore(bytes, limits) else { return };
    assert_eq!(&function.snapshot()[..], bytes);
    let outstanding = function.counts().outstanding;
    let (index, value) = function.issue(100);
    assert_eq!(function.evaluate(&index), Some(value));
    assert!(function.puncture(&index) && !function.puncture(&index));
    assert!(function.counts().outstanding <= outstanding);
    for number in (0..index.number).rev().take(100) {
        let earlier = TicketIndex { number, ..index };
        assert_eq!(function.evaluate(&earlier).is_some(), function.puncture(&earlier));
    }
    let again = PuncturableFunction::restore(&function.snapshot(), limits).unwrap();
    assert_eq!(again.counts().outstanding, function.counts().outstanding);
    function.expire_before(u64::MAX);
    assert!(function.counts().bytes <= 1 << 20);
});
