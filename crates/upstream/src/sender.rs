//! One request on one connection.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tracing::debug;

use crate::connection_cache::{Owner, Stream};
use crate::retry::Failure;
use crate::upload::Upload;

/// A bidirectional byte stream of any transport.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A byte stream with hyper's I/O traits.
pub(crate) type Io = TokioIo<Box<dyn ByteStream>>;

/// A connection with room for one request.
pub(crate) enum Sender {
    /// Returned to the cache when the response has ended.
    Http1(Http1, Owner),
    Http2(http2::SendRequest<Upload>, Stream),
}

/// An HTTP/1.1 connection.
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

    /// Closes the connection at once. A connection that is only dropped first sends the whole
    /// request.
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
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEAD_FIELDS)
        .handshake(io)
        .await?;
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
    let spawner = Spawner::default();
    let (sender, connection) = http2::Builder::new(spawner.clone())
        .timer(TokioTimer::new())
        .adaptive_window(true)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .handshake(io)
        .await?;
    let max_streams = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
    let max_streams_writer = max_streams.clone();
    let (mut request_task, mut socket_task) = (Some(connection), spawner.take_first());
    tokio::spawn(poll_fn(move |cx| {
        if let Some(running) = &mut request_task
            && let Poll::Ready(ended) = Pin::new(running).poll(cx)
        {
            if let Err(error) = ended {
                debug!("a connection to an upstream ended: {error}");
            }
            request_task = None;
        }
        // Polled after the requests, so that it writes them at once.
        if socket_task.as_mut().is_some_and(|task| task.as_mut().poll(cx).is_ready()) {
            // The dropped task reports its end, which ends the requests too.
            socket_task = None;
        }
        if let Some(running) = &request_task {
            max_streams_writer.store(running.current_max_send_streams(), Ordering::Relaxed);
        }
        match (&request_task, &socket_task) {
            (None, None) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }));
    Ok((sender, max_streams))
}

/// Spawns the tasks of an HTTP/2 connection, except the first, which reads and writes the socket.
///
/// The first task runs in the task that starts the requests. On two threads, hyper could start a
/// request, read a GOAWAY that permits it, and report it as not processed although it was sent.
#[derive(Clone, Default)]
struct Spawner(Arc<OnceLock<Mutex<Option<Task>>>>);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Spawner {
    fn take_first(&self) -> Option<Task> {
        self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawner {
    fn execute(&self, task: F) {
        let mut task = Some(task);
        self.0.get_or_init(|| Mutex::new(task.take().map(|task| Box::pin(task) as Task)));
        if let Some(task) = task {
            tokio::spawn(task);
        }
    }
}

/// Classifies an error. `reused`: whether the connection was reused.
pub(crate) fn failure(error: &hyper::Error, reused: bool) -> Failure {
    match h2_error(error) {
        Some(h2) if is_unprocessed(h2) => Failure::Refused,
        None if reused && is_connection_end(error) => Failure::Stale,
        _ if error.is_canceled() => Failure::Stale,
        _ => Failure::Broken,
    }
}

/// RFC 9113 section 8.7: the stream was refused, or is above the last stream ID of a GOAWAY.
fn is_unprocessed(error: &h2::Error) -> bool {
    let reason = error.reason();
    error.is_remote()
        && (reason == Some(h2::Reason::REFUSED_STREAM)
            || error.is_go_away() && reason == Some(h2::Reason::NO_ERROR))
}

/// Returns whether the connection ended without any invalid bytes.
fn is_connection_end(error: &hyper::Error) -> bool {
    let closed = |error: &io::Error| {
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
        || error.source().and_then(|error| error.downcast_ref()).is_some_and(closed)
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    error.source()?.downcast_ref()
}

/// A connection to an unreachable peer is closed within the sum of both.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a response head: hyper's default for HTTP/1.1. Its default for HTTP/2 is 16 KiB,
/// which long cookies and security policies exceed.
const MAX_HEAD_BYTES: usize = 408 << 10;

/// Maximum number of fields in a response head over HTTP/1.1. hyper's default is 100, which
/// responses with many cookies exceed. hyper allocates memory for all fields with each response.
const MAX_HEAD_FIELDS: usize = 256;

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;

    /// On one task, nothing is read between the start of a request and the check for a GOAWAY.
    #[tokio::test]
    async fn rfc9113_6_8_a_goaway_is_read_in_the_task_that_starts_requests() {
        let (near, _far) = tokio::io::duplex(1 << 16);
        let near: Box<dyn ByteStream> = Box::new(near);
        let _connection = http2(TokioIo::new(near)).await.unwrap();
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 1);
    }
}
