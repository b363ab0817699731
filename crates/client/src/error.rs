use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_tls::TlsError;

use crate::JarError;

/// What can go wrong in a transfer, each in one sentence, each with curl's exit code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A flag or a value that means nothing.
    #[error("{0}")]
    Usage(String),
    /// No URL.
    #[error("{url:?} is no URL: {reason}")]
    BadUrl {
        /// The text as given.
        url: String,
        /// What the parser said.
        reason: String,
    },
    /// A URL of another kind.
    #[error("the scheme {0:?} is not spoken here; use https or http")]
    UnsupportedScheme(String),
    /// The name has no address.
    #[error("cannot resolve {host}: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// Why not.
        reason: String,
    },
    /// No address of the server took the connection.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// A time limit has passed.
    #[error("{phase} took longer than {} s", after.as_secs_f64())]
    Timeout {
        /// What was going on.
        phase: &'static str,
        /// The limit.
        after: Duration,
    },
    /// TLS failed, or a TLS setting is not taken.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The peer closed without a byte of a response.
    #[error("the server closed the connection without an answer")]
    EmptyReply,
    /// The body is shorter than its head promised.
    #[error("the server closed the connection {missing} of the body")]
    PartialBody {
        /// Where the body ends, as a phrase.
        missing: &'static str,
    },
    /// Sending failed.
    #[error("sending the request failed: {0}")]
    Send(io::Error),
    /// Receiving failed.
    #[error("receiving the answer failed: {0}")]
    Receive(String),
    /// What came is no HTTP.
    #[error("the server's answer is no valid HTTP: {0}")]
    WeirdReply(String),
    /// The peers disagree about HTTP/2.
    #[error("HTTP/2 failed: {0}")]
    Http2(String),
    /// No connection over QUIC came about.
    #[error("no QUIC connection to {address}: {reason}")]
    Quic {
        /// The last address that was tried.
        address: SocketAddr,
        /// Why not, as a phrase.
        reason: String,
    },
    /// TLS failed over QUIC.
    #[error("{sentence}")]
    QuicTls {
        /// What TLS says of it.
        sentence: String,
        /// Whether the server's certificate was not accepted.
        certificate: bool,
    },
    /// The peers disagree about HTTP/3.
    #[error("HTTP/3 failed: {0}")]
    Http3(String),
    /// The server says that it has not started with the request, so that it may be sent again on
    /// another connection.
    #[error("the server takes no more requests on this connection; try again")]
    NotProcessed,
    /// An error status, where the caller wanted that to be an error.
    #[error("the server answered {0}")]
    Status(u16),
    /// What was received could not be written.
    #[error("cannot write what was received: {0}")]
    Write(io::Error),
    /// The server sends from place to place.
    #[error("more than {0} redirections were followed; raise --max-redirs if that is right")]
    TooManyRedirects(u32),
    /// The session jar cannot be used.
    #[error("{0}")]
    Jar(#[from] JarError),
}

impl ClientError {
    /// The exit code that curl uses for the same failure.
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
    fn codes_are_curls() {
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
