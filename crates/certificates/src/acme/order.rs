//! One order: from names to a certificate (RFC 8555 section 7.4).

mod signing;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier,
    NewOrder, Order, OrderStatus, RetryPolicy,
};

use crate::acme::answers::PendingChallenges;
use crate::acme::blocking::blocking;
use crate::acme::ca::Ca;
use crate::acme::challenge::Proof;
use crate::acme::error::words;
use crate::acme::plan::{ChallengeChoice, History};
use crate::acme::said::{FailureContext, in_words, kind as kind_of};
use crate::acme::sharing::NodeSharing;
use crate::acme::state::State;
use crate::acme::{AcmeConfig, AcmeError, Answers, ChallengeKind, Issued, SharedRecords, account};

/// All that an order needs.
pub(crate) struct Ordering<'a, S> {
    pub(crate) config: &'a AcmeConfig,
    pub(crate) state: &'a State,
    pub(crate) answers: &'a Answers,
    /// `None`: this node orders for itself.
    pub(crate) sharing: Option<&'a NodeSharing<S>>,
    pub(crate) names: &'a [String],
    /// The certificate that is replaced, for an authority that wants to know (RFC 9773 section 5).
    pub(crate) replaces: Option<CertificateIdentifier<'static>>,
    pub(crate) turns: ChallengeChoice,
    /// What is on disk of this try.
    pub(crate) history: &'a History,
    /// Set while the authority looks, so that whoever ends the order knows.
    pub(crate) looked: &'a AtomicBool,
}

/// How one kind of challenge ended.
enum Ended {
    Ready(Box<Order>),
    /// The name, and what the authority said.
    Wrong(String, String),
    /// The order is as it was.
    NotOffered(Box<Order>, AcmeError),
}

impl<S: SharedRecords> Ordering<'_, S> {
    /// # Errors
    /// [`AcmeError`]: what the authority said.
    pub(crate) async fn certificate(&self) -> Result<Issued, AcmeError> {
        let ca = Ca::new(self.config)?;
        let directory = self.config.directory.to_string();
        let said = FailureContext { ca: &ca, directory: &directory, state: self.state };
        let mut account = account::open(self.config, self.state, &ca).await?;
        if let Some(issued) = self.resume(&account, &said).await? {
            return Ok(issued);
        }
        let (mut looks, mut wrong) = (Vec::new(), String::new());
        let (mut unused, mut not_offered) = (None, None);
        for kind in &self.turns.kinds {
            if looks.len() == self.turns.looks {
                break;
            }
            let order = match unused.take() {
                Some(order) => order,
                None => Box::new(self.new_order(&mut account, &said).await?),
            };
            match self.validated(order, *kind, &said).await? {
                Ended::Ready(order) => return self.sign(*order, &said).await,
                Ended::Wrong(name, reason) => {
                    looks.push((*kind, reason));
                    wrong = name;
                }
                Ended::NotOffered(order, error) => {
                    unused = Some(order);
                    not_offered.get_or_insert(error);
                }
            }
        }
        match not_offered {
            Some(error) if looks.is_empty() => Err(error),
            _ => Err(AcmeError::WrongAnswer { name: wrong, looks }),
        }
    }

    /// The order when all of its names are validated.
    async fn validated(
        &self,
        mut order: Box<Order>,
        kind: ChallengeKind,
        said: &FailureContext<'_>,
    ) -> Result<Ended, AcmeError> {
        if order.state().status != OrderStatus::Pending {
            return Ok(Ended::Ready(order));
        }
        let proofs = match self.proofs(&mut order, kind, said).await {
            Err(error @ AcmeError::NotOffered { .. }) => {
                return Ok(Ended::NotOffered(order, error));
            }
            proofs => proofs?,
        };
        let standing = self.stand(&proofs).await?;
        self.note(true).await?;
        set_ready(&mut order, kind).await.map_err(|error| said.error(error))?;
        let ended = match order.poll_ready(&POLL).await {
            Ok(OrderStatus::Ready | OrderStatus::Valid) => Ended::Ready(order),
            ready @ (Ok(_) | Err(Error::Api(_))) => {
                let look = self.wrong_look(&mut order, kind).await;
                match (look.map_err(|error| said.error(error))?, ready) {
                    (Some((name, reason)), _) => Ended::Wrong(name, reason),
                    (None, Err(error)) => return Err(said.error(error)),
                    (None, Ok(_)) => return Err(refused("the order became invalid")),
                }
            }
            Err(error) => return Err(said.error(error)),
        };
        drop(standing);
        Ok(ended)
    }

    /// Notes whether the authority looks, before it does. On disk as well: a process that is killed
    /// meanwhile has used up one of the looks that are allowed.
    async fn note(&self, looked: bool) -> Result<(), AcmeError> {
        self.looked.store(looked, Relaxed);
        let history = History { looked, ..self.history.clone() };
        let (state, names) = (self.state.clone(), self.names.to_vec());
        blocking(move || state.save_history(&names, &history)).await
    }

    /// A new order; with an account that the authority has forgotten, by a new account.
    async fn new_order(
        &self,
        account: &mut Account,
        said: &FailureContext<'_>,
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
                self.state.forget_account("the authority does not know the account any more");
                *account = account::open(self.config, self.state, said.ca).await?;
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
        said: &FailureContext<'_>,
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
            let name = self.ours(&authorization.identifier().to_string())?;
            let offered = authorization.challenges.iter().map(|it| type_name(&it.r#type));
            let offered = words(&offered.collect::<Vec<_>>().join(", "));
            let Some(challenge) = authorization.challenge(kind.into()) else {
                return Err(AcmeError::NotOffered { name, offered });
            };
            if !is_token(&challenge.token) {
                return Err(refused("a challenge's token is not as RFC 8555 section 8 has it"));
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

    /// Answers here, and on the other nodes once they have had time to see it.
    async fn stand(&self, proofs: &[Proof]) -> Result<PendingChallenges, AcmeError> {
        let standing = self.answers.stand(proofs)?;
        if let Some(sharing) = self.sharing.filter(|_| !proofs.is_empty()) {
            sharing.put_answers(proofs).await?;
            tokio::time::sleep(SPREAD).await;
        }
        Ok(standing)
    }

    /// One of the names that are ordered, as it is written here.
    fn ours(&self, name: &str) -> Result<String, AcmeError> {
        let ours = self.names.iter().find(|it| it.eq_ignore_ascii_case(name)).cloned();
        ours.ok_or_else(|| {
            let name = words(name);
            refused(&format!("it wants to see {name}, which was not asked for"))
        })
    }

    /// The first name that the authority did not find here, and what it said.
    async fn wrong_look(
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
                && let Ok(name) = self.ours(&state.identifier().to_string())
            {
                return Ok(Some((name, in_words(problem))));
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

/// RFC 8555 section 8: base64url. It is looked up, logged and shared, so it has an end as well.
fn is_token(token: &str) -> bool {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=256).contains(&token.len()) && token.bytes().all(sound)
}

/// As the configuration has it.
fn type_name(kind: &ChallengeType) -> &str {
    match kind {
        ChallengeType::Http01 => "http-01",
        ChallengeType::Dns01 => "dns-01",
        ChallengeType::TlsAlpn01 => "tls-alpn-01",
        ChallengeType::Unknown(name) => name,
        _ => "another kind",
    }
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
pub(crate) const ORDER_TIMEOUT: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
