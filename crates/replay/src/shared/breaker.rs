//! A breaker: a store that does not answer is left alone for a while, and then tried again.

use std::time::Duration;

/// Opens after some failures in a row. Then claims are not even sent, and only a probe now and then
/// asks whether the store is back; each that fails doubles the wait up to [`Breaker::MAX_BREAK`].
///
/// Time is since an arbitrary start on a monotonic clock. Heartbeats and claims feed it alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Breaker {
    state: State,
    wait: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Closed { failures: u32 },
    Open { until: Duration },
    Probing { until: Duration },
}

impl Breaker {
    /// So many failures in a row open it.
    pub const FAILURES: u32 = 3;
    /// The first wait.
    pub const FIRST: Duration = Duration::from_millis(100);
    /// The longest wait.
    pub const MAX_BREAK: Duration = Duration::from_secs(2);

    /// A closed one: the store is thought well until it shows otherwise.
    pub fn new() -> Self {
        Self { state: State::Closed { failures: 0 }, wait: Self::FIRST }
    }

    /// Whether claims are not to be sent.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }

    /// Whether to ask the store now, by a heartbeat or a new connection. If this says yes while
    /// the breaker is open, it says no to everybody else until the outcome is told, or until the
    /// wait has passed once more.
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

    /// When [`may_probe`](Self::may_probe) will say yes, if it does not now.
    pub fn next_probe(&self) -> Option<Duration> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until } | State::Probing { until } => Some(until),
        }
    }

    /// The store did not answer, or not in time.
    pub fn failed(&mut self, now: Duration) {
        match &mut self.state {
            State::Closed { failures } => {
                *failures += 1;
                if *failures >= Self::FAILURES {
                    self.open(now);
                }
            }
            State::Probing { .. } => {
                self.wait = (self.wait * 2).min(Self::MAX_BREAK);
                self.open(now);
            }
            // One that was under way when it opened.
            State::Open { .. } => {}
        }
    }

    /// The store answered. The first response closes the breaker on probation: the next failure
    /// opens it again, and the waits go on where they were; a second answer ends that.
    pub fn succeeded(&mut self) {
        match self.state {
            State::Closed { .. } => *self = Self::new(),
            _ => self.state = State::Closed { failures: Self::FAILURES - 1 },
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
        (0..Breaker::FAILURES).for_each(|_| breaker.failed(now));
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it() {
        let mut breaker = Breaker::new();
        for _ in 0..10 {
            breaker.failed(ms(0));
            breaker.failed(ms(0));
            assert!(!breaker.is_open());
            breaker.succeeded();
        }
        assert!(opened_at(ms(0)).is_open());
    }

    #[test]
    fn one_probe_at_a_time_each_wait_twice_the_last() {
        let mut breaker = opened_at(ms(0));
        let mut now = ms(0);
        for wait in [100, 200, 400, 800, 1600, 2000, 2000] {
            assert!(!breaker.may_probe(now + ms(wait - 1)), "{wait}");
            now += ms(wait);
            assert_eq!(breaker.next_probe(), Some(now));
            assert!(breaker.may_probe(now), "{wait}");
            assert!(!breaker.may_probe(now), "{wait}: a second one");
            assert!(breaker.is_open());
            breaker.failed(now);
        }
    }

    #[test]
    fn a_probe_whose_outcome_nobody_tells_is_followed_by_another() {
        let mut breaker = opened_at(ms(0));
        assert!(breaker.may_probe(ms(100)));
        assert!(!breaker.may_probe(ms(199)));
        assert!(breaker.may_probe(ms(200)));
    }

    #[test]
    fn an_answer_closes_it_on_probation() {
        let mut breaker = opened_at(ms(0));
        assert!(breaker.may_probe(ms(100)));
        breaker.failed(ms(100));
        assert!(breaker.may_probe(ms(300)));
        breaker.succeeded();
        assert!(!breaker.is_open());
        breaker.failed(ms(310));
        assert_eq!(breaker.next_probe(), Some(ms(510)), "where the waits were");
        assert!(breaker.may_probe(ms(510)));
        breaker.succeeded();
        breaker.succeeded();
        assert_eq!(breaker, Breaker::new());
    }

    proptest! {
        /// Whatever happens: it is never silent for longer than the longest wait.
        #[test]
        fn a_dead_store_is_tried_again(steps in prop::collection::vec((0u8..3, 0u64..500), 0..200)) {
            let (mut breaker, mut now) = (Breaker::new(), ms(0));
            for (step, wait) in steps {
                now += ms(wait);
                match step {
                    0 => breaker.failed(now),
                    1 => breaker.succeeded(),
                    _ => { breaker.may_probe(now); }
                }
                prop_assert!(breaker.clone().may_probe(now + Breaker::MAX_BREAK));
                prop_assert_eq!(breaker.is_open(), breaker.next_probe().is_some());
            }
        }
    }
}
