//! What a keeper has to do with other nodes.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::{LOOK, RenewalTask};
use crate::acme::clock::now;
use crate::acme::sharing::NodeSharing;
use crate::acme::{AcmeError, Answers, Issued, Phase, SharedRecords, SharedRecordsError};

impl<S: SharedRecords> RenewalTask<S> {
    /// With the lease.
    pub(super) async fn order_for_all(
        &mut self,
        index: usize,
        sharing: &Arc<NodeSharing<S>>,
    ) -> Result<(), AcmeError> {
        // The store is there, or there were no lease. A record in it that cannot be read is written
        // over, and must not keep everybody from asking.
        if let Err(error) = self.exchange(index).await {
            warn!("{}: what another node has cannot be read: {error}", self.name(index));
        }
        let certificate = &mut self.certificates[index];
        if let Ok(Some(trouble)) = sharing.trouble(&certificate.names).await {
            trouble.join(&mut certificate.history, now());
        }
        if !certificate.is_due(now()) {
            return Ok(());
        }
        let asked = self.ask(index, Some(sharing)).await;
        if let Err(error) = self.tell(index, sharing, asked.as_ref().err()).await {
            warn!("{}: the other nodes do not know what came of it: {error}", self.name(index));
        }
        asked
    }

    /// Tells the other nodes what came of an order.
    async fn tell(
        &self,
        index: usize,
        sharing: &NodeSharing<S>,
        error: Option<&AcmeError>,
    ) -> Result<(), SharedRecordsError> {
        let certificate = &self.certificates[index];
        match (error, certificate.whole()) {
            (None, Some(issued)) => {
                sharing.put_certificate(issued, now()).await?;
                sharing.clear_trouble(&certificate.names).await
            }
            (Some(error), _) => {
                let history = certificate.after(error, now());
                sharing.put_trouble(&certificate.names, &history).await
            }
            (None, None) => Ok(()),
        }
    }

    /// Ends this node's lease, and tells of the order that was left, if it failed by that.
    pub(super) async fn give_back(
        &self,
        sharing: &NodeSharing<S>,
        failed: Option<usize>,
    ) -> Result<(), SharedRecordsError> {
        if let Some(certificate) = failed.map(|index| &self.certificates[index]) {
            sharing.put_trouble(&certificate.names, &certificate.history).await?;
        }
        sharing.release().await
    }

    /// Takes up what another node has, and puts there what none has.
    pub(super) async fn exchange(&mut self, index: usize) -> Result<(), AcmeError> {
        let Some(sharing) = self.sharing.clone() else { return Ok(()) };
        let certificate = &mut self.certificates[index];
        let shared = sharing.certificate(&certificate.names).await?;
        let held = certificate.whole().cloned();
        match (shared, held) {
            (Some(shared), held) if held.as_ref().is_none_or(|it| shared.is_better_than(it)) => {
                self.take_up(index, shared).await;
                Ok(())
            }
            (Some(shared), Some(held)) if !held.is_better_than(&shared) => Ok(()),
            (_, Some(held)) => Ok(sharing.put_certificate(&held, now()).await?),
            (_, None) => Ok(()),
        }
    }

    async fn take_up(&mut self, index: usize, shared: Issued) {
        let certificate = &mut self.certificates[index];
        info!("{}: another node had a certificate issued", certificate.names[0]);
        certificate.take_better(shared);
        certificate.history.success(now());
        certificate.phase = Phase::Waiting;
        (certificate.hold, certificate.elsewhere) = (None, None);
        certificate.unsaved = true;
        self.save_unsaved().await;
        self.publish();
    }
}

/// Answers for other nodes what they put on the shelf, and tells when an order of theirs is over.
pub(super) async fn follow<S: SharedRecords>(
    sharing: Option<Arc<NodeSharing<S>>>,
    answers: Answers,
    news: Arc<Notify>,
) {
    let Some(sharing) = sharing else { return std::future::pending().await };
    let mut standing = Vec::new();
    loop {
        match sharing.answers().await {
            Ok(proofs) if proofs == standing => {}
            Ok(proofs) => {
                if let Err(error) = answers.stand_in(&proofs) {
                    warn!("another node's challenge cannot be answered here: {error}");
                }
                if proofs.is_empty() {
                    news.notify_one();
                }
                standing = proofs;
            }
            Err(SharedRecordsError(error)) => {
                debug!("what other nodes have to answer is unknown: {error}")
            }
        }
        sleep(LOOK).await;
    }
}
