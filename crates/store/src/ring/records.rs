//! What the ring asks of a store.

use std::future::Future;
use std::time::Duration;

use crate::{Store, StoreError};

/// Small records in a store, as [`Store`] has them. Tests have others, which forget and lose
/// answers when they are told to.
pub trait Records: Send + Sync {
    /// What tells this cluster's records from another's in the same store.
    fn cluster(&self) -> &str;
    /// See [`Store::get`].
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;
    /// See [`Store::put`].
    fn put(
        &self,
        key: &str,
        value: &[u8],
        life: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// See [`Store::put_new`].
    fn put_new(
        &self,
        key: &str,
        value: &[u8],
        life: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
    /// See [`Store::members`].
    fn members(&self, set: &str) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;
    /// See [`Store::add`].
    fn add(&self, set: &str, member: &str) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// See [`Store::remove`].
    fn remove(
        &self,
        set: &str,
        member: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl Records for Store {
    fn cluster(&self) -> &str {
        self.prefix()
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(key).await
    }

    async fn put(&self, key: &str, value: &[u8], life: Duration) -> Result<(), StoreError> {
        self.put(key, value, life).await
    }

    async fn put_new(&self, key: &str, value: &[u8], life: Duration) -> Result<bool, StoreError> {
        self.put_new(key, value, life).await
    }

    async fn members(&self, set: &str) -> Result<Vec<String>, StoreError> {
        self.members(set).await
    }

    async fn add(&self, set: &str, member: &str) -> Result<(), StoreError> {
        self.add(set, member).await
    }

    async fn remove(&self, set: &str, member: &str) -> Result<(), StoreError> {
        self.remove(set, member).await
    }
}
