use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// When connections want to hear of the time again. One that moves its time is not looked for: what
/// comes up too early is put back.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, usize, u32)>>,
}

/// A connection's part of it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Timer {
    due: Option<Instant>,
    /// The earliest of its entries in the heap.
    queued: Option<Instant>,
}

impl Timers {
    /// The connection at this place, of this generation, wants to hear at `due`, and not before.
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

    /// A place whose time may have come at `now`, with its generation.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(usize, u32)> {
        let Reverse((due, index, generation)) = *self.heap.peek()?;
        (due <= now).then(|| {
            self.heap.pop();
            (index, generation)
        })
    }

    /// Whether its time has come at `now`; else it is put back.
    pub(crate) fn has_come(
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

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((due, ..))| *due)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_that_moved_comes_once_and_not_before() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let (mut timers, mut timer) = (Timers::default(), Timer::default());
        timers.set(&mut timer, Some(at(10)), 7, 1);
        timers.set(&mut timer, Some(at(30)), 7, 1);
        assert_eq!((timers.pop(at(9)), timers.next()), (None, Some(at(10))));
        assert_eq!(timers.pop(at(12)), Some((7, 1)));
        assert!(!timers.has_come(&mut timer, at(12), 7, 1));
        timers.set(&mut timer, Some(at(20)), 7, 1);
        assert_eq!(timers.pop(at(20)), Some((7, 1)));
        assert!(timers.has_come(&mut timer, at(20), 7, 1));
        timers.set(&mut timer, None, 7, 1);
        assert_eq!(timers.pop(at(30)), Some((7, 1)));
        assert!(!timers.has_come(&mut timer, at(30), 7, 1));
        assert_eq!(timers.pop(at(99)), None);
    }
}
