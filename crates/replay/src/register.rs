//! The local strike register: exact, sharded, bounded, expiring by time buckets.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ClaimKey;

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
    entries: AtomicUsize,
    won: AtomicU64,
    lost: AtomicU64,
    barred: AtomicU64,
    full: AtomicU64,
}

impl StrikeRegister {
    /// A register for `capacity` records (at most about 268 million).
    ///
    /// Above some thousands it has several shards, each with its part of the capacity: the
    /// fullest may answer [`Claim::Full`] when a per cent of the whole is still free.
    pub fn new(capacity: usize) -> Self {
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
    /// A record lives up to one second longer than asked for, never shorter.
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
        if let Some(record) = shard.find(key, hash) {
            return if record.is_barred() { Claim::Barred } else { Claim::Lost };
        }
        let barred = !permit();
        if !shard.has_room() {
            return Claim::Full;
        }
        shard.insert(key, hash, barred, whole_seconds_up(expires_at));
        self.entries.fetch_add(1, Ordering::Relaxed);
        if barred { Claim::Barred } else { Claim::Won }
    }

    /// Whether a record of `key` is there.
    pub fn contains(&self, key: ClaimKey, now: Duration) -> bool {
        let (shard, hash) = self.locked(key, now);
        shard.find(key, hash).is_some()
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

    /// The key's shard, expired up to `now` and locked, and the key's hash for its chains.
    fn locked(&self, key: ClaimKey, now: Duration) -> (MutexGuard<'_, Shard>, u32) {
        // As one number: an array would have its length hashed too.
        let hash = self.hasher.hash_one(u128::from_ne_bytes(*key.as_bytes()));
        let (high, low) = ((hash >> 32) as usize, hash as u32);
        (self.advanced(&self.shards[high % self.shards.len()], now), low)
    }

    fn advanced<'a>(&self, shard: &'a Mutex<Shard>, now: Duration) -> MutexGuard<'a, Shard> {
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let expired = shard.advance(whole_seconds(now));
        if expired > 0 {
            self.entries.fetch_sub(expired, Ordering::Relaxed);
        }
        shard
    }
}

impl std::fmt::Debug for StrikeRegister {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StrikeRegister").field("statistics", &self.statistics()).finish()
    }
}

/// A hash table with chaining and a timing wheel over the same slab of records. Links are an
/// index plus one, so that zeroed memory, which the system hands out untouched, means "none".
struct Shard {
    chains: Vec<Link>,
    wheel: Vec<Link>,
    slab: Vec<Record>,
    free: Link,
    live: usize,
    capacity: usize,
    clock: u32,
}

type Link = u32;

/// Half a cache line, and never across two.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Record {
    key: ClaimKey,
    /// The key's hash, kept so that expiry needs not compute it again; and in the highest bit
    /// whether the key is barred.
    hash_and_state: u32,
    chain_next: Link,
    bucket_next: Link,
    expires: u32,
}

impl Record {
    fn is_barred(&self) -> bool {
        self.hash_and_state & BARRED != 0
    }
}

impl Shard {
    fn new(capacity: usize) -> Self {
        Self {
            chains: vec![0; capacity.next_power_of_two()],
            wheel: vec![0; WHEEL],
            slab: Vec::with_capacity(capacity),
            free: 0,
            live: 0,
            capacity,
            clock: 0,
        }
    }

    fn has_room(&self) -> bool {
        self.live < self.capacity
    }

    fn find(&self, key: ClaimKey, hash: u32) -> Option<&Record> {
        let mut link = self.chains[self.chain_of(hash)];
        while link != 0 {
            let record = &self.slab[link as usize - 1];
            if record.key == key {
                return Some(record);
            }
            link = record.chain_next;
        }
        None
    }

    /// Adds a record that expires at the beginning of second `expires`. There must be room.
    fn insert(&mut self, key: ClaimKey, hash: u32, barred: bool, expires: u32) {
        // Whoever claims with an expiry in the past read its clock late: one second is enough.
        let expires = expires.max(self.clock.saturating_add(1));
        let chain = self.chain_of(hash);
        let bucket = expires as usize % WHEEL;
        let chain_next = self.chains[chain];
        let bucket_next = self.wheel[bucket];
        let hash_and_state = hash & !BARRED | if barred { BARRED } else { 0 };
        let record = Record { key, hash_and_state, chain_next, bucket_next, expires };
        let link = match self.free {
            0 => {
                self.slab.push(record);
                self.slab.len() as Link
            }
            free => {
                let slot = &mut self.slab[free as usize - 1];
                self.free = slot.bucket_next;
                *slot = record;
                free
            }
        };
        self.chains[chain] = link;
        self.wheel[bucket] = link;
        self.live += 1;
    }

    /// Drops what expires up to second `now` and says how many that were. Each record is visited
    /// once in its bucket (and once more per turn of the wheel, if it lives longer than that).
    fn advance(&mut self, now: u32) -> usize {
        if now <= self.clock {
            return 0;
        }
        let live = self.live;
        let first = self.clock + 1;
        let last = now.min(self.clock.saturating_add(WHEEL as u32));
        self.clock = now;
        for second in first..=last {
            self.sweep(second as usize % WHEEL);
        }
        live - self.live
    }

    fn sweep(&mut self, bucket: usize) {
        let mut link = std::mem::take(&mut self.wheel[bucket]);
        while link != 0 {
            let index = link as usize - 1;
            let Record { hash_and_state, bucket_next, expires, .. } = self.slab[index];
            if expires <= self.clock {
                self.unchain(link, hash_and_state);
                self.slab[index].bucket_next = self.free;
                self.free = link;
                self.live -= 1;
            } else {
                self.slab[index].bucket_next = self.wheel[bucket];
                self.wheel[bucket] = link;
            }
            link = bucket_next;
        }
    }

    fn unchain(&mut self, link: Link, hash: u32) {
        let chain = self.chain_of(hash);
        let next = self.slab[link as usize - 1].chain_next;
        if self.chains[chain] == link {
            self.chains[chain] = next;
            return;
        }
        let mut at = self.chains[chain];
        while at != 0 {
            let record = &mut self.slab[at as usize - 1];
            if record.chain_next == link {
                record.chain_next = next;
                return;
            }
            at = record.chain_next;
        }
    }

    /// A shard has fewer chains than the bit of the state is worth.
    fn chain_of(&self, hash: u32) -> usize {
        hash as usize & (self.chains.len() - 1)
    }
}

fn whole_seconds(at: Duration) -> u32 {
    u32::try_from(at.as_secs()).unwrap_or(u32::MAX)
}

fn whole_seconds_up(at: Duration) -> u32 {
    whole_seconds(at).saturating_add(u32::from(at.subsec_nanos() > 0))
}

/// Buckets of one second: more than the longest life of a record at the default settings.
const WHEEL: usize = 512;
const BARRED: u32 = 1 << 31;
const MAX_SHARDS: usize = 64;
const SHARD_WORTHWHILE: usize = 4096;

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "register_records.rs"]
mod records;

#[cfg(test)]
pub(crate) use records::Records;
