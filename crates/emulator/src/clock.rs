//! The two clocks: monotonic for measurements, Unix time for kernel timestamps and captures.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`, the time base of this crate.
pub fn monotonic_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// The offset from monotonic time to Unix time, in nanoseconds (for capture files).
///
/// Read it for each use: the clocks drift apart and the Unix clock may be stepped.
pub fn unix_offset_ns() -> i64 {
    let mut best = (u64::MAX, 0);
    for _ in 0..ATTEMPTS {
        let before = monotonic_ns();
        let unix = read(ClockId::CLOCK_REALTIME);
        let gap = monotonic_ns() - before;
        if gap < best.0 {
            best = (gap, unix as i64 - (before + gap / 2) as i64);
        }
        // Two undisturbed reads are well below this; more means that the thread was preempted.
        if gap < MAX_UNDISTURBED_NS {
            break;
        }
    }
    best.1
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("every Linux has both clocks");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

const ATTEMPTS: usize = 4;
const MAX_UNDISTURBED_NS: u64 = 2_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn the_offset_converts_monotonic_to_unix_time() {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64;
        let ours = monotonic_ns() as i64 + unix_offset_ns();
        assert!((ours - unix).abs() < 1_000_000_000, "{ours} against {unix}");
    }
}
