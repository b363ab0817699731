use std::collections::VecDeque;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// How the intended times of an open loop are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// The same time between any two.
    Constant,
    /// Exponential times between them, as independent clients arrive.
    Poisson,
}

/// The arrivals of an open loop: which connections are due, and since when.
///
/// Sans-IO: times are counted from the start of the run and given as arguments. An arrival that
/// nobody takes waits in a backlog of bounded length; one that finds it full is never started, and
/// counted.
#[derive(Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    /// Mean time between arrivals, in nanoseconds.
    spacing: f64,
    /// The next arrival, in nanoseconds since the start.
    next: f64,
    random: StdRng,
    until: Duration,
    left: u64,
    backlog: VecDeque<Duration>,
    backlog_limit: usize,
    not_begun: u64,
}

/// What a [`Schedule`] is made from.
#[derive(Clone, Copy, Debug)]
pub struct SchedulePlan {
    /// Arrivals a second; above zero.
    pub rate: f64,
    /// How they are spread.
    pub arrivals: Arrivals,
    /// The first constant arrival, in parts (0 to 1) of the time between two: so that several
    /// threads take turns.
    pub phase: f64,
    /// Orders Poisson arrivals; the same seed gives the same times.
    pub seed: u64,
    /// No arrival is intended at this time or later.
    pub until: Duration,
    /// No more arrivals than these.
    pub count: u64,
    /// How many may wait to be started.
    pub backlog: usize,
}

impl Schedule {
    /// The arrivals of a plan, none of which has been looked at yet.
    pub fn new(plan: SchedulePlan) -> Self {
        let mut schedule = Self {
            arrivals: plan.arrivals,
            spacing: 1e9 / plan.rate,
            next: 0.0,
            random: StdRng::seed_from_u64(plan.seed),
            until: plan.until,
            left: plan.count,
            backlog: VecDeque::new(),
            backlog_limit: plan.backlog,
            not_begun: 0,
        };
        schedule.next = match plan.arrivals {
            Arrivals::Constant => plan.phase * schedule.spacing,
            Arrivals::Poisson => schedule.gap(),
        };
        schedule
    }

    /// The oldest arrival that is due at `now` and has not been taken: its intended time.
    pub fn take(&mut self, now: Duration) -> Option<Duration> {
        self.advance(now);
        self.backlog.pop_front()
    }

    /// When something is due next: now or earlier if something waits. `None`: nothing will be.
    pub fn next_due(&self) -> Option<Duration> {
        self.backlog.front().copied().or_else(|| self.upcoming())
    }

    /// Whether no further arrival will become due; what waits may still be taken.
    pub fn is_exhausted(&self) -> bool {
        self.upcoming().is_none()
    }

    /// Notes what is due at `now` without taking any of it.
    pub fn advance(&mut self, now: Duration) {
        while let Some(due) = self.upcoming()
            && due <= now
        {
            self.left -= 1;
            self.next += self.gap();
            match self.backlog.len() < self.backlog_limit {
                true => self.backlog.push_back(due),
                false => self.not_begun += 1,
            }
        }
    }

    /// Gives up what waits and what would still have come up to `now`: it counts as not started.
    pub fn close(&mut self, now: Duration) {
        self.advance(now);
        self.not_begun += self.backlog.len() as u64;
        self.backlog.clear();
        self.left = 0;
    }

    /// How many arrivals were due and never started.
    pub fn not_begun(&self) -> u64 {
        self.not_begun
    }

    fn upcoming(&self) -> Option<Duration> {
        let due = Duration::from_nanos(self.next as u64);
        (self.left > 0 && due < self.until).then_some(due)
    }

    fn gap(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Constant => self.spacing,
            // The inverse of the exponential distribution; 1 - u is never zero.
            Arrivals::Poisson => -self.spacing * (1.0 - self.random.random::<f64>()).ln(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(rate: f64) -> SchedulePlan {
        SchedulePlan {
            rate,
            arrivals: Arrivals::Constant,
            phase: 0.0,
            seed: 1,
            until: Duration::from_secs(1),
            count: u64::MAX,
            backlog: 100,
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_stall_does_not_move_intended_times() {
        let mut schedule = Schedule::new(plan(100.0));
        assert_eq!(schedule.take(ms(0)), Some(ms(0)));
        assert_eq!(schedule.take(ms(5)), None);
        assert_eq!(schedule.next_due(), Some(ms(10)));
        // Nobody looked for 35 ms: the three arrivals keep the times at which they were due.
        let taken: Vec<_> = std::iter::from_fn(|| schedule.take(ms(39))).collect();
        assert_eq!(taken, [ms(10), ms(20), ms(30)]);
        assert_eq!(schedule.next_due(), Some(ms(40)));
    }

    #[test]
    fn what_finds_the_backlog_full_is_counted_and_never_begun() {
        let mut schedule = Schedule::new(SchedulePlan { backlog: 3, ..plan(100.0) });
        schedule.advance(ms(95));
        assert_eq!(schedule.not_begun(), 7);
        let taken: Vec<_> = std::iter::from_fn(|| schedule.take(ms(95))).collect();
        assert_eq!(taken, [ms(0), ms(10), ms(20)]);
    }

    #[test]
    fn the_end_leaves_nothing_out_of_the_count() {
        let mut schedule = Schedule::new(plan(100.0));
        assert_eq!(schedule.take(ms(0)), Some(ms(0)));
        schedule.close(ms(2000));
        assert_eq!(schedule.not_begun(), 99);
        assert_eq!(schedule.next_due(), None);
        assert_eq!(schedule.take(ms(3000)), None);
    }

    #[test]
    fn a_count_ends_it_too() {
        let mut schedule =
            Schedule::new(SchedulePlan { count: 5, until: Duration::MAX, ..plan(100.0) });
        let taken = std::iter::from_fn(|| schedule.take(ms(60_000))).count();
        assert_eq!((taken, schedule.next_due(), schedule.not_begun()), (5, None, 0));
    }

    #[test]
    fn threads_take_turns() {
        let of = |phase| Schedule::new(SchedulePlan { phase, ..plan(100.0) }).next_due();
        assert_eq!((of(0.0), of(0.5)), (Some(ms(0)), Some(ms(5))));
    }

    #[test]
    fn poisson_gaps_are_exponential_and_follow_the_seed() {
        let plan = SchedulePlan {
            arrivals: Arrivals::Poisson,
            until: Duration::from_secs(100),
            backlog: usize::MAX,
            ..plan(1000.0)
        };
        let times = |seed| {
            let mut schedule = Schedule::new(SchedulePlan { seed, ..plan });
            std::iter::from_fn(|| schedule.take(Duration::from_secs(100))).collect::<Vec<_>>()
        };
        let first = times(1);
        assert_eq!(first, times(1));
        assert_ne!(first, times(2));
        // 100,000 expected, standard deviation 316.
        assert!((98_000..102_000).contains(&first.len()), "{}", first.len());
        let gaps: Vec<f64> = first.windows(2).map(|w| (w[1] - w[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let longer = gaps.iter().filter(|gap| **gap > mean).count() as f64 / gaps.len() as f64;
        // Of exponential times 1/e are longer than their mean; of constant ones none or all.
        assert!((longer - (-1f64).exp()).abs() < 0.01, "{longer}");
    }

    proptest! {
        #[test]
        fn each_arrival_is_taken_once_or_counted(
            rate in 1.0..5000.0f64,
            backlog in 0usize..50,
            poisson: bool,
            looks in proptest::collection::vec((0u64..1500, 0usize..30), 0..40),
        ) {
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Constant };
            let plan = SchedulePlan { arrivals, backlog, ..plan(rate) };
            let mut all = Schedule::new(SchedulePlan { backlog: usize::MAX, ..plan });
            let expected = std::iter::from_fn(|| all.take(Duration::from_secs(2))).count() as u64;
            let mut schedule = Schedule::new(plan);
            let (mut now, mut taken) = (Duration::ZERO, Vec::new());
            for (at, most) in looks {
                now = now.max(ms(at));
                for _ in 0..most {
                    let Some(due) = schedule.take(now) else { break };
                    prop_assert!(due <= now);
                    taken.push(due);
                }
            }
            schedule.close(Duration::from_secs(2));
            prop_assert!(taken.is_sorted());
            prop_assert_eq!(taken.len() as u64 + schedule.not_begun(), expected);
        }
    }
}
