//! Why there is no certificate, each in one sentence that names the fix.

use std::fmt;
use std::path::PathBuf;

use firstflight_units::is_unprintable;

use crate::acme::clock::when;
use crate::acme::plan::Severity;
use crate::acme::{ChallengeKind, SharedRecordsError};

/// Why there is no certificate, or not yet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcmeError {
    /// The operator has not agreed.
    #[error(
        "{0} gives certificates only to those who agree to its terms of service; read them and set \
         terms_agreed = true in [acme] (--acme-agree)"
    )]
    TermsNotAgreed(String),
    /// No way is left to show that names lead here.
    #[error("challenges in [acme] is empty; allowed are \"tls-alpn-01\" and \"http-01\"")]
    NoChallenge,
    /// No mail address.
    #[error("{0:?} in [acme] contact is no mail address; allowed is USER@HOST")]
    Contact(String),
    /// Names that cannot be had by these challenges.
    #[error("no certificate can be asked for {name:?}: {reason}")]
    Names {
        /// The name.
        name: String,
        /// Why not, and what can be had.
        reason: &'static str,
    },
    /// The external account's key.
    #[error("{path}: {reason}; give the file with the key that the authority gave, base64url",
        path = path.display())]
    ExternalKey {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The library that makes keys and certificates.
    #[error("{what} could not be made: {reason}")]
    Make {
        /// What could not be made.
        what: &'static str,
        /// What the library said.
        reason: String,
    },
    /// The state on disk.
    #[error("{path}: {reason}", path = path.display())]
    State {
        /// Which file or directory.
        path: PathBuf,
        /// What is wrong with it, and the fix.
        reason: String,
    },
    /// What the nodes share.
    #[error("what the nodes share about certificates cannot be asked: {0}")]
    SharedRecords(#[from] SharedRecordsError),
    /// Nobody is there, or not in time.
    #[error("the ACME authority {host} cannot be reached: {reason}; it is tried again by itself")]
    Unreachable {
        /// Its host.
        host: String,
        /// What was tried, and what came of it.
        reason: String,
    },
    /// Who answered is not trusted.
    #[error(
        "the ACME authority {host} is not trusted: {reason}; if it is a private one, name its root \
         by authority = FILE in [acme], else look at this machine's clock"
    )]
    Untrusted {
        /// Its host.
        host: String,
        /// What TLS said.
        reason: String,
    },
    /// The authority answered, and has trouble of its own.
    #[error("the ACME authority {host} is in trouble: {said}; it is tried again by itself")]
    InTrouble {
        /// Its host.
        host: String,
        /// What it said.
        said: String,
        /// When it wants to be asked again, in seconds since 1970.
        until: Option<i64>,
    },
    /// What answers does not speak ACME.
    #[error(
        "{directory} does not answer as ACME does: {reason}; see that directory in [acme] is right"
    )]
    NotAcme {
        /// The directory that was asked.
        directory: String,
        /// What it did instead.
        reason: String,
    },
    /// A limit of the authority.
    #[error("the ACME authority {host} limits how often it is asked: {said}; it is tried again {}",
        Until(*until))]
    RateLimited {
        /// Its host.
        host: String,
        /// Which limit.
        said: String,
        /// When it may be asked again, in seconds since 1970.
        until: Option<i64>,
    },
    /// The authority looked, and found no response or another's.
    #[error(
        "the ACME authority could not see that {name} leads here: {}; see that the name's \
         addresses and these ports lead to this server",
        Looks(looks)
    )]
    WrongAnswer {
        /// The name.
        name: String,
        /// How it looked, and what it said.
        looks: Vec<(ChallengeKind, String)>,
    },
    /// The authority does not look in a way that is allowed here.
    #[error(
        "the ACME authority offers {offered} for {name}; name one of them in challenges in [acme]"
    )]
    NotOffered {
        /// The name.
        name: String,
        /// What it offers.
        offered: String,
    },
    /// The authority does not issue for a name.
    #[error(
        "the ACME authority issues no certificate for these names: {said}; see the names, and \
         the CAA records of their domains"
    )]
    NamesRefused {
        /// What it said.
        said: String,
    },
    /// The authority wants an account elsewhere.
    #[error(
        "the ACME authority gives accounts only to those who have one with it elsewhere ({said}); \
         name that by external_account in [acme]"
    )]
    ExternalAccount {
        /// What it said.
        said: String,
    },
    /// The account is gone or was refused.
    #[error("the ACME authority refuses the account: {said}; remove {path} to open a new one",
        path = path.display())]
    Account {
        /// What it said.
        said: String,
        /// Where the account is kept.
        path: PathBuf,
    },
    /// Refused for another reason.
    #[error("the ACME authority refused: {said}")]
    Refused {
        /// What it said.
        said: String,
    },
    /// What was issued is of no use.
    #[error("what the ACME authority issued is of no use: {0}")]
    BadChain(String),
}

impl AcmeError {
    /// How soon to come again.
    pub(crate) fn severity(&self) -> Severity {
        match self {
            Self::SharedRecords(_)
            | Self::State { .. }
            | Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::InTrouble { .. }
            | Self::NotAcme { .. } => Severity::Unreachable,
            _ => Severity::Refused,
        }
    }

    /// When the authority wants to be asked again.
    pub(crate) fn until(&self) -> Option<i64> {
        match self {
            Self::RateLimited { until, .. } | Self::InTrouble { until, .. } => *until,
            _ => None,
        }
    }
}

/// What a stranger said, fit for a log: one line, in the order in which it is written, and not for
/// ever.
pub(crate) fn words(text: &str) -> String {
    let clean = |c: char| if is_unprintable(c) { ' ' } else { c };
    let mut words: String = text.chars().map(clean).take(MAX_DETAIL_BYTES).collect();
    if text.chars().nth(MAX_DETAIL_BYTES).is_some() {
        words.push_str("...");
    }
    words
}

const MAX_DETAIL_BYTES: usize = 400;

struct Until(Option<i64>);

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, "at {}", when(at)),
            None => f.write_str("by itself"),
        }
    }
}

struct Looks<'a>(&'a [(ChallengeKind, String)]);

impl fmt::Display for Looks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (kind, said)) in self.0.iter().enumerate() {
            let join = if index == 0 { "" } else { "; " };
            write!(f, "{join}by {} at port {}: {said}", kind.name(), kind.port())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_say_stays_one_short_line() {
        assert_eq!(words("a\r\nb\u{1b}[31m"), "a  b [31m");
        assert_eq!(words("a\u{2028}b\u{202e}c\u{2066}"), "a b c ");
        assert_eq!(words(&"x".repeat(10_000)).len(), MAX_DETAIL_BYTES + 3);
    }

    #[test]
    fn a_limit_says_until_when() {
        let limited = |until| AcmeError::RateLimited {
            host: "ca.test".to_owned(),
            said: "too many".to_owned(),
            until,
        };
        assert!(limited(Some(1_800_000_000)).to_string().ends_with("at 2027-01-15T08:00:00Z"));
        assert!(limited(None).to_string().ends_with("by itself"));
    }

    #[test]
    fn a_wrong_answer_names_ports() {
        let error = AcmeError::WrongAnswer {
            name: "example.test".to_owned(),
            looks: vec![
                (ChallengeKind::TlsAlpn01, "no".to_owned()),
                (ChallengeKind::Http01, "404".to_owned()),
            ],
        };
        let said = error.to_string();
        assert!(
            said.contains("by tls-alpn-01 at port 443: no; by http-01 at port 80: 404"),
            "{said}"
        );
    }
}
