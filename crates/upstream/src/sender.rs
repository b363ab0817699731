//! One request on one connection.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tracing::debug;

use crate::connection_cache::{Owner, Stream};
use crate::retry::Failure;
use crate::upload::Upload;

/// A bidirectional byte stream of any transport.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection for the HTTP library.
pub(crate) type Io = TokioIo<Box<dyn ByteStream>>;

/// A connection with room for one request.
pub(crate) enum Sender {
    /// Returned to the cache when the response has ended.
    Http1(Http1, Owner),
    Http2(http2::SendRequest<Upload>, Stream),
}

/// A connection of HTTP/1.1.
pub(crate) struct Http1 {
    sender: http1::SendRequest<Upload>,
    task: AbortHandle,
}

impl Http1 {
    pub(crate) async fn send(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Upload>>> {
        self.sender.try_send_request(request).await
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Waits until the connection has room for a request.
    pub(crate) async fn ready(&mut self) -> hyper::Result<()> {
        self.sender.ready().await
    }

    /// Closes the connection at once. Without it, a dropped connection first ends what it sends.
    pub(crate) fn abort(self) {
        self.task.abort();
    }
}

impl Sender {
    /// Sends a request. The error contains the request if no byte of it was sent.
    pub(crate) async fn send(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Upload>>> {
        match self {
            Self::Http1(connection, _) => connection.send(request).await,
            Self::Http2(sender, _) => sender.try_send_request(request).await,
        }
    }
}

/// Starts HTTP/1.1 on a connection.
pub(crate) async fn http1(io: Io) -> hyper::Result<Http1> {
    let (sender, connection) =
        http1::Builder::new().max_buf_size(MAX_HEAD_BYTES).handshake(io).await?;
    let task = tokio::spawn(async move {
        // Needed for upgrades.
        if let Err(error) = connection.with_upgrades().await {
            debug!("a connection to an upstream ended: {error}");
        }
    });
    Ok(Http1 { sender, task: task.abort_handle() })
}

/// Starts HTTP/2 on a connection. Also returns the number of concurrent streams that the server
/// allows.
pub(crate) async fn http2(io: Io) -> hyper::Result<(http2::SendRequest<Upload>, Arc<AtomicUsize>)> {
    let (sender, mut connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .adaptive_window(true)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .handshake(io)
        .await?;
    let allowed = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
    let log_change = allowed.clone();
    tokio::spawn(async move {
        let ended = poll_fn(|cx| {
            let ended = Pin::new(&mut connection).poll(cx);
            log_change.store(connection.current_max_send_streams(), Ordering::Relaxed);
            ended
        });
        if let Err(error) = ended.await {
            debug!("a connection to an upstream ended: {error}");
        }
    });
    Ok((sender, allowed))
}

/// Classifies an error. `cache`: the connection was reused.
pub(crate) fn failure(error: &hyper::Error, cache: bool) -> Failure {
    match h2_error(error) {
        Some(h2) if is_unprocessed(h2) => Failure::Refused,
        None if cache && ended(error) => Failure::Stale,
        _ if error.is_canceled() => Failure::Stale,
        _ => Failure::Broken,
    }
}

/// RFC 9113 section 8.7: refused, or above what a GOAWAY says is processed.
fn is_unprocessed(error: &h2::Error) -> bool {
    let reason = error.reason();
    error.is_remote()
        && (reason == Some(h2::Reason::REFUSED_STREAM)
            || error.is_go_away() && reason == Some(h2::Reason::NO_ERROR))
}

/// Returns whether the connection ended without any invalid bytes.
fn ended(error: &hyper::Error) -> bool {
    let broken = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::NotConnected
                | io::ErrorKind::UnexpectedEof
        )
    };
    error.is_incomplete_message()
        || error.is_closed()
        || error.source().and_then(|error| error.downcast_ref()).is_some_and(broken)
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    error.source()?.downcast_ref()
}

/// A connection to a peer that disappeared is closed within the sum of both.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a response head: the library's default for HTTP/1.1. That for HTTP/2 is 16 KiB,
/// which long cookies and policies exceed.
const MAX_HEAD_BYTES: usize = 408 << 10;
