//! HTTP/3 on one connection: requests, bodies, time limits and shutdown.
//!
//! # Which requests are early
//!
//! h3 does not say which packets carried a request. A server processes 1-RTT packets only after the
//! client's Finished (RFC 9001 section 5.7). So a request that is read before was early for
//! certain, and one that is read later comes from a client whose handshake is complete, which is
//! all that a policy waits for. quinn marks a stream as late as soon as the connection is not
//! handshaking any more, and that includes a connection closed during its handshake. The server
//! therefore asks whether the handshake was completed, never whether it is in progress.
//!
//! # A connection that lost its claim
//!
//! A lost 0-RTT packet's request is sent again in 1-RTT packets. The late requests of a flight can
//! therefore not be told from its early ones: what the client sends after the handshake may have
//! been executed for a copy already. Each request of a connection that lost its claim gets 425, and
//! the connection ends.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use h3::error::{Code, ConnectionError, StreamError};
use h3::server::{RequestResolver, RequestStream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout, timeout_at};
use tracing::debug;

use crate::context::{BodyError, Stop, next_stop};
use crate::http::connection::Connection;
use crate::http::h3_streams::{Bidi, Link, LinkWatch, StreamEnd, StreamWatch};
use crate::http::h3_streams::{Recv, Send, StreamState, close_connection, varint};
use crate::http::request;
use crate::observe::request::RecordedBody;

/// Serves HTTP/3 until the connection ends. `deadline`: for the handshake and the first request.
pub(crate) async fn serve(
    connection: &Arc<Connection>,
    quic: &quinn::Connection,
    deadline: Instant,
    stop: &mut watch::Receiver<Stop>,
) {
    let header_size = connection.snapshot.limits.header_size as u64;
    // Heads that are slightly too large get a 431 response; larger ones are aborted.
    let link = Link::new(quic.clone(), header_size * 2, connection.shared.memory.clone());
    let watch = link.watch();
    let mut builder = h3::server::builder();
    // Early data is bound to these settings (RFC 9114 section 7.2.4.2). They follow from the
    // configuration alone, so random reserved settings are off.
    builder.max_field_section_size(header_size).send_grease(false);
    let built = timeout_at(deadline.into(), builder.build(link)).await;
    let Ok(Ok(http)) = built.inspect_err(|_| connection.timed_out()) else { return };
    let mut session = Session {
        connection: connection.clone(),
        quic: quic.clone(),
        http,
        watch,
        requests: FuturesUnordered::new(),
        deadline,
        idle_since: Instant::now(),
        finishing: false,
        told: false,
        client_left: false,
        abandoned: 0,
    };
    if let Err(error) = session.run(stop).await {
        debug!("{}: {error}", connection.facts().client);
    }
}

struct Session {
    connection: Arc<Connection>,
    quic: quinn::Connection,
    http: h3::server::Connection<Link, Bytes>,
    watch: Arc<LinkWatch>,
    requests: FuturesUnordered<BoxFuture<'static, StreamEnd>>,
    deadline: Instant,
    /// Since when no request has been running.
    idle_since: Instant,
    /// Whether a GOAWAY has been sent.
    finishing: bool,
    /// Whether the connection ends after its first request.
    told: bool,
    /// Whether the client has sent a GOAWAY, and no further request of it is left to accept.
    client_left: bool,
    /// Requests that the client cancelled before it had the response.
    abandoned: u64,
}

impl Session {
    async fn run(&mut self, stop: &mut watch::Receiver<Stop>) -> Result<(), ConnectionError> {
        loop {
            self.goodbye(stop).await?;
            if self.client_left && self.requests.is_empty() {
                return Ok(());
            }
            let limit = self.limit();
            // All pending requests are accepted before the first response is sent, so that
            // responses share packets.
            tokio::select! {
                biased;
                request = self.http.accept(), if !self.client_left => match request? {
                    Some(request) => self.take(request),
                    // Running requests still have to be finished.
                    None => self.client_left = true,
                },
                Some(over) = self.requests.next(), if !self.requests.is_empty() => {
                    self.idle_since = Instant::now();
                    self.abandoned += u64::from(over == StreamEnd::Abandoned);
                    if self.is_abused() {
                        self.close(Code::H3_EXCESSIVE_LOAD);
                        return Ok(());
                    }
                }
                now = next_stop(stop, self.finishing || self.told) => match now {
                    Stop::Now => return Ok(()),
                    // The first request is on its way, and is the last one.
                    _ if self.connection.requests_seen() == 0 => self.told = true,
                    _ => self.finish(stop).await?,
                },
                () = sleep_until(limit.into()) => {
                    // The deadline may have moved: no event ends an iteration of this loop when a
                    // request's head or the handshake completes.
                    if self.limit() > Instant::now() {
                        continue;
                    }
                    self.connection.timed_out();
                    if self.finishing || !self.connection.is_complete() {
                        return Ok(());
                    }
                    self.finish(stop).await?;
                }
            }
        }
    }

    fn take(&mut self, request: RequestResolver<Link, Bytes>) {
        let Some(watch) = self.watch.take_accepted() else { return };
        let serving = serve_request(self.connection.clone(), self.quic.clone(), request, watch);
        self.requests.push(Box::pin(serving));
    }

    /// Whether all requests of the connection's flight get 425.
    fn is_lost(&self) -> bool {
        self.connection.facts().lost_claim() || self.connection.is_overtaken()
    }

    /// Starts the shutdown of a connection that accepts no further requests.
    async fn goodbye(&mut self, stop: &mut watch::Receiver<Stop>) -> Result<(), ConnectionError> {
        let seen = self.connection.requests_seen();
        let last = self.told
            || !self.connection.snapshot.keep_alive
            || self.connection.is_complete() && self.is_lost();
        match last && seen > 0 && !self.finishing {
            true => self.finish(stop).await,
            false => Ok(()),
        }
    }

    /// Sends a GOAWAY (RFC 9114 section 5.2). Requests that have not arrived are rejected, which
    /// tells the client that nobody has executed them.
    ///
    /// If another connection has the flight's claim, that may be untrue. Requests are then still
    /// accepted, including late ones, to get 425.
    async fn finish(&mut self, stop: &mut watch::Receiver<Stop>) -> Result<(), ConnectionError> {
        self.finishing = true;
        self.idle_since = Instant::now();
        let lost = self.is_lost();
        if lost && self.watch.next_id() == 0 {
            self.close(Code::H3_NO_ERROR);
            return Ok(());
        }
        let further = if lost { self.connection.snapshot.limits.streams } else { 0 };
        self.watch.reject_from(self.watch.next_id() + 4 * u64::from(further));
        // The library names the last request plus this number.
        let mut goaway = std::pin::pin!(self.http.shutdown(further as usize + 1));
        loop {
            let limit = self.idle_since + CLOSE_TIMEOUT;
            let is_idle = self.requests.is_empty();
            // A response that fills the send window delays the GOAWAY. Requests continue meanwhile,
            // within their own limits.
            tokio::select! {
                biased;
                sent = &mut goaway => return sent,
                Some(over) = self.requests.next(), if !is_idle => {
                    self.idle_since = Instant::now();
                    self.abandoned += u64::from(over == StreamEnd::Abandoned);
                }
                // The caller sees it again.
                _ = next_stop(stop, true) => return Ok(()),
                // The client does not even read the GOAWAY.
                () = sleep_until(limit.into()), if is_idle => {
                    close(&self.quic, Code::H3_NO_ERROR);
                    return Ok(());
                }
            }
        }
    }

    /// When the connection ends if nothing else happens.
    fn limit(&self) -> Instant {
        let limits = &self.connection.snapshot.limits;
        let seen = self.connection.requests_seen();
        let first = (!self.connection.is_complete() || seen == 0).then_some(self.deadline);
        let idle = self.requests.is_empty().then(|| {
            self.idle_since + if self.finishing { CLOSE_TIMEOUT } else { limits.idle_timeout }
        });
        let never = Instant::now() + Duration::from_secs(3600);
        [first, idle].into_iter().flatten().min().unwrap_or(never)
    }

    /// Whether a client creates load with requests that it cancels (like CVE-2023-44487 for
    /// HTTP/2).
    fn is_abused(&self) -> bool {
        let seen = self.connection.requests_seen();
        self.abandoned > MAX_ABANDONED && self.abandoned * 2 > seen
    }

    fn close(&self, code: Code) {
        close(&self.quic, code);
    }
}

fn close(quic: &quinn::Connection, code: Code) {
    close_connection(quic, varint(code.value()), b"");
}

/// How long a client has to read the last bytes of an idle or stopped connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of cancelled requests that is always tolerated.
const MAX_ABANDONED: u64 = 100;

/// Responds to a request and waits until its client has the response. A request that is dropped
/// before resets its stream.
async fn serve_request(
    connection: Arc<Connection>,
    quic: quinn::Connection,
    resolver: RequestResolver<Link, Bytes>,
    watch: StreamWatch,
) -> StreamEnd {
    let StreamWatch { early, state, mut over } = watch;
    let limits = &connection.snapshot.limits;
    let answered = tokio::select! {
        biased;
        answered = respond(&connection, resolver, early, &state) => answered,
        // The client has cancelled the request.
        over = &mut over => return over,
    };
    // Kept until the client has acknowledged all of it, so that a client that cancels before gets a
    // reset.
    let _stream = answered.inspect_err(|error| debug!("{}: {error}", connection.facts().client));
    // A slow client may take its time for what is already written, as long as it makes progress.
    loop {
        let sent = quic.stats().frame_tx.stream;
        match timeout(limits.idle_timeout, &mut over).await {
            Ok(over) => return over,
            Err(_) if quic.stats().frame_tx.stream == sent => return StreamEnd::Abandoned,
            Err(_) => {}
        }
    }
}

/// Why a request got no complete response.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("no request head within {0:?}")]
    SlowHead(Duration),
    #[error("the client has accepted no response bytes for {0:?}")]
    Standstill(Duration),
    #[error("the connection ended before its handshake")]
    ConnectionEnded,
    #[error("{0}")]
    Stream(#[from] StreamError),
    #[error("{0}")]
    BadLength(#[from] BadLength),
    #[error("{0}")]
    Body(BodyError),
}

async fn respond(
    connection: &Arc<Connection>,
    resolver: RequestResolver<Link, Bytes>,
    early: bool,
    state: &Arc<StreamState>,
) -> Result<RequestStream<Send, Bytes>, RequestError> {
    let limits = &connection.snapshot.limits;
    let (request, stream) = head(resolver, state, limits.header_timeout).await?;
    // If another connection has claimed the flight, a late request may be one that was lost and
    // sent again. quinn also marks the streams of a connection as late after it was closed, which
    // does not prove that the handshake was complete.
    let early = early || !connection.is_complete() || connection.facts().lost_claim();
    let started = request::begin(connection, &request, early);
    let (mut send, recv) = stream.split();
    let announced = announced(request.headers()).inspect_err(|_| {
        send.stop_stream(Code::H3_MESSAGE_ERROR);
    })?;
    let mut writer = ResponseWriter { send, state, standstill: limits.idle_timeout };
    let mut body = RequestBody::new(recv, state.clone(), announced);
    poll_fn(|cx| Poll::Ready(body.look(cx))).await.map_err(RequestError::Body)?;
    if request.headers().contains_key(header::EXPECT) && !body.is_end_stream() {
        writer.go_on().await?;
    }
    let head_only = request.method() == Method::HEAD;
    let complete = || connection.is_complete();
    let request = request.map(|()| body);
    let response = request::respond(connection, complete, request, started).await;
    writer.send(response.ok_or(RequestError::ConnectionEnded)?, head_only).await
}

/// Reads the request's head. The library responds to a slightly too large one by itself;
/// [`crate::http::h3_streams`] aborts a larger one.
async fn head(
    resolver: RequestResolver<Link, Bytes>,
    state: &StreamState,
    limit: Duration,
) -> Result<(Request<()>, RequestStream<Bidi, Bytes>), RequestError> {
    let mut resolving = std::pin::pin!(resolver.resolve_request());
    let resolved = tokio::select! {
        biased;
        resolved = &mut resolving => resolved?,
        () = sleep(limit) => {
            state.break_off();
            return Err(RequestError::SlowHead(limit));
        }
    };
    state.head_is_there();
    Ok(resolved)
}

/// Writes the response.
struct ResponseWriter<'a> {
    send: RequestStream<Send, Bytes>,
    state: &'a StreamState,
    standstill: Duration,
}

impl ResponseWriter<'_> {
    /// Sends 100 (Continue) to a client that waits for it before it sends its body (RFC 9110
    /// section 10.1.1).
    async fn go_on(&mut self) -> Result<(), RequestError> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::CONTINUE;
        steady(self.state, self.standstill, self.send.send_response(response)).await
    }

    async fn send(
        mut self,
        response: Response<RecordedBody>,
        head_only: bool,
    ) -> Result<RequestStream<Send, Bytes>, RequestError> {
        let (mut parts, mut body) = response.into_parts();
        let bodyless =
            head_only || matches!(parts.status, StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT);
        let headers = &mut parts.headers;
        if let (false, Some(length)) = (bodyless, body.size_hint().exact()) {
            headers.entry(header::CONTENT_LENGTH).or_insert(length.into());
        }
        if let Some(date) = date() {
            headers.entry(header::DATE).or_insert(date);
        }
        let head = Response::from_parts(parts, ());
        steady(self.state, self.standstill, self.send.send_response(head)).await?;
        while !bodyless && let Some(frame) = body.frame().await {
            match frame.map_err(RequestError::Body)?.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    steady(self.state, self.standstill, self.send.send_data(data)).await?;
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        let sending = self.send.send_trailers(trailers);
                        steady(self.state, self.standstill, sending).await?;
                    }
                }
            }
        }
        self.send.finish().await?;
        Ok(self.send)
    }
}

/// Sends for as long as the client makes progress.
async fn steady(
    state: &StreamState,
    limit: Duration,
    sending: impl Future<Output = Result<(), StreamError>>,
) -> Result<(), RequestError> {
    let mut sending = std::pin::pin!(sending);
    loop {
        let written = state.written();
        tokio::select! {
            biased;
            sent = &mut sending => return Ok(sent?),
            () = sleep(limit) => {
                if state.written() == written {
                    return Err(RequestError::Standstill(limit));
                }
            }
        }
    }
}

/// The current time for the `Date` field (RFC 9110 section 6.6.1).
fn date() -> Option<HeaderValue> {
    let now = jiff::Timestamp::now();
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    HeaderValue::from_str(&printer.timestamp_to_rfc9110_string(&now).ok()?).ok()
}

/// The body of an HTTP/3 request.
pub(crate) struct RequestBody {
    stream: RequestStream<Recv, Bytes>,
    state: Arc<StreamState>,
    /// Data that was read to find out whether there is a body.
    first: Option<Bytes>,
    trailers: Option<HeaderMap>,
    /// How many bytes are missing, if the head has a length (RFC 9114 section 4.1.2).
    announced: Option<u64>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Data,
    Trailers,
    End,
}

/// The body is shorter or longer than its `Content-Length`.
#[derive(Debug, thiserror::Error)]
#[error("the request's body does not have the length of its content-length")]
struct WrongLength;

/// The body's length according to the head. Several values have to agree (RFC 9110 section 8.6).
/// Otherwise an upstream may use another one than this server, or parse a value differently, and
/// find the next request at another offset.
///
/// # Errors
/// [`BadLength`]: the request is malformed (RFC 9114 section 4.1.2).
pub(crate) fn announced(headers: &HeaderMap) -> Result<Option<u64>, BadLength> {
    let mut found = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        let digits = value.to_str().ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let length = digits.and_then(|text| text.parse().ok()).ok_or(BadLength)?;
        if found.is_some_and(|before| before != length) {
            return Err(BadLength);
        }
        found = Some(length);
    }
    Ok(found)
}

/// The `Content-Length` is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request's content-length is not a number, or has several different values")]
pub(crate) struct BadLength;

impl RequestBody {
    /// `announced`: the result of [`announced`].
    pub(crate) fn new(
        stream: RequestStream<Recv, Bytes>,
        state: Arc<StreamState>,
        announced: Option<u64>,
    ) -> Self {
        Self { stream, state, first: None, trailers: None, announced, stage: Stage::Data }
    }

    /// Checks whether the body is empty, as most are, so that the upstream gets a request without a
    /// body.
    pub(crate) fn look(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        match self.poll_data(cx) {
            Poll::Ready(Ok(Some(data))) => self.first = Some(data),
            Poll::Ready(Ok(None)) => match self.poll_trailers(cx) {
                Poll::Ready(Ok(trailers)) => {
                    self.stage = if trailers.is_some() { Stage::Trailers } else { Stage::End };
                    self.trailers = trailers;
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => {}
            },
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => {}
        }
        Ok(())
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
        let data = ready!(self.stream.poll_recv_data(cx))?;
        let data = data.map(|mut data| data.copy_to_bytes(data.remaining()));
        let count = data.as_ref().map_or(0, |data| data.len() as u64);
        self.state.add_handed_on(count);
        let left = self.announced.map(|left| left.checked_sub(count));
        match (left, &data) {
            (Some(None), _) | (Some(Some(1..)), None) => {
                self.stream.stop_sending(Code::H3_MESSAGE_ERROR);
                return Poll::Ready(Err(Box::new(WrongLength)));
            }
            (left, _) => self.announced = left.flatten(),
        }
        if data.is_none() {
            self.stage = Stage::Trailers;
        }
        Poll::Ready(Ok(data))
    }

    fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<HeaderMap>, StreamError>> {
        self.stream.poll_recv_trailers(cx)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if this.stage == Stage::Data
            && let Some(data) = ready!(this.poll_data(cx))?
        {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if this.stage == Stage::Trailers {
            let trailers = match this.trailers.take() {
                None => ready!(this.poll_trailers(cx))?,
                known => known,
            };
            this.stage = Stage::End;
            if let Some(trailers) = trailers {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.stage == Stage::End && self.first.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        match (self.stage, self.announced) {
            (Stage::Data, Some(left)) => SizeHint::with_exact(left + first),
            (Stage::Data, None) => SizeHint::default(),
            _ => SizeHint::with_exact(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(values: &[&'static str]) -> Result<Option<u64>, BadLength> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CONTENT_LENGTH, value.parse().unwrap());
        }
        announced(&headers)
    }

    #[test]
    fn rfc9110_8_6_lengths_that_differ_or_are_no_numbers_are_malformed() {
        assert_eq!((said(&[]), said(&["7"])), (Ok(None), Ok(Some(7))));
        assert_eq!(said(&["5", "5"]), Ok(Some(5)));
        for bad in [&["0", "5"][..], &["+5"], &["5, 5"], &[""], &["18446744073709551616"]] {
            assert_eq!(said(bad), Err(BadLength), "{bad:?}");
        }
    }
}
