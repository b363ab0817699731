//! The store as the rest of the program sees it.

use std::sync::Arc;
use std::time::Duration;

use firstflight_replay::{ClaimKey, StoreAnswer, Unknown};

use crate::{StoreConfig, StoreError};

/// A store that nodes share. Cheap to clone; its connections are made and kept by tasks of their
/// own, so a store that is not there is no error here.
#[derive(Debug, Clone)]
pub struct Store(Arc<StoreConfig>);

/// What came of [`Store::take`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The value, which is gone from the store now.
    pub value: Option<Vec<u8>>,
    /// Whether the store has recorded without a gap, so that nobody else can have taken it too.
    pub counts: Result<(), Unknown>,
}

/// Counters, for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStatistics {
    /// Claims won.
    pub won: u64,
    /// Claims lost.
    pub lost: u64,
    /// Claims whose outcome is not known.
    pub unknown: u64,
}

impl Store {
    /// Begins to connect, inside a tokio runtime. `unix_micros` is this node's clock, the one by
    /// which ticket ages are measured.
    ///
    /// # Errors
    /// [`StoreError::Setting`] for a configuration that cannot be; never for an absent store.
    pub fn open(config: StoreConfig, unix_micros: fn() -> i64) -> Result<Self, StoreError> {
        let _ = unix_micros;
        Ok(Self(Arc::new(config)))
    }

    /// Claims a flight for [`firstflight_replay::SharedConfig::record_life`], within the budget.
    pub async fn claim(&self, key: ClaimKey) -> StoreAnswer {
        let _ = key;
        StoreAnswer::Unknown(Unknown::Absent)
    }

    /// Why claims are not even tried now, if so: the breaker is open.
    pub fn resting(&self) -> Option<Unknown> {
        Some(Unknown::Absent)
    }

    /// The counters.
    pub fn statistics(&self) -> StoreStatistics {
        StoreStatistics::default()
    }

    /// The record at `key`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let _ = key;
        Err(self.absent())
    }

    /// Writes a record that the store drops after `life`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put(&self, key: &str, value: &[u8], life: Duration) -> Result<(), StoreError> {
        let _ = (key, value, life);
        Err(self.absent())
    }

    /// Writes a record unless there is one. Whether it was written.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put_new(
        &self,
        key: &str,
        value: &[u8],
        life: Duration,
    ) -> Result<bool, StoreError> {
        let _ = (key, value, life);
        Err(self.absent())
    }

    /// Reads a record and removes it, in one step (`GETDEL`), within the budget.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn take(&self, key: &str) -> Result<Taken, StoreError> {
        let _ = key;
        Err(self.absent())
    }

    /// The members of a small set.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn members(&self, set: &str) -> Result<Vec<String>, StoreError> {
        let _ = set;
        Err(self.absent())
    }

    /// Adds a member to a small set.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn add(&self, set: &str, member: &str) -> Result<(), StoreError> {
        let _ = (set, member);
        Err(self.absent())
    }

    /// Removes a member from a small set.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn remove(&self, set: &str, member: &str) -> Result<(), StoreError> {
        let _ = (set, member);
        Err(self.absent())
    }

    fn absent(&self) -> StoreError {
        StoreError::Absent(format!("{:?}", self.0.topology))
    }
}
