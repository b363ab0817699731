//! The clock by which tickets are issued and aged.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Wall-clock time that never steps: read from the system clock once, then advanced by the
/// monotonic clock.
///
/// Freshness (RFC 8446 section 8.3) relies on ticket ages that only grow. With the system clock, a
/// step backwards would make an old flight fresh again. A server watches
/// [`SteadyClock::system_clock_offset_micros`] every second. After a step it calls
/// [`SteadyClock::follow_system_clock`] and starts a new ticket epoch, because ages of earlier
/// tickets are meaningless in the new time.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock;

static ANCHOR: OnceLock<Instant> = OnceLock::new();
static OFFSET_MICROS: AtomicI64 = AtomicI64::new(i64::MIN);

impl SteadyClock {
    /// Returns microseconds since the Unix epoch.
    pub fn unix_micros() -> i64 {
        let elapsed = Self::elapsed_micros();
        match OFFSET_MICROS.load(Ordering::Relaxed) {
            i64::MIN => {
                let offset = Self::system_micros() - elapsed;
                let _ = OFFSET_MICROS.compare_exchange(
                    i64::MIN,
                    offset,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                OFFSET_MICROS.load(Ordering::Relaxed) + elapsed
            }
            offset => offset + elapsed,
        }
    }

    /// Returns how far the system clock has stepped away from this one, in microseconds. Positive:
    /// the system clock is ahead.
    pub fn system_clock_offset_micros() -> i64 {
        Self::system_micros() - Self::unix_micros()
    }

    /// Reads the system clock again. The caller must treat every strike record as lost, because
    /// ages measured before and after cannot be compared.
    pub fn follow_system_clock() {
        OFFSET_MICROS.store(Self::system_micros() - Self::elapsed_micros(), Ordering::Relaxed);
    }

    fn elapsed_micros() -> i64 {
        ANCHOR.get_or_init(Instant::now).elapsed().as_micros() as i64
    }

    fn system_micros() -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_micros() as i64,
            Err(before) => -(before.duration().as_micros() as i64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_system_clock_and_never_runs_back() {
        let mut last = SteadyClock::unix_micros();
        for _ in 0..1000 {
            let now = SteadyClock::unix_micros();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
        SteadyClock::follow_system_clock();
        assert!(SteadyClock::system_clock_offset_micros().abs() < 2_000_000);
    }
}
