use std::io;

use firstflight_tls::TlsError;

use crate::ErrorKind;

/// Why a connection failed, and as what it counts.
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
            "the server closed the connection before its answer was whole",
        )
    }

    pub(crate) fn timeout() -> Self {
        Self::new(ErrorKind::Timeout, "the answer was not whole in time")
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
            // The library names the alerts that came "tlsv1 alert ..." or "sslv3 alert ...".
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

/// Bytes that are no response to what was asked.
#[derive(Debug, PartialEq, Eq)]
pub struct BadAnswer(pub &'static str);

impl From<BadAnswer> for Failure {
    fn from(bad: BadAnswer) -> Self {
        Self::new(ErrorKind::BadAnswer, format!("what came is no answer: {}", bad.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_told_apart() {
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
    fn alerts_are_told_from_other_tls_failures() {
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
