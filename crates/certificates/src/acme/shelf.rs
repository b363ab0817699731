//! What nodes that serve the same names share: who orders, what to answer, what came of it.

use std::future::Future;
use std::time::Duration;

/// A place for small secret records with a life, which all nodes see. Records are at most 64 KiB.
/// Who implements it seals them: there are private keys among them.
pub trait Shelf: Send + Sync + 'static {
    /// Whether there are other nodes at all. Where there are none nothing is asked or put.
    fn is_shared(&self) -> bool {
        true
    }

    /// The record of this name; `None`: there is none, or its life is over, or what lies there
    /// cannot be read. Who holds what belongs there then puts it again.
    ///
    /// # Errors
    /// [`ShelfError`].
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<Vec<u8>>, ShelfError>> + Send;

    /// Puts a record, whatever was there.
    ///
    /// # Errors
    /// [`ShelfError`].
    fn put(
        &self,
        name: &str,
        record: &[u8],
        life: Duration,
    ) -> impl Future<Output = Result<(), ShelfError>> + Send;

    /// Puts a record if there is none, in one step; says whether it did.
    ///
    /// # Errors
    /// [`ShelfError`].
    fn put_new(
        &self,
        name: &str,
        record: &[u8],
        life: Duration,
    ) -> impl Future<Output = Result<bool, ShelfError>> + Send;

    /// Takes a record away, if it is there.
    ///
    /// # Errors
    /// [`ShelfError`].
    fn remove(&self, name: &str) -> impl Future<Output = Result<(), ShelfError>> + Send;
}

/// Why the shelf could not be asked: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ShelfError(pub String);

/// No other nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Shelf for Alone {
    fn is_shared(&self) -> bool {
        false
    }

    async fn get(&self, _: &str) -> Result<Option<Vec<u8>>, ShelfError> {
        Ok(None)
    }

    async fn put(&self, _: &str, _: &[u8], _: Duration) -> Result<(), ShelfError> {
        Ok(())
    }

    async fn put_new(&self, _: &str, _: &[u8], _: Duration) -> Result<bool, ShelfError> {
        Ok(true)
    }

    async fn remove(&self, _: &str) -> Result<(), ShelfError> {
        Ok(())
    }
}
