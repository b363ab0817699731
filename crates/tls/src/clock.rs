use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The time of day by which tickets are issued and aged: taken from the machine's clock once and
/// carried on by the monotonic clock, so that a step of the machine's clock cannot make an old
/// flight fresh again (RFC 8446 section 8.3 rests on ages that only grow).
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock;

static ANCHOR: OnceLock<Instant> = OnceLock::new();
static OFFSET_MICROS: AtomicI64 = AtomicI64::new(i64::MIN);

impl SteadyClock {
    /// Microseconds since the Unix epoch.
    pub fn unix_micros() -> i64 {
        let elapsed = Self::elapsed_micros();
        match OFFSET_MICROS.load(Ordering::Relaxed) {
            i64::MIN => {
                let offset = Self::machine_micros() - elapsed;
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

    /// How far the machine's clock has stepped away from this one, in microseconds (positive: the
    /// machine's is ahead).
    pub fn step_micros() -> i64 {
        Self::machine_micros() - Self::unix_micros()
    }

    /// Takes the machine's clock over again. Whoever calls this must treat every strike record as
    /// lost, because ages measured before and after do not compare.
    pub fn follow_machine() {
        OFFSET_MICROS.store(Self::machine_micros() - Self::elapsed_micros(), Ordering::Relaxed);
    }

    fn elapsed_micros() -> i64 {
        ANCHOR.get_or_init(Instant::now).elapsed().as_micros() as i64
    }

    fn machine_micros() -> i64 {
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
    fn agrees_with_the_machine_and_never_runs_back() {
        let first = SteadyClock::unix_micros();
        assert!(SteadyClock::step_micros().abs() < 2_000_000);
        SteadyClock::follow_machine();
        assert!(SteadyClock::unix_micros() + 2_000_000 > first);
    }
}
