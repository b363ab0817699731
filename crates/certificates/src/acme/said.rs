//! What the ACME library hands on of an authority's words, as our errors.

use instant_acme::{Error, Problem};

use crate::acme::AcmeError;
use crate::acme::ca::{Ca, Failure};
use crate::acme::error::words;
use crate::acme::state::State;

/// What is needed to say who refused, and where things are kept.
pub(crate) struct FailureContext<'a> {
    pub(crate) ca: &'a Ca,
    pub(crate) directory: &'a str,
    pub(crate) state: &'a State,
}

impl FailureContext<'_> {
    pub(crate) fn error(&self, error: Error) -> AcmeError {
        let until = self.ca.take_until();
        let directory = || self.directory.to_owned();
        match error {
            Error::Api(problem) => self.problem(&problem, until),
            Error::Timeout(_) => AcmeError::InTrouble {
                host: self.host(),
                said: "it does not come to an end with the order".to_owned(),
                until,
            },
            Error::Other(other) => match other.downcast::<Failure>() {
                Ok(failure) => self.failure(*failure, until),
                Err(other) => {
                    AcmeError::NotAcme { directory: directory(), reason: words(&other.to_string()) }
                }
            },
            other => {
                AcmeError::NotAcme { directory: directory(), reason: words(&other.to_string()) }
            }
        }
    }

    /// The same where only the account can be meant by "unauthorized".
    pub(crate) fn account_error(&self, error: Error) -> AcmeError {
        match &error {
            Error::Api(problem) if kind(problem) == "unauthorized" => {
                self.account(in_words(problem))
            }
            _ => self.error(error),
        }
    }

    fn account(&self, said: String) -> AcmeError {
        AcmeError::Account { said, path: self.state.account_path() }
    }

    fn failure(&self, failure: Failure, until: Option<i64>) -> AcmeError {
        let host = self.host();
        match failure {
            Failure::Unreachable(reason) => AcmeError::Unreachable { host, reason: words(&reason) },
            Failure::Untrusted(reason) => AcmeError::Untrusted { host, reason: words(&reason) },
            Failure::Status(status) if status.is_server_error() || status == 429 => {
                AcmeError::InTrouble { host, said: format!("it answered {status}"), until }
            }
            failure @ (Failure::Status(_) | Failure::NoAcme(_)) => AcmeError::NotAcme {
                directory: self.directory.to_owned(),
                reason: failure.to_string(),
            },
        }
    }

    /// RFC 8555 section 6.7.
    pub(crate) fn problem(&self, problem: &Problem, until: Option<i64>) -> AcmeError {
        let (host, said) = (self.host(), in_words(problem));
        match kind(problem) {
            "rateLimited" => AcmeError::RateLimited { host, said, until },
            "serverInternal" | "badNonce" => AcmeError::InTrouble { host, said, until },
            "rejectedIdentifier" | "unsupportedIdentifier" | "caa" => {
                AcmeError::NamesRefused { said }
            }
            "externalAccountRequired" => AcmeError::ExternalAccount { said },
            "accountDoesNotExist" => self.account(said),
            "userActionRequired" | "agreementRequired" => {
                AcmeError::TermsNotAgreed(self.directory.to_owned())
            }
            _ => AcmeError::Refused { said },
        }
    }

    fn host(&self) -> String {
        let url = url::Url::parse(self.directory).ok();
        url.and_then(|url| Some(url.host_str()?.to_owned())).unwrap_or_default()
    }
}

/// Whether an error is the authority's last word on what it was asked, so that asking again is of
/// no use.
pub(crate) fn is_judged(error: &Error) -> bool {
    match error {
        Error::Api(problem) => {
            !matches!(kind(problem), "rateLimited" | "serverInternal" | "badNonce")
        }
        _ => false,
    }
}

/// Whether it says that what was requested does not exist (any more).
pub(crate) fn is_gone(error: &Error) -> bool {
    match error {
        Error::Other(other) => match other.downcast_ref::<Failure>() {
            Some(Failure::Status(status)) => matches!(status.as_u16(), 404 | 410),
            _ => false,
        },
        error => is_judged(error),
    }
}

/// The last part of a problem's type, after `urn:ietf:params:acme:error:`.
pub(crate) fn kind(problem: &Problem) -> &str {
    let urn = problem.r#type.as_deref().unwrap_or_default();
    urn.strip_prefix("urn:ietf:params:acme:error:").unwrap_or_default()
}

/// What a problem document says, with what it says of each name (RFC 8555 section 6.7.1).
pub(crate) fn in_words(problem: &Problem) -> String {
    let mut said = problem.detail.clone().or_else(|| problem.r#type.clone());
    for part in &problem.subproblems {
        let said = said.get_or_insert_default();
        let detail = part.detail.as_deref().unwrap_or_default();
        match &part.identifier {
            Some(name) => said.push_str(&format!("; {}: {detail}", name.authorized(false))),
            None => said.push_str(&format!("; {detail}")),
        }
    }
    words(said.as_deref().unwrap_or("no reason"))
}
