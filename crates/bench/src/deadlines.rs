use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Deadlines that all lie equally far ahead when they are set, so that they come in order.
pub(crate) struct Deadlines {
    after: Duration,
    queue: VecDeque<(Instant, usize, u32)>,
}

impl Deadlines {
    /// Each lies `after` ahead.
    pub(crate) fn new(after: Duration) -> Self {
        Self { after, queue: VecDeque::new() }
    }

    /// Sets one for the connection at this place, of this generation.
    pub(crate) fn push(&mut self, now: Instant, index: usize, generation: u32) {
        self.queue.push_back((now + self.after, index, generation));
    }

    /// The next one that is over at `now`; those that are stale go without a word.
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

    /// When the next one is over.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.front().map(|(deadline, ..)| *deadline)
    }
}
