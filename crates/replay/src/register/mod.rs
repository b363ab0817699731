//! The local strike register: a hash table with a timing wheel, in shards.
//!
//! It is exact. A Bloom filter would respond 425 to honest clients now and then, and evicting
//! records would forget claims. A full register refuses early data, and drops only records of refused
//! flights on tickets that bring no early data any more.

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
pub enum ClaimOutcome {
    /// The key was not recorded before; it is now.
    Won,
    /// Somebody has won the key before.
    Lost,
    /// The key is recorded so that nobody can win it.
    Barred,
    /// The key is not recorded, and there is no room for it.
    Full,
    /// The key is not recorded, and the register is closed.
    Closed,
}

/// Counters of a [`StrikeRegister`], for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterStatistics {
    /// Current records, including expired ones that are not removed yet.
    pub entries: usize,
    /// Maximum number of records.
    pub capacity: usize,
    /// Claims won since the start.
    pub won: u64,
    /// Claims lost since the start: replays, or honest flights that a copy overtook.
    pub lost: u64,
    /// Claims that barred a key or found it barred since the start.
    pub barred: u64,
    /// Claims that found no room since the start.
    pub full: u64,
}

/// Records claimed flights, each until its own expiry (RFC 8446 section 8.2).
///
/// Memory is bounded and reserved at the start: 36 to 40 bytes per record of the capacity (32 for
/// the record, one or two 4-byte chain heads), and 2 KiB per shard. `examples/register.rs` measures
/// 36.4 resident bytes per record when all of 2^20 are in use, 38 MB.
///
/// Clients can influence their keys, and an attacker could search for keys that collide in a few
/// bits. So shard and chain are selected by SipHash under a random key of the process.
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

/// A record in a [`crate::RegisterSnapshot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SnapshotRecord {
    pub(crate) key: ClaimKey,
    pub(crate) barred: bool,
    /// Remaining lifetime in seconds, at most [`SnapshotRecord::MAX_LIFETIME_SECONDS`].
    pub(crate) lifetime_seconds: u32,
}

impl SnapshotRecord {
    /// 31 bits, 68 years. The bit above is the state.
    pub(crate) const MAX_LIFETIME_SECONDS: u32 = u32::MAX >> 1;

    /// The record of a key that was won.
    pub(crate) fn claimed(key: ClaimKey, lifetime: Duration) -> Self {
        let seconds = lifetime.as_secs().saturating_add(u64::from(lifetime.subsec_nanos() > 0));
        let lifetime_seconds =
            u32::try_from(seconds).unwrap_or(u32::MAX).min(Self::MAX_LIFETIME_SECONDS);
        Self { key, barred: false, lifetime_seconds }
    }
}

impl StrikeRegister {
    /// Creates a register for `capacity` records (at most about 268 million).
    ///
    /// A large register has several shards, each with its part of the capacity. The fullest shard
    /// may return [`ClaimOutcome::Full`] while 1 % of the whole is still free.
    pub fn new(capacity: usize) -> Self {
        Self::with_unit(capacity, 1)
    }

    /// Creates a register with a time unit of `unit` seconds, for records that live longer than some
    /// minutes.
    pub fn with_unit(capacity: usize, unit: u32) -> Self {
        let capacity = capacity.min(MAX_SHARDS << 22);
        let shards = (capacity / MIN_SHARD_CAPACITY).next_power_of_two().min(MAX_SHARDS);
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

    /// Claims `key` until `expires_at`. Even if the register is full, a recorded key is
    /// [`ClaimOutcome::Lost`] or [`ClaimOutcome::Barred`].
    ///
    /// A record expires up to one time unit late, never early.
    pub fn claim(&self, key: ClaimKey, expires_at: Duration, now: Duration) -> ClaimOutcome {
        self.claim_if(key, expires_at, now, || true)
    }

    /// Like [`claim`](Self::claim), but if `permit` returns false, a new key is recorded as barred,
    /// so that nobody can win it.
    ///
    /// `permit` runs under the key's lock. So a caller that changes what `permit` reads, and then
    /// claims the same key, sees every claim that was won before the change.
    pub fn claim_if(
        &self,
        key: ClaimKey,
        expires_at: Duration,
        now: Duration,
        permit: impl FnOnce() -> bool,
    ) -> ClaimOutcome {
        let claim = self.settle(key, expires_at, now, permit);
        let counter = match claim {
            ClaimOutcome::Won => &self.won,
            ClaimOutcome::Lost => &self.lost,
            ClaimOutcome::Barred => &self.barred,
            ClaimOutcome::Full => &self.full,
            ClaimOutcome::Closed => return claim,
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
    ) -> ClaimOutcome {
        let (mut shard, hash) = self.lock_shard(key, now);
        match shard.find(key, hash).map(|record| record.state()) {
            Some(State::Claimed) => return ClaimOutcome::Lost,
            Some(State::Barred) => return ClaimOutcome::Barred,
            Some(State::Released) | None => {}
        }
        if self.closed.load(Ordering::SeqCst) {
            return ClaimOutcome::Closed;
        }
        let (state, claim) = match permit() {
            true => (State::Claimed, ClaimOutcome::Won),
            false => (State::Barred, ClaimOutcome::Barred),
        };
        let expires = self.units_rounded_up(expires_at);
        if let Some(record) = shard.find(key, hash) {
            record.set_state(state);
            record.extend(expires);
            return claim;
        }
        match self.insert(&mut shard, (key, hash), state, expires) {
            true => claim,
            false => ClaimOutcome::Full,
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

    /// Drops the barred records of the key's shard, after `key` found no room there, and after
    /// `end_epoch` has made sure that none of these keys can be won any more. (Used tickets win whatever
    /// their epoch is, but no second flight can be made with one.)
    ///
    /// `end_epoch` runs under the shard's lock. So each barred record in the shard was written before the
    /// epoch ended, for a flight on a ticket that was issued before. A later claim of such a flight sees
    /// the new epoch when `permit` runs, under the same lock. Records of flights on tickets of the new
    /// epoch come later, and stay.
    ///
    /// Drops nothing if the key was won meanwhile ([`ClaimOutcome::Lost`]), or if the register was
    /// closed ([`ClaimOutcome::Closed`]): its records belong to another process. Otherwise returns
    /// [`ClaimOutcome::Full`], and the key has no record.
    pub(crate) fn drop_barred(
        &self,
        key: ClaimKey,
        now: Duration,
        end_epoch: impl FnOnce(),
    ) -> ClaimOutcome {
        let (mut shard, hash) = self.lock_shard(key, now);
        if shard.find(key, hash).is_some_and(|record| record.state() == State::Claimed) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return ClaimOutcome::Lost;
        }
        if self.closed.load(Ordering::SeqCst) {
            return ClaimOutcome::Closed;
        }
        end_epoch();
        self.entries.fetch_sub(shard.drop_barred(), Ordering::Relaxed);
        ClaimOutcome::Full
    }

    /// Releases a won key, so that it can be won again. Returns whether it was won.
    pub fn release(&self, key: ClaimKey, now: Duration) -> bool {
        let (mut shard, hash) = self.lock_shard(key, now);
        !self.closed.load(Ordering::SeqCst) && shard.release(key, hash)
    }

    /// Releases a key that another process has released, also if this register is closed.
    pub(crate) fn restore_release(&self, key: ClaimKey, now: Duration) {
        let (mut shard, hash) = self.lock_shard(key, now);
        shard.release(key, hash);
    }

    /// Whether `key` is recorded, which then counts as a lost claim.
    pub fn is_lost(&self, key: ClaimKey, now: Duration) -> bool {
        let is_lost = self.contains(key, now);
        self.lost.fetch_add(u64::from(is_lost), Ordering::Relaxed);
        is_lost
    }

    /// Whether `key` is recorded.
    pub fn contains(&self, key: ClaimKey, now: Duration) -> bool {
        let (mut shard, hash) = self.lock_shard(key, now);
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

    /// Stops recording and returns all records. A concurrent claim is either among them or returns
    /// [`ClaimOutcome::Closed`].
    pub(crate) fn close(&self, now: Duration) -> Vec<SnapshotRecord> {
        self.closed.store(true, Ordering::SeqCst);
        let mut snapshot = Vec::with_capacity(self.entries.load(Ordering::Relaxed));
        for shard in &self.shards {
            let shard = self.lock_and_expire(shard, now);
            let live = shard.records().filter(|record| record.state() != State::Released);
            snapshot.extend(live.map(|record| {
                SnapshotRecord {
                    key: record.key,
                    barred: record.state() == State::Barred,
                    lifetime_seconds: (record.expires - shard.clock.min(record.expires))
                        .saturating_mul(self.unit)
                        .min(SnapshotRecord::MAX_LIFETIME_SECONDS),
                }
            }));
        }
        snapshot
    }

    /// Starts recording again.
    pub(crate) fn reopen(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// Restores a record of another process, also if this register is closed. Returns whether there
    /// was room.
    pub(crate) fn restore(&self, restored: &SnapshotRecord, now: Duration) -> bool {
        let expires = self.units_rounded_up(
            now.saturating_add(Duration::from_secs(restored.lifetime_seconds.into())),
        );
        let (mut shard, hash) = self.lock_shard(restored.key, now);
        let state = if restored.barred { State::Barred } else { State::Claimed };
        if let Some(record) = shard.find(restored.key, hash) {
            // A key that was won in either process stays won.
            if !(restored.barred && record.state() == State::Claimed) {
                record.set_state(state);
            }
            record.extend(expires);
            return true;
        }
        self.insert(&mut shard, (restored.key, hash), state, expires)
    }

    /// Locks the key's shard, expires its records up to `now`, and returns it with the key's hash.
    fn lock_shard(&self, key: ClaimKey, now: Duration) -> (MutexGuard<'_, Shard>, u32) {
        // As one number, because hashing an array also hashes its length.
        let hash = self.hasher.hash_one(u128::from_ne_bytes(*key.as_bytes()));
        let (high, low) = ((hash >> 32) as usize, hash as u32);
        (self.lock_and_expire(&self.shards[high % self.shards.len()], now), low)
    }

    fn lock_and_expire<'a>(&self, shard: &'a Mutex<Shard>, now: Duration) -> MutexGuard<'a, Shard> {
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

    fn units_rounded_up(&self, at: Duration) -> u32 {
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
const MIN_SHARD_CAPACITY: usize = 4096;
