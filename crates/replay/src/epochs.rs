//! Which tickets may bring early data, by when and where they were issued.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};

/// The ticket epochs of one process. Each ticket carries the epoch that was current when it was
/// issued, inside its sealing, and brings early data only where that epoch is accepted. Tickets of
/// other epochs resume their sessions without early data.
///
/// A new epoch starts whenever the register may lack a record of a flight on an older ticket: with
/// a new register, with a step of the clock by which tickets age, and when a flight could not be
/// recorded. No copy of an earlier flight is accepted from then on, however long it is kept.
#[derive(Debug)]
pub struct TicketEpochs {
    current: AtomicU32,
    scope: EpochScope,
    /// Earlier epochs of this process, the newest last.
    ended: RwLock<Vec<u32>>,
    any_ended: AtomicBool,
}

/// Which register covers the flights on a process's tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EpochScope {
    /// The process's own: only tickets of its current epoch bring early data. So processes that
    /// share ticket keys but no store do not accept each other's early data.
    Process,
    /// A store: tickets of all its nodes bring early data, except those of this process's own
    /// earlier epochs.
    Store,
}

impl TicketEpochs {
    /// The first epoch, which no other process has.
    pub fn new(scope: EpochScope) -> Self {
        Self {
            current: AtomicU32::new(fresh(scope)),
            scope,
            ended: RwLock::default(),
            any_ended: AtomicBool::new(false),
        }
    }

    /// With this number for the current epoch, for a model's state.
    #[cfg(test)]
    pub(crate) fn numbered(current: u32) -> Self {
        let epochs = Self::new(EpochScope::Process);
        epochs.continue_with(current);
        epochs
    }

    /// The epoch for tickets that are issued now.
    pub fn current(&self) -> u32 {
        self.current.load(Ordering::SeqCst)
    }

    /// Whether a ticket of this epoch may bring early data.
    pub fn accepts(&self, epoch: u32) -> bool {
        if epoch == self.current() {
            return true;
        }
        self.scope == EpochScope::Store
            && epoch & SCOPE_BIT == 0
            && !(self.any_ended.load(Ordering::SeqCst)
                && self.ended.read().unwrap_or_else(PoisonError::into_inner).contains(&epoch))
    }

    /// Starts a new epoch: no ticket issued before brings early data to this process any more.
    pub fn start_next(&self) {
        let mut ended = self.ended.write().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.swap(fresh(self.scope), Ordering::SeqCst);
        if ended.len() == MAX_ENDED {
            ended.remove(0);
        }
        ended.push(before);
        self.any_ended.store(true, Ordering::SeqCst);
    }

    /// Goes on with the epoch of a process that has handed its register over.
    pub(crate) fn continue_with(&self, epoch: u32) {
        self.current.store(epoch, Ordering::SeqCst);
    }
}

/// A random number, with the scope in its lowest bit: a store's nodes never accept tickets that
/// were issued for one process's register.
fn fresh(scope: EpochScope) -> u32 {
    // The standard library's hasher has a key that is drawn at random for each instance.
    let random = RandomState::new().hash_one(()) as u32;
    match scope {
        EpochScope::Process => random | SCOPE_BIT,
        EpochScope::Store => random & !SCOPE_BIT,
    }
}

const SCOPE_BIT: u32 = 1;

/// Ended epochs that a node of a store remembers. Beyond that the flights' skews protect it.
const MAX_ENDED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_accepts_its_current_epoch_alone() {
        let (one, other) =
            (TicketEpochs::new(EpochScope::Process), TicketEpochs::new(EpochScope::Process));
        let first = one.current();
        assert!(one.accepts(first) && !other.accepts(first));
        one.start_next();
        assert!(one.accepts(one.current()) && !one.accepts(first));
        other.continue_with(first);
        assert!(other.accepts(first));
    }

    #[test]
    fn a_node_of_a_store_accepts_all_but_its_own_ended_epochs() {
        let (one, other) =
            (TicketEpochs::new(EpochScope::Store), TicketEpochs::new(EpochScope::Store));
        let first = one.current();
        one.start_next();
        assert!(!one.accepts(first) && one.accepts(one.current()) && one.accepts(other.current()));
        assert!(other.accepts(first) && other.accepts(one.current()));
        assert!(!one.accepts(TicketEpochs::new(EpochScope::Process).current()));
    }
}
