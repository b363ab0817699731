//! One shard of the register.

use crate::ClaimKey;

/// A hash table with chaining and a timing wheel over the same slab of records. A link is an index
/// plus one, so that zeroed memory means "none". Time is in the register's units.
pub(super) struct Shard {
    pub(super) chains: Vec<Link>,
    wheel: Vec<Link>,
    pub(super) slab: Vec<Record>,
    free: Link,
    live: usize,
    capacity: usize,
    /// Whether a barred record was added since they were dropped.
    has_barred: bool,
    pub(super) clock: u32,
}

pub(super) type Link = u32;

/// The state of a recorded key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Somebody has won it.
    Claimed,
    /// Nobody can win it.
    Barred,
    /// It was won and released.
    Released,
}

/// Half a cache line, aligned so that it never spans two.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct Record {
    pub(super) key: ClaimKey,
    /// The key's hash, so that expiry need not compute it again, with the state in the two highest
    /// bits.
    hash_and_state: u32,
    pub(super) chain_next: Link,
    bucket_next: Link,
    pub(super) expires: u32,
}

impl Record {
    pub(super) fn state(&self) -> State {
        match self.hash_and_state >> STATE_SHIFT {
            0 => State::Claimed,
            1 => State::Barred,
            _ => State::Released,
        }
    }

    pub(super) fn set_state(&mut self, state: State) {
        self.hash_and_state = with_state(self.hash_and_state, state);
    }

    /// Extends the record's lifetime to at least `expires`. It moves to the right bucket when its
    /// current bucket is swept.
    pub(super) fn extend(&mut self, expires: u32) {
        self.expires = self.expires.max(expires);
    }
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            chains: vec![0; capacity.next_power_of_two()],
            wheel: vec![0; WHEEL_BUCKETS],
            slab: Vec::with_capacity(capacity),
            free: 0,
            live: 0,
            capacity,
            has_barred: false,
            clock: 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.live < self.capacity
    }

    pub(super) fn find(&mut self, key: ClaimKey, hash: u32) -> Option<&mut Record> {
        let mut link = self.chains[self.chain_of(hash)];
        while link != 0 {
            let index = link as usize - 1;
            if self.slab[index].key == key {
                return Some(&mut self.slab[index]);
            }
            link = self.slab[index].chain_next;
        }
        None
    }

    /// Releases a won key. Returns whether it was won.
    pub(super) fn release(&mut self, key: ClaimKey, hash: u32) -> bool {
        match self.find(key, hash) {
            Some(record) if record.state() == State::Claimed => {
                record.set_state(State::Released);
                true
            }
            _ => false,
        }
    }

    /// All records, in arbitrary order.
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        let linked = |first: &Link| {
            std::iter::successors(self.record_at(*first), |record| {
                self.record_at(record.chain_next)
            })
        };
        self.chains.iter().flat_map(linked)
    }

    fn record_at(&self, link: Link) -> Option<&Record> {
        self.slab.get((link as usize).checked_sub(1)?)
    }

    /// Adds a record that expires at the start of unit `expires`. There must be room.
    pub(super) fn insert(&mut self, key: ClaimKey, hash: u32, state: State, expires: u32) {
        // An expiry in the past comes from a clock that was read earlier: one unit is enough.
        let expires = expires.max(self.clock.saturating_add(1));
        let chain = self.chain_of(hash);
        let bucket = expires as usize % WHEEL_BUCKETS;
        let record = Record {
            key,
            hash_and_state: with_state(hash, state),
            chain_next: self.chains[chain],
            bucket_next: self.wheel[bucket],
            expires,
        };
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
        self.has_barred |= state == State::Barred;
    }

    /// Drops records that expire up to unit `now`, and returns their number. Visits each record once
    /// (and once more per revolution of the wheel, if it lives longer than that).
    pub(super) fn advance(&mut self, now: u32) -> usize {
        if now <= self.clock {
            return 0;
        }
        let live = self.live;
        let first = self.clock + 1;
        let last = now.min(self.clock.saturating_add(WHEEL_BUCKETS as u32));
        self.clock = now;
        for unit in first..=last {
            self.sweep(unit as usize % WHEEL_BUCKETS, |record| record.expires <= now);
        }
        live - self.live
    }

    /// Drops all barred records, and returns their number.
    pub(super) fn drop_barred(&mut self) -> usize {
        let live = self.live;
        // A full shard refuses many claims, so a refusal should be cheap.
        if std::mem::take(&mut self.has_barred) {
            for bucket in 0..WHEEL_BUCKETS {
                self.sweep(bucket, |record| record.state() == State::Barred);
            }
        }
        live - self.live
    }

    /// Drops the records of a bucket that `is_over` returns true for, and moves the others to the bucket
    /// of their expiry.
    fn sweep(&mut self, bucket: usize, is_over: impl Fn(&Record) -> bool) {
        let mut link = std::mem::take(&mut self.wheel[bucket]);
        while link != 0 {
            let index = link as usize - 1;
            let record = self.slab[index];
            let Record { hash_and_state, bucket_next, expires, .. } = record;
            if is_over(&record) {
                self.unchain(link, hash_and_state);
                self.slab[index].bucket_next = self.free;
                self.free = link;
                self.live -= 1;
            } else {
                let bucket = expires as usize % WHEEL_BUCKETS;
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

    /// A shard has at most 2^22 chains, so only bits below the state select the chain.
    fn chain_of(&self, hash: u32) -> usize {
        hash as usize & (self.chains.len() - 1)
    }
}

fn with_state(hash: u32, state: State) -> u32 {
    (hash & ((1 << STATE_SHIFT) - 1)) | (state as u32) << STATE_SHIFT
}

/// Buckets of one unit each: more than a flight's record lives at the default settings.
pub(super) const WHEEL_BUCKETS: usize = 512;

/// The position of the state's bits.
const STATE_SHIFT: u32 = 30;
