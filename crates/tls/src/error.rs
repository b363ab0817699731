use std::io;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use boring::error::ErrorStack;

/// Errors of TLS. Each message is one sentence, with the fix if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The peers could not agree, or the peer's bytes are not TLS.
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
    /// Early data was refused and the server selected another application protocol, so the request
    /// has to be sent again on a new connection (RFC 8446 section 4.2.10).
    #[error(
        "the server refused early data and selected {now:?} instead of {before:?}; \
         send the request again on a new connection"
    )]
    AlpnChanged {
        /// The protocol of the resumed session.
        before: String,
        /// The protocol that the server selected.
        now: String,
    },
    /// The server negotiated an older version after early data was sent. RFC 8446 appendix D.3
    /// demands a new connection without early data.
    #[error("the server no longer supports TLS 1.3; retry without early data")]
    RetryWithoutEarlyData,
    /// A certificate or key file could not be read.
    #[error("cannot read {what} {path}: {source}; give a file that this user may read")]
    File {
        /// What the file should contain.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A certificate or key is not valid PEM of the right kind.
    #[error("{path} contains no {what} in PEM form: {reason}")]
    Pem {
        /// What it should contain.
        what: &'static str,
        /// The file, or a description of where the bytes came from.
        path: PathBuf,
        /// The parser's reason.
        reason: String,
    },
    /// The key does not match the certificate.
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
    /// Not a TLS version.
    #[error("unknown TLS version {0:?}; allowed are 1.0, 1.1, 1.2 or 1.3")]
    UnknownVersion(String),
    /// A cipher list with an unknown name.
    #[error("unknown cipher in {0:?}; use names as `openssl ciphers` prints them")]
    UnknownCipher(String),
    /// A list of groups with an unknown name.
    #[error("unknown group in {list:?}; allowed are {allowed}")]
    UnknownGroup {
        /// The configured list.
        list: String,
        /// The known names.
        allowed: String,
    },
    /// The bytes are not a session.
    #[error("the stored session is damaged: {0}")]
    BadSession(String),
    /// The server could not decrypt the ClientHello (RFC 9849 section 6.1.6), and has proved that it is the
    /// server of the configuration's public name.
    #[error(
        "the server could not decrypt the ClientHello (ECH){}",
        .retry_configs.as_ref().map_or_else(
            || "; connect without ECH".to_owned(),
            |configs| format!("; its present configuration is ecl:{}", STANDARD.encode(configs)),
        )
    )]
    EchRejected {
        /// The ECHConfigList to try next; `None`: the server no longer has ECH.
        retry_configs: Option<Vec<u8>>,
    },
    /// Not an ECHConfigList.
    #[error("the ECH configuration is damaged; copy the value of ech in the server's DNS record")]
    BadEchConfigs,
    /// A host name that is not valid in a certificate or in SNI.
    #[error("{0:?} is not a host name or address")]
    BadHost(String),
    /// A name that is configured for two sites.
    #[error("the name {0:?} is configured twice; give each name to one site")]
    DuplicateName(String),
    /// An OCSP response that is invalid, or not usable for its certificate now.
    #[error("the OCSP response cannot be stapled: {0}; fetch a new one")]
    Ocsp(&'static str),
    /// Not a cipher preference.
    #[error("unknown cipher preference {0:?}; allowed are hardware or client")]
    UnknownPreference(String),
    /// BoringSSL rejected a setting: a bug of the caller, or no memory.
    #[error("BoringSSL rejected {what}: {reason}")]
    Setup {
        /// The setting.
        what: &'static str,
        /// BoringSSL's reason.
        reason: String,
    },
}

impl TlsError {
    pub(crate) fn setup(what: &'static str) -> impl Fn(ErrorStack) -> Self {
        move |stack| Self::Setup { what, reason: reasons(&stack) }
    }

    /// Converts into an `io::Error`, for `AsyncRead` and `AsyncWrite`. A socket error is returned
    /// unchanged; every other error can be recovered with [`TlsError::in_io`].
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Io(error) => error,
            Self::ClosedInHandshake => io::Error::new(io::ErrorKind::UnexpectedEof, self),
            other => io::Error::other(other),
        }
    }

    /// Returns the TLS error inside an `io::Error` from a [`crate::TlsStream`].
    pub fn in_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// Formats BoringSSL's error stack as one phrase, oldest error first.
pub(crate) fn reasons(stack: &ErrorStack) -> String {
    let words: Vec<String> = stack
        .errors()
        .iter()
        .map(|e| e.reason().unwrap_or("unknown reason").to_ascii_lowercase().replace('_', " "))
        .collect();
    if words.is_empty() { "unknown reason".to_owned() } else { words.join(", ") }
}
