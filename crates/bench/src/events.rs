use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// An event queue with a timer that is finer than the milliseconds of epoll's own patience.
pub(crate) struct EventQueue {
    epoll: Epoll,
    timer: TimerFd,
    /// What the timer is set to.
    armed: Option<Instant>,
}

/// At least so often a thread looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

/// Marks the timer among the events.
pub(crate) const TIMER: u64 = u64::MAX;

impl EventQueue {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC)?;
        // Edge-triggered: it need not be read.
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER))?;
        Ok(Self { epoll, timer, armed: None })
    }

    pub(crate) fn add(&self, socket: impl AsFd, event: EpollEvent) -> io::Result<()> {
        Ok(self.epoll.add(socket, event)?)
    }

    pub(crate) fn modify(&self, socket: impl AsFd, mut event: EpollEvent) -> io::Result<()> {
        Ok(self.epoll.modify(socket, &mut event)?)
    }

    /// Waits for events until the first of the deadlines, a millisecond late at most, or until
    /// `due`, which is met exactly.
    pub(crate) fn wait(
        &mut self,
        deadlines: &[Option<Instant>],
        due: Option<Instant>,
        events: &mut [EpollEvent],
    ) -> io::Result<usize> {
        let now = Instant::now();
        let mut patience = LOOK;
        for deadline in deadlines.iter().flatten() {
            patience = patience.min(deadline.saturating_duration_since(now) + MILLISECOND);
        }
        if let Some(due) = due {
            match due.checked_duration_since(now).filter(|left| !left.is_zero()) {
                None => patience = Duration::ZERO,
                Some(left) if left < patience => self.arm(due, left)?,
                Some(_) => {}
            }
        }
        let patience = EpollTimeout::try_from(patience).unwrap_or(EpollTimeout::ZERO);
        match self.epoll.wait(events, patience) {
            Ok(count) => Ok(count),
            Err(nix::errno::Errno::EINTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn arm(&mut self, due: Instant, left: Duration) -> io::Result<()> {
        if self.armed != Some(due) {
            let expiration = Expiration::OneShot(TimeSpec::from(left));
            self.timer.set(expiration, TimerSetTimeFlags::empty())?;
            self.armed = Some(due);
        }
        Ok(())
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
