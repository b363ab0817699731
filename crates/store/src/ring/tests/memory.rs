//! A store in memory that can be made to lose data, fail and lose replies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::super::Records;
use crate::StoreError;

/// A node's access to a store in memory. Clones share the store and its failures.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    contents: Arc<Mutex<Contents>>,
    /// How many calls succeed before all fail, and whether failed calls take effect.
    failure: Arc<Mutex<Option<(u32, bool)>>>,
}

#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The store's clock, in seconds.
    pub(super) now: u64,
    pub(super) down: bool,
    /// Whether another node puts back what a `put` has replaced.
    pub(super) puts_back: bool,
    /// Values with the time at which they expire.
    pub(super) records: BTreeMap<String, (Vec<u8>, u64)>,
    pub(super) sets: BTreeMap<String, BTreeSet<String>>,
    /// Decides how calls of several nodes are interleaved.
    pub(super) rng: SeededRng,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { contents: Arc::default(), failure: Arc::default() }
    }

    /// Another node's access to the same store.
    pub(super) fn for_other_node(&self) -> Self {
        Self { contents: self.contents.clone(), failure: Arc::default() }
    }

    pub(super) fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap()
    }

    /// Sets how the next calls fail.
    pub(super) fn fail(&self, failure: Option<(u32, bool)>) {
        *self.failure.lock().unwrap() = failure;
    }

    async fn call<T>(&self, act: impl FnOnce(&mut Contents) -> T) -> Result<T, StoreError> {
        let pauses = self.contents().rng.up_to(3);
        for _ in 0..pauses {
            tokio::task::yield_now().await;
        }
        let absent = || StoreError::Absent("simulated failure".to_owned());
        let mut contents = self.contents();
        let mut failure = self.failure.lock().unwrap();
        let fails = match &mut *failure {
            Some((0, takes_effect)) => Some(*takes_effect),
            Some((remaining, _)) => {
                *remaining -= 1;
                None
            }
            None => None,
        };
        if contents.down || fails == Some(false) {
            return Err(absent());
        }
        contents.drop_expired();
        let result = act(&mut contents);
        if fails.is_some() { Err(absent()) } else { Ok(result) }
    }
}

impl Contents {
    pub(super) fn flush(&mut self) {
        self.records.clear();
        self.sets.clear();
    }

    fn drop_expired(&mut self) {
        let now = self.now;
        self.records.retain(|_, (_, until)| *until > now);
    }

    fn put(&mut self, key: &str, value: &[u8], ttl: Duration) {
        let until = self.now + ttl.as_secs();
        self.records.insert(key.to_owned(), (value.to_vec(), until));
    }
}

impl Records for Memory {
    fn cluster(&self) -> &str {
        "test"
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.call(|all| all.records.get(key).map(|(value, _)| value.clone())).await
    }

    async fn put(&self, key: &str, value: &[u8], ttl: Duration) -> Result<(), StoreError> {
        self.call(|all| {
            if !all.puts_back || !all.records.contains_key(key) {
                all.put(key, value, ttl);
            }
        })
        .await
    }

    async fn put_new(&self, key: &str, value: &[u8], ttl: Duration) -> Result<bool, StoreError> {
        self.call(|all| {
            let new = !all.records.contains_key(key);
            if new {
                all.put(key, value, ttl);
            }
            new
        })
        .await
    }

    async fn members(&self, set: &str) -> Result<Vec<String>, StoreError> {
        self.call(|all| all.sets.get(set).into_iter().flatten().cloned().collect()).await
    }

    async fn add(&self, set: &str, member: &str) -> Result<(), StoreError> {
        self.call(|all| {
            all.sets.entry(set.to_owned()).or_default().insert(member.to_owned());
        })
        .await
    }

    async fn remove(&self, set: &str, member: &str) -> Result<(), StoreError> {
        self.call(|all| {
            all.sets.entry(set.to_owned()).or_default().remove(member);
        })
        .await
    }
}

/// Random numbers that depend only on the seed (SplitMix64).
#[derive(Debug, Default)]
pub(super) struct SeededRng(pub(super) u64);

impl SeededRng {
    /// A number from 0 to `max`.
    pub(super) fn up_to(&mut self, max: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % (max + 1)
    }
}
