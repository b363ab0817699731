//! A part of the register: a hash table with chaining and a timing wheel over the same slab.

use crate::ClaimKey;

/// A hash table with chaining and a timing wheel over the same slab of records. Links are an
/// index plus one, so that zeroed memory, which the system hands out untouched, means "none".
/// Time is counted in whole units of the register's.
pub(super) struct Shard {
    pub(super) chains: Vec<Link>,
    wheel: Vec<Link>,
    pub(super) slab: Vec<Record>,
    free: Link,
    live: usize,
    capacity: usize,
    pub(super) clock: u32,
}

pub(super) type Link = u32;

/// What a record says of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Somebody has won it.
    Claimed,
    /// Nobody has won it, or will.
    Barred,
    /// Who had won it has given it back.
    Released,
}

/// Half a cache line, and never across two.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct Record {
    pub(super) key: ClaimKey,
    /// The key's hash, kept so that expiry needs not compute it again, with the state in its two
    /// highest bits.
    hash_and_state: u32,
    pub(super) chain_next: Link,
    bucket_next: Link,
    pub(super) expires: u32,
}

impl Record {
    pub(super) fn state(&self) -> State {
        match self.hash_and_state >> STATE {
            0 => State::Claimed,
            1 => State::Barred,
            _ => State::Released,
        }
    }

    pub(super) fn set_state(&mut self, state: State) {
        self.hash_and_state = with_state(self.hash_and_state, state);
    }

    /// Lets the record live until `expires` at least. It stays in its bucket, from which it goes
    /// into the right one when its turn comes.
    pub(super) fn prolong(&mut self, expires: u32) {
        self.expires = self.expires.max(expires);
    }
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
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

    /// All records, in no order.
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        let linked = |first: &Link| {
            std::iter::successors(self.at(*first), |record| self.at(record.chain_next))
        };
        self.chains.iter().flat_map(linked)
    }

    fn at(&self, link: Link) -> Option<&Record> {
        self.slab.get((link as usize).checked_sub(1)?)
    }

    /// Adds a record that expires at the start of unit `expires`. There must be room.
    pub(super) fn insert(&mut self, key: ClaimKey, hash: u32, state: State, expires: u32) {
        // Whoever claims with an expiry in the past read its clock late: one unit is enough.
        let expires = expires.max(self.clock.saturating_add(1));
        let chain = self.chain_of(hash);
        let bucket = expires as usize % WHEEL;
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
    }

    /// Drops what expires up to unit `now` and says how many that were. Each record is visited
    /// once in its bucket (and once more per turn of the wheel, if it lives longer than that).
    pub(super) fn advance(&mut self, now: u32) -> usize {
        if now <= self.clock {
            return 0;
        }
        let live = self.live;
        let first = self.clock + 1;
        let last = now.min(self.clock.saturating_add(WHEEL as u32));
        self.clock = now;
        for unit in first..=last {
            self.sweep(unit as usize % WHEEL);
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
                let bucket = expires as usize % WHEEL;
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

    /// A shard has fewer chains than the bits of the state are worth.
    fn chain_of(&self, hash: u32) -> usize {
        hash as usize & (self.chains.len() - 1)
    }
}

fn with_state(hash: u32, state: State) -> u32 {
    (hash & ((1 << STATE) - 1)) | (state as u32) << STATE
}

/// Buckets of one unit: more than the longest life of a flight's record at the default settings.
pub(super) const WHEEL: usize = 512;

/// Where the state's bits start.
const STATE: u32 = 30;
