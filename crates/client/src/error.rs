use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_tls::TlsError;

use crate::JarError;

/// An error of a transfer, with curl's exit code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// An invalid flag or value.
    #[error("{0}")]
    Usage(String),
    /// An invalid URL.
    #[error("invalid URL {url:?}: {reason}")]
    BadUrl {
        /// The text.
        url: String,
        /// The error of the parser.
        reason: String,
    },
    /// A URL with an unsupported scheme.
    #[error("unsupported URL scheme {0:?}; use https or http")]
    UnsupportedScheme(String),
    /// The name has no address.
    #[error("cannot resolve {host}: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// The reason.
        reason: String,
    },
    /// No address of the server accepted the connection.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// A timeout.
    #[error("{phase} took longer than {} s", after.as_secs_f64())]
    Timeout {
        /// The phase.
        phase: &'static str,
        /// The limit.
        after: Duration,
    },
    /// TLS failed, or a TLS setting is invalid.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The server closed the connection without a byte of a response.
    #[error("the server closed the connection without a response")]
    EmptyReply,
    /// The body is shorter than its head announced.
    #[error("the server ended the response {missing} of the body")]
    PartialBody {
        /// Where the body ends, as a phrase.
        missing: &'static str,
    },
    /// Sending failed.
    #[error("sending the request failed: {0}")]
    Send(io::Error),
    /// Receiving failed.
    #[error("receiving the response failed: {0}")]
    Receive(String),
    /// The response is not valid HTTP (curl: weird server reply).
    #[error("the response is not valid HTTP: {0}")]
    WeirdReply(String),
    /// A protocol error of HTTP/2.
    #[error("HTTP/2 failed: {0}")]
    Http2(String),
    /// The HTTP/2 stream of the request was reset, by the server or for an error of the server.
    #[error("the HTTP/2 stream was reset: {0}")]
    Http2Stream(String),
    /// The QUIC connection failed.
    #[error("no QUIC connection to {address}: {reason}")]
    Quic {
        /// The last address that was tried.
        address: SocketAddr,
        /// The reason, as a phrase.
        reason: String,
    },
    /// TLS failed over QUIC.
    #[error("{sentence}")]
    QuicTls {
        /// The error of TLS.
        sentence: String,
        /// Whether the server's certificate was not accepted.
        certificate: bool,
    },
    /// A protocol error of HTTP/3.
    #[error("HTTP/3 failed: {0}")]
    Http3(String),
    /// The server has not processed the request, so it can be sent again on another connection.
    #[error("the server accepts no more requests on this connection; try again")]
    NotProcessed,
    /// An error status, if the configuration treats it as an error.
    #[error("the server responded {0}")]
    Status(u16),
    /// The response could not be written.
    #[error("cannot write the response: {0}")]
    Write(io::Error),
    /// Too many redirections.
    #[error("more than {0} redirections; raise --max-redirs if that is expected")]
    TooManyRedirects(u32),
    /// The session jar cannot be used.
    #[error("{0}")]
    Jar(#[from] JarError),
}

impl ClientError {
    /// Returns the exit code that curl uses for the same failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnsupportedScheme(_) => 1,
            Self::Usage(_) | Self::Jar(_) => 2,
            Self::BadUrl { .. } => 3,
            Self::Resolve { .. } => 6,
            Self::Connect { .. } => 7,
            Self::WeirdReply(_) => 8,
            Self::Http2(_) => 16,
            Self::PartialBody { .. } => 18,
            Self::Status(_) => 22,
            Self::Write(_) => 23,
            Self::Timeout { .. } => 28,
            Self::TooManyRedirects(_) => 47,
            Self::EmptyReply => 52,
            Self::Send(_) => 55,
            Self::Receive(_) => 56,
            Self::Http2Stream(_) => 92,
            Self::Http3(_) | Self::NotProcessed => 95,
            Self::Quic { .. } => 96,
            Self::QuicTls { certificate: true, .. } => 60,
            Self::QuicTls { .. } => 35,
            Self::Tls(error) => tls_exit_code(error),
        }
    }
}

fn tls_exit_code(error: &TlsError) -> u8 {
    match error {
        TlsError::Certificate(_) => 60,
        TlsError::File { .. } | TlsError::Pem { .. } => 77,
        TlsError::UnknownCipher(_) | TlsError::UnknownGroup { .. } => 59,
        TlsError::UnknownVersion(_) | TlsError::BadSession(_) => 2,
        TlsError::BadHost(_) => 3,
        TlsError::Connection(_) => 56,
        _ => 35,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_match_curl() {
        let refused = ClientError::Connect {
            address: ([127, 0, 0, 1], 1).into(),
            source: io::ErrorKind::ConnectionRefused.into(),
        };
        assert_eq!(refused.exit_code(), 7);
        assert_eq!(ClientError::EmptyReply.exit_code(), 52);
        assert_eq!(ClientError::from(TlsError::Certificate("x".into())).exit_code(), 60);
        assert_eq!(ClientError::from(TlsError::ClosedInHandshake).exit_code(), 35);
    }
}
