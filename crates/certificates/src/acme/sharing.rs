//! Records that nodes with the same sites share: who orders, the challenge responses, and the
//! result.

use std::future::Future;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::acme::challenge::Proof;
use crate::acme::names::{digest_label, label};
use crate::acme::schedule::{Failures, History, ORDER_TIMEOUT};
use crate::acme::{Directory, IssuedCertificate};

/// A store of small records with a lifetime, shared by all nodes. Records are at most 64 KiB.
/// Implementations have to encrypt them: they contain private keys.
pub trait SharedRecords: Send + Sync + 'static {
    /// Whether there are other nodes. If not, nothing is read or written.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns the record of this name, or `None` if there is none, it has expired, or it cannot be
    /// decrypted. The node that owns it then writes it again.
    ///
    /// # Errors
    /// [`SharedRecordsError`].
    fn get(
        &self,
        name: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, SharedRecordsError>> + Send;

    /// Writes a record, replacing an existing one.
    ///
    /// # Errors
    /// [`SharedRecordsError`].
    fn put(
        &self,
        name: &str,
        record: &[u8],
        lifetime: Duration,
    ) -> impl Future<Output = Result<(), SharedRecordsError>> + Send;

    /// Writes a record if there is none, atomically. Returns whether it did.
    ///
    /// # Errors
    /// [`SharedRecordsError`].
    fn put_new(
        &self,
        name: &str,
        record: &[u8],
        lifetime: Duration,
    ) -> impl Future<Output = Result<bool, SharedRecordsError>> + Send;

    /// Removes a record, if it exists.
    ///
    /// # Errors
    /// [`SharedRecordsError`].
    fn remove(&self, name: &str) -> impl Future<Output = Result<(), SharedRecordsError>> + Send;
}

/// Why the shared records cannot be used, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SharedRecordsError(pub String);

/// A single node, which shares nothing.
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

/// The shared records of one authority, and this node's name in them:
///
/// - `AUTHORITY/lease`: the node that orders;
/// - `AUTHORITY/answers`: the challenge responses that every node serves for it;
/// - `AUTHORITY/certificate/NAME`: the issued certificate; `AUTHORITY/failures/NAME`: the failures.
pub(crate) struct NodeSharing<S> {
    records: S,
    /// The authority that the records belong to.
    scope: String,
    /// Random; identifies this node's lease.
    node: String,
}

/// Failures that concern all nodes, because the authority limits attempts per name.
#[derive(Deserialize, Serialize)]
pub(crate) struct SharedFailures {
    refused: Option<Failures>,
    #[serde(rename = "not_until")]
    retry_after: Option<i64>,
    reason: Option<String>,
}

impl<S: SharedRecords> NodeSharing<S> {
    pub(crate) fn new(records: S, directory: &Directory) -> Self {
        let url = directory.to_string();
        let host = url.split('/').nth(2).unwrap_or_default();
        let node = format!("{:032x}", rand::random::<u128>());
        Self { records, scope: digest_label(host, &url), node }
    }

    /// Takes the lease. Returns whether this node may order; others may not for as long as an order
    /// can take.
    pub(crate) async fn lease(&self) -> Result<bool, SharedRecordsError> {
        self.records.put_new(&self.record_name("lease"), self.node.as_bytes(), LEASE_LIFETIME).await
    }

    /// Removes this node's lease and its challenge responses. The lease of another node stays.
    pub(crate) async fn release(&self) -> Result<(), SharedRecordsError> {
        let current = self.records.get(&self.record_name("lease")).await?;
        if current.as_deref() == Some(self.node.as_bytes()) {
            self.records.remove(&self.record_name("answers")).await?;
            self.records.remove(&self.record_name("lease")).await?;
        }
        Ok(())
    }

    pub(crate) async fn put_responses(&self, proofs: &[Proof]) -> Result<(), SharedRecordsError> {
        self.records.put(&self.record_name("answers"), &json(&proofs), LEASE_LIFETIME).await
    }

    pub(crate) async fn responses(&self) -> Result<Vec<Proof>, SharedRecordsError> {
        let record = self.records.get(&self.record_name("answers")).await?;
        // A record that a node of another version wrote is ignored.
        Ok(record.and_then(|record| serde_json::from_slice(&record).ok()).unwrap_or_default())
    }

    pub(crate) async fn put_certificate(
        &self,
        issued: &IssuedCertificate,
        now: i64,
    ) -> Result<(), SharedRecordsError> {
        let lifetime = u64::try_from(issued.not_after - now).unwrap_or(0);
        if lifetime == 0 {
            return Ok(());
        }
        let text = Zeroizing::new(format!("{}{}", *issued.key, issued.chain));
        let name = self.record_name(&format!("certificate/{}", label(&issued.names)));
        self.records.put(&name, text.as_bytes(), Duration::from_secs(lifetime)).await
    }

    pub(crate) async fn certificate(
        &self,
        names: &[String],
    ) -> Result<Option<IssuedCertificate>, SharedRecordsError> {
        let name = self.record_name(&format!("certificate/{}", label(names)));
        let record = self.records.get(&name).await?.map(Zeroizing::new);
        let text = record.as_ref().and_then(|record| std::str::from_utf8(record).ok());
        Ok(text.and_then(|text| IssuedCertificate::from_pem(names, text).ok()))
    }

    pub(crate) async fn put_failures(
        &self,
        names: &[String],
        history: &History,
    ) -> Result<(), SharedRecordsError> {
        let name = self.record_name(&format!("failures/{}", label(names)));
        let History { refused, retry_after, reason, .. } = history.clone();
        let failures = SharedFailures { refused, retry_after, reason };
        self.records.put(&name, &json(&failures), FAILURES_LIFETIME).await
    }

    pub(crate) async fn failures(
        &self,
        names: &[String],
    ) -> Result<Option<SharedFailures>, SharedRecordsError> {
        let name = self.record_name(&format!("failures/{}", label(names)));
        let record = self.records.get(&name).await?;
        Ok(record.and_then(|record| serde_json::from_slice(&record).ok()))
    }

    pub(crate) async fn clear_failures(&self, names: &[String]) -> Result<(), SharedRecordsError> {
        self.records.remove(&self.record_name(&format!("failures/{}", label(names)))).await
    }

    fn record_name(&self, what: &str) -> String {
        format!("{}/{what}", self.scope)
    }
}

impl SharedFailures {
    /// Merges the failures of another node, if they are new. Its clock may be ahead: a time in the
    /// future is taken as now, and only once.
    pub(crate) fn merge(self, history: &mut History, now: i64) {
        let local = history.refused.map_or(i64::MIN, |refused| refused.at);
        let is_new = |refused: &Failures| refused.at > local && Some(*refused) != history.merged;
        let Some(refused) = self.refused.filter(is_new) else { return };
        let ahead = refused.at.saturating_sub(now).max(0);
        history.merged = Some(refused);
        history.refused = Some(Failures { at: refused.at - ahead, ..refused });
        let retry_after = self.retry_after.map(|at| at.saturating_sub(ahead));
        history.retry_after = history.retry_after.max(retry_after);
        history.reason = self.reason;
    }
}

fn json(content: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(content).unwrap_or_default()
}

/// How long the others wait for a node that died during an order.
const LEASE_LIFETIME: Duration = ORDER_TIMEOUT.saturating_add(Duration::from_secs(60));

/// As long as the longest pause between attempts.
const FAILURES_LIFETIME: Duration = Duration::from_secs(8 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acme::schedule::{Severity, next_attempt};

    #[test]
    fn new_failures_of_other_nodes_are_merged() {
        let failed = |at| {
            let mut history = History::default();
            history.failure(at, Severity::Refused, Some(at + 50), format!("at {at}"));
            history
        };
        let shared = |history: History| SharedFailures {
            refused: history.refused,
            retry_after: history.retry_after,
            reason: history.reason,
        };
        let mut local = failed(10);
        shared(failed(20)).merge(&mut local, 30);
        assert_eq!((local.retry_after, local.reason.as_deref()), (Some(70), Some("at 20")));
        shared(failed(15)).merge(&mut local, 30);
        assert_eq!(local.reason.as_deref(), Some("at 20"));
        shared(History::default()).merge(&mut local, 30);
        assert_eq!(local.refused.unwrap().at, 20);
        // A node whose clock is a year ahead does not block the others for a year.
        let year = 365 * 86_400;
        shared(failed(year)).merge(&mut local, 30);
        assert_eq!(local.refused, Some(Failures { count: 1, at: 30 }));
        let next = next_attempt(30, None, None, &local);
        assert!((630..=930).contains(&next), "{next}");
        // It is due now, and finds the same record again: nothing new.
        shared(failed(year)).merge(&mut local, next);
        assert_eq!((local.refused.unwrap().at, next_attempt(next, None, None, &local)), (30, next));
    }
}
