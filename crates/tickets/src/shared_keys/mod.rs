//! Ticket keys that nodes share through a store, without a leader.
//!
//! The store holds one record for each key, in a [`Slot`]. Time is divided into periods of the
//! schedule's rotation, counted from 1970, and a period's slot is its start. Nodes that have never
//! communicated therefore name the same slot, and the first to write there has generated the
//! period's key for all. The key of each period is offered a whole period ahead, when the preceding
//! one starts: the store may then be unavailable for hours, and no node lacks the key or has a
//! different one.
//!
//! A key that is created late (the store was empty, or an operator requested a new one) becomes
//! current only after [`SharedKeys::PROPAGATION_DELAY`], so that every node has it when the first
//! one seals under it.
//!
//! [`SharedKeys`] decides what to read and to write; the caller accesses the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::key::TicketKey;
use crate::ring::{DatedKey, Ring};
use crate::schedule::{Schedule, UnixTime};

mod record;

pub use record::{InvalidKeyEntry, KeyEntry, KeyRecords, RecordError, Slot};

/// The keys in the store, as far as this node knows them.
#[derive(Debug)]
pub struct SharedKeys {
    schedule: Schedule,
    /// Ordered by time, then by name. One per slot.
    held: Vec<Held>,
    /// When the record of each entry was last read.
    last_read: BTreeMap<KeyEntry, UnixTime>,
}

#[derive(Debug, Clone)]
struct Held {
    slot: Slot,
    key: DatedKey,
}

/// A key to write to the store if its slot is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyOffer {
    /// The slot.
    pub slot: Slot,
    /// The key.
    pub key: DatedKey,
    /// The lifetime of the record in the store.
    pub lifetime: Duration,
}

impl SharedKeys {
    /// How long after it was written a key may become current. Nodes read the list once a second;
    /// the rest is for their clocks, which may differ from the store's by 6 s.
    pub const PROPAGATION_DELAY: Duration = Duration::from_secs(15);

    /// Creates a set without keys. The schedule has to be the same on all nodes.
    pub fn new(schedule: Schedule) -> Self {
        Self { schedule, held: Vec::new(), last_read: BTreeMap::new() }
    }

    /// The listed entries whose records have to be read at `now`: new ones, and each again once a
    /// minute, because records may be lost or sealed again.
    pub fn to_read(&mut self, listed: &BTreeSet<KeyEntry>, now: UnixTime) -> Vec<KeyEntry> {
        self.last_read.retain(|entry, _| listed.contains(entry));
        let due = |entry: &&KeyEntry| match self.last_read.get(entry) {
            // A clock that was set back must not extend the wait.
            Some(last_read) => now < *last_read || now >= last_read.after(REREAD_INTERVAL),
            None => true,
        };
        listed.iter().rev().filter(due).take(MAX_READS_AT_ONCE).copied().collect()
    }

    /// Notes that the record of `entry` was requested at `now`, whether it was found or not.
    pub fn mark_read(&mut self, entry: KeyEntry, now: UnixTime) {
        self.last_read.insert(entry, now);
    }

    /// Makes every record be read again, because the key-encryption keys have changed.
    pub fn reread_all(&mut self) {
        self.last_read.clear();
    }

    /// Adds the key that was found in `slot` or written there. If the slot had another key, the store
    /// has lost that one and other nodes may not have it, so it is dropped.
    pub fn adopt(&mut self, slot: Slot, key: DatedKey, now: UnixTime) {
        self.held.retain(|held| held.slot != slot && held.key.key.name() != key.key.name());
        self.held.push(Held { slot, key });
        self.held.sort_by_key(|held| (held.key.not_before, *held.key.key.name()));
        self.drop_dead(now);
    }

    /// Drops the keys whose tickets have all expired at `now`.
    pub fn drop_dead(&mut self, now: UnixTime) {
        let lifetime = self.schedule.lifetime();
        let alive = |successor: &Held| successor.key.not_before.after(lifetime) > now;
        let dead = self.held.iter().skip(1).take_while(|successor| !alive(successor)).count();
        self.held.drain(..dead);
    }

    /// The keys that are missing in the store's list at `now`: known keys that the store has lost,
    /// and new ones for this period and the next.
    pub fn offers(&self, listed: &BTreeSet<KeyEntry>, now: UnixTime) -> Vec<KeyOffer> {
        let is_missing = |slot: Slot| listed.iter().all(|entry| entry.slot != slot);
        let lost = self.held.iter().filter(|held| is_missing(held.slot));
        let mut offers: Vec<KeyOffer> =
            lost.map(|held| self.offer(held.slot, held.key.clone(), now)).collect();
        let current = now.0 - now.0 % self.period();
        for start in [current, current.saturating_add(self.period())] {
            let slot = Slot(start);
            if is_missing(slot) && self.held.iter().all(|held| held.slot != slot) {
                let not_before = UnixTime(start).max(now.after(Self::PROPAGATION_DELAY));
                offers.push(self.offer(slot, generate(not_before), now));
            }
        }
        offers
    }

    /// An extra key, outside the schedule: current as soon as all nodes have it, until the next
    /// period starts.
    pub fn rotation(&self, now: UnixTime) -> KeyOffer {
        let mut at = now.after(Self::PROPAGATION_DELAY);
        // The first key of all seals before its time. A key with an earlier time would replace it
        // immediately, on some nodes earlier than on others.
        if let Some(first) = self.held.first() {
            at = at.max(first.key.not_before.after(SECOND));
        }
        // The slot must be unused, and not a period's start, which has or will have another key.
        let is_taken = |at: UnixTime| {
            at.0.is_multiple_of(self.period()) || self.held.iter().any(|held| held.slot.0 == at.0)
        };
        while is_taken(at) {
            at = at.after(SECOND);
        }
        self.offer(Slot(at.0), generate(at), now)
    }

    /// A new key for the next period, replacing the existing one. Needed with a
    /// [`rotation`](Self::rotation) at `from`, because the ring may have been stolen together with
    /// its next key. Returns `None` if the next period does not start after `from`.
    pub fn replacement(&self, from: UnixTime, now: UnixTime) -> Option<KeyOffer> {
        let slot = Slot((now.0 - now.0 % self.period()).saturating_add(self.period()));
        (slot.0 > from.0).then(|| self.offer(slot, generate(UnixTime(slot.0)), now))
    }

    /// Returns the key known for `slot`.
    pub fn held(&self, slot: Slot) -> Option<KeyEntry> {
        let held = self.held.iter().find(|held| held.slot == slot)?;
        Some(KeyEntry { slot, name: *held.key.key.name() })
    }

    /// Returns how long the store has to keep `key` from `now` on: until its last ticket has
    /// expired, and a little longer because clocks differ.
    pub fn lifetime_of(&self, key: &DatedKey, now: UnixTime) -> Duration {
        let times = self.held.iter().map(|held| held.key.not_before);
        let successor = times.filter(|time| *time > key.not_before).min();
        // The next period's key is its successor at the latest.
        let from = key.not_before.max(now);
        let until_next_period = self.period() - from.0 % self.period();
        let end = successor
            .unwrap_or_else(|| from.after(Duration::from_secs(until_next_period)))
            .after(self.schedule.lifetime());
        // A node with a clock that is years off may have dated a key.
        Duration::from_secs(end.0.saturating_sub(now.0)).min(MAX_RECORD_LIFETIME) + LIFETIME_MARGIN
    }

    /// The ring of all known keys, or `None` if there are none.
    pub fn ring(&self) -> Option<Ring> {
        let mut keys: Vec<DatedKey> = Vec::with_capacity(self.held.len());
        for held in &self.held {
            let mut key = held.key.clone();
            if let Some(before) = keys.last() {
                // Two keys may have been generated for the same second; the order must be the same
                // on every node.
                key.not_before = key.not_before.max(before.not_before.after(SECOND));
            }
            keys.push(key);
        }
        Ring::new(keys, self.schedule).ok()
    }

    /// Returns the schedule.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// The length of a period in seconds.
    fn period(&self) -> u64 {
        self.schedule.rotation().as_secs()
    }

    fn offer(&self, slot: Slot, key: DatedKey, now: UnixTime) -> KeyOffer {
        let lifetime = self.lifetime_of(&key, now);
        KeyOffer { slot, key, lifetime }
    }
}

fn generate(not_before: UnixTime) -> DatedKey {
    DatedKey { key: TicketKey::random(), not_before }
}

/// How much longer a record is kept than the key's last ticket lives.
const LIFETIME_MARGIN: Duration = Duration::from_secs(300);

/// The longest lifetime of a record that a schedule can require: two rotations and a ticket
/// lifetime of seven days each.
const MAX_RECORD_LIFETIME: Duration = Duration::from_secs(21 * 24 * 3600);

const SECOND: Duration = Duration::from_secs(1);

const REREAD_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of records read at a time, the latest first.
const MAX_READS_AT_ONCE: usize = 256;

#[cfg(test)]
mod tests;
