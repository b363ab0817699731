use std::io;
use std::time::Duration;

use firstflight_tls::TlsError;

/// Why a pool cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// An invalid setting.
    #[error("{reason}")]
    Setting {
        /// The key of the setting, below that of its table: `retry.tries`.
        key: &'static str,
        /// The problem, and the allowed values.
        reason: &'static str,
    },
    /// The certificate authorities cannot be read.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Every server is down by its health checks, or this request failed on all.
    #[error("no server is up")]
    NoServer,
    /// Every server has its maximum number of requests.
    #[error("every server was busy for {0:?}")]
    Busy(Duration),
    /// Connecting failed.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection ended early, or the response is invalid.
    #[error("no response: {0}")]
    Broken(#[source] hyper::Error),
    /// No response in time.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// The client aborted its request.
    #[error("the client aborted its request")]
    ClientGone,
    /// The client stopped sending its request.
    #[error("the client sent nothing of its request for {0:?}")]
    ClientStalled(Duration),
    /// The server switches to another protocol without a request to do so.
    #[error("the server switched protocols without a request to do so")]
    UnexpectedUpgrade,
    /// A transfer coding other than `chunked`, which was not requested (RFC 9110 section 10.1.4).
    #[error("the response has a transfer coding other than chunked")]
    TransferCoding,
    /// An invalid `Host`.
    #[error("the Host of the request is invalid")]
    BadHost,
    /// A request to switch protocols cannot be sent over HTTP/2.
    #[error("this pool uses HTTP/2, which has no upgrade to other protocols")]
    NoUpgrade,
}

impl SendError {
    /// Returns a short name for logs and spans: `connect`, `broken` and so on.
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

/// The response body stalled.
#[derive(Debug, thiserror::Error)]
#[error("the upstream sent nothing of its response for {0:?}")]
pub(crate) struct Stalled(pub(crate) Duration);
