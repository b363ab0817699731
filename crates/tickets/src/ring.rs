//! The ring: keys with the times from which they are current.

use std::cmp::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::key::{self, Opened, TicketKey};
use crate::schedule::{Schedule, UnixTime};
use crate::zone::Zone;

/// A key, and the time when it becomes current.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatedKey {
    /// The key.
    pub key: TicketKey,
    /// When it becomes current.
    pub not_before: UnixTime,
}

/// Keys in the order of their times. At any time one key is current and seals. Earlier keys open
/// their tickets until the last of these expires. Later keys open tickets too, since another
/// process's clock may be ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    keys: Vec<DatedKey>,
    schedule: Schedule,
}

/// The state of a key at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// All its tickets have expired.
    Dead,
    /// Opens tickets that it has sealed.
    Previous,
    /// Seals tickets.
    Current,
    /// Will seal tickets. Already opens those of processes whose clocks are ahead.
    Next,
}

/// Why keys do not form a ring. Positions count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RingError {
    /// There is no key.
    #[error("a ring needs at least one key")]
    Empty,
    /// A key's time is not after the time of the key before it.
    #[error("the keys' times must ascend, the oldest first")]
    Order(usize),
    /// Two keys have the same name.
    #[error("each key's name may occur only once")]
    Name(usize),
}

/// A problem with a working ring, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Warning {
    /// There is no next key, and the current key is older than the rotation period by this many
    /// seconds.
    #[error(
        "the current ticket key should have been replaced {0} seconds ago; run `firstflight keys \
         rotate FILE`"
    )]
    OverAge(u64),
    /// There is no next key, and the current one has to be replaced in this many seconds.
    #[error(
        "there is no next ticket key, and the current one is due in {0} seconds; run `firstflight \
         keys rotate FILE`"
    )]
    NoNext(u64),
    /// The current key's time is this many seconds ahead: its generator's clock was ahead.
    #[error(
        "the current ticket key is from {0} seconds in the future, by a clock that was ahead; run \
         `firstflight keys rotate FILE`"
    )]
    Ahead(u64),
}

impl Ring {
    /// Generates a ring of two keys: one current from `now`, and the next.
    pub fn generate(schedule: Schedule, now: UnixTime) -> Self {
        let keys = vec![dated(now), dated(now.after(schedule.rotation()))];
        Self { keys, schedule }
    }

    /// Creates a ring of these keys.
    ///
    /// # Errors
    /// Returns [`RingError`] if there is no key, or the keys are not in the order of their times, or
    /// two have the same name.
    pub fn new(keys: Vec<DatedKey>, schedule: Schedule) -> Result<Self, RingError> {
        if keys.is_empty() {
            return Err(RingError::Empty);
        }
        for (at, key) in keys.iter().enumerate() {
            if at > 0 && keys[at - 1].not_before >= key.not_before {
                return Err(RingError::Order(at));
            }
            if keys[..at].iter().any(|other| other.key.name() == key.key.name()) {
                return Err(RingError::Name(at));
            }
        }
        Ok(Self { keys, schedule })
    }

    /// Seals `content` into a ticket of `zone` under the key that is current at `now`.
    pub fn seal(&self, content: &[u8], zone: Zone, now: UnixTime) -> Vec<u8> {
        self.current(now).key.seal(content, zone)
    }

    /// Opens a ticket sealed under any key of the ring that is not dead at `now`.
    pub fn open(&self, ticket: &[u8], now: UnixTime) -> Opened {
        self.find_key(ticket, now).map_or(Opened::UnknownKey, |at| self.keys[at].key.open(ticket))
    }

    /// Finds the key that `sealed` names, if its tickets are still valid at `now`.
    pub(crate) fn find_key(&self, sealed: &[u8], now: UnixTime) -> Option<usize> {
        let name = key::key_name(sealed)?;
        let first = self.first_live(now);
        let found = self.keys[first..].iter().position(|key| key.key.name() == name)?;
        Some(first + found)
    }

    /// The key that seals at `now`: the last one whose time has come, or the first one if the clock
    /// was set back before all of them.
    pub fn current(&self, now: UnixTime) -> &DatedKey {
        &self.keys[self.current_index(now)]
    }

    /// The keys before the current one whose tickets may still be valid at `now`, oldest first.
    pub fn previous(&self, now: UnixTime) -> &[DatedKey] {
        &self.keys[self.first_live(now)..self.current_index(now)]
    }

    /// The key after the current one.
    pub fn next(&self, now: UnixTime) -> Option<&DatedKey> {
        self.keys.get(self.current_index(now) + 1)
    }

    /// All keys, oldest first, including dead ones.
    pub fn keys(&self) -> &[DatedKey] {
        &self.keys
    }

    /// The ring's schedule.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Whether [`advance`](Self::advance) has to be called at `now`.
    pub fn is_due(&self, now: UnixTime) -> bool {
        self.due() <= now || self.is_ahead(now)
    }

    /// When the last key becomes current, or the oldest is dead, whichever is earlier.
    pub fn due(&self) -> UnixTime {
        let last = self.keys[self.keys.len() - 1].not_before;
        match self.keys.get(1) {
            Some(successor) => last.min(self.expiry(successor)),
            None => last,
        }
    }

    /// Drops the keys that are dead at `now`, and generates keys until there is a next one.
    pub fn advance(&mut self, now: UnixTime) {
        self.date_back(now);
        self.keys.drain(..self.first_live(now));
        let period = self.schedule.rotation();
        let last = self.keys[self.keys.len() - 1].not_before;
        if last > now {
            return;
        }
        let mut due = last.after(period);
        if due <= now {
            // Not called for a long time: replace the current key at once.
            self.keys.push(dated(now));
            due = now.after(period);
        }
        self.keys.push(dated(due));
    }

    /// Rotates the ring now, due or not: the current key becomes previous, the next key becomes
    /// current, and a new key is next. Drops dead keys.
    ///
    /// Other processes that share the ring already have the new current key, as their next one.
    pub fn rotate(&mut self, now: UnixTime) {
        self.date_back(now);
        let current = self.current_index(now);
        // The clock may have been set back, but times have to ascend.
        let from = UnixTime(now.0.max(self.keys[current].not_before.0.saturating_add(1)));
        self.keys.truncate(current + 2);
        match self.keys.get_mut(current + 1) {
            Some(next) => next.not_before = next.not_before.min(from),
            None => self.keys.push(dated(from)),
        }
        self.keys.push(dated(from.after(self.schedule.rotation())));
        self.keys.drain(..self.first_live(now));
    }

    /// Corrects the times of keys that were generated by a clock that was ahead. Otherwise the
    /// current key would stay current until this clock reaches its time. No key is dropped: this
    /// clock may be behind instead.
    fn date_back(&mut self, now: UnixTime) {
        if !self.is_ahead(now) {
            return;
        }
        // By the other clock, the last key was the next one, and the key before it was current.
        let current = self.keys.len().saturating_sub(2);
        let ahead = self.keys[current].not_before.0.saturating_sub(now.0);
        for (key, at) in self.keys.iter_mut().zip(0..) {
            key.not_before = UnixTime(key.not_before.0.checked_sub(ahead).unwrap_or(at));
        }
        if let Some(next) = self.keys.get_mut(current + 1) {
            next.not_before = next.not_before.min(now.after(self.schedule.rotation()));
        }
    }

    /// Whether the first key is from the future, or the next one more than a period away.
    fn is_ahead(&self, now: UnixTime) -> bool {
        let now = now.after(CLOCK_TOLERANCE);
        let latest = now.after(self.schedule.rotation());
        self.keys[0].not_before > now || self.next(now).is_some_and(|next| next.not_before > latest)
    }

    /// Problems that an operator should know at `now`.
    pub fn warnings(&self, now: UnixTime) -> Vec<Warning> {
        let ahead = self.current(now).not_before.0.saturating_sub(now.0);
        if ahead > CLOCK_TOLERANCE.as_secs() {
            return vec![Warning::Ahead(ahead)];
        }
        if self.next(now).is_some() {
            return Vec::new();
        }
        let due = self.current(now).not_before.after(self.schedule.rotation());
        match now.0.checked_sub(due.0) {
            Some(late) => vec![Warning::OverAge(late)],
            None => vec![Warning::NoNext(due.0 - now.0)],
        }
    }

    /// The state of the key at position `at`.
    pub fn state(&self, at: usize, now: UnixTime) -> KeyState {
        match at.cmp(&self.current_index(now)) {
            Ordering::Less if at < self.first_live(now) => KeyState::Dead,
            Ordering::Less => KeyState::Previous,
            Ordering::Equal => KeyState::Current,
            Ordering::Greater => KeyState::Next,
        }
    }

    pub(crate) fn current_index(&self, now: UnixTime) -> usize {
        self.keys.partition_point(|key| key.not_before <= now).saturating_sub(1)
    }

    /// The first key that is not dead. Its last ticket was sealed when its successor became current.
    fn first_live(&self, now: UnixTime) -> usize {
        self.keys[1..].partition_point(|successor| self.expiry(successor) <= now)
    }

    fn expiry(&self, successor: &DatedKey) -> UnixTime {
        successor.not_before.after(self.schedule.lifetime())
    }
}

/// How far the clocks of processes that share a ring may be apart.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(300);

fn dated(not_before: UnixTime) -> DatedKey {
    DatedKey { key: TicketKey::random(), not_before }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
