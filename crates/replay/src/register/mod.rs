//! The local strike register: exact, sharded, bounded, expiring by time buckets.

mod shard;

#[cfg(test)]
mod records;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ClaimKey;
use shard::Shard;

#[cfg(test)]
pub(crate) use records::Records;
pub(crate) use shard::State;

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The key was not there; it is now.
    Won,
    /// The key was there already, and somebody has won it.
    Lost,
    /// The key is there, and nobody has won it or will.
    Barred,
    /// The key was not there, and there is no room to record it.
    Full,
    /// The key was not there, and the register has been closed.
    Closed,
}

/// Counters of a [`StrikeRegister`], for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterStatistics {
    /// Records held now, with those that expired but were not swept yet.
    pub entries: usize,
    /// Records that fit.
    pub capacity: usize,
    /// Claims won since the start.
    pub won: u64,
    /// Claims lost since the start: replays, or honest flights that a copy overtook.
    pub lost: u64,
    /// Claims that were barred, or met a key that is, since the start.
    pub barred: u64,
    /// Claims that found no room since the start.
    pub full: u64,
}

/// Records which flights were claimed, each until its own expiry (RFC 8446 section 8.2).
///
/// Exact: no false positives as in a Bloom filter, no record evicted before its time. Memory is
/// bounded: 36 to 40 bytes a record at capacity (32 for the record, one or two 4-byte chain
/// heads), reserved at the start; plus 2 KiB a shard. `examples/claims.rs` measures it: 36.4
/// resident bytes a record when all of 2^20 are in use, 38 MB.
///
/// An attacker can choose client randoms until their digests collide in a few bits, so shard and
/// chain are chosen by SipHash under a key drawn per process, not by bits of the digest itself.
pub struct StrikeRegister {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    capacity: usize,
    unit: u32,
    closed: AtomicBool,
    entries: AtomicUsize,
    won: AtomicU64,
    lost: AtomicU64,
    barred: AtomicU64,
    full: AtomicU64,
}

/// A record as it is handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) key: ClaimKey,
    pub(crate) barred: bool,
    /// Seconds that it has still to live, at most [`Held::MAX_LIFE_UNITS`].
    pub(crate) left: u32,
}

impl Held {
    /// What 31 bits hold, 68 years: the state stands above them.
    pub(crate) const MAX_LIFE_UNITS: u32 = u32::MAX >> 1;
}

impl StrikeRegister {
    /// A register for `capacity` records (at most about 268 million).
    ///
    /// Above some thousands it has several shards, each with its part of the capacity: the
    /// fullest may answer [`Claim::Full`] when a per cent of the whole is still free.
    pub fn new(capacity: usize) -> Self {
        Self::with_unit(capacity, 1)
    }

    /// The same for records that live longer than some minutes: `unit` is in seconds what a life
    /// is counted by.
    pub fn with_unit(capacity: usize, unit: u32) -> Self {
        let capacity = capacity.min(MAX_SHARDS << 22);
        let shards = (capacity / SHARD_WORTHWHILE).next_power_of_two().min(MAX_SHARDS);
        let shard = |i| {
            let share = capacity / shards + usize::from(i < capacity % shards);
            Mutex::new(Shard::new(share))
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            hasher: RandomState::new(),
            capacity,
            unit: unit.max(1),
            closed: AtomicBool::new(false),
            entries: AtomicUsize::new(0),
            won: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            barred: AtomicU64::new(0),
            full: AtomicU64::new(0),
        }
    }

    /// Claims `key` until `expires_at`. A key that is there is [`Claim::Lost`] or
    /// [`Claim::Barred`] also when the register is full.
    ///
    /// A record lives up to one unit longer than asked for, never shorter.
    pub fn claim(&self, key: ClaimKey, expires_at: Duration, now: Duration) -> Claim {
        self.claim_if(key, expires_at, now, || true)
    }

    /// As [`claim`](Self::claim), but a key that is not there is recorded as barred, so that
    /// nobody will win it, if `permit` says no.
    ///
    /// `permit` is asked under the key's lock. Who changes what it reads, and then claims the same
    /// key, sees every claim that was granted before the change took effect.
    pub fn claim_if(
        &self,
        key: ClaimKey,
        expires_at: Duration,
        now: Duration,
        permit: impl FnOnce() -> bool,
    ) -> Claim {
        let claim = self.settle(key, expires_at, now, permit);
        let counter = match claim {
            Claim::Won => &self.won,
            Claim::Lost => &self.lost,
            Claim::Barred => &self.barred,
            Claim::Full => &self.full,
            Claim::Closed => return claim,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        claim
    }

    fn settle(
        &self,
        key: ClaimKey,
        expires_at: Duration,
        now: Duration,
        permit: impl FnOnce() -> bool,
    ) -> Claim {
        let (mut shard, hash) = self.locked(key, now);
        match shard.find(key, hash).map(|record| record.state()) {
            Some(State::Claimed) => return Claim::Lost,
            Some(State::Barred) => return Claim::Barred,
            Some(State::Released) | None => {}
        }
        if self.closed.load(Ordering::SeqCst) {
            return Claim::Closed;
        }
        let (state, claim) = match permit() {
            true => (State::Claimed, Claim::Won),
            false => (State::Barred, Claim::Barred),
        };
        let expires = self.units_up(expires_at);
        if let Some(record) = shard.find(key, hash) {
            record.set_state(state);
            record.prolong(expires);
            return claim;
        }
        match self.insert(&mut shard, (key, hash), state, expires) {
            true => claim,
            false => Claim::Full,
        }
    }

    fn insert(
        &self,
        shard: &mut Shard,
        (key, hash): (ClaimKey, u32),
        state: State,
        expires: u32,
    ) -> bool {
        let has_room = shard.has_room();
        if has_room {
            shard.insert(key, hash, state, expires);
            self.entries.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Gives a won key back, so that it can be won again: what it was won for has certainly not
    /// happened. Whether there was one to give back.
    pub fn release(&self, key: ClaimKey, now: Duration) -> bool {
        let (mut shard, hash) = self.locked(key, now);
        let is_open = !self.closed.load(Ordering::SeqCst);
        match shard.find(key, hash) {
            Some(record) if is_open && record.state() == State::Claimed => {
                record.set_state(State::Released);
                true
            }
            _ => false,
        }
    }

    /// Whether a record of `key` is there.
    pub fn contains(&self, key: ClaimKey, now: Duration) -> bool {
        let (mut shard, hash) = self.locked(key, now);
        shard.find(key, hash).is_some_and(|record| record.state() != State::Released)
    }

    /// The counters.
    pub fn statistics(&self) -> RegisterStatistics {
        RegisterStatistics {
            entries: self.entries.load(Ordering::Relaxed),
            capacity: self.capacity,
            won: self.won.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            barred: self.barred.load(Ordering::Relaxed),
            full: self.full.load(Ordering::Relaxed),
        }
    }

    /// Records nothing new from now on, and says what it holds. A claim that comes at the same
    /// time is in it, or is answered [`Claim::Closed`].
    pub(crate) fn close(&self, now: Duration) -> Vec<Held> {
        self.closed.store(true, Ordering::SeqCst);
        let mut held = Vec::with_capacity(self.entries.load(Ordering::Relaxed));
        for shard in &self.shards {
            let shard = self.advanced(shard, now);
            let there = shard.records().filter(|record| record.state() != State::Released);
            held.extend(there.map(|record| {
                Held {
                    key: record.key,
                    barred: record.state() == State::Barred,
                    left: (record.expires - shard.clock.min(record.expires))
                        .saturating_mul(self.unit)
                        .min(Held::MAX_LIFE_UNITS),
                }
            }));
        }
        held
    }

    /// Records again.
    pub(crate) fn reopen(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// Takes a record over. Whether there was room.
    pub(crate) fn take(&self, held: &Held, now: Duration) -> bool {
        let expires = self.units_up(now.saturating_add(Duration::from_secs(held.left.into())));
        let (mut shard, hash) = self.locked(held.key, now);
        let state = if held.barred { State::Barred } else { State::Claimed };
        if let Some(record) = shard.find(held.key, hash) {
            // Won anywhere is won.
            if !(held.barred && record.state() == State::Claimed) {
                record.set_state(state);
            }
            record.prolong(expires);
            return true;
        }
        self.insert(&mut shard, (held.key, hash), state, expires)
    }

    /// The key's shard, expired up to `now` and locked, and the key's hash for its chains.
    fn locked(&self, key: ClaimKey, now: Duration) -> (MutexGuard<'_, Shard>, u32) {
        // As one number: an array would have its length hashed too.
        let hash = self.hasher.hash_one(u128::from_ne_bytes(*key.as_bytes()));
        let (high, low) = ((hash >> 32) as usize, hash as u32);
        (self.advanced(&self.shards[high % self.shards.len()], now), low)
    }

    fn advanced<'a>(&self, shard: &'a Mutex<Shard>, now: Duration) -> MutexGuard<'a, Shard> {
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let expired = shard.advance(self.units(now));
        if expired > 0 {
            self.entries.fetch_sub(expired, Ordering::Relaxed);
        }
        shard
    }

    fn units(&self, at: Duration) -> u32 {
        u32::try_from(at.as_secs() / u64::from(self.unit)).unwrap_or(u32::MAX)
    }

    fn units_up(&self, at: Duration) -> u32 {
        let whole = Duration::from_secs(u64::from(self.units(at)) * u64::from(self.unit));
        self.units(at).saturating_add(u32::from(at > whole))
    }
}

impl std::fmt::Debug for StrikeRegister {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StrikeRegister").field("statistics", &self.statistics()).finish()
    }
}

const MAX_SHARDS: usize = 64;
const SHARD_WORTHWHILE: usize = 4096;
