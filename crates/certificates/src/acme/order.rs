//! An order: from names to a certificate (RFC 8555 section 7.4).

mod finalize;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier,
    NewOrder, Order, OrderStatus, RetryPolicy,
};

use crate::acme::challenge::Proof;
use crate::acme::challenge::ResponseGuard;
use crate::acme::client::AuthorityClient;
use crate::acme::client::{ErrorContext, kind as kind_of, problem_text};
use crate::acme::error::sanitized;
use crate::acme::schedule::{ChallengePlan, History};
use crate::acme::sharing::NodeSharing;
use crate::acme::storage::StateDirectory;
use crate::acme::storage::blocking;
use crate::acme::{
    AcmeConfig, AcmeError, ChallengeKind, ChallengeResponses, IssuedCertificate, SharedRecords,
    account,
};

/// An order and everything it needs.
pub(crate) struct OrderRequest<'a, S> {
    pub(crate) config: &'a AcmeConfig,
    pub(crate) state: &'a StateDirectory,
    pub(crate) responses: &'a ChallengeResponses,
    /// `None` for a single node.
    pub(crate) sharing: Option<&'a NodeSharing<S>>,
    pub(crate) names: &'a [String],
    /// The certificate that is replaced (RFC 9773 section 5).
    pub(crate) replaces: Option<CertificateIdentifier<'static>>,
    pub(crate) challenge_plan: ChallengePlan,
    /// The history as it is on disk.
    pub(crate) history: &'a History,
    /// Set while the authority validates, so that an aborted order is counted correctly.
    pub(crate) validation_started: &'a AtomicBool,
}

/// The result of validation by one type of challenge.
enum Validation {
    Ready(Box<Order>),
    /// The name, and the error of the authority.
    Failed(String, String),
    /// The order is unchanged.
    NotOffered(Box<Order>, AcmeError),
}

impl<S: SharedRecords> OrderRequest<'_, S> {
    /// # Errors
    /// [`AcmeError`]: the authority refused or cannot be reached.
    pub(crate) async fn certificate(&self) -> Result<IssuedCertificate, AcmeError> {
        let client = AuthorityClient::new(self.config)?;
        let directory = self.config.directory.to_string();
        let context = ErrorContext { client: &client, directory: &directory, state: self.state };
        let mut account = account::open(self.config, self.state, &client).await?;
        if let Some(issued) = self.resume(&account, &context).await? {
            return Ok(issued);
        }
        let (mut failures, mut failed_name) = (Vec::new(), String::new());
        let (mut unused, mut not_offered) = (None, None);
        for kind in &self.challenge_plan.kinds {
            if failures.len() == self.challenge_plan.max_validations {
                break;
            }
            let order = match unused.take() {
                Some(order) => order,
                None => Box::new(self.new_order(&mut account, &context).await?),
            };
            match self.validate(order, *kind, &context).await? {
                Validation::Ready(order) => return self.sign(*order, &context).await,
                Validation::Failed(name, reason) => {
                    failures.push((*kind, reason));
                    failed_name = name;
                }
                Validation::NotOffered(order, error) => {
                    unused = Some(order);
                    not_offered.get_or_insert(error);
                }
            }
        }
        match not_offered {
            Some(error) if failures.is_empty() => Err(error),
            _ => Err(AcmeError::ValidationFailed { name: failed_name, failures }),
        }
    }

    /// Validates all names of an order.
    async fn validate(
        &self,
        mut order: Box<Order>,
        kind: ChallengeKind,
        context: &ErrorContext<'_>,
    ) -> Result<Validation, AcmeError> {
        if order.state().status != OrderStatus::Pending {
            return Ok(Validation::Ready(order));
        }
        let proofs = match self.proofs(&mut order, kind, context).await {
            Err(error @ AcmeError::NotOffered { .. }) => {
                return Ok(Validation::NotOffered(order, error));
            }
            proofs => proofs?,
        };
        let guard = self.serve(&proofs).await?;
        self.record_validation(true).await?;
        // A fast authority has validated, and failed, before it responds.
        let ready = match set_ready(&mut order, kind).await {
            Ok(()) => order.poll_ready(&POLL).await,
            Err(error) => Err(error),
        };
        let outcome = match ready {
            Ok(OrderStatus::Ready | OrderStatus::Valid) => Validation::Ready(order),
            ready @ (Ok(_) | Err(Error::Api(_))) => {
                let failed = self.failed_validation(&mut order, kind).await;
                match (failed.map_err(|error| context.error(error))?, ready) {
                    (Some((name, reason)), _) => Validation::Failed(name, reason),
                    (None, Err(error)) => return Err(context.error(error)),
                    (None, Ok(_)) => return Err(refused("the order became invalid")),
                }
            }
            Err(error) => return Err(context.error(error)),
        };
        drop(guard);
        Ok(outcome)
    }

    /// Records whether the authority validates, before it does. The record is on disk too: a
    /// process that is killed meanwhile has used up one of the permitted validations.
    async fn record_validation(&self, validation_started: bool) -> Result<(), AcmeError> {
        self.validation_started.store(validation_started, Relaxed);
        let history = History { validation_started, ..self.history.clone() };
        let (state, names) = (self.state.clone(), self.names.to_vec());
        blocking(move || state.save_history(&names, &history)).await
    }

    /// Creates an order; with a new account if the authority no longer knows the old one.
    async fn new_order(
        &self,
        account: &mut Account,
        context: &ErrorContext<'_>,
    ) -> Result<Order, AcmeError> {
        let names: Vec<_> = self.names.iter().cloned().map(Identifier::Dns).collect();
        let plain = NewOrder::new(&names);
        let first = match &self.replaces {
            Some(old) => account.new_order(&NewOrder::new(&names).replaces(old.clone())).await,
            None => account.new_order(&plain).await,
        };
        let error = match first {
            Ok(order) => return Ok(order),
            Err(error) => error,
        };
        match &error {
            Error::Api(problem) if kind_of(problem) == "accountDoesNotExist" => {
                self.state.discard_account("the authority no longer knows the account");
                *account = account::open(self.config, self.state, context.client).await?;
                account.new_order(&plain).await.map_err(|error| context.account_error(error))
            }
            Error::Api(problem) if kind_of(problem) == "rateLimited" => {
                Err(context.account_error(error))
            }
            // An authority may refuse the replaced certificate; an order without it is always
            // valid.
            _ if self.replaces.is_some() => {
                account.new_order(&plain).await.map_err(|error| context.account_error(error))
            }
            _ => Err(context.account_error(error)),
        }
    }

    /// The responses for the names that are not validated yet.
    async fn proofs(
        &self,
        order: &mut Order,
        kind: ChallengeKind,
        context: &ErrorContext<'_>,
    ) -> Result<Vec<Proof>, AcmeError> {
        let mut proofs = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|error| context.error(error))?;
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue,
                _ => return Err(refused("an authorization is neither pending nor valid")),
            }
            let name = self.configured_name(&authorization.identifier().to_string())?;
            let offered = authorization.challenges.iter().map(|it| challenge_name(&it.r#type));
            let offered = sanitized(&offered.collect::<Vec<_>>().join(", "));
            let Some(challenge) = authorization.challenge(kind.into()) else {
                return Err(AcmeError::NotOffered { name, offered });
            };
            if !is_token(&challenge.token) {
                return Err(refused("the token of a challenge violates RFC 8555 section 8"));
            }
            let key = challenge.key_authorization();
            proofs.push(match kind {
                ChallengeKind::Http01 => Proof::Http {
                    token: challenge.token.clone(),
                    authorization: key.as_str().to_owned(),
                },
                ChallengeKind::TlsAlpn01 => {
                    let digest = key.digest().as_ref().try_into();
                    Proof::Alpn { name, digest: digest.expect("SHA-256 has 32 bytes") }
                }
            });
        }
        Ok(proofs)
    }

    /// Serves the responses here, and on the other nodes after the time they need to read them.
    async fn serve(&self, proofs: &[Proof]) -> Result<ResponseGuard, AcmeError> {
        let guard = self.responses.serve(proofs)?;
        if let Some(sharing) = self.sharing.filter(|_| !proofs.is_empty()) {
            sharing.put_responses(proofs).await?;
            tokio::time::sleep(PROPAGATION_DELAY).await;
        }
        Ok(guard)
    }

    /// The ordered name that equals `name`, in its configured spelling.
    fn configured_name(&self, name: &str) -> Result<String, AcmeError> {
        let configured_name = self.names.iter().find(|it| it.eq_ignore_ascii_case(name)).cloned();
        configured_name.ok_or_else(|| {
            let name = sanitized(name);
            refused(&format!("it wants to validate {name}, which was not ordered"))
        })
    }

    /// The first name that failed validation, and the error of the authority.
    async fn failed_validation(
        &self,
        order: &mut Order,
        kind: ChallengeKind,
    ) -> Result<Option<(String, String)>, Error> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            let state = authorization.refresh().await?;
            let challenge = state.challenges.iter().find(|it| it.r#type == kind.into());
            if let Some(problem) = challenge.and_then(|challenge| challenge.error.as_ref())
                && let Ok(name) = self.configured_name(&state.identifier().to_string())
            {
                return Ok(Some((name, problem_text(problem))));
            }
        }
        Ok(None)
    }
}

async fn set_ready(order: &mut Order, kind: ChallengeKind) -> Result<(), Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Pending
            && let Some(mut challenge) = authorization.challenge(kind.into())
        {
            challenge.set_ready().await?;
        }
    }
    Ok(())
}

/// RFC 8555 section 8: base64url. The length is bounded because tokens are logged and shared.
fn is_token(token: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=256).contains(&token.len()) && token.bytes().all(valid)
}

/// The name in the configuration.
fn challenge_name(kind: &ChallengeType) -> &str {
    match kind {
        ChallengeType::Http01 => "http-01",
        ChallengeType::Dns01 => "dns-01",
        ChallengeType::TlsAlpn01 => "tls-alpn-01",
        ChallengeType::Unknown(name) => name,
        _ => "another type",
    }
}

fn refused(detail: &str) -> AcmeError {
    AcmeError::Refused { detail: detail.to_owned() }
}

impl From<ChallengeKind> for ChallengeType {
    fn from(kind: ChallengeKind) -> Self {
        match kind {
            ChallengeKind::TlsAlpn01 => Self::TlsAlpn01,
            ChallengeKind::Http01 => Self::Http01,
        }
    }
}

/// How long the authority may take to validate all names, or to sign.
const POLL: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(300))
    .backoff(1.6)
    .timeout(Duration::from_secs(90));

/// Other nodes read the pending challenges every two seconds.
const PROPAGATION_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
