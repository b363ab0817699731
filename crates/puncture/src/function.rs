//! The function with its epochs, its memory limit and its counts.

use std::collections::VecDeque;

use zeroize::Zeroizing;

use crate::epoch::{Epoch, EpochId};
use crate::node::LEAVES;
pub use crate::seed::Value;
use crate::snapshot::{self, InvalidSnapshot, MAX_EPOCHS};

/// A puncturable pseudorandom function.
#[derive(Debug)]
pub struct PuncturableFunction {
    limits: Limits,
    /// The oldest first. The last one issues.
    epochs: VecDeque<Epoch>,
    outstanding: u64,
    /// The bytes of all segments.
    bytes: usize,
    punctured: u64,
    expired: u64,
    evicted: u64,
}

/// The bounds of a [`PuncturableFunction`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long an epoch issues, in seconds. Default 3600.
    pub epoch_seconds: u64,
    /// How much memory the seeds may take. Beyond it the oldest segments of 32,768 indices are
    /// dropped. The segment that issues always stays: at most 700 KB. Default 256 MiB.
    pub max_bytes: usize,
}

/// Identifies one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TicketIndex {
    /// The epoch in which it was issued.
    pub epoch: EpochId,
    /// Its number in the epoch.
    pub number: u32,
}

/// The counts of a function's indices, by their state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Issued, and neither used nor expired.
    pub outstanding: u64,
    /// Punctured since the function was created or restored.
    pub punctured: u64,
    /// Expired unused since then.
    pub expired: u64,
    /// Dropped unused since then, because the memory limit was reached.
    pub evicted: u64,
    /// The epochs that have not expired.
    pub epochs: u64,
    /// The memory of the seeds, in bytes.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { epoch_seconds: 3600, max_bytes: 256 << 20 }
    }
}

impl PuncturableFunction {
    /// A function with new random values.
    pub fn new(limits: Limits) -> Self {
        Self::from_epochs(limits, VecDeque::new())
    }

    /// Issues the next index at `now`, in seconds, and returns it with its value.
    pub fn issue(&mut self, now: u64) -> (TicketIndex, Value) {
        loop {
            if let Some(epoch) = self.epochs.back_mut()
                // A clock that was set back starts a new epoch, too.
                && (epoch.opened..epoch.opened.saturating_add(self.limits.epoch_seconds.max(1)))
                    .contains(&now)
            {
                let segment = epoch.issued / LEAVES;
                let before = epoch.segment_bytes(segment);
                if let Some((number, value)) = epoch.issue(now) {
                    let index = TicketIndex { epoch: epoch.id, number };
                    self.outstanding += 1;
                    self.bytes = self.bytes - before + epoch.segment_bytes(segment);
                    self.enforce_limit();
                    return (index, value);
                }
            }
            self.open_epoch(now);
        }
    }

    /// The value of an index, or `None` if it was punctured, has expired or was never issued here.
    pub fn evaluate(&mut self, index: &TicketIndex) -> Option<Value> {
        self.epochs.iter_mut().find(|epoch| epoch.id == index.epoch)?.evaluate(index.number)
    }

    /// Whether the index was issued here, in an epoch that has not expired. If it has no value then, it
    /// was punctured, or dropped because the memory limit was reached.
    pub fn is_issued(&self, index: &TicketIndex) -> bool {
        self.epochs.iter().any(|epoch| epoch.id == index.epoch && index.number < epoch.issued)
    }

    /// Destroys the value of an index permanently. Returns false if it has none: of several callers with
    /// the same index, exactly one gets true.
    pub fn puncture(&mut self, index: &TicketIndex) -> bool {
        let Some(epoch) = self.epochs.iter_mut().find(|epoch| epoch.id == index.epoch) else {
            return false;
        };
        let segment = index.number / LEAVES;
        let before = epoch.segment_bytes(segment);
        let is_new = epoch.puncture(index.number);
        self.bytes = self.bytes - before + epoch.segment_bytes(segment);
        self.outstanding -= u64::from(is_new);
        self.punctured += u64::from(is_new);
        self.enforce_limit();
        is_new
    }

    /// Destroys the values of all epochs whose last index was issued before `time`.
    pub fn expire_before(&mut self, time: u64) {
        let mut at = 0;
        while let Some(epoch) = self.epochs.get(at) {
            match epoch.last_issued < time {
                true => self.expired += self.drop_epoch(at),
                false => at += 1,
            }
        }
    }

    /// The counts of the indices, by their state.
    pub fn counts(&self) -> Counts {
        Counts {
            outstanding: self.outstanding,
            punctured: self.punctured,
            expired: self.expired,
            evicted: self.evicted,
            epochs: self.epochs.len() as u64,
            bytes: self.bytes as u64,
        }
    }

    /// Serializes the function. The bytes are as secret as the function itself: anyone who has them can
    /// compute every value that is left.
    pub fn snapshot(&self) -> Zeroizing<Vec<u8>> {
        snapshot::to_bytes(&self.epochs)
    }

    /// Restores a function from [`snapshot`](Self::snapshot).
    ///
    /// The function must not be used any more where the bytes come from, nor restored twice: an index
    /// that is punctured in one place has its value in the other.
    ///
    /// # Errors
    /// [`InvalidSnapshot`]
    pub fn restore(bytes: &[u8], limits: Limits) -> Result<Self, InvalidSnapshot> {
        let mut function = Self::from_epochs(limits, snapshot::parse(bytes)?);
        function.enforce_limit();
        Ok(function)
    }

    fn from_epochs(limits: Limits, epochs: VecDeque<Epoch>) -> Self {
        let bytes = epochs.iter().map(Epoch::bytes).sum();
        let outstanding = epochs.iter().map(Epoch::outstanding).sum();
        Self { limits, epochs, outstanding, bytes, punctured: 0, expired: 0, evicted: 0 }
    }

    fn open_epoch(&mut self, now: u64) {
        if let Some(last) = self.epochs.back_mut() {
            self.bytes -= last.bytes();
            last.close();
            self.bytes += last.bytes();
        }
        while self.epochs.len() >= MAX_EPOCHS {
            self.expired += self.drop_epoch(0);
        }
        self.epochs.push_back(Epoch::open(now));
    }

    /// Drops an epoch and returns how many of its indices were outstanding.
    fn drop_epoch(&mut self, at: usize) -> u64 {
        let Some(epoch) = self.epochs.remove(at) else { return 0 };
        self.bytes -= epoch.bytes();
        self.outstanding -= epoch.outstanding();
        epoch.outstanding()
    }

    /// Drops the oldest segments until the memory limit is met.
    fn enforce_limit(&mut self) {
        while self.bytes > self.limits.max_bytes {
            let newest = self.epochs.len().saturating_sub(1);
            let Some((at, epoch)) =
                self.epochs.iter_mut().enumerate().find(|(_, epoch)| !epoch.segments.is_empty())
            else {
                return;
            };
            if at == newest && epoch.segments.len() == 1 {
                return;
            }
            let before = (epoch.bytes(), epoch.outstanding());
            epoch.segments.pop_first();
            self.bytes -= before.0 - epoch.bytes();
            self.outstanding -= before.1 - epoch.outstanding();
            self.evicted += before.1 - epoch.outstanding();
        }
    }
}
