//! Errors of certificate orders. Each message is one sentence that names the fix.

use std::fmt;
use std::path::PathBuf;

use firstflight_units::is_unprintable;

use crate::acme::format_time;
use crate::acme::schedule::Severity;
use crate::acme::{ChallengeKind, SharedRecordsError};

/// Why a certificate was not issued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcmeError {
    /// The operator has not agreed to the terms of service.
    #[error(
        "{0} issues certificates only to those who agree to its terms of service; read them and set \
         terms_agreed = true in [acme] (--acme-agree)"
    )]
    TermsNotAgreed(String),
    /// No challenge is allowed.
    #[error("challenges in [acme] is empty; allowed are \"tls-alpn-01\" and \"http-01\"")]
    NoChallenge,
    /// A contact is not a mail address.
    #[error("{0:?} in [acme] contact is not a mail address; allowed is USER@HOST")]
    Contact(String),
    /// No certificate can be issued for a name by the supported challenges.
    #[error("no certificate can be issued for {name:?}: {reason}")]
    Names {
        /// The name.
        name: String,
        /// Why, and what is possible instead.
        reason: &'static str,
    },
    /// The key of the external account cannot be used.
    #[error("{path}: {reason}; give the file with the base64url key that the authority issued",
        path = path.display())]
    ExternalKey {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The library could not create a key or certificate.
    #[error("cannot create {what}: {reason}")]
    Make {
        /// What could not be made.
        what: &'static str,
        /// The error of the library.
        reason: String,
    },
    /// The state directory cannot be used.
    #[error("{path}: {reason}", path = path.display())]
    StateDirectory {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong, and the fix.
        reason: String,
    },
    /// The records shared by the nodes cannot be read or written.
    #[error("cannot use the certificate records in the store: {0}")]
    SharedRecords(#[from] SharedRecordsError),
    /// The authority cannot be reached, or not in time.
    #[error("the ACME authority {host} cannot be reached: {reason}; retrying automatically")]
    Unreachable {
        /// Its host.
        host: String,
        /// What failed.
        reason: String,
    },
    /// The authority's own certificate is not trusted.
    #[error(
        "the ACME authority {host} is not trusted: {reason}; if it is a private one, set authority = FILE \
         in [acme] to its root, else check this machine's clock"
    )]
    Untrusted {
        /// Its host.
        host: String,
        /// The error of TLS.
        reason: String,
    },
    /// The authority responded with a failure of its own.
    #[error("the ACME authority {host} reports a failure: {detail}; retrying automatically")]
    AuthorityFailure {
        /// Its host.
        host: String,
        /// Its error message.
        detail: String,
        /// Its `Retry-After`, in Unix seconds.
        retry_after: Option<i64>,
    },
    /// The server at the directory's URL does not speak ACME.
    #[error("{directory} does not speak ACME: {reason}; check directory in [acme]")]
    NotAcme {
        /// The URL of the directory.
        directory: String,
        /// What it responded instead.
        reason: String,
    },
    /// A rate limit of the authority was hit.
    #[error("the ACME authority {host} limits requests: {detail}; retrying {}",
        RetryTime(*retry_after))]
    RateLimited {
        /// Its host.
        host: String,
        /// Its error message.
        detail: String,
        /// Its `Retry-After`, in Unix seconds.
        retry_after: Option<i64>,
    },
    /// The authority could not validate a name.
    #[error(
        "the ACME authority could not validate {name}: {}; check that the name's \
         addresses and these ports reach this server",
        ValidationFailures(failures)
    )]
    ValidationFailed {
        /// The name.
        name: String,
        /// The challenges that failed, each with the error of the authority.
        failures: Vec<(ChallengeKind, String)>,
    },
    /// The authority offers none of the configured challenges.
    #[error(
        "the ACME authority offers {offered} for {name}; add one of them to challenges in [acme]"
    )]
    NotOffered {
        /// The name.
        name: String,
        /// What it offers.
        offered: String,
    },
    /// The authority does not issue certificates for a name.
    #[error(
        "the ACME authority issues no certificate for these names: {detail}; check the names, and \
         the CAA records of their domains"
    )]
    NamesRefused {
        /// Its error message.
        detail: String,
    },
    /// The authority requires an external account.
    #[error(
        "the ACME authority requires an account that exists outside of ACME ({detail}); \
         set external_account in [acme]"
    )]
    ExternalAccount {
        /// Its error message.
        detail: String,
    },
    /// The authority refuses the account.
    #[error("the ACME authority refuses the account: {detail}; remove {path} to open a new one",
        path = path.display())]
    Account {
        /// Its error message.
        detail: String,
        /// The file of the account.
        path: PathBuf,
    },
    /// The authority refused for another reason.
    #[error("the ACME authority refused: {detail}")]
    Refused {
        /// Its error message.
        detail: String,
    },
    /// The issued certificate cannot be used.
    #[error("the certificate that the ACME authority issued cannot be used: {0}")]
    BadChain(String),
}

impl AcmeError {
    /// Whether the failure counts as a refusal for the next attempt.
    pub(crate) fn severity(&self) -> Severity {
        match self {
            Self::SharedRecords(_)
            | Self::StateDirectory { .. }
            | Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::AuthorityFailure { .. }
            | Self::NotAcme { .. } => Severity::Unreachable,
            _ => Severity::Refused,
        }
    }

    /// The authority's `Retry-After`, in Unix seconds.
    pub(crate) fn retry_after(&self) -> Option<i64> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::AuthorityFailure { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }
}

/// Sanitizes text of a peer for a log line: one line, no control or bidirectional characters,
/// bounded length.
pub(crate) fn sanitized(text: &str) -> String {
    let clean = |c: char| if is_unprintable(c) { ' ' } else { c };
    let mut line: String = text.chars().map(clean).take(MAX_DETAIL_CHARS).collect();
    if text.chars().nth(MAX_DETAIL_CHARS).is_some() {
        line.push_str("...");
    }
    line
}

const MAX_DETAIL_CHARS: usize = 400;

struct RetryTime(Option<i64>);

impl fmt::Display for RetryTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, "at {}", format_time(at)),
            None => f.write_str("automatically"),
        }
    }
}

struct ValidationFailures<'a>(&'a [(ChallengeKind, String)]);

impl fmt::Display for ValidationFailures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (kind, detail)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}by {} at port {}: {detail}", kind.name(), kind.port())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_peers_becomes_one_short_line() {
        assert_eq!(sanitized("a\r\nb\u{1b}[31m"), "a  b [31m");
        assert_eq!(sanitized("a\u{2028}b\u{202e}c\u{2066}"), "a b c ");
        assert_eq!(sanitized(&"x".repeat(10_000)).len(), MAX_DETAIL_CHARS + 3);
    }

    #[test]
    fn a_rate_limit_names_the_time_of_the_next_attempt() {
        let limited = |retry_after| AcmeError::RateLimited {
            host: "ca.test".to_owned(),
            detail: "too many".to_owned(),
            retry_after,
        };
        assert!(limited(Some(1_800_000_000)).to_string().ends_with("at 2027-01-15T08:00:00Z"));
        assert!(limited(None).to_string().ends_with("automatically"));
    }

    #[test]
    fn a_failed_validation_names_the_ports() {
        let error = AcmeError::ValidationFailed {
            name: "example.test".to_owned(),
            failures: vec![
                (ChallengeKind::TlsAlpn01, "no".to_owned()),
                (ChallengeKind::Http01, "404".to_owned()),
            ],
        };
        let detail = error.to_string();
        assert!(
            detail.contains("by tls-alpn-01 at port 443: no; by http-01 at port 80: 404"),
            "{detail}"
        );
    }
}
