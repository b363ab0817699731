use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::Schedule;

/// Decides when a thread starts connections.
pub(crate) enum Source {
    /// Collects tickets: a number of connections to one address, a few at a time.
    WarmUp { address: usize, remaining: usize, open: usize },
    /// At scheduled times.
    Open(Box<OpenLoop>),
    /// When another connection has ended.
    Closed(ClosedLoop),
}

/// Why a connection is started.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To collect tickets of this address before the run.
    WarmUp { address: usize },
    /// To be measured; scheduled for this time.
    Measured { intended: Instant },
}

pub(crate) struct OpenLoop {
    pub(crate) schedule: Schedule,
    pub(crate) start: Instant,
    pub(crate) max_in_flight: usize,
    pub(crate) open: usize,
    /// How long connections may wait in the backlog after the last one became due.
    pub(crate) backlog_timeout: Duration,
    exhausted_at: Option<Instant>,
}

pub(crate) struct ClosedLoop {
    until: Option<Instant>,
    remaining: u64,
    idle: usize,
    paused: VecDeque<Instant>,
    fruitless_refills: usize,
    stopped: bool,
}

/// Delays the next connection after a failure in a closed loop. Otherwise a server that is down would
/// get connections as fast as this machine can open them.
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

/// Limits the consecutive refills that succeed and bring no tickets before a closed loop gives up. A
/// refill that fails says nothing about tickets: the server may be back soon.
const MAX_FRUITLESS_REFILLS: usize = 100;

/// Limits the warm-up connections that are open at a time.
const MAX_WARM_UP_CONNECTIONS: usize = 8;

impl OpenLoop {
    pub(crate) fn new(
        schedule: Schedule,
        start: Instant,
        max_in_flight: usize,
        backlog_timeout: Duration,
    ) -> Self {
        Self { schedule, start, max_in_flight, open: 0, backlog_timeout, exhausted_at: None }
    }
}

impl ClosedLoop {
    pub(crate) fn new(connections: usize, until: Option<Instant>, remaining: u64) -> Self {
        Self {
            until,
            remaining,
            idle: connections,
            paused: VecDeque::new(),
            fruitless_refills: 0,
            stopped: false,
        }
    }

    fn is_finished(&self, now: Instant) -> bool {
        self.remaining == 0
            || self.stopped
            || self.until.is_some_and(|until| now >= until)
            || self.has_given_up()
    }

    fn has_given_up(&self) -> bool {
        self.fruitless_refills > MAX_FRUITLESS_REFILLS
    }
}

impl Source {
    /// Returns the next connection to start at `now`.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Purpose> {
        match self {
            Self::WarmUp { address, remaining, open } => {
                let may_start = *remaining > 0 && *open < MAX_WARM_UP_CONNECTIONS;
                may_start.then(|| {
                    *remaining -= 1;
                    *open += 1;
                    Purpose::WarmUp { address: *address }
                })
            }
            Self::Open(this) => {
                let since = now.saturating_duration_since(this.start);
                // Even if no connection may start, so that the backlog is counted on time.
                this.schedule.advance(since);
                if this.open >= this.max_in_flight {
                    return None;
                }
                let intended = this.start + this.schedule.take(since)?;
                this.open += 1;
                Some(Purpose::Measured { intended })
            }
            Self::Closed(this) => {
                if this.paused.front().is_some_and(|end| *end <= now) {
                    this.paused.pop_front();
                    this.idle += 1;
                }
                if this.idle == 0 || this.is_finished(now) {
                    return None;
                }
                this.idle -= 1;
                this.remaining -= 1;
                Some(Purpose::Measured { intended: now })
            }
        }
    }

    /// Records that a connection of [`Source::next`] fetched tickets instead of being measured, and
    /// succeeded. A failed refill stays counted among the run's connections, so that the run ends
    /// even if the server never comes back.
    pub(crate) fn refill_succeeded(&mut self, received_tickets: bool) {
        if let Self::Closed(this) = self {
            this.remaining += 1;
            this.fruitless_refills += usize::from(!received_tickets);
        }
    }

    /// Records the end of a connection.
    pub(crate) fn connection_ended(
        &mut self,
        succeeded: bool,
        received_tickets: bool,
        now: Instant,
    ) {
        match self {
            Self::WarmUp { open, .. } => *open -= 1,
            Self::Open(this) => this.open -= 1,
            Self::Closed(this) => {
                if received_tickets {
                    this.fruitless_refills = 0;
                }
                match succeeded {
                    true => this.idle += 1,
                    false => this.paused.push_back(now + FAILURE_PAUSE),
                }
            }
        }
    }

    /// When to call [`Source::next`] again if no connection ends before.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::WarmUp { remaining, open, .. } => {
                (*remaining > 0 && *open < MAX_WARM_UP_CONNECTIONS).then_some(now)
            }
            Self::Open(this) if this.open >= this.max_in_flight => None,
            Self::Open(this) => this.schedule.next_due().map(|due| this.start + due),
            Self::Closed(this) if this.is_finished(now) => None,
            Self::Closed(this) if this.idle > 0 => Some(now),
            Self::Closed(this) => this.paused.front().copied(),
        }
    }

    /// Whether no further connection will start.
    pub(crate) fn is_finished(&mut self, now: Instant) -> bool {
        match self {
            Self::WarmUp { remaining, .. } => *remaining == 0,
            Self::Open(this) => {
                if this.schedule.is_exhausted() {
                    let since = *this.exhausted_at.get_or_insert(now);
                    if now >= since + this.backlog_timeout {
                        this.schedule.close(now.saturating_duration_since(this.start));
                    }
                }
                this.schedule.next_due().is_none()
            }
            Self::Closed(this) => this.is_finished(now),
        }
    }

    /// Stops starting connections.
    pub(crate) fn stop(&mut self, now: Instant) {
        match self {
            Self::WarmUp { remaining, .. } => *remaining = 0,
            Self::Open(this) => this.schedule.close(now.saturating_duration_since(this.start)),
            Self::Closed(this) => this.stopped = true,
        }
    }

    /// Whether a closed loop ended early, because the server issued no more tickets.
    pub(crate) fn has_given_up(&self) -> bool {
        matches!(self, Self::Closed(this) if this.has_given_up())
    }

    /// Number of connections that were due and never started.
    pub(crate) fn not_started(&self) -> u64 {
        match self {
            Self::Open(this) => this.schedule.not_started(),
            Self::WarmUp { .. } | Self::Closed(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrivals, SchedulePlan};

    fn open_loop(backlog: usize, max_in_flight: usize) -> (Source, Instant) {
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
        let open = OpenLoop::new(schedule, start, max_in_flight, Duration::from_secs(1));
        (Source::Open(Box::new(open)), start)
    }

    #[test]
    fn an_open_loop_keeps_scheduled_times_if_the_server_stalls() {
        let (mut source, start) = open_loop(1000, 2);
        let at = |ms| start + Duration::from_millis(ms);
        let started = |source: &mut Source, ms| match source.next(at(ms)) {
            Some(Purpose::Measured { intended }) => Some((intended - start).as_millis()),
            _ => None,
        };
        assert_eq!(started(&mut source, 0), Some(0));
        assert_eq!(started(&mut source, 1), Some(1));
        // Two are in flight and the server responds to neither: further ones wait.
        assert_eq!(started(&mut source, 30), None);
        assert_eq!(source.next_due(at(30)), None);
        source.connection_ended(true, false, at(50));
        // This connection was due 48 ms ago, and its latency counts from then.
        assert_eq!(started(&mut source, 50), Some(2));
    }

    #[test]
    fn an_open_loop_drops_its_backlog_after_the_timeout() {
        let (mut source, start) = open_loop(10, 1);
        assert!(source.next(start).is_some());
        let end = start + Duration::from_millis(100);
        assert!(source.next(end).is_none());
        assert_eq!(source.not_started(), 89);
        assert!(!source.is_finished(end));
        assert!(source.is_finished(end + Duration::from_secs(1)));
        assert_eq!(source.not_started(), 99);
    }

    #[test]
    fn a_closed_loop_starts_a_connection_when_another_ends_and_pauses_after_a_failure() {
        let now = Instant::now();
        let mut source = Source::Closed(ClosedLoop::new(2, None, 5));
        assert!(source.next(now).is_some() && source.next(now).is_some());
        assert!(source.next(now).is_none() && source.next_due(now).is_none());
        source.connection_ended(true, false, now);
        assert_eq!(source.next_due(now), Some(now));
        assert!(source.next(now).is_some());
        source.connection_ended(false, false, now);
        assert!(source.next(now).is_none());
        assert_eq!(source.next_due(now), Some(now + FAILURE_PAUSE));
        assert!(source.next(now + FAILURE_PAUSE).is_some());
        source.connection_ended(true, false, now);
        assert!(source.next(now).is_some() && source.is_finished(now));
    }

    #[test]
    fn a_closed_loop_without_tickets_ends() {
        let now = Instant::now();
        let mut source = Source::Closed(ClosedLoop::new(1, None, 5));
        let mut started = 0;
        while source.next(now).is_some() {
            source.refill_succeeded(false);
            source.connection_ended(true, false, now);
            started += 1;
        }
        assert_eq!(started, MAX_FRUITLESS_REFILLS + 1);
        assert!(source.is_finished(now) && source.has_given_up());
    }

    #[test]
    fn an_outage_does_not_end_a_closed_loop_before_its_time() {
        let mut now = Instant::now();
        let end = now + Duration::from_secs(10);
        let mut source = Source::Closed(ClosedLoop::new(1, Some(end), u64::MAX));
        for _ in 0..=2 * MAX_FRUITLESS_REFILLS {
            assert!(source.next(now).is_some());
            source.connection_ended(false, false, now);
            now += FAILURE_PAUSE;
        }
        assert!(source.next(now).is_some() && !source.has_given_up());
        source.refill_succeeded(true);
        source.connection_ended(true, true, now);
        assert!(!source.is_finished(now) && source.is_finished(end));
    }

    #[test]
    fn a_limited_number_of_connections_ends_even_if_the_server_never_comes_back() {
        let now = Instant::now();
        let mut source = Source::Closed(ClosedLoop::new(5, None, 5));
        for _ in 0..5 {
            assert!(source.next(now).is_some());
            source.connection_ended(false, false, now);
        }
        assert!(source.is_finished(now) && !source.has_given_up());
    }

    #[test]
    fn a_refill_that_ends_after_the_stop_starts_nothing() {
        let now = Instant::now();
        let mut source = Source::Closed(ClosedLoop::new(1, None, 5));
        assert!(source.next(now).is_some());
        source.stop(now);
        source.refill_succeeded(true);
        source.connection_ended(true, true, now);
        assert!(source.next(now).is_none() && source.is_finished(now));
    }
}
