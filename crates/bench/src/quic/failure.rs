use firstflight_units::printable;
use quinn_proto::{ConnectionError, TransportErrorCode};

use crate::ErrorKind;
use crate::failure::Failure;

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Self {
        let kind = match &error {
            ConnectionError::ConnectionClosed(close) => match close.error_code {
                TransportErrorCode::CONNECTION_REFUSED => ErrorKind::ConnectRefused,
                code if alert(code).is_some() => ErrorKind::TlsAlert,
                _ => ErrorKind::Reset,
            },
            ConnectionError::TransportError(error) => match alert(error.code) {
                Some(CERTIFICATE_FIRST..=CERTIFICATE_LAST | UNKNOWN_CA) => ErrorKind::Certificate,
                Some(_) => ErrorKind::Tls,
                None => ErrorKind::Quic,
            },
            ConnectionError::ApplicationClosed(_) => ErrorKind::Truncated,
            ConnectionError::Reset => ErrorKind::Reset,
            ConnectionError::TimedOut => ErrorKind::Timeout,
            ConnectionError::VersionMismatch
            | ConnectionError::LocallyClosed
            | ConnectionError::CidsExhausted => ErrorKind::Quic,
        };
        // The server's words are in it.
        Self::new(kind, printable(&error.to_string()))
    }
}

/// Alerts about the server's certificate, `bad_certificate` to `certificate_unknown` (RFC 8446
/// section 6.2).
const CERTIFICATE_FIRST: u8 = 42;
const CERTIFICATE_LAST: u8 = 46;
const UNKNOWN_CA: u8 = 48;

/// The TLS alert that an error code stands for (RFC 9001 section 4.8).
fn alert(code: TransportErrorCode) -> Option<u8> {
    u8::try_from(u64::from(code).checked_sub(0x100)?).ok()
}

#[cfg(test)]
mod tests {
    use quinn_proto::TransportError;

    use super::*;

    #[test]
    fn rfc9001_4_8_alerts_are_told_from_what_quic_finds() {
        let kind = |code| {
            let error = TransportError { code, frame: None, reason: String::new() };
            Failure::from(ConnectionError::TransportError(error)).kind
        };
        assert_eq!(kind(TransportErrorCode::crypto(42)), ErrorKind::Certificate);
        assert_eq!(kind(TransportErrorCode::crypto(120)), ErrorKind::Tls);
        assert_eq!(kind(TransportErrorCode::FLOW_CONTROL_ERROR), ErrorKind::Quic);
        assert_eq!(Failure::from(ConnectionError::TimedOut).kind, ErrorKind::Timeout);
        assert_eq!(Failure::from(ConnectionError::Reset).kind, ErrorKind::Reset);
    }
}
