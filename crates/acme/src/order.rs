//! One order: from names to a certificate (RFC 8555 section 7.4).

use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier,
    NewOrder, Order, OrderStatus, RetryPolicy,
};

use crate::answers::Standing;
use crate::ca::Ca;
use crate::challenge::Proof;
use crate::key::Request;
use crate::said::{Said, in_words, kind as kind_of};
use crate::sharing::Sharing;
use crate::state::State;
use crate::{AcmeConfig, AcmeError, Answers, ChallengeKind, Issued, Shelf, account};

/// All that an order needs.
pub(crate) struct Ordering<'a, S> {
    pub(crate) config: &'a AcmeConfig,
    pub(crate) state: &'a State,
    pub(crate) answers: &'a Answers,
    /// `None`: this node orders for itself.
    pub(crate) sharing: Option<&'a Sharing<S>>,
    pub(crate) names: &'a [String],
    /// The certificate that is replaced, for an authority that wants to know (RFC 9773 section 5).
    pub(crate) replaces: Option<CertificateIdentifier<'static>>,
    /// Tried one after the other.
    pub(crate) kinds: Vec<ChallengeKind>,
}

/// How one kind of challenge ended.
enum Ended {
    Ready(Box<Order>),
    /// The name, how the authority looked, and what it said.
    Wrong(String, ChallengeKind, String),
}

impl<S: Shelf> Ordering<'_, S> {
    /// # Errors
    /// [`AcmeError`]: what the authority said.
    pub(crate) async fn certificate(&self) -> Result<Issued, AcmeError> {
        let ca = Ca::new(self.config)?;
        let directory = self.config.directory.to_string();
        let said = Said { ca: &ca, directory: &directory, state: self.state };
        let account = account::open(self.config, self.state, &ca).await?;
        let mut looks = Vec::new();
        let mut wrong = String::new();
        for kind in &self.kinds {
            match self.validated(&account, *kind, &said).await? {
                Ended::Ready(order) => return self.finish(*order, &said).await,
                Ended::Wrong(name, kind, reason) => {
                    looks.push((kind, reason));
                    wrong = name;
                }
            }
        }
        Err(AcmeError::WrongAnswer { name: wrong, looks })
    }

    /// An order all of whose names are validated.
    async fn validated(
        &self,
        account: &Account,
        kind: ChallengeKind,
        said: &Said<'_>,
    ) -> Result<Ended, AcmeError> {
        let mut order = self.new_order(account, said).await?;
        if order.state().status == OrderStatus::Pending {
            let proofs = self.proofs(&mut order, kind, said).await?;
            let standing = self.stand(&proofs).await?;
            set_ready(&mut order, kind).await.map_err(|error| said.error(error))?;
            let ready = order.poll_ready(&POLL).await;
            let ended = match ready {
                Ok(OrderStatus::Ready | OrderStatus::Valid) => None,
                Ok(_) | Err(Error::Api(_)) => {
                    let look = wrong_look(&mut order, kind).await;
                    Some(look.map_err(|error| said.error(error))?.ok_or(ready))
                }
                Err(error) => return Err(said.error(error)),
            };
            drop(standing);
            return match ended {
                None => Ok(Ended::Ready(Box::new(order))),
                Some(Ok((name, reason))) => Ok(Ended::Wrong(name, kind, reason)),
                Some(Err(Err(error))) => Err(said.error(error)),
                Some(Err(Ok(_))) => Err(refused("the order became invalid")),
            };
        }
        Ok(Ended::Ready(Box::new(order)))
    }

    /// A new order; with an account that the authority has forgotten, by a new account.
    async fn new_order(&self, account: &Account, said: &Said<'_>) -> Result<Order, AcmeError> {
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
                self.state.forget_account("the authority does not know the account any more");
                let account = account::open(self.config, self.state, said.ca).await?;
                account.new_order(&plain).await.map_err(|error| said.account_error(error))
            }
            Error::Api(problem) if kind_of(problem) == "rateLimited" => {
                Err(said.account_error(error))
            }
            // An authority may have its own mind on what is replaced; without is never wrong.
            _ if self.replaces.is_some() => {
                account.new_order(&plain).await.map_err(|error| said.account_error(error))
            }
            _ => Err(said.account_error(error)),
        }
    }

    /// What is to be answered for the names that are not validated yet.
    async fn proofs(
        &self,
        order: &mut Order,
        kind: ChallengeKind,
        said: &Said<'_>,
    ) -> Result<Vec<Proof>, AcmeError> {
        let mut proofs = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|error| said.error(error))?;
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue,
                _ => return Err(refused("an authorization is neither pending nor valid")),
            }
            let name = authorization.identifier().to_string();
            let offered = authorization.challenges.iter().map(|it| format!("{:?}", it.r#type));
            let offered = offered.collect::<Vec<_>>().join(", ");
            let Some(challenge) = authorization.challenge(kind.into()) else {
                return Err(AcmeError::NotOffered { name, offered });
            };
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

    /// Answers here, and on the other nodes once they have had time to see it.
    async fn stand(&self, proofs: &[Proof]) -> Result<Standing, AcmeError> {
        let standing = self.answers.stand(proofs)?;
        if let Some(sharing) = self.sharing.filter(|_| !proofs.is_empty()) {
            sharing.put_answers(proofs).await?;
            tokio::time::sleep(SPREAD).await;
        }
        Ok(standing)
    }

    async fn finish(&self, mut order: Order, said: &Said<'_>) -> Result<Issued, AcmeError> {
        let request = Request::new(self.config.key, self.names.to_vec()).await?;
        if order.state().status != OrderStatus::Valid {
            order.finalize_csr(&request.der).await.map_err(|error| said.error(error))?;
        }
        let chain = order.poll_certificate(&POLL).await.map_err(|error| said.error(error))?;
        Issued::accept(self.names, &chain, request.key).map_err(AcmeError::BadChain)
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

/// The first name that the authority did not find here, and what it said.
async fn wrong_look(
    order: &mut Order,
    kind: ChallengeKind,
) -> Result<Option<(String, String)>, Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let state = authorization.refresh().await?;
        let challenge = state.challenges.iter().find(|it| it.r#type == kind.into());
        if let Some(problem) = challenge.and_then(|challenge| challenge.error.as_ref()) {
            return Ok(Some((state.identifier().to_string(), in_words(problem))));
        }
    }
    Ok(None)
}

fn refused(said: &str) -> AcmeError {
    AcmeError::Refused { said: said.to_owned() }
}

impl From<ChallengeKind> for ChallengeType {
    fn from(kind: ChallengeKind) -> Self {
        match kind {
            ChallengeKind::TlsAlpn01 => Self::TlsAlpn01,
            ChallengeKind::Http01 => Self::Http01,
        }
    }
}

/// How long the authority may take to look at all names, or to sign.
const POLL: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(300))
    .backoff(1.6)
    .timeout(Duration::from_secs(90));

/// Other nodes look every two seconds for what they are to answer.
const SPREAD: Duration = Duration::from_secs(5);

/// All of it. A lease lives longer.
pub(crate) const LONGEST: Duration = Duration::from_secs(300);
