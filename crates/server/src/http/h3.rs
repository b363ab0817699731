//! HTTP/3 on one connection: its requests, their bodies, its time limits and its end.

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

/// Serves HTTP/3 until the connection ends. `deadline`: for handshake and first request.
pub(crate) async fn serve(
    connection: &Arc<Connection>,
    quic: &quinn::Connection,
    deadline: Instant,
    stop: &mut watch::Receiver<Stop>,
) {
    let header_size = connection.snapshot.limits.header_size as u64;
    // What is longer than allowed, and not much, is answered 431.
    let link = Link::new(quic.clone(), header_size * 2, connection.shared.memory.clone());
    let watch = link.watch();
    let mut builder = h3::server::builder();
    // Early data is bound to these too (RFC 9114 section 7.2.4.2): they follow from the
    // configuration alone, without random ones that nobody knows.
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
    /// Since when no request has been running, while none is.
    idle_since: Instant,
    /// Whether a GOAWAY was sent.
    finishing: bool,
    /// Whether the connection is to end with its first request.
    told: bool,
    /// Whether the client has sent a GOAWAY, and no request of it is left to be accepted.
    client_left: bool,
    /// Requests that the client gave up before it had the response.
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
            // All requests that are there are taken before the first is answered, so that their
            // answers share packets.
            tokio::select! {
                biased;
                request = self.http.accept(), if !self.client_left => match request? {
                    Some(request) => self.take(request),
                    // What is running is still to be finished.
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
                    // Its first request is on its way, and the last.
                    _ if self.connection.requests_seen() == 0 => self.told = true,
                    _ => self.finish(stop).await?,
                },
                () = sleep_until(limit.into()) => {
                    // The limit may have moved since it was computed: nothing ends a turn of this
                    // loop when a request's head is complete or the handshake is.
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

    /// Ends a connection that takes no further requests.
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

    /// Sends a GOAWAY (RFC 9114 section 5.2): requests that have not come by now are rejected,
    /// which tells the client that nobody has executed them.
    ///
    /// Where the flight's claim is another connection's, that may be wrong. Its requests are let
    /// through, also late, to get 425.
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
        // The library names the last request plus so many.
        let mut goaway = std::pin::pin!(self.http.shutdown(further as usize + 1));
        loop {
            let limit = self.idle_since + CLOSE_TIMEOUT;
            let is_idle = self.requests.is_empty();
            // A response that fills the send window keeps the GOAWAY waiting; it goes on meanwhile,
            // within its own limits.
            tokio::select! {
                biased;
                sent = &mut goaway => return sent,
                Some(over) = self.requests.next(), if !is_idle => {
                    self.idle_since = Instant::now();
                    self.abandoned += u64::from(over == StreamEnd::Abandoned);
                }
                // The caller meets it again.
                _ = next_stop(stop, true) => return Ok(()),
                // A client that does not even take that.
                () = sleep_until(limit.into()), if is_idle => {
                    close(&self.quic, Code::H3_NO_ERROR);
                    return Ok(());
                }
            }
        }
    }

    /// When the connection ends as things are.
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

    /// Whether a client makes work of requests that it gives up (as CVE-2023-44487 over HTTP/2).
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

/// How long a client has for the last words of an idle or stopped connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests that a client may give up without further questions.
const MAX_ABANDONED: u64 = 100;

/// Answers a request, and waits until its client has the response. What is dropped on the way ends
/// its stream with a reset.
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
        // Nobody wants the response any more.
        over = &mut over => return over,
    };
    // Kept until the client has all of it: one that stops it by then is sent a reset.
    let _stream = answered.inspect_err(|error| debug!("{}: {error}", connection.facts().client));
    // A slow client takes its time over what is already written, so it is asked whether it goes on.
    loop {
        let sent = quic.stats().frame_tx.stream;
        match timeout(limits.idle_timeout, &mut over).await {
            Ok(over) => return over,
            Err(_) if quic.stats().frame_tx.stream == sent => return StreamEnd::Abandoned,
            Err(_) => {}
        }
    }
}

/// Why a request was not answered, or not to its end.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("no head of a request within {0:?}")]
    SlowHead(Duration),
    #[error("the client has taken nothing of an answer for {0:?}")]
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
    // Of a flight that another connection has claimed each request is suspect, also one that comes
    // late: it may be what was lost on the way and is sent again.
    // And quinn hands streams of a connection over as late ones when it has ended, too, which is no
    // proof of anything.
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

/// Reads the request's head. One that is too large the library answers by itself, or
/// [`crate::http::h3_streams`] breaks off.
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

/// The way back to the client.
struct ResponseWriter<'a> {
    send: RequestStream<Send, Bytes>,
    state: &'a StreamState,
    standstill: Duration,
}

impl ResponseWriter<'_> {
    /// RFC 9110 section 10.1.1: a client that waits for it sends its body now.
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

/// Sends, as long as the client takes something of it now and then.
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

/// Now, as RFC 9110 section 6.6.1 has it in each response.
fn date() -> Option<HeaderValue> {
    let now = jiff::Timestamp::now();
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    HeaderValue::from_str(&printer.timestamp_to_rfc9110_string(&now).ok()?).ok()
}

/// The body of a request over HTTP/3.
pub(crate) struct RequestBody {
    stream: RequestStream<Recv, Bytes>,
    state: Arc<StreamState>,
    /// What was read to find out whether there is a body.
    first: Option<Bytes>,
    trailers: Option<HeaderMap>,
    /// What is still to come by the head's word (RFC 9114 section 4.1.2).
    announced: Option<u64>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Data,
    Trailers,
    End,
}

/// The body is not as long as the head says.
#[derive(Debug, thiserror::Error)]
#[error("the request's body is not as long as its content-length says")]
struct WrongLength;

/// The length of a body by the head's word. An upstream may take another of several words for it,
/// or read one that is no number in its own way, and then the next request starts where it should
/// not: so they have to agree (RFC 9110 section 8.6).
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

/// The head does not say how long the body is, though it tries.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request's content-length is no number, or several that differ")]
pub(crate) struct BadLength;

impl RequestBody {
    /// `announced`: [`announced`].
    pub(crate) fn new(
        stream: RequestStream<Recv, Bytes>,
        state: Arc<StreamState>,
        announced: Option<u64>,
    ) -> Self {
        Self { stream, state, first: None, trailers: None, announced, stage: Stage::Data }
    }

    /// Looks whether the body has ended before it started, as most do, so that an upstream is asked
    /// without one.
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
