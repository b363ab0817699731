//! Coordination of renewal with the other nodes.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::{POLL_INTERVAL, RenewalTask};
use crate::acme::now;
use crate::acme::sharing::NodeSharing;
use crate::acme::{
    AcmeError, ChallengeResponses, IssuedCertificate, Phase, SharedRecords, SharedRecordsError,
};

impl<S: SharedRecords> RenewalTask<S> {
    /// Orders for all nodes. The caller holds the lease.
    pub(super) async fn order_for_all(
        &mut self,
        index: usize,
        sharing: &Arc<NodeSharing<S>>,
    ) -> Result<(), AcmeError> {
        // The store can be reached, since it granted the lease. A record that cannot be read is
        // overwritten, so that it does not block all nodes.
        if let Err(error) = self.exchange(index).await {
            warn!("{}: cannot read the certificate of another node: {error}", self.name(index));
        }
        let certificate = &mut self.certificates[index];
        if let Ok(Some(failures)) = sharing.failures(&certificate.names).await {
            failures.merge(&mut certificate.history, now());
        }
        if !certificate.is_due(now()) {
            return Ok(());
        }
        let result = self.place_order(index, Some(sharing)).await;
        if let Err(error) = self.publish_result(index, sharing, result.as_ref().err()).await {
            warn!("{}: cannot publish the result to the other nodes: {error}", self.name(index));
        }

        result
    }

    /// Publishes the result of an order to the other nodes.
    async fn publish_result(
        &self,
        index: usize,
        sharing: &NodeSharing<S>,
        error: Option<&AcmeError>,
    ) -> Result<(), SharedRecordsError> {
        let certificate = &self.certificates[index];
        match (error, certificate.complete()) {
            (None, Some(issued)) => {
                sharing.put_certificate(issued, now()).await?;
                sharing.clear_failures(&certificate.names).await
            }
            (Some(error), _) => {
                let history = certificate.history_after(error, now());
                sharing.put_failures(&certificate.names, &history).await
            }
            (None, None) => Ok(()),
        }
    }

    /// Releases this node's lease, and publishes the failure of an aborted order.
    pub(super) async fn release_lease(
        &self,
        sharing: &NodeSharing<S>,
        failed: Option<usize>,
    ) -> Result<(), SharedRecordsError> {
        if let Some(certificate) = failed.map(|index| &self.certificates[index]) {
            sharing.put_failures(&certificate.names, &certificate.history).await?;
        }
        sharing.release().await
    }

    /// Adopts a better certificate of another node, or publishes its own.
    pub(super) async fn exchange(&mut self, index: usize) -> Result<(), AcmeError> {
        let Some(sharing) = self.sharing.clone() else { return Ok(()) };
        let certificate = &mut self.certificates[index];
        let shared = sharing.certificate(&certificate.names).await?;
        let current = certificate.complete().cloned();
        match (shared, current) {
            (Some(shared), current)
                if current.as_ref().is_none_or(|it| shared.is_better_than(it)) =>
            {
                self.adopt(index, shared).await;
                Ok(())
            }
            (Some(shared), Some(current)) if !current.is_better_than(&shared) => Ok(()),
            (_, Some(current)) => Ok(sharing.put_certificate(&current, now()).await?),
            (_, None) => Ok(()),
        }
    }

    async fn adopt(&mut self, index: usize, shared: IssuedCertificate) {
        let certificate = &mut self.certificates[index];
        info!("{}: adopted the certificate of another node", certificate.names[0]);
        certificate.history.adopt(shared.not_before, now());
        certificate.adopt_if_better(shared);
        certificate.phase = Phase::Waiting;
        (certificate.paused_until, certificate.elsewhere_since) = (None, None);
        certificate.unsaved = true;
        self.save_unsaved().await;
        self.publish();
    }
}

/// Serves the challenge responses of other nodes, and notifies when one of their orders completes.
pub(super) async fn follow<S: SharedRecords>(
    sharing: Option<Arc<NodeSharing<S>>>,
    responses: ChallengeResponses,
    order_completed: Arc<Notify>,
) {
    let Some(sharing) = sharing else { return std::future::pending().await };
    let mut served = Vec::new();
    loop {
        match sharing.responses().await {
            Ok(proofs) if proofs == served => {}
            Ok(proofs) => {
                if let Err(error) = responses.serve_for_others(&proofs) {
                    warn!("cannot respond to the challenge of another node: {error}");
                }
                if proofs.is_empty() {
                    order_completed.notify_one();
                }
                served = proofs;
            }
            Err(SharedRecordsError(error)) => {
                debug!("cannot read the challenges of other nodes: {error}")
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}
