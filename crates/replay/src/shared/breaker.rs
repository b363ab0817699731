//! A circuit breaker: after failures, a store is not used for a while.

use std::time::Duration;

/// Opens after [`Breaker::MAX_FAILURES`] consecutive failures of heartbeats or claims. While it is
/// open, claims are not sent, and only probes test whether the store is back. Each failed probe
/// doubles the wait before the next one, up to [`Breaker::MAX_BREAK`].
///
/// Time is since an arbitrary start on a monotonic clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Breaker {
    state: State,
    wait: Duration,
    /// When the last failure was counted.
    last_failure: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Closed { failures: u32 },
    Open { until: Duration },
    Probing { until: Duration },
}

impl Breaker {
    /// Consecutive failures that open the breaker.
    pub const MAX_FAILURES: u32 = 3;
    /// The first wait before a probe.
    pub const MIN_BREAK: Duration = Duration::from_millis(100);
    /// The longest wait before a probe.
    pub const MAX_BREAK: Duration = Duration::from_secs(2);

    /// Creates a closed breaker.
    pub fn new() -> Self {
        Self { state: State::Closed { failures: 0 }, wait: Self::MIN_BREAK, last_failure: None }
    }

    /// Whether claims must not be sent.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }

    /// Whether a heartbeat or a new connection may be tried now. If it returns true while the breaker
    /// is open, it returns false to all other callers until the outcome is reported or the wait has
    /// passed again.
    pub fn may_probe(&mut self, now: Duration) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } | State::Probing { until } if now < until => false,
            _ => {
                self.state = State::Probing { until: now.saturating_add(self.wait) };
                true
            }
        }
    }

    /// When [`may_probe`](Self::may_probe) will return true, if it does not now.
    pub fn next_probe(&self) -> Option<Duration> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until } | State::Probing { until } => Some(until),
        }
    }

    /// Reports that the store did not reply in time to what was sent at `sent_at`. Ignored if that
    /// was before the last failure: all claims of an exchange fail together and count once.
    pub fn failed(&mut self, sent_at: Duration, now: Duration) {
        if self.last_failure.is_some_and(|last| sent_at < last) {
            return;
        }
        match &mut self.state {
            State::Closed { failures } => {
                self.last_failure = Some(now);
                *failures += 1;
                if *failures >= Self::MAX_FAILURES {
                    self.open(now);
                }
            }
            State::Probing { .. } => {
                self.last_failure = Some(now);
                self.wait = (self.wait * 2).min(Self::MAX_BREAK);
                self.open(now);
            }
            // It was sent before the breaker opened.
            State::Open { .. } => {}
        }
    }

    /// Reports a reply. The first reply closes the breaker on probation: the next failure opens it
    /// again, with the previous wait. A second reply ends the probation.
    pub fn succeeded(&mut self) {
        match self.state {
            State::Closed { .. } => *self = Self::new(),
            _ => self.state = State::Closed { failures: Self::MAX_FAILURES - 1 },
        }
    }

    fn open(&mut self, now: Duration) {
        self.state = State::Open { until: now.saturating_add(self.wait) };
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn opened_at(now: Duration) -> Breaker {
        let mut breaker = Breaker::new();
        (0..Breaker::MAX_FAILURES).for_each(|_| breaker.failed(now, now));
        breaker
    }

    #[test]
    fn consecutive_failures_open_the_breaker() {
        let mut breaker = Breaker::new();
        for _ in 0..10 {
            breaker.failed(ms(0), ms(0));
            breaker.failed(ms(0), ms(0));
            assert!(!breaker.is_open());
            breaker.succeeded();
        }
        assert!(opened_at(ms(0)).is_open());
    }

    #[test]
    fn the_claims_of_one_exchange_count_once() {
        let mut breaker = Breaker::new();
        for exchange in [10, 20, 30] {
            assert!(!breaker.is_open());
            for claim in 0..100 {
                breaker.failed(ms(exchange), ms(exchange + 3 + claim / 50));
            }
        }
        assert!(breaker.is_open());
    }

    #[test]
    fn one_probe_at_a_time_and_the_wait_doubles() {
        let mut breaker = opened_at(ms(0));
        let mut now = ms(0);
        for wait in [100, 200, 400, 800, 1600, 2000, 2000] {
            assert!(!breaker.may_probe(now + ms(wait - 1)), "{wait}");
            now += ms(wait);
            assert_eq!(breaker.next_probe(), Some(now));
            assert!(breaker.may_probe(now), "{wait}");
            assert!(!breaker.may_probe(now), "{wait}: a second probe");
            assert!(breaker.is_open());
            breaker.failed(now, now);
        }
    }

    #[test]
    fn a_probe_without_a_reported_outcome_is_followed_by_another() {
        let mut breaker = opened_at(ms(0));
        assert!(breaker.may_probe(ms(100)));
        assert!(!breaker.may_probe(ms(199)));
        assert!(breaker.may_probe(ms(200)));
    }

    #[test]
    fn a_reply_closes_the_breaker_on_probation() {
        let mut breaker = opened_at(ms(0));
        assert!(breaker.may_probe(ms(100)));
        breaker.failed(ms(100), ms(100));
        assert!(breaker.may_probe(ms(300)));
        breaker.succeeded();
        assert!(!breaker.is_open());
        breaker.failed(ms(310), ms(310));
        assert_eq!(breaker.next_probe(), Some(ms(510)), "the previous wait");
        assert!(breaker.may_probe(ms(510)));
        breaker.succeeded();
        breaker.succeeded();
        assert_eq!(breaker, Breaker::new());
    }

    proptest! {
        /// After any sequence of events, a probe is allowed within the longest wait.
        #[test]
        fn an_unreachable_store_is_probed_again(
            steps in prop::collection::vec((0u8..3, 0u64..500), 0..200),
        ) {
            let (mut breaker, mut now) = (Breaker::new(), ms(0));
            for (step, wait) in steps {
                now += ms(wait);
                match step {
                    0 => breaker.failed(now, now),
                    1 => breaker.succeeded(),
                    _ => { breaker.may_probe(now); }
                }
                prop_assert!(breaker.clone().may_probe(now + Breaker::MAX_BREAK));
                prop_assert_eq!(breaker.is_open(), breaker.next_probe().is_some());
            }
        }
    }
}
