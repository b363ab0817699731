//! What a thread waits for: sockets, deadlines and timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// An epoll instance with a timer that is finer than epoll's own timeout of whole milliseconds.
pub(crate) struct EventQueue {
    epoll: Epoll,
    timer: TimerFd,
    /// The time that the timer was last set to.
    armed: Option<Instant>,
}

/// Marks the timer among the events.
pub(crate) const TIMER: u64 = u64::MAX;

impl EventQueue {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC)?;
        // Edge-triggered, so the timer need not be read.
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER))?;
        Ok(Self { epoll, timer, armed: None })
    }

    pub(crate) fn add(&self, socket: impl AsFd, event: EpollEvent) -> io::Result<()> {
        Ok(self.epoll.add(socket, event)?)
    }

    pub(crate) fn modify(&self, socket: impl AsFd, mut event: EpollEvent) -> io::Result<()> {
        Ok(self.epoll.modify(socket, &mut event)?)
    }

    /// Waits for events. Returns at the first of the deadlines, at most a millisecond late, or at
    /// `due` exactly.
    pub(crate) fn wait(
        &mut self,
        deadlines: &[Option<Instant>],
        due: Option<Instant>,
        events: &mut [EpollEvent],
    ) -> io::Result<usize> {
        let now = Instant::now();
        let mut timeout = STOP_CHECK_INTERVAL;
        for deadline in deadlines.iter().flatten() {
            timeout = timeout.min(deadline.saturating_duration_since(now) + MILLISECOND);
        }
        if let Some(due) = due {
            match due.checked_duration_since(now).filter(|remaining| !remaining.is_zero()) {
                None => timeout = Duration::ZERO,
                Some(remaining) if remaining < timeout => self.arm(due, remaining)?,
                Some(_) => {}
            }
        }
        let timeout = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::ZERO);
        match self.epoll.wait(events, timeout) {
            Ok(count) => Ok(count),
            Err(nix::errno::Errno::EINTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn arm(&mut self, due: Instant, remaining: Duration) -> io::Result<()> {
        if self.armed != Some(due) {
            let expiration = Expiration::OneShot(TimeSpec::from(remaining));
            self.timer.set(expiration, TimerSetTimeFlags::empty())?;
            self.armed = Some(due);
        }
        Ok(())
    }
}

/// Maximum time until a thread checks again whether it should stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
const MILLISECOND: Duration = Duration::from_millis(1);

/// Deadlines with the same delay, so that they expire in the order in which they are set.
pub(crate) struct Deadlines {
    delay: Duration,
    queue: VecDeque<(Instant, usize, u32)>,
}

impl Deadlines {
    /// Deadlines that expire `delay` after they are set.
    pub(crate) fn new(delay: Duration) -> Self {
        Self { delay, queue: VecDeque::new() }
    }

    /// Sets a deadline for the connection in slot `index` with this generation.
    pub(crate) fn push(&mut self, now: Instant, index: usize, generation: u32) {
        self.queue.push_back((now + self.delay, index, generation));
    }

    /// Returns the next slot whose deadline has expired. Drops stale deadlines.
    pub(crate) fn pop(
        &mut self,
        now: Instant,
        stale: impl Fn(usize, u32) -> bool,
    ) -> Option<usize> {
        while let Some(&(deadline, index, generation)) = self.queue.front() {
            let stale = stale(index, generation);
            if !stale && deadline > now {
                return None;
            }
            self.queue.pop_front();
            if !stale {
                return Some(index);
            }
        }
        None
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.front().map(|(deadline, ..)| *deadline)
    }
}

/// The timers of all connections in a heap. A timer that is set to a later time leaves its old entry
/// in the heap; the entry is put back when it comes up too early.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, usize, u32)>>,
}

/// The timer of one connection.
#[derive(Clone, Copy, Default)]
pub(crate) struct Timer {
    due: Option<Instant>,
    /// The earliest of its entries in the heap.
    queued: Option<Instant>,
}

impl Timers {
    /// Sets the timer of the connection in slot `index` with this generation.
    pub(crate) fn set(
        &mut self,
        timer: &mut Timer,
        due: Option<Instant>,
        index: usize,
        generation: u32,
    ) {
        timer.due = due;
        if let Some(due) = due
            && timer.queued.is_none_or(|queued| due < queued)
        {
            timer.queued = Some(due);
            self.heap.push(Reverse((due, index, generation)));
        }
    }

    /// Returns a slot whose timer may be due at `now`, with its generation.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(usize, u32)> {
        let Reverse((due, index, generation)) = *self.heap.peek()?;
        (due <= now).then(|| {
            self.heap.pop();
            (index, generation)
        })
    }

    /// Returns whether the timer is due at `now`. Puts it back into the heap if not.
    pub(crate) fn is_due(
        &mut self,
        timer: &mut Timer,
        now: Instant,
        index: usize,
        generation: u32,
    ) -> bool {
        timer.queued = timer.queued.filter(|queued| *queued > now);
        if timer.due.is_some_and(|due| due <= now) {
            return true;
        }
        self.set(timer, timer.due, index, generation);
        false
    }

    /// When to call [`Timers::pop`] again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((due, ..))| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_timer_is_due_once_at_its_new_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let (mut timers, mut timer) = (Timers::default(), Timer::default());
        timers.set(&mut timer, Some(at(10)), 7, 1);
        timers.set(&mut timer, Some(at(30)), 7, 1);
        assert_eq!((timers.pop(at(9)), timers.next()), (None, Some(at(10))));
        assert_eq!(timers.pop(at(12)), Some((7, 1)));
        assert!(!timers.is_due(&mut timer, at(12), 7, 1));
        timers.set(&mut timer, Some(at(20)), 7, 1);
        assert_eq!(timers.pop(at(20)), Some((7, 1)));
        assert!(timers.is_due(&mut timer, at(20), 7, 1));
        timers.set(&mut timer, None, 7, 1);
        assert_eq!(timers.pop(at(30)), Some((7, 1)));
        assert!(!timers.is_due(&mut timer, at(30), 7, 1));
        assert_eq!(timers.pop(at(99)), None);
    }
}
