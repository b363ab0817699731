//! The stated bounds of memory, by the crate's own count. `examples/memory.rs` compares the count with
//! the process's memory.

use firstflight_puncture::{Limits, PuncturableFunction, TicketIndex};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

const COUNT: usize = 100_000;
const SEGMENTS: f64 = COUNT as f64 / 32_768.0 + 1.0;

fn issued() -> (PuncturableFunction, Vec<TicketIndex>) {
    let mut function = PuncturableFunction::new(Limits::default());
    let issued = (0..COUNT).map(|_| function.issue(0).0).collect();
    (function, issued)
}

fn bytes_per_ticket(function: &PuncturableFunction) -> f64 {
    let counts = function.counts();
    (counts.bytes as f64 - 512.0 * SEGMENTS) / counts.outstanding as f64
}

#[test]
fn half_of_the_indices_used_at_random_cost_16_bytes_each() {
    let (mut function, mut issued) = issued();
    assert!(bytes_per_ticket(&function) < 0.1);
    issued.shuffle(&mut StdRng::seed_from_u64(1));
    issued[..COUNT / 2].iter().for_each(|index| assert!(function.puncture(index)));
    let bytes = bytes_per_ticket(&function);
    assert!(bytes <= 16.0, "{bytes} bytes");
}

#[test]
fn no_order_of_uses_costs_more_than_40_bytes_an_index() {
    for stride in [2, 3, 4, 8, 31, 64, 200] {
        let (mut function, issued) = issued();
        let used = issued.iter().enumerate().filter(|(at, _)| at % stride != stride - 1);
        used.for_each(|(_, index)| assert!(function.puncture(index)));
        let bytes = bytes_per_ticket(&function);
        assert!(bytes <= 40.0, "every {stride}th remains: {bytes} bytes");
    }
}

#[test]
fn used_and_expired_indices_leave_nothing_behind() {
    let (mut function, issued) = issued();
    issued.iter().for_each(|index| assert!(function.puncture(index)));
    let (_, _) = function.issue(4000);
    assert!(function.counts().bytes < 1024, "{:?}", function.counts());
    function.expire_before(4001);
    assert_eq!(function.counts().bytes, 0);
    assert_eq!((function.counts().expired, function.counts().epochs), (1, 0));
}

#[test]
fn the_oldest_segments_are_dropped_at_the_limit() {
    let limits = Limits { max_bytes: 600_000, ..Limits::default() };
    let mut function = PuncturableFunction::new(limits);
    let mut issued = Vec::new();
    for _ in 0..COUNT {
        issued.push(function.issue(0).0);
        assert!(function.counts().bytes <= 600_000);
    }
    for index in issued.iter().step_by(2) {
        function.puncture(index);
        assert!(function.counts().bytes <= 600_000);
    }
    let counts = function.counts();
    assert!(counts.evicted > 0);
    assert!(function.evaluate(&issued[1]).is_none());
    assert!(function.evaluate(&issued[COUNT - 1]).is_some());
    assert_eq!(
        counts.outstanding,
        issued.iter().filter(|index| function.evaluate(index).is_some()).count() as u64
    );
}
