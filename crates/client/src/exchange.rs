use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::iter::successors;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_tls::Session;
use http::{HeaderMap, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stream::{tls_error, too_many_informational};
use crate::{ClientError, Connected, Head, PhaseInstants, Request, SharedStream, Stream};

/// HTTP on one connection. The caller drives it and no task is spawned, so that the request is written
/// before the connection is first polled, and leaves in the first write.
pub struct Exchange<S> {
    stream: SharedStream<S>,
    sender: Sender,
    driver: Driver,
}

/// The result of [`http_get`].
pub struct HttpResponse {
    /// The head.
    pub head: Head,
    /// The body.
    pub body: Vec<u8>,
    /// The times of all phases.
    pub marks: PhaseInstants,
    /// What TLS negotiated.
    pub facts: Option<firstflight_tls::Handshake>,
    /// The sessions received until the end of the body.
    pub sessions: Vec<Session>,
    /// The kernel's TCP statistics of the connection.
    pub tcp: Option<crate::TcpInfo>,
    /// The connection, for another request or to close.
    pub exchange: Exchange<TcpStream>,
}

/// Makes one request on a new connection and reads the whole response, at most `limit` bytes of
/// body.
///
/// # Errors
/// [`ClientError`], as [`Exchange::send`] and [`Exchange::read_body`].
pub async fn http_get(
    connected: Connected,
    request: &Request,
    limit: usize,
) -> Result<HttpResponse, ClientError> {
    let http2 = connected.stream.facts().alpn.as_deref() == Some(b"h2");
    let mut marks = connected.marks;
    let stream = SharedStream::new(Stream::Tls(Box::new(connected.stream)));
    let mut exchange = Exchange::open(stream, http2).await?;
    let (head, mut incoming) = exchange.send(request).await?;
    let mut body = Vec::new();
    while let Some(bytes) = exchange.read_body(&mut incoming).await? {
        if body.len() + bytes.len() > limit {
            return Err(ClientError::WeirdReply(format!("the body is over {limit} bytes")));
        }
        body.extend_from_slice(&bytes);
    }
    let stream = exchange.stream();
    marks.end = Some(Instant::now());
    let counters = stream.counters();
    marks.sent = counters.sent;
    marks.first_byte = counters.first_byte;
    marks.secured = marks.secured.or(counters.secured);
    Ok(HttpResponse {
        head,
        body,
        marks,
        facts: stream.facts(),
        sessions: stream.take_sessions(),
        tcp: stream.with_socket(crate::TcpInfo::of),
        exchange,
    })
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Exchange<S> {
    /// Prepares HTTP/2 or HTTP/1.1; sends nothing yet.
    ///
    /// # Errors
    /// [`ClientError`] if the stream has failed.
    pub async fn open(stream: SharedStream<S>, http2: bool) -> Result<Self, ClientError> {
        let io = TokioIo::new(stream.clone());
        let tasks = Tasks::default();
        let (sender, connection): (_, Task) = match http2 {
            true => {
                let (sender, connection) = http2::Builder::new(tasks.clone())
                    .max_header_list_size(MAX_HEAD_BYTES)
                    .handshake(io)
                    .await
                    .map_err(|error| failure(&stream, &error))?;
                (Sender::Two(sender), Box::pin(async move { drop(connection.await) }))
            }
            false => {
                let (sender, connection) = http1::Builder::new()
                    .title_case_headers(true)
                    .max_headers(MAX_HEAD_FIELDS)
                    .handshake(io)
                    .await
                    .map_err(|error| failure(&stream, &error))?;
                // Without shutdown: the client waits for tickets before it closes.
                let connection = connection.without_shutdown();
                (Sender::One(sender), Box::pin(async move { drop(connection.await) }))
            }
        };
        Ok(Self { stream, sender, driver: Driver { connection: Some(connection), tasks } })
    }

    /// Returns the version of HTTP.
    pub fn version(&self) -> Version {
        match self.sender {
            Sender::One(_) => Version::HTTP_11,
            Sender::Two(_) => Version::HTTP_2,
        }
    }

    /// Returns the underlying stream.
    pub fn stream(&self) -> SharedStream<S> {
        self.stream.clone()
    }

    /// Sends a request and waits for its response head. Up to 16 informational responses may precede
    /// it over HTTP/1.1.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::EmptyReply`] if the server closes without a byte.
    pub async fn send(&mut self, request: &Request) -> Result<(Head, Incoming), ClientError> {
        let mut request = request.to_http(self.version())?;
        self.stream.reset_for_request();
        let stream = self.stream.clone();
        // Called while heads are parsed, when the stream is not locked.
        hyper::ext::on_informational(&mut request, move |_| stream.note_informational());
        let response: ResponseFuture = match &mut self.sender {
            Sender::One(sender) => Box::pin(sender.send_request(request)),
            Sender::Two(sender) => Box::pin(sender.send_request(request)),
        };
        let result = self.driver.drive(response).await;
        if self.stream.too_many_informational() {
            return Err(ClientError::WeirdReply(too_many_informational()));
        }
        let response = result.map_err(|error| failure(&self.stream, &error))?;
        let (parts, body) = response.into_parts();
        let raw = match parts.version {
            Version::HTTP_2 => {
                // The first bytes were the SETTINGS of the server.
                self.stream.note_response(Instant::now());
                write_head("HTTP/2", parts.status, &parts.headers)
            }
            _ => self.stream.take_head(),
        };
        let head =
            Head { version: parts.version, status: parts.status, headers: parts.headers, raw };
        Ok((head, body))
    }

    /// Returns the next bytes of the body; `None` at its end.
    ///
    /// # Errors
    /// [`ClientError`], [`ClientError::PartialBody`] if the body ends early.
    pub async fn read_body(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, ClientError> {
        loop {
            match self.driver.drive(body.frame()).await {
                // hyper also reports the end of the body if the stream is reset with NO_ERROR or
                // excluded by GOAWAY; only END_STREAM ends it (RFC 9113 section 8.1).
                None if self.version() == Version::HTTP_2 && !body.is_end_stream() => {
                    return Err(ClientError::PartialBody { missing: "before the end" });
                }
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
                Some(Err(error)) => return Err(body_failure(&self.stream, &error)),
            }
        }
    }

    /// Returns whether the connection can be used for another request.
    pub async fn is_reusable(&mut self) -> bool {
        let ready = match &mut self.sender {
            Sender::One(sender) => {
                let wait = self.driver.drive(sender.ready());
                tokio::time::timeout(CLOSE_TIMEOUT, wait).await.is_ok_and(|ready| ready.is_ok())
            }
            Sender::Two(sender) => self.driver.drive(sender.ready()).await.is_ok(),
        };
        ready && !self.stream.counters().ended
    }

    /// Waits at most `timeout` for tickets, unless some have been received, and closes the connection.
    /// Returns all tickets.
    pub async fn close(self, timeout: Duration) -> Vec<Session> {
        let Self { mut stream, sender, driver } = self;
        // Drop the HTTP library's part first; from here on the stream is read directly.
        drop((sender, driver));
        let mut sessions = stream.take_sessions();
        if sessions.is_empty() && !timeout.is_zero() {
            let wait = poll_fn(|cx| stream.poll_session(cx));
            sessions = tokio::time::timeout(timeout, wait).await.unwrap_or_default();
        }
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
        sessions.extend(stream.take_sessions());
        sessions
    }
}

/// Maximum size of a head over HTTP/2 (RFC 9113 section 6.5.2), as over HTTP/3. Over HTTP/1.1 the
/// library's buffer is the limit, 408 KiB.
const MAX_HEAD_BYTES: u32 = 256 * 1024;

/// Maximum number of header fields over HTTP/1.1; the parser needs a fixed limit.
const MAX_HEAD_FIELDS: usize = 1000;

/// Timeout of closing a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

type ResponseFuture = Pin<Box<dyn Future<Output = hyper::Result<http::Response<Incoming>>> + Send>>;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls the connection together with the future that waits for it.
struct Driver {
    connection: Option<Task>,
    tasks: Tasks,
}

impl Driver {
    async fn drive<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            self.poll(cx);
            // The future may be ready now; if not, this poll registers its waker.
            future.as_mut().poll(cx)
        })
        .await
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(cx).is_ready()
        {
            self.connection = None;
        }
        self.tasks.poll(cx);
    }
}

/// Tasks that the HTTP/2 library spawns; the first one writes to the socket.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<Vec<Task>>>);

impl Tasks {
    fn poll(&self, cx: &mut Context<'_>) {
        let mut running = std::mem::take(&mut *self.queue());
        // Newest first and the writer last, so that the writer finds what the others have queued.
        for index in (0..running.len()).rev() {
            if running[index].as_mut().poll(cx).is_ready() {
                drop(running.remove(index));
            }
        }
        let mut queue = self.queue();
        if !queue.is_empty() {
            // Tasks that were spawned meanwhile have not been polled yet.
            cx.waker().wake_by_ref();
        }
        running.append(&mut queue);
        *queue = running;
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Vec<Task>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.queue().push(Box::pin(task));
    }
}

/// Formats a head of HTTP/2 or HTTP/3 as HTTP/1.1, as curl prints it.
pub(crate) fn write_head(version: &str, status: http::StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let mut head = format!("{version} {} \r\n", status.as_u16()).into_bytes();
    for (name, value) in headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn failure<S>(stream: &SharedStream<S>, error: &hyper::Error) -> ClientError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let has_started = stream.counters().first_byte.is_some();
    if let Some(error) = stream.take_failure() {
        return stream_failure(error, has_started, stream.is_complete());
    }
    match has_started {
        _ if error.is_parse() => ClientError::WeirdReply(causes(error)),
        false if error.is_incomplete_message() || stream.counters().ended => {
            ClientError::EmptyReply
        }
        true if error.is_incomplete_message() => {
            ClientError::Receive("the server closed the connection within the head".to_owned())
        }
        _ => http2_error_or(error, ClientError::Receive(causes(error))),
    }
}

fn body_failure<S>(stream: &SharedStream<S>, error: &hyper::Error) -> ClientError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Some(error) = stream.take_failure() {
        return stream_failure(error, true, true);
    }
    if stream.counters().ended && !is_reset(error) {
        return ClientError::PartialBody { missing: "before the end" };
    }
    http2_error_or(error, ClientError::Receive(causes(error)))
}

/// Maps an error of the stream to the error that curl reports.
fn stream_failure(error: io::Error, has_started: bool, complete: bool) -> ClientError {
    match tls_error(error) {
        Ok(error) => ClientError::Tls(error),
        Err(error) => match error.kind() {
            io::ErrorKind::UnexpectedEof if has_started => ClientError::Receive(
                "the server closed the connection without close_notify".to_owned(),
            ),
            io::ErrorKind::UnexpectedEof if complete => ClientError::EmptyReply,
            io::ErrorKind::BrokenPipe if !has_started => ClientError::Send(error),
            _ if !complete => ClientError::Tls(firstflight_tls::TlsError::Io(error)),
            _ => ClientError::Receive(error.to_string()),
        },
    }
}

/// Maps an error of HTTP/2; returns `fallback` for any other.
fn http2_error_or(error: &hyper::Error, fallback: ClientError) -> ClientError {
    match causes(error) {
        text if is_reset(error) => ClientError::Http2Stream(text),
        text if text.contains("http2") || text.contains("stream") => ClientError::Http2(text),
        _ => fallback,
    }
}

/// Whether an HTTP/2 stream was reset.
fn is_reset(error: &hyper::Error) -> bool {
    let mut chain = successors(error.source(), |&cause| cause.source());
    chain.any(|cause| cause.downcast_ref().is_some_and(h2::Error::is_reset))
}

/// Formats an error and its sources as one phrase.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
