//! Errors of a run, and failures of a single connection.

use std::io;
use std::net::SocketAddr;

use firstflight_tls::TlsError;
use serde::{Deserialize, Serialize};

/// Why a run has no result. Failures of single connections are counted in the result instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// An invalid setting.
    #[error("{0}")]
    Usage(String),
    /// A TLS setting that the TLS library rejects.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The first connection to a server failed, so there is nothing to measure.
    #[error("the first connection to {address} failed: {reason}")]
    WarmUp {
        /// The server.
        address: SocketAddr,
        /// The cause.
        reason: String,
    },
    /// The server issues no tickets, so nothing can be resumed.
    #[error("{address} issues no {what}; enable them on the server, or measure full handshakes")]
    NoTickets {
        /// The server.
        address: SocketAddr,
        /// `tickets`, or `tickets that allow early data`.
        what: &'static str,
    },
    /// A thread could not be pinned.
    #[error("cannot pin a thread to core {core}: {reason}; give a core that this process may use")]
    Pin {
        /// The core.
        core: usize,
        /// The cause.
        reason: String,
    },
    /// No thread, timer or event queue could be created.
    #[error("cannot create an event loop: {0}")]
    Resources(#[from] io::Error),
    /// The server process cannot be measured.
    #[error(
        "cannot read the CPU time of process {pid}: {reason}; give the id of a running process"
    )]
    ServerProcess {
        /// The process.
        pid: u32,
        /// The cause.
        reason: String,
    },
}

/// How a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing listens on the port.
    ConnectRefused,
    /// There is no route, or no response to the SYN in time.
    Unreachable,
    /// All local ports towards the server are in use.
    NoLocalPort,
    /// The limit of open files is reached.
    NoFile,
    /// The peer reset the connection.
    Reset,
    /// The connection took longer than [`LoadConfig::timeout`](crate::LoadConfig::timeout).
    Timeout,
    /// The server sent a TLS alert.
    TlsAlert,
    /// The server's certificate was not accepted.
    Certificate,
    /// TLS failed in another way.
    Tls,
    /// QUIC failed with an error that this side detected.
    Quic,
    /// The peer closed before the response was complete.
    Truncated,
    /// The bytes received are not a valid response.
    BadResponse,
    /// The response is complete and its status is 400 or above.
    HttpStatus,
    /// Another socket error.
    Socket,
}

impl ErrorKind {
    /// The kind as tables print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConnectRefused => "connect refused",
            Self::Unreachable => "unreachable",
            Self::NoLocalPort => "no local port left",
            Self::NoFile => "too many open files",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::TlsAlert => "TLS alert",
            Self::Certificate => "certificate",
            Self::Tls => "TLS",
            Self::Quic => "QUIC",
            Self::Truncated => "truncated",
            Self::BadResponse => "bad response",
            Self::HttpStatus => "HTTP status",
            Self::Socket => "socket",
        }
    }
}

/// Failures of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// The kind.
    pub kind: ErrorKind,
    /// Number of failures.
    pub count: u64,
    /// The message of the first failure.
    pub example: String,
}

/// Why a connection failed, and the kind under which the failure is counted.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) reason: String,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }

    pub(crate) fn truncated() -> Self {
        Self::new(
            ErrorKind::Truncated,
            "the server closed the connection before the response was complete",
        )
    }

    pub(crate) fn timeout() -> Self {
        Self::new(ErrorKind::Timeout, "the response was not complete in time")
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::ConnectionRefused => ErrorKind::ConnectRefused,
            Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe => ErrorKind::Reset,
            Io::TimedOut | Io::HostUnreachable | Io::NetworkUnreachable => ErrorKind::Unreachable,
            Io::AddrNotAvailable => ErrorKind::NoLocalPort,
            Io::UnexpectedEof => ErrorKind::Truncated,
            _ => match error.raw_os_error() {
                Some(nix::libc::EMFILE | nix::libc::ENFILE) => ErrorKind::NoFile,
                _ => ErrorKind::Socket,
            },
        };
        Self::new(kind, error.to_string())
    }
}

impl From<TlsError> for Failure {
    fn from(error: TlsError) -> Self {
        let kind = match &error {
            TlsError::Certificate(_) => ErrorKind::Certificate,
            TlsError::ClosedInHandshake => ErrorKind::Truncated,
            // BoringSSL reports received alerts as "tlsv1 alert ..." or "sslv3 alert ...".
            TlsError::Handshake(reason) | TlsError::Connection(reason)
                if reason.contains(" alert ") =>
            {
                ErrorKind::TlsAlert
            }
            _ => ErrorKind::Tls,
        };
        match error {
            TlsError::Io(error) => error.into(),
            error => Self::new(kind, error.to_string()),
        }
    }
}

/// The bytes received are not a valid response; with the reason.
#[derive(Debug, PartialEq, Eq)]
pub struct BadResponse(pub &'static str);

impl From<BadResponse> for Failure {
    fn from(bad: BadResponse) -> Self {
        Self::new(ErrorKind::BadResponse, format!("invalid response: {}", bad.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_errors_are_counted_by_kind() {
        use nix::libc;
        for (code, kind) in [
            (libc::ECONNREFUSED, ErrorKind::ConnectRefused),
            (libc::ECONNRESET, ErrorKind::Reset),
            (libc::EPIPE, ErrorKind::Reset),
            (libc::ETIMEDOUT, ErrorKind::Unreachable),
            (libc::EHOSTUNREACH, ErrorKind::Unreachable),
            (libc::EADDRNOTAVAIL, ErrorKind::NoLocalPort),
            (libc::EMFILE, ErrorKind::NoFile),
            (libc::EINVAL, ErrorKind::Socket),
        ] {
            let failure = Failure::from(io::Error::from_raw_os_error(code));
            assert_eq!(failure.kind, kind, "{}", failure.reason);
        }
    }

    #[test]
    fn tls_alerts_are_distinguished_from_other_tls_failures() {
        let kind = |error: TlsError| Failure::from(error).kind;
        let alert = "tlsv1 alert no application protocol".to_owned();
        assert_eq!(kind(TlsError::Handshake(alert)), ErrorKind::TlsAlert);
        assert_eq!(kind(TlsError::Handshake("wrong version number".into())), ErrorKind::Tls);
        assert_eq!(kind(TlsError::Certificate("expired".into())), ErrorKind::Certificate);
        assert_eq!(kind(TlsError::ClosedInHandshake), ErrorKind::Truncated);
        assert_eq!(
            kind(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            ErrorKind::Truncated
        );
    }
}
