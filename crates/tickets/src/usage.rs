//! The state of each key, and when it was last used.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::key::Opened;
use crate::ring::{KeyState, Ring};
use crate::schedule::UnixTime;

/// Public information about a key. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatus {
    /// Its name, 32 hexadecimal digits.
    pub name: String,
    /// When it becomes current.
    pub not_before: u64,
    /// Its state.
    pub state: KeyState,
    /// When this process last sealed a ticket under it.
    pub last_sealed: Option<u64>,
    /// When this process last opened a ticket under it.
    pub last_opened: Option<u64>,
}

/// How many tickets, address tokens among them, were sealed and opened in this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TicketCounts {
    /// Sealed, under the key that was current.
    pub sealed: u64,
    /// Opened under a previous key.
    pub opened_previous: u64,
    /// Opened under the current key.
    pub opened_current: u64,
    /// Opened under the next key, which other processes use already.
    pub opened_next: u64,
    /// Opened under a key that is no longer in the ring.
    pub opened_replaced: u64,
    /// Not opened: no key of the ring has the name.
    pub unknown: u64,
    /// Not opened, although a key of the ring has the name.
    pub forged: u64,
}

/// [`TicketCounts`] for concurrent use.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    sealed: AtomicU64,
    opened_previous: AtomicU64,
    opened_current: AtomicU64,
    opened_next: AtomicU64,
    opened_replaced: AtomicU64,
    unknown: AtomicU64,
    forged: AtomicU64,
}

impl Counters {
    pub(crate) fn sealed(&self) {
        self.sealed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a ticket by the state of its key, which is `None` if the key is not in the ring.
    pub(crate) fn opened(&self, opened: &Opened, state: Option<KeyState>) {
        let counter = match (opened, state) {
            (Opened::UnknownKey, _) => &self.unknown,
            (Opened::Forged, _) => &self.forged,
            (_, Some(KeyState::Previous | KeyState::Dead)) => &self.opened_previous,
            (_, Some(KeyState::Current)) => &self.opened_current,
            (_, Some(KeyState::Next)) => &self.opened_next,
            (_, None) => &self.opened_replaced,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> TicketCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TicketCounts {
            sealed: get(&self.sealed),
            opened_previous: get(&self.opened_previous),
            opened_current: get(&self.opened_current),
            opened_next: get(&self.opened_next),
            opened_replaced: get(&self.opened_replaced),
            unknown: get(&self.unknown),
            forged: get(&self.forged),
        }
    }
}

/// When a key was last used, for concurrent use. Seconds since 1970; 0 means never.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    sealed: AtomicU64,
    opened: AtomicU64,
}

impl Usage {
    pub(crate) fn sealed_at(&self, now: UnixTime) {
        store_time(&self.sealed, now);
    }

    pub(crate) fn opened_at(&self, now: UnixTime) {
        store_time(&self.opened, now);
    }
}

/// Writes at most once per second, so that threads do not contend for the cache line.
fn store_time(cell: &AtomicU64, now: UnixTime) {
    if cell.load(Ordering::Relaxed) != now.0 {
        cell.store(now.0, Ordering::Relaxed);
    }
}

/// The usage of each key of `ring`, in its order. Keeps the usage of known keys.
pub(crate) fn usage_of(ring: &Ring, known: &HashMap<[u8; 16], Arc<Usage>>) -> Vec<Arc<Usage>> {
    let names = ring.keys().iter().map(|key| key.key.name());
    names.map(|name| known.get(name).cloned().unwrap_or_default()).collect()
}

/// The status of each key of `ring` at `now`.
pub(crate) fn statuses(ring: &Ring, usage: &[Arc<Usage>], now: UnixTime) -> Vec<KeyStatus> {
    let used = |cell: &AtomicU64| Some(cell.load(Ordering::Relaxed)).filter(|at| *at > 0);
    let keys = ring.keys().iter().zip(usage).enumerate();
    keys.map(|(at, (key, usage))| KeyStatus {
        name: hex::encode(key.key.name()),
        not_before: key.not_before.0,
        state: ring.state(at, now),
        last_sealed: used(&usage.sealed),
        last_opened: used(&usage.opened),
    })
    .collect()
}
