use std::path::PathBuf;

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
    #[error("a certificate for {names:?} cannot be had: {reason}")]
    Names {
        /// The names asked for.
        names: Vec<String>,
        /// Which of them, and why.
        reason: String,
    },
    /// A challenge's certificate could not be made.
    #[error("the certificate for a challenge could not be made: {0}")]
    Challenge(String),
    /// The state on disk.
    #[error("{path}: {reason}", path = path.display())]
    State {
        /// Which file or directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}
