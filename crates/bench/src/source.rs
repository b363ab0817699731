use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::Schedule;

/// Says when a thread starts connections.
pub(crate) enum Source {
    /// So many connections to one address, a few at a time, so that tickets come in.
    WarmUp { address: usize, left: usize, open: usize },
    /// At intended times.
    Open(Box<OpenLoop>),
    /// When others have ended.
    Closed(ClosedLoop),
}

/// What a connection is started for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To this address, before the run.
    WarmUp { address: usize },
    /// To be measured; it should start at this time.
    Measured { intended: Instant },
}

pub(crate) struct OpenLoop {
    pub(crate) schedule: Schedule,
    pub(crate) start: Instant,
    pub(crate) in_flight: usize,
    pub(crate) open: usize,
    /// How long after the last arrival those that wait are given up.
    pub(crate) patience: Duration,
    exhausted: Option<Instant>,
}

pub(crate) struct ClosedLoop {
    until: Option<Instant>,
    left: u64,
    idle: usize,
    resting: VecDeque<Instant>,
    refilled_for_nothing: usize,
}

/// How long a closed loop's place rests after a failure: a server that is down would otherwise be
/// asked as fast as this machine can.
const REST: Duration = Duration::from_millis(10);

/// How many connections that should bring tickets may fail to, one after another, before a closed
/// loop gives up.
const MAX_FRUITLESS_REFILLS: usize = 100;

/// How many warm-up connections are open at a time.
const WARM_UP_AT_A_TIME: usize = 8;

impl OpenLoop {
    pub(crate) fn new(
        schedule: Schedule,
        start: Instant,
        in_flight: usize,
        patience: Duration,
    ) -> Self {
        Self { schedule, start, in_flight, open: 0, patience, exhausted: None }
    }
}

impl ClosedLoop {
    pub(crate) fn new(connections: usize, until: Option<Instant>, left: u64) -> Self {
        Self { until, left, idle: connections, resting: VecDeque::new(), refilled_for_nothing: 0 }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.left == 0
            || self.until.is_some_and(|until| now >= until)
            || self.refilled_for_nothing > MAX_FRUITLESS_REFILLS
    }
}

impl Source {
    /// The next connection to start at `now`, if one may.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Purpose> {
        match self {
            Self::WarmUp { address, left, open } => {
                let may = *left > 0 && *open < WARM_UP_AT_A_TIME;
                may.then(|| {
                    *left -= 1;
                    *open += 1;
                    Purpose::WarmUp { address: *address }
                })
            }
            Self::Open(this) => {
                let since = now.saturating_duration_since(this.start);
                // Also where no connection may be opened: the backlog is counted in time.
                this.schedule.advance(since);
                if this.open >= this.in_flight {
                    return None;
                }
                let intended = this.start + this.schedule.take(since)?;
                this.open += 1;
                Some(Purpose::Measured { intended })
            }
            Self::Closed(this) => {
                if this.resting.front().is_some_and(|end| *end <= now) {
                    this.resting.pop_front();
                    this.idle += 1;
                }
                if this.idle == 0 || this.is_over(now) {
                    return None;
                }
                this.idle -= 1;
                this.left -= 1;
                Some(Purpose::Measured { intended: now })
            }
        }
    }

    /// The last connection that was to be measured became one that fetches tickets instead.
    pub(crate) fn refilled(&mut self) {
        if let Self::Closed(this) = self {
            this.left += 1;
            this.refilled_for_nothing += 1;
        }
    }

    /// A connection has ended; whether well, and whether it brought tickets.
    pub(crate) fn ended(&mut self, well: bool, tickets: bool, now: Instant) {
        match self {
            Self::WarmUp { open, .. } => *open -= 1,
            Self::Open(this) => this.open -= 1,
            Self::Closed(this) => {
                if tickets {
                    this.refilled_for_nothing = 0;
                }
                match well {
                    true => this.idle += 1,
                    false => this.resting.push_back(now + REST),
                }
            }
        }
    }

    /// When [`Source::next`] is worth asking again, if no connection ends before.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::WarmUp { left, open, .. } => {
                (*left > 0 && *open < WARM_UP_AT_A_TIME).then_some(now)
            }
            Self::Open(this) if this.open >= this.in_flight => None,
            Self::Open(this) => this.schedule.next_due().map(|due| this.start + due),
            Self::Closed(this) if this.is_over(now) => None,
            Self::Closed(this) if this.idle > 0 => Some(now),
            Self::Closed(this) => this.resting.front().copied(),
        }
    }

    /// Whether nothing will be started any more.
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        match self {
            Self::WarmUp { left, .. } => *left == 0,
            Self::Open(this) => {
                if this.schedule.is_exhausted() {
                    let since = *this.exhausted.get_or_insert(now);
                    if now >= since + this.patience {
                        this.schedule.close(now.saturating_duration_since(this.start));
                    }
                }
                this.schedule.next_due().is_none()
            }
            Self::Closed(this) => this.is_over(now),
        }
    }

    /// Starts nothing any more.
    pub(crate) fn stop(&mut self, now: Instant) {
        match self {
            Self::WarmUp { left, .. } => *left = 0,
            Self::Open(this) => this.schedule.close(now.saturating_duration_since(this.start)),
            Self::Closed(this) => this.left = 0,
        }
    }

    /// Arrivals that were due and never started.
    pub(crate) fn not_begun(&self) -> u64 {
        match self {
            Self::Open(this) => this.schedule.not_begun(),
            Self::WarmUp { .. } | Self::Closed(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrivals, SchedulePlan};

    fn open(backlog: usize, in_flight: usize) -> (Source, Instant) {
        let start = Instant::now();
        let schedule = Schedule::new(SchedulePlan {
            rate: 1000.0,
            arrivals: Arrivals::Constant,
            phase: 0.0,
            seed: 1,
            until: Duration::from_millis(100),
            count: u64::MAX,
            backlog,
        });
        let open = OpenLoop::new(schedule, start, in_flight, Duration::from_secs(1));
        (Source::Open(Box::new(open)), start)
    }

    #[test]
    fn an_open_loop_on_a_server_that_stalls_keeps_intended_times() {
        let (mut source, start) = open(1000, 2);
        let at = |ms| start + Duration::from_millis(ms);
        let begun = |source: &mut Source, ms| match source.next(at(ms)) {
            Some(Purpose::Measured { intended }) => Some((intended - start).as_millis()),
            _ => None,
        };
        assert_eq!(begun(&mut source, 0), Some(0));
        assert_eq!(begun(&mut source, 1), Some(1));
        // Two are in flight and the server answers neither: those due wait.
        assert_eq!(begun(&mut source, 30), None);
        assert_eq!(source.next_due(at(30)), None);
        source.ended(true, false, at(50));
        // What starts now was due 48 ms ago, and its latency counts from there.
        assert_eq!(begun(&mut source, 50), Some(2));
    }

    #[test]
    fn an_open_loop_gives_up_what_waits_after_its_patience() {
        let (mut source, start) = open(10, 1);
        assert!(source.next(start).is_some());
        let end = start + Duration::from_millis(100);
        assert!(source.next(end).is_none());
        assert_eq!(source.not_begun(), 89);
        assert!(!source.is_over(end));
        assert!(source.is_over(end + Duration::from_secs(1)));
        assert_eq!(source.not_begun(), 99);
    }

    #[test]
    fn a_closed_loop_begins_when_another_ends_and_rests_after_a_failure() {
        let now = Instant::now();
        let mut source = Source::Closed(ClosedLoop::new(2, None, 5));
        assert!(source.next(now).is_some() && source.next(now).is_some());
        assert!(source.next(now).is_none() && source.next_due(now).is_none());
        source.ended(true, false, now);
        assert_eq!(source.next_due(now), Some(now));
        assert!(source.next(now).is_some());
        source.ended(false, false, now);
        assert!(source.next(now).is_none());
        assert_eq!(source.next_due(now), Some(now + REST));
        assert!(source.next(now + REST).is_some());
        source.ended(true, false, now);
        assert!(source.next(now).is_some() && source.is_over(now));
    }

    #[test]
    fn a_closed_loop_without_tickets_ends() {
        let now = Instant::now();
        let mut source = Source::Closed(ClosedLoop::new(1, None, 5));
        let mut begun = 0;
        while source.next(now).is_some() {
            source.refilled();
            source.ended(true, false, now);
            begun += 1;
        }
        assert_eq!(begun, MAX_FRUITLESS_REFILLS + 1);
        assert!(source.is_over(now));
    }
}
