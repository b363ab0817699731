//! The records that nodes share, and what they mean.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::acme::challenge::Proof;
use crate::acme::names::{label, labelled};
use crate::acme::plan::{History, Row};
use crate::acme::{Directory, Issued, SharedRecords, SharedRecordsError, order};

/// A shelf, and this node's name on it:
///
/// - `AUTHORITY/lease`: who orders;
/// - `AUTHORITY/answers`: what every node answers for it meanwhile;
/// - `AUTHORITY/certificate/NAME`: what came of it, `AUTHORITY/trouble/NAME`: or why nothing did.
pub(crate) struct NodeSharing<S> {
    shelf: S,
    /// Which authority the records are about.
    scope: String,
    /// Random, so that a node knows its own lease.
    node: String,
}

/// Failures that all nodes reckon with: they share the names' limits.
#[derive(Deserialize, Serialize)]
pub(crate) struct SharedTrouble {
    refused: Option<Row>,
    not_until: Option<i64>,
    reason: Option<String>,
}

impl<S: SharedRecords> NodeSharing<S> {
    pub(crate) fn new(shelf: S, directory: &Directory) -> Self {
        let url = directory.to_string();
        let host = url.split('/').nth(2).unwrap_or_default();
        let node = format!("{:032x}", rand::random::<u128>());
        Self { shelf, scope: labelled(host, &url), node }
    }

    /// Whether this node may order now; others may not for as long as an order can take.
    pub(crate) async fn lease(&self) -> Result<bool, SharedRecordsError> {
        self.shelf.put_new(&self.at("lease"), self.node.as_bytes(), LEASE).await
    }

    /// Ends what the lease was for. The lease of another stays.
    pub(crate) async fn release(&self) -> Result<(), SharedRecordsError> {
        let held = self.shelf.get(&self.at("lease")).await?;
        if held.as_deref() == Some(self.node.as_bytes()) {
            self.shelf.remove(&self.at("answers")).await?;
            self.shelf.remove(&self.at("lease")).await?;
        }
        Ok(())
    }

    pub(crate) async fn put_answers(&self, proofs: &[Proof]) -> Result<(), SharedRecordsError> {
        self.shelf.put(&self.at("answers"), &json(&proofs), LEASE).await
    }

    pub(crate) async fn answers(&self) -> Result<Vec<Proof>, SharedRecordsError> {
        let record = self.shelf.get(&self.at("answers")).await?;
        // What a node of another version wrote is none of ours.
        Ok(record.and_then(|record| serde_json::from_slice(&record).ok()).unwrap_or_default())
    }

    pub(crate) async fn put_certificate(
        &self,
        issued: &Issued,
        now: i64,
    ) -> Result<(), SharedRecordsError> {
        let life = u64::try_from(issued.not_after - now).unwrap_or(0);
        if life == 0 {
            return Ok(());
        }
        let text = Zeroizing::new(format!("{}{}", *issued.key, issued.chain));
        let name = self.at(&format!("certificate/{}", label(&issued.names)));
        self.shelf.put(&name, text.as_bytes(), Duration::from_secs(life)).await
    }

    pub(crate) async fn certificate(
        &self,
        names: &[String],
    ) -> Result<Option<Issued>, SharedRecordsError> {
        let name = self.at(&format!("certificate/{}", label(names)));
        let record = self.shelf.get(&name).await?.map(Zeroizing::new);
        let text = record.as_ref().and_then(|record| std::str::from_utf8(record).ok());
        Ok(text.and_then(|text| Issued::from_pem(names, text).ok()))
    }

    pub(crate) async fn put_trouble(
        &self,
        names: &[String],
        history: &History,
    ) -> Result<(), SharedRecordsError> {
        let name = self.at(&format!("trouble/{}", label(names)));
        let History { refused, not_until, reason, .. } = history.clone();
        let trouble = SharedTrouble { refused, not_until, reason };
        self.shelf.put(&name, &json(&trouble), TROUBLE).await
    }

    pub(crate) async fn trouble(
        &self,
        names: &[String],
    ) -> Result<Option<SharedTrouble>, SharedRecordsError> {
        let name = self.at(&format!("trouble/{}", label(names)));
        let record = self.shelf.get(&name).await?;
        Ok(record.and_then(|record| serde_json::from_slice(&record).ok()))
    }

    pub(crate) async fn clear_trouble(&self, names: &[String]) -> Result<(), SharedRecordsError> {
        self.shelf.remove(&self.at(&format!("trouble/{}", label(names)))).await
    }

    fn at(&self, what: &str) -> String {
        format!("{}/{what}", self.scope)
    }
}

impl SharedTrouble {
    /// Reckons with what another node met, if it is news. Its clock may be ahead: what lies in the
    /// future happened now, and once.
    pub(crate) fn join(self, history: &mut History, now: i64) {
        let ours = history.refused.map_or(i64::MIN, |row| row.at);
        let news = |row: &Row| row.at > ours && Some(*row) != history.joined;
        let Some(row) = self.refused.filter(news) else { return };
        let ahead = row.at.saturating_sub(now).max(0);
        history.joined = Some(row);
        history.refused = Some(Row { at: row.at - ahead, ..row });
        let until = self.not_until.map(|at| at.saturating_sub(ahead));
        history.not_until = history.not_until.max(until);
        history.reason = self.reason;
    }
}

fn json(content: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(content).unwrap_or_default()
}

/// A node that dies while it orders is waited for so long.
const LEASE: Duration = order::ORDER_TIMEOUT.saturating_add(Duration::from_secs(60));

/// As long as the longest pause between tries.
const TROUBLE: Duration = Duration::from_secs(8 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acme::plan::{Severity, next_try};

    #[test]
    fn news_of_trouble_is_reckoned_with() {
        let failed = |at| {
            let mut history = History::default();
            history.failure(at, Severity::Refused, Some(at + 50), format!("at {at}"));
            history
        };
        let shared = |history: History| SharedTrouble {
            refused: history.refused,
            not_until: history.not_until,
            reason: history.reason,
        };
        let mut ours = failed(10);
        shared(failed(20)).join(&mut ours, 30);
        assert_eq!((ours.not_until, ours.reason.as_deref()), (Some(70), Some("at 20")));
        shared(failed(15)).join(&mut ours, 30);
        assert_eq!(ours.reason.as_deref(), Some("at 20"));
        shared(History::default()).join(&mut ours, 30);
        assert_eq!(ours.refused.unwrap().at, 20);
        // A node whose clock is a year ahead does not stop the others for a year.
        let year = 365 * 86_400;
        shared(failed(year)).join(&mut ours, 30);
        assert_eq!(ours.refused, Some(Row { times: 1, at: 30 }));
        let next = next_try(30, None, None, &ours);
        assert!((630..=930).contains(&next), "{next}");
        // It is due now, and finds the same again: no news.
        shared(failed(year)).join(&mut ours, next);
        assert_eq!((ours.refused.unwrap().at, next_try(next, None, None, &ours)), (30, next));
    }
}
