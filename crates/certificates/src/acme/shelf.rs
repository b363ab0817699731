//! What nodes that serve the same names share: who orders, what to answer, what came of it.

use std::future::Future;
use std::time::Duration;

/// A place for small secret records with a life, which all nodes see. Records are at most 64 KiB.
/// Who implements it seals them: there are private keys among them.
pub trait SharedRecords: Send + Sync + 'static {
    /// Whether there are other nodes at all. Where there are none nothing is asked or put.
    fn is_shared(&self) -> bool {
        true
    }

    /// The record of this name; `None`: there is none, or its life is over, or what lies there
    /// cannot be read. Who holds what belongs there then puts it again.
    ///
    /// # Errors
    /// [`SharedRecordsError`].
    fn get(
        &self,
        name: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, SharedRecordsError>> + Send;

    /// Puts a record, whatever was there.
    ///
    /// # Errors
    /// [`SharedRecordsError`].
    fn put(
        &self,
        name: &str,
        record: &[u8],
        life: Duration,
    ) -> impl Future<Output = Result<(), SharedRecordsError>> + Send;

    /// Puts a record if there is none, in one step; says whether it did.
    ///
    /// # Errors
    /// [`SharedRecordsError`].
    fn put_new(
        &self,
        name: &str,
        record: &[u8],
        life: Duration,
    ) -> impl Future<Output = Result<bool, SharedRecordsError>> + Send;

    /// Takes a record away, if it is there.
    ///
    /// # Errors
    /// [`SharedRecordsError`].
    fn remove(&self, name: &str) -> impl Future<Output = Result<(), SharedRecordsError>> + Send;
}

/// Why the shelf could not be asked: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SharedRecordsError(pub String);

/// No other nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleNode;

impl SharedRecords for SingleNode {
    fn is_shared(&self) -> bool {
        false
    }

    async fn get(&self, _: &str) -> Result<Option<Vec<u8>>, SharedRecordsError> {
        Ok(None)
    }

    async fn put(&self, _: &str, _: &[u8], _: Duration) -> Result<(), SharedRecordsError> {
        Ok(())
    }

    async fn put_new(&self, _: &str, _: &[u8], _: Duration) -> Result<bool, SharedRecordsError> {
        Ok(true)
    }

    async fn remove(&self, _: &str) -> Result<(), SharedRecordsError> {
        Ok(())
    }
}
