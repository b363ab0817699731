//! Finalization of an order: the authority signs, and the certificate is downloaded.
//!
//! Once finalization is requested, there may be a certificate that counts against the authority's
//! limits, whether it arrives or not. So the order and its key are stored before, and an
//! interrupted order is resumed.

use firstflight_tls::generate_rsa_key;
use instant_acme::{Account, Error, Order, OrderStatus};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
};
use tracing::{debug, info};
use zeroize::Zeroizing;

use super::{OrderRequest, POLL, refused};
use crate::acme::client::{ErrorContext, is_final, is_not_found, problem_text};
use crate::acme::error::sanitized;
use crate::acme::now;
use crate::acme::storage::PendingOrder;
use crate::acme::storage::blocking;
use crate::acme::{AcmeError, IssuedCertificate, KeyKind, SharedRecords};

impl<S: SharedRecords> OrderRequest<'_, S> {
    /// Finalizes a validated order with a new key.
    pub(super) async fn sign(
        &self,
        order: Order,
        context: &ErrorContext<'_>,
    ) -> Result<IssuedCertificate, AcmeError> {
        let request = SigningRequest::new(self.config.key, self.names.to_vec()).await?;
        let url = order.url().to_owned();
        let pending = PendingOrder { url, key: request.key.clone(), since: now() };
        let (state, names) = (self.state.clone(), self.names.to_vec());
        blocking(move || state.save_pending(&names, &pending)).await?;
        self.record_validation(false).await?;
        self.finish(order, request, context).await
    }

    /// Resumes a stored order. Returns `None` if there is none, or the authority no longer has it.
    pub(super) async fn resume(
        &self,
        account: &Account,
        context: &ErrorContext<'_>,
    ) -> Result<Option<IssuedCertificate>, AcmeError> {
        let Some(PendingOrder { url, key, .. }) = self.state.pending(self.names, now())? else {
            return Ok(None);
        };
        let mut order = match account.order(url).await {
            Ok(order) => order,
            Err(error) if is_not_found(&error) => {
                debug!("{}: the authority no longer has the last order", self.names[0]);
                self.state.forget_pending(self.names);
                return Ok(None);
            }
            Err(error) => return Err(context.error(error)),
        };
        info!("{}: resuming the last order", self.names[0]);
        match order.state().status {
            OrderStatus::Pending => {
                self.state.forget_pending(self.names);
                Ok(None)
            }
            OrderStatus::Invalid => Err(self.rejected(&mut order)),
            _ => {
                let request = SigningRequest::for_key(key, self.names)?;
                self.finish(order, request, context).await.map(Some)
            }
        }
    }

    async fn finish(
        &self,
        mut order: Order,
        request: SigningRequest,
        context: &ErrorContext<'_>,
    ) -> Result<IssuedCertificate, AcmeError> {
        if order.state().status == OrderStatus::Ready
            && let Err(error) = order.finalize_csr(&request.der).await
        {
            return Err(self.finalize_error(&mut order, error, context));
        }
        match order.poll_certificate(&POLL).await {
            Ok(chain) => IssuedCertificate::accept(self.names, &chain, request.key)
                .map_err(|reason| AcmeError::BadChain(sanitized(&reason))),
            Err(error) => Err(self.finalize_error(&mut order, error, context)),
        }
    }

    /// Forgets the order only if the authority has rejected it, and has not signed.
    fn finalize_error(
        &self,
        order: &mut Order,
        error: Error,
        context: &ErrorContext<'_>,
    ) -> AcmeError {
        match order.state().status {
            OrderStatus::Invalid => self.rejected(order),
            status => {
                if status != OrderStatus::Valid && is_final(&error) {
                    self.state.forget_pending(self.names);
                }
                context.error(error)
            }
        }
    }

    fn rejected(&self, order: &mut Order) -> AcmeError {
        self.state.forget_pending(self.names);
        match &order.state().error {
            Some(problem) => refused(&problem_text(problem)),
            None => refused("the order became invalid"),
        }
    }
}

/// A certificate signing request and its key.
pub(crate) struct SigningRequest {
    pub(crate) der: Vec<u8>,
    /// PKCS #8 in PEM.
    pub(crate) key: Zeroizing<String>,
}

impl SigningRequest {
    /// Creates a key and its request on another thread: an RSA key takes a second.
    pub(crate) async fn new(kind: KeyKind, names: Vec<String>) -> Result<Self, AcmeError> {
        let created = tokio::task::spawn_blocking(move || Self::create(kind, &names)).await;
        created
            .unwrap_or_else(|error| Err(AcmeError::Make { what: KEY, reason: error.to_string() }))
    }

    /// Creates the request for an existing key.
    pub(crate) fn for_key(key: Zeroizing<String>, names: &[String]) -> Result<Self, AcmeError> {
        let pair = KeyPair::from_pem(&key).map_err(failed)?;
        Ok(Self { der: request(&pair, names)?, key })
    }

    fn create(kind: KeyKind, names: &[String]) -> Result<Self, AcmeError> {
        let rsa = |bits| -> Result<KeyPair, AcmeError> {
            let pem = generate_rsa_key(bits)
                .map_err(|error| AcmeError::Make { what: KEY, reason: error.to_string() })?;
            KeyPair::from_pem(&Zeroizing::new(pem)).map_err(failed)
        };
        let key = match kind {
            KeyKind::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?,
            KeyKind::EcdsaP384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).map_err(failed)?,
            KeyKind::Rsa2048 => rsa(2048)?,
            KeyKind::Rsa3072 => rsa(3072)?,
            KeyKind::Rsa4096 => rsa(4096)?,
        };
        Ok(Self { der: request(&key, names)?, key: Zeroizing::new(key.serialize_pem()) })
    }
}

fn request(key: &KeyPair, names: &[String]) -> Result<Vec<u8>, AcmeError> {
    let mut params = CertificateParams::new(names).map_err(failed)?;
    // The names identify the certificate; a subject could only contradict them.
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key).map_err(failed)?.der().to_vec())
}

fn failed(error: rcgen::Error) -> AcmeError {
    AcmeError::Make { what: KEY, reason: error.to_string() }
}

const KEY: &str = "the certificate's key";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_type_can_be_created() {
        let names = ["example.test".to_owned()];
        for kind in [KeyKind::EcdsaP256, KeyKind::EcdsaP384, KeyKind::Rsa2048] {
            let request = SigningRequest::create(kind, &names).unwrap();
            assert!(request.key.starts_with("-----BEGIN PRIVATE KEY-----"), "{kind:?}");
            assert!(request.der.windows(12).any(|bytes| bytes == b"example.test"));
            let for_key = SigningRequest::for_key(request.key.clone(), &names).unwrap();
            assert_eq!(for_key.key, request.key);
        }
    }
}
