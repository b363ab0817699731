//! When to try again, and when no more (OTLP specification, "Failures").

use std::time::Duration;

/// The pauses between tries of one batch: twice as long each time, up to a limit, and no more tries
/// once they add up to what a batch is worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    spent: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST, spent: Duration::ZERO }
    }

    /// The pause before the next try, in place of which the collector may have asked for another
    /// (`Retry-After`). `jitter` is random, 0 to 1. `None`: the batch is given up.
    pub(crate) fn pause(&mut self, asked: Option<Duration>, jitter: f64) -> Option<Duration> {
        let pause = asked.unwrap_or_else(|| self.next.mul_f64(1.0 - JITTER * jitter));
        self.next = (self.next * 2).min(MAX_BACKOFF);
        self.spent += pause;
        (self.spent <= WORTH).then_some(pause)
    }
}

const FIRST: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Nodes that lost the same collector don't come back all at once.
const JITTER: f64 = 0.5;

/// How long a batch is tried: a collector's restart, and not an outage, for which memory would have
/// to last.
const WORTH: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = std::iter::from_fn(|| backoff.pause(None, 0.0)).collect();
        assert!(pauses.is_sorted() && pauses.len() == 6, "{pauses:?}");
        assert!(pauses.iter().sum::<Duration>() <= WORTH);
    }

    #[test]
    fn a_collector_that_asks_for_more_time_than_a_batch_is_worth_is_not_waited_for() {
        assert_eq!(Backoff::new().pause(Some(Duration::from_secs(61)), 0.0), None);
        let asked = Some(Duration::from_secs(7));
        assert_eq!(Backoff::new().pause(asked, 0.9), asked);
    }

    proptest! {
        #[test]
        fn every_row_of_pauses_ends(jitters in prop::collection::vec(0.0..=1.0f64, 400)) {
            let mut backoff = Backoff::new();
            let tries = jitters.into_iter().take_while(|j| backoff.pause(None, *j).is_some());
            prop_assert!(tries.count() < 20);
        }
    }
}
