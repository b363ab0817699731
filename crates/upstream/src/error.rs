use std::io;
use std::time::Duration;

use firstflight_tls::TlsError;

/// Why a pool cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Settings that make no sense.
    #[error("{reason}")]
    Setting {
        /// The key of the setting, or of the table that it is in.
        key: &'static str,
        /// What is wrong, and what is allowed.
        reason: &'static str,
    },
    /// Authorities that cannot be read.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Every server is down by its health checks.
    #[error("no server is up")]
    NoServer,
    /// Every server has as many requests as it may have.
    #[error("every server is busy, for {0:?} and longer")]
    Busy(Duration),
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection ended in the middle, or what came on it is no response.
    #[error("no answer: {0}")]
    Broken(#[source] hyper::Error),
    /// No response in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The client did not send its request to the end.
    #[error("the client broke its request off")]
    ClientGone,
    /// The same, without a word.
    #[error("the client did not go on with its request for {0:?}")]
    ClientStalled(Duration),
    /// The server speaks another protocol from here on, and nobody has asked for that.
    #[error("the server switches protocols unasked")]
    UnexpectedUpgrade,
    /// A transfer coding other than `chunked`, which was not asked for (RFC 9110 section 10.1.4).
    #[error("the response has a transfer coding other than chunked")]
    TransferCoding,
    /// A `Host` that is none.
    #[error("the request's Host is no host")]
    BadHost,
    /// A request that asks for another protocol cannot go over HTTP/2.
    #[error("this pool speaks HTTP/2, over which no other protocol can be asked for")]
    NoUpgrade,
}

impl SendError {
    /// A word for it, for counting: `connect`, `broken` and so on.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoServer => "no_server",
            Self::Busy(_) => "busy",
            Self::Connect(_) => "connect",
            Self::Broken(_) => "broken",
            Self::Timeout(_) => "timeout",
            Self::ClientGone => "client_gone",
            Self::ClientStalled(_) => "client_stalled",
            Self::UnexpectedUpgrade => "unexpected_upgrade",
            Self::TransferCoding => "transfer_coding",
            Self::BadHost => "bad_host",
            Self::NoUpgrade => "no_upgrade",
        }
    }
}

/// A response's body that stood still.
#[derive(Debug, thiserror::Error)]
#[error("the upstream's answer did not go on for {0:?}")]
pub(crate) struct Stalled(pub(crate) Duration);
