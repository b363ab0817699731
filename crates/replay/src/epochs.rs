//! Ticket epochs: which tickets may bring early data.
//!
//! A register may lack records: because it is new, because the system clock was set, or because it
//! was full. Refusing early data for some time afterwards would not be enough: a copy from a client
//! whose clock is an hour ahead becomes fresh an hour later. So each ticket carries 4 random bytes,
//! the epoch in which it was issued, and brings early data only while that epoch's register exists.
//! Each client loses early data once, on its first return. The same rule keeps processes apart that
//! share ticket keys but no store. Behind a load balancer, a client then has early data only at the
//! process that issued its ticket.
//!
//! The lowest bit tells whether one process or the nodes of a store issued the ticket, so a node of
//! a store never accepts a ticket whose flights no store has recorded. Two processes have the same
//! epoch with a probability of 2^-31.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};

/// The ticket epochs of one process. Each ticket carries, encrypted, the epoch that was current when
/// it was issued, and brings early data only where that epoch is accepted. Tickets of other epochs
/// resume their sessions without early data.
///
/// A new epoch starts whenever the register may lack a record of a flight on an older ticket: with a
/// new register, after a step of the clock by which tickets age, and when a flight could not be
/// recorded. From then on, no copy of an earlier flight is accepted.
#[derive(Debug)]
pub struct TicketEpochs {
    current: AtomicU32,
    scope: EpochScope,
    /// Earlier epochs of this process, newest last.
    ended: RwLock<Vec<u32>>,
    any_ended: AtomicBool,
}

/// Which register covers the flights on a process's tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EpochScope {
    /// The register of this process: only tickets of its current epoch bring early data. Processes
    /// that share ticket keys but no store do not accept each other's early data.
    Process,
    /// A register in a store: tickets of all its nodes bring early data, except those of earlier
    /// epochs of this process.
    Store,
}

impl TicketEpochs {
    /// Starts with a random epoch.
    pub fn new(scope: EpochScope) -> Self {
        Self {
            current: AtomicU32::new(random_epoch(scope)),
            scope,
            ended: RwLock::default(),
            any_ended: AtomicBool::new(false),
        }
    }

    /// Starts with this epoch, for a model's state.
    #[cfg(test)]
    pub(crate) fn with_current(current: u32) -> Self {
        let epochs = Self::new(EpochScope::Process);
        epochs.resume(current);
        epochs
    }

    /// The epoch of tickets that are issued now.
    pub fn current(&self) -> u32 {
        self.current.load(Ordering::SeqCst)
    }

    /// Whether tickets of this epoch may bring early data.
    pub fn accepts(&self, epoch: u32) -> bool {
        if epoch == self.current() {
            return true;
        }
        self.scope == EpochScope::Store
            && epoch & SCOPE_BIT == 0
            && !(self.any_ended.load(Ordering::SeqCst)
                && self.ended.read().unwrap_or_else(PoisonError::into_inner).contains(&epoch))
    }

    /// Starts a new epoch. Tickets issued before bring no early data to this process any more.
    pub fn start_next(&self) {
        let mut ended = self.ended.write().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.swap(random_epoch(self.scope), Ordering::SeqCst);
        if ended.len() == MAX_ENDED {
            ended.remove(0);
        }
        ended.push(before);
        self.any_ended.store(true, Ordering::SeqCst);
    }

    /// Continues the epoch of the process whose register was restored.
    pub(crate) fn resume(&self, epoch: u32) {
        self.current.store(epoch, Ordering::SeqCst);
    }
}

/// A random number with the scope in its lowest bit.
fn random_epoch(scope: EpochScope) -> u32 {
    // Each `RandomState` has a random key.
    let random = RandomState::new().hash_one(()) as u32;
    match scope {
        EpochScope::Process => random | SCOPE_BIT,
        EpochScope::Store => random & !SCOPE_BIT,
    }
}

const SCOPE_BIT: u32 = 1;

/// Ended epochs that a node of a store remembers. Flights of older epochs are refused because of
/// their ticket-age skew.
const MAX_ENDED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_accepts_only_its_current_epoch() {
        let (one, other) =
            (TicketEpochs::new(EpochScope::Process), TicketEpochs::new(EpochScope::Process));
        let first = one.current();
        assert!(one.accepts(first) && !other.accepts(first));
        one.start_next();
        assert!(one.accepts(one.current()) && !one.accepts(first));
        other.resume(first);
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
