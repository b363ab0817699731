use std::io;
use std::path::PathBuf;

use boring::error::ErrorStack;

/// What can go wrong in TLS, each in one sentence that names the fix where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The peers could not agree, or one sent bytes that are no TLS.
    #[error("TLS handshake failed: {0}")]
    Handshake(String),
    /// The peer's certificate was not accepted.
    #[error(
        "the server's certificate was not accepted: {0} (give its authority with --cacert FILE, \
         or use -k to go without verification)"
    )]
    Certificate(String),
    /// A record after the handshake could not be read or written.
    #[error("TLS connection failed: {0}")]
    Connection(String),
    /// The socket below failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection before the handshake was complete.
    #[error("the peer closed the connection in the middle of the TLS handshake")]
    ClosedInHandshake,
    /// Early data was refused and the server then chose another application protocol, so the
    /// request has to be written again on a fresh connection (RFC 8446 section 4.2.10).
    #[error(
        "the server refused early data and now speaks {now:?} instead of {before:?}; \
         send the request again on a fresh connection"
    )]
    AlpnChanged {
        /// The protocol that the session had promised.
        before: String,
        /// The protocol that the server chose.
        now: String,
    },
    /// The server negotiated an older version after early data was sent: the standard asks for a
    /// fresh connection without early data (RFC 8446 appendix D.3).
    #[error("the server no longer speaks TLS 1.3; retry without early data")]
    RetryWithoutEarlyData,
    /// A certificate or key file could not be read.
    #[error("cannot read {what} {path}: {source}; give a file that this user may read")]
    File {
        /// What the file should have held.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A certificate or key is no PEM of the right kind.
    #[error("{path} holds no {what} in PEM form: {reason}")]
    Pem {
        /// What it should have held.
        what: &'static str,
        /// The file, or a word for where the bytes came from.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// Certificate and key are not a pair.
    #[error(
        "the key in {key} does not belong to the certificate in {cert}; give the key that the \
         certificate was issued for"
    )]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// A word that names no TLS version.
    #[error("unknown TLS version {0:?}; allowed are 1.0, 1.1, 1.2 or 1.3")]
    UnknownVersion(String),
    /// A word in a cipher list that the library does not know.
    #[error("unknown cipher in {0:?}; use names as `openssl ciphers` prints them")]
    UnknownCipher(String),
    /// A word in a list of groups that the library does not know.
    #[error("unknown group in {list:?}; allowed are {allowed}")]
    UnknownGroup {
        /// The list as given.
        list: String,
        /// The names that the library knows.
        allowed: String,
    },
    /// The bytes are no session.
    #[error("the stored session is damaged: {0}")]
    BadSession(String),
    /// A host name that cannot stand in a certificate or in SNI.
    #[error("{0:?} is no host name or address")]
    BadHost(String),
    /// A name that two sites claim.
    #[error("the name {0:?} is there twice; give each name to one site")]
    NameTwice(String),
    /// An OCSP response that is none, or of no use for its certificate now.
    #[error("the OCSP response cannot be stapled: {0}; fetch a new one")]
    Ocsp(&'static str),
    /// A word that names no preference among ciphers.
    #[error("unknown cipher preference {0:?}; allowed are hardware or client")]
    UnknownPreference(String),
    /// The library refused a setting; a defect of ours or an exhausted machine.
    #[error("BoringSSL refused {what}: {reason}")]
    Setup {
        /// The setting.
        what: &'static str,
        /// What the library said.
        reason: String,
    },
}

impl TlsError {
    pub(crate) fn setup(what: &'static str) -> impl Fn(ErrorStack) -> Self {
        move |stack| Self::Setup { what, reason: reasons(&stack) }
    }

    /// The error as an `io::Error`, for callers that speak `AsyncRead` and `AsyncWrite`. A socket
    /// error stays itself; every other one can be had back by `io::Error::downcast`.
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Io(error) => error,
            Self::ClosedInHandshake => io::Error::new(io::ErrorKind::UnexpectedEof, self),
            other => io::Error::other(other),
        }
    }

    /// The TLS error that an `io::Error` from a [`crate::TlsStream`] carries, if it carries one.
    pub fn in_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// The reasons on BoringSSL's error stack as one short phrase, oldest first.
pub(crate) fn reasons(stack: &ErrorStack) -> String {
    let words: Vec<String> = stack
        .errors()
        .iter()
        .map(|e| e.reason().unwrap_or("unknown reason").to_ascii_lowercase().replace('_', " "))
        .collect();
    if words.is_empty() { "unknown reason".to_owned() } else { words.join(", ") }
}
