//! How long before a deadline to wake and spin (sans-IO).
//!
//! A virtual CPU wakes the later the longer it slept, so each class of sleep length learns its
//! own margin: grown at once when a wake-up was late, shrunk slowly while they are good. A margin
//! that is too long costs the CPU that the endpoints need, one that is too short costs accuracy.

/// Margins by sleep length, each between 60 and 300 microseconds.
#[derive(Debug)]
pub(crate) struct WakeMargin {
    margins_ns: [u64; CLASSES],
}

impl WakeMargin {
    pub(crate) fn new() -> Self {
        Self { margins_ns: [MIN_NS; CLASSES] }
    }

    /// How long before the deadline to wake from a sleep of about `sleep_ns`.
    pub(crate) fn for_sleep(&self, sleep_ns: u64) -> u64 {
        self.margins_ns[class(sleep_ns)]
    }

    /// Learns that a sleep of `sleep_ns` ended `late_ns` after the time asked for.
    pub(crate) fn observe(&mut self, sleep_ns: u64, late_ns: u64) {
        let wanted = (late_ns + HEADROOM_NS).clamp(MIN_NS, MAX_NS);
        let margin = &mut self.margins_ns[class(sleep_ns)];
        if wanted > *margin {
            *margin = wanted;
        } else {
            *margin -= (*margin - wanted) / FORGETTING;
        }
    }
}

/// Doubling classes from below 128 microseconds to above 65 milliseconds.
fn class(sleep_ns: u64) -> usize {
    let doublings = (sleep_ns >> 17).checked_ilog2().map_or(0, |log| log as usize + 1);
    doublings.min(CLASSES - 1)
}

const CLASSES: usize = 11;
const MIN_NS: u64 = 60_000;
const MAX_NS: u64 = 300_000;
const HEADROOM_NS: u64 = 15_000;
const FORGETTING: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_wake_up_widens_its_own_class_only() {
        let mut margin = WakeMargin::new();
        margin.observe(100_000_000, 200_000);
        assert_eq!(margin.for_sleep(100_000_000), 215_000);
        assert_eq!(margin.for_sleep(100_000), MIN_NS);
    }

    #[test]
    fn margins_stay_within_bounds_and_come_back() {
        let mut margin = WakeMargin::new();
        margin.observe(5_000_000, 50_000_000);
        assert_eq!(margin.for_sleep(5_000_000), MAX_NS);
        for _ in 0..2_000 {
            margin.observe(5_000_000, 1_000);
        }
        let settled = margin.for_sleep(5_000_000);
        assert!((MIN_NS..MIN_NS + FORGETTING).contains(&settled), "{settled}");
    }

    #[test]
    fn classes_cover_every_length() {
        assert_eq!(class(0), 0);
        assert_eq!(class(131_071), 0);
        assert_eq!(class(131_072), 1);
        assert_eq!(class(u64::MAX), CLASSES - 1);
    }
}
