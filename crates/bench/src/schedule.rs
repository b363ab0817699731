use std::collections::VecDeque;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Distribution of the scheduled times of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At constant intervals.
    Constant,
    /// At exponentially distributed intervals, like independent clients.
    Poisson,
}

/// The scheduled times of an open loop: which connections are due, and since when.
///
/// Does no I/O: times are arguments and count from the start of the run. A connection that is due
/// waits in a bounded backlog until it is taken. If the backlog is full, the connection is never
/// started, but counted.
#[derive(Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    /// Mean interval, in nanoseconds.
    mean_interval: f64,
    /// The next scheduled time, in nanoseconds since the start.
    next: f64,
    random: StdRng,
    until: Duration,
    remaining: u64,
    backlog: VecDeque<Duration>,
    backlog_limit: usize,
    not_started: u64,
}

/// The parameters of a [`Schedule`].
#[derive(Clone, Copy, Debug)]
pub struct SchedulePlan {
    /// Connections per second; above zero.
    pub rate: f64,
    /// Distribution of the scheduled times.
    pub arrivals: Arrivals,
    /// The first scheduled time at constant intervals, as a fraction (0 to 1) of the interval, so that
    /// several threads alternate.
    pub phase: f64,
    /// Seed of Poisson arrivals; the same seed gives the same times.
    pub seed: u64,
    /// No connection is scheduled at this time or later.
    pub until: Duration,
    /// Limits the number of connections.
    pub count: u64,
    /// Limits the connections that wait to be started.
    pub backlog: usize,
}

impl Schedule {
    /// Starts the schedule of a plan.
    pub fn new(plan: SchedulePlan) -> Self {
        let mut schedule = Self {
            arrivals: plan.arrivals,
            mean_interval: 1e9 / plan.rate,
            next: 0.0,
            random: StdRng::seed_from_u64(plan.seed),
            until: plan.until,
            remaining: plan.count,
            backlog: VecDeque::new(),
            backlog_limit: plan.backlog,
            not_started: 0,
        };
        schedule.next = match plan.arrivals {
            Arrivals::Constant => plan.phase * schedule.mean_interval,
            Arrivals::Poisson => schedule.interval(),
        };
        schedule
    }

    /// Takes the oldest connection that is due at `now`. Returns its scheduled time.
    pub fn take(&mut self, now: Duration) -> Option<Duration> {
        self.advance(now);
        self.backlog.pop_front()
    }

    /// When the next connection is due: in the past if one waits. `None` if there are no more.
    pub fn next_due(&self) -> Option<Duration> {
        self.backlog.front().copied().or_else(|| self.upcoming())
    }

    /// Whether no further connection will become due. Waiting ones can still be taken.
    pub fn is_exhausted(&self) -> bool {
        self.upcoming().is_none()
    }

    /// Moves connections that are due at `now` to the backlog.
    pub fn advance(&mut self, now: Duration) {
        while let Some(due) = self.upcoming()
            && due <= now
        {
            self.remaining -= 1;
            self.next += self.interval();
            match self.backlog.len() < self.backlog_limit {
                true => self.backlog.push_back(due),
                false => self.not_started += 1,
            }
        }
    }

    /// Ends the schedule. Connections that wait or became due up to `now` count as not started.
    pub fn close(&mut self, now: Duration) {
        self.advance(now);
        self.not_started += self.backlog.len() as u64;
        self.backlog.clear();
        self.remaining = 0;
    }

    /// Number of connections that were due and never started.
    pub fn not_started(&self) -> u64 {
        self.not_started
    }

    fn upcoming(&self) -> Option<Duration> {
        let due = Duration::from_nanos(self.next as u64);
        (self.remaining > 0 && due < self.until).then_some(due)
    }

    fn interval(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Constant => self.mean_interval,
            // Inverse transform sampling; 1 - u is never zero.
            Arrivals::Poisson => -self.mean_interval * (1.0 - self.random.random::<f64>()).ln(),
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
    fn a_stall_does_not_move_scheduled_times() {
        let mut schedule = Schedule::new(plan(100.0));
        assert_eq!(schedule.take(ms(0)), Some(ms(0)));
        assert_eq!(schedule.take(ms(5)), None);
        assert_eq!(schedule.next_due(), Some(ms(10)));
        // Nothing was taken for 35 ms: the three connections keep their scheduled times.
        let taken: Vec<_> = std::iter::from_fn(|| schedule.take(ms(39))).collect();
        assert_eq!(taken, [ms(10), ms(20), ms(30)]);
        assert_eq!(schedule.next_due(), Some(ms(40)));
    }

    #[test]
    fn with_a_full_backlog_connections_are_counted_and_never_started() {
        let mut schedule = Schedule::new(SchedulePlan { backlog: 3, ..plan(100.0) });
        schedule.advance(ms(95));
        assert_eq!(schedule.not_started(), 7);
        let taken: Vec<_> = std::iter::from_fn(|| schedule.take(ms(95))).collect();
        assert_eq!(taken, [ms(0), ms(10), ms(20)]);
    }

    #[test]
    fn closing_counts_every_connection_that_was_due() {
        let mut schedule = Schedule::new(plan(100.0));
        assert_eq!(schedule.take(ms(0)), Some(ms(0)));
        schedule.close(ms(2000));
        assert_eq!(schedule.not_started(), 99);
        assert_eq!(schedule.next_due(), None);
        assert_eq!(schedule.take(ms(3000)), None);
    }

    #[test]
    fn the_schedule_ends_after_its_count() {
        let mut schedule =
            Schedule::new(SchedulePlan { count: 5, until: Duration::MAX, ..plan(100.0) });
        let taken = std::iter::from_fn(|| schedule.take(ms(60_000))).count();
        assert_eq!((taken, schedule.next_due(), schedule.not_started()), (5, None, 0));
    }

    #[test]
    fn threads_alternate() {
        let first_due = |phase| Schedule::new(SchedulePlan { phase, ..plan(100.0) }).next_due();
        assert_eq!((first_due(0.0), first_due(0.5)), (Some(ms(0)), Some(ms(5))));
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
        let longer =
            gaps.iter().filter(|interval| **interval > mean).count() as f64 / gaps.len() as f64;
        // 1/e of exponential intervals are longer than the mean; of constant ones none or all.
        assert!((longer - (-1f64).exp()).abs() < 0.01, "{longer}");
    }

    proptest! {
        #[test]
        fn each_connection_is_taken_once_or_counted(
            rate in 1.0..5000.0f64,
            backlog in 0usize..50,
            poisson: bool,
            steps in proptest::collection::vec((0u64..1500, 0usize..30), 0..40),
        ) {
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Constant };
            let plan = SchedulePlan { arrivals, backlog, ..plan(rate) };
            let mut all = Schedule::new(SchedulePlan { backlog: usize::MAX, ..plan });
            let expected = std::iter::from_fn(|| all.take(Duration::from_secs(2))).count() as u64;
            let mut schedule = Schedule::new(plan);
            let (mut now, mut taken) = (Duration::ZERO, Vec::new());
            for (at, max) in steps {
                now = now.max(ms(at));
                for _ in 0..max {
                    let Some(due) = schedule.take(now) else { break };
                    prop_assert!(due <= now);
                    taken.push(due);
                }
            }
            schedule.close(Duration::from_secs(2));
            prop_assert!(taken.is_sorted());
            prop_assert_eq!(taken.len() as u64 + schedule.not_started(), expected);
        }
    }
}
