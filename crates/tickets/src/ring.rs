//! The ring: keys with the times from which they are current.

use std::cmp::Ordering;

use thiserror::Error;

use crate::key::{self, Opened, TicketKey};
use crate::schedule::{Schedule, UnixTime};
use crate::usage::KeyState;
use crate::zone::Zone;

/// A key and the time from which it is the current one, until the next key's time comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatedKey {
    /// The key.
    pub key: TicketKey,
    /// When it becomes current.
    pub not_before: UnixTime,
}

/// Keys in the order of their times. At any time one is current and seals; the ones before it
/// open for as long as a ticket of theirs may live; the ones after it open already, since another
/// process's clock may be ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    keys: Vec<DatedKey>,
    schedule: Schedule,
}

/// Why keys don't make a ring. Positions count from 0.
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

/// What is not as it should be with a ring that works all the same: a line for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Warning {
    /// The current key has been current for longer than the rotation period, in seconds, and no
    /// other follows it.
    #[error(
        "the current ticket key should have been replaced {0} seconds ago; run `firstflight keys \
         rotate FILE`"
    )]
    OverAge(u64),
    /// No key is there to follow the current one.
    #[error(
        "no next ticket key is there, and the current one is due in {0} seconds; run `firstflight \
         keys rotate FILE`"
    )]
    NoNext(u64),
}

impl Ring {
    /// A ring of fresh keys: one current from `now`, and the next.
    pub fn fresh(schedule: Schedule, now: UnixTime) -> Self {
        let keys = vec![dated(now), dated(now.after(schedule.rotation()))];
        Self { keys, schedule }
    }

    /// A ring of given keys.
    ///
    /// # Errors
    /// If there is no key, or they are not in the order of their times, or share a name.
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
        self.opener(ticket, now).map_or(Opened::UnknownKey, |at| self.keys[at].key.open(ticket))
    }

    /// The key that is not dead at `now` and has the name that `sealed` carries.
    pub(crate) fn opener(&self, sealed: &[u8], now: UnixTime) -> Option<usize> {
        let name = key::key_name(sealed)?;
        let first = self.first_alive(now);
        let found = self.keys[first..].iter().position(|key| key.key.name() == name)?;
        Some(first + found)
    }

    /// The key that seals at `now`: the last whose time has come, or the first if a clock set
    /// back makes it that none has.
    pub fn current(&self, now: UnixTime) -> &DatedKey {
        &self.keys[self.current_index(now)]
    }

    /// The keys before the current one whose tickets may still live at `now`, the oldest first.
    pub fn previous(&self, now: UnixTime) -> &[DatedKey] {
        &self.keys[self.first_alive(now)..self.current_index(now)]
    }

    /// The key that follows the current one, if it is there.
    pub fn next(&self, now: UnixTime) -> Option<&DatedKey> {
        self.keys.get(self.current_index(now) + 1)
    }

    /// All keys, the oldest first, dead ones too.
    pub fn keys(&self) -> &[DatedKey] {
        &self.keys
    }

    /// The ring's schedule.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// When the ring is due for [`keep_up`](Self::keep_up): when its last key becomes current, so
    /// that no next one is left, or its oldest is dead, whichever comes first.
    pub fn due(&self) -> UnixTime {
        let last = self.keys[self.keys.len() - 1].not_before;
        match self.keys.get(1) {
            Some(successor) => last.min(self.death(successor)),
            None => last,
        }
    }

    /// Drops the keys that are dead at `now` and adds what is missing, so that a next key is
    /// there.
    pub fn keep_up(&mut self, now: UnixTime) {
        self.keys.drain(..self.first_alive(now));
        let period = self.schedule.rotation();
        let last = self.keys[self.keys.len() - 1].not_before;
        if last > now {
            return;
        }
        let mut due = last.after(period);
        if due <= now {
            // Nobody asked for a long time: the key that is over-age is replaced at once.
            self.keys.push(dated(now));
            due = now.after(period);
        }
        self.keys.push(dated(due));
    }

    /// Turns the ring by one at `now`, due or not: current becomes previous, next becomes
    /// current, a fresh one next. Keys that are dead are dropped.
    ///
    /// Whoever shares the ring has the new current key already, as the next one.
    pub fn rotate(&mut self, now: UnixTime) {
        let current = self.current_index(now);
        // A clock set back: times have to go on ascending.
        let from = UnixTime(now.0.max(self.keys[current].not_before.0.saturating_add(1)));
        self.keys.truncate(current + 2);
        match self.keys.get_mut(current + 1) {
            Some(next) => next.not_before = next.not_before.min(from),
            None => self.keys.push(dated(from)),
        }
        self.keys.push(dated(from.after(self.schedule.rotation())));
        self.keys.drain(..self.first_alive(now));
    }

    /// What an operator should know at `now`.
    pub fn warnings(&self, now: UnixTime) -> Vec<Warning> {
        if self.next(now).is_some() {
            return Vec::new();
        }
        let due = self.current(now).not_before.after(self.schedule.rotation());
        match now.0.checked_sub(due.0) {
            Some(late) => vec![Warning::OverAge(late)],
            None => vec![Warning::NoNext(due.0 - now.0)],
        }
    }

    /// What the key at `at` is for at `now`.
    pub fn state(&self, at: usize, now: UnixTime) -> KeyState {
        match at.cmp(&self.current_index(now)) {
            Ordering::Less if at < self.first_alive(now) => KeyState::Dead,
            Ordering::Less => KeyState::Previous,
            Ordering::Equal => KeyState::Current,
            Ordering::Greater => KeyState::Next,
        }
    }

    pub(crate) fn current_index(&self, now: UnixTime) -> usize {
        self.keys.partition_point(|key| key.not_before <= now).saturating_sub(1)
    }

    /// The first key that is not dead: its last ticket was sealed when its successor came.
    fn first_alive(&self, now: UnixTime) -> usize {
        self.keys[1..].partition_point(|successor| self.death(successor) <= now)
    }

    fn death(&self, successor: &DatedKey) -> UnixTime {
        successor.not_before.after(self.schedule.lifetime())
    }
}

fn dated(not_before: UnixTime) -> DatedKey {
    DatedKey { key: TicketKey::random(), not_before }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
