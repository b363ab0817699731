//! The end of an order: the authority signs, and the certificate is fetched.
//!
//! From its first request on there may be a certificate, which counts against the authority's
//! limits whether it arrives or not. So the order and its key are on disk before, and are gone on
//! with.

use instant_acme::{Account, Error, Order, OrderStatus};
use tracing::{debug, info};

use super::{Ordering, POLL, refused};
use crate::acme::blocking::blocking;
use crate::acme::clock::now;
use crate::acme::error::words;
use crate::acme::key::Request;
use crate::acme::said::{FailureContext, in_words, is_gone, is_judged};
use crate::acme::state::Pending;
use crate::acme::{AcmeError, Issued, SharedRecords};

impl<S: SharedRecords> Ordering<'_, S> {
    /// Has a validated order signed for a new key.
    pub(super) async fn sign(
        &self,
        order: Order,
        said: &FailureContext<'_>,
    ) -> Result<Issued, AcmeError> {
        let request = Request::new(self.config.key, self.names.to_vec()).await?;
        let url = order.url().to_owned();
        let pending = Pending { url, key: request.key.clone(), since: now() };
        let (state, names) = (self.state.clone(), self.names.to_vec());
        blocking(move || state.save_pending(&names, &pending)).await?;
        self.note(false).await?;
        self.finish(order, request, said).await
    }

    /// Goes on with an order that was left; `None`: there is none, or the authority has none.
    pub(super) async fn resume(
        &self,
        account: &Account,
        said: &FailureContext<'_>,
    ) -> Result<Option<Issued>, AcmeError> {
        let Some(Pending { url, key, .. }) = self.state.pending(self.names, now())? else {
            return Ok(None);
        };
        let mut order = match account.order(url).await {
            Ok(order) => order,
            Err(error) if is_gone(&error) => {
                debug!("{}: the authority has forgotten the last order", self.names[0]);
                self.state.forget_pending(self.names);
                return Ok(None);
            }
            Err(error) => return Err(said.error(error)),
        };
        info!("{}: going on with the last order", self.names[0]);
        match order.state().status {
            OrderStatus::Pending => {
                self.state.forget_pending(self.names);
                Ok(None)
            }
            OrderStatus::Invalid => Err(self.spoiled(&mut order)),
            _ => {
                let request = Request::again(key, self.names)?;
                self.finish(order, request, said).await.map(Some)
            }
        }
    }

    async fn finish(
        &self,
        mut order: Order,
        request: Request,
        said: &FailureContext<'_>,
    ) -> Result<Issued, AcmeError> {
        if order.state().status == OrderStatus::Ready
            && let Err(error) = order.finalize_csr(&request.der).await
        {
            return Err(self.unfinished(&mut order, error, said));
        }
        match order.poll_certificate(&POLL).await {
            Ok(chain) => Issued::accept(self.names, &chain, request.key)
                .map_err(|reason| AcmeError::BadChain(words(&reason))),
            Err(error) => Err(self.unfinished(&mut order, error, said)),
        }
    }

    /// The order is over only if the authority says so, and has not signed.
    fn unfinished(&self, order: &mut Order, error: Error, said: &FailureContext<'_>) -> AcmeError {
        match order.state().status {
            OrderStatus::Invalid => self.spoiled(order),
            status => {
                if status != OrderStatus::Valid && is_judged(&error) {
                    self.state.forget_pending(self.names);
                }
                said.error(error)
            }
        }
    }

    fn spoiled(&self, order: &mut Order) -> AcmeError {
        self.state.forget_pending(self.names);
        match &order.state().error {
            Some(problem) => refused(&in_words(problem)),
            None => refused("the order became invalid"),
        }
    }
}
