//! HTTP/3 on one connection: requests, bodies, time limits and shutdown.
//!
//! # Which requests are early
//!
//! h3 does not say which packets carried a request. A server processes 1-RTT packets only after the
//! client's Finished (RFC 9001 section 5.7). So a request is early if its stream was opened before
//! the Finished was verified. A stream that was opened later comes from a client whose handshake
//! is complete, which is all that a policy waits for. Its request runs once this connection's own
//! task has seen the end of the handshake, which a busy machine may delay.
//!
//! # A connection that lost its claim
//!
//! A lost 0-RTT packet's request is sent again in 1-RTT packets. The late requests of a flight can
//! therefore not be told from its early ones: what the client sends after the handshake may have
//! been executed for a copy already. Each request of a connection that lost its claim gets 425, and
//! the connection ends.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use firstflight_endpoint::Connection as QuicConnection;
use futures_util::future::{BoxFuture, poll_immediate};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use h3::error::{Code, ConnectionError, StreamError};
use h3::server::{RequestResolver, RequestStream};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, sleep_until, timeout, timeout_at};
use tracing::debug;

use crate::context::{BodyError, ShutdownStage, next_stage};
use crate::http::connection::Connection;
use crate::http::date;
use crate::http::h3_streams::{
    CancelledRequests, ConnectionWatch, H3BidiStream, H3Connection, H3RecvStream, H3SendStream,
    StreamEnd, StreamState, StreamWatch, varint,
};
use crate::http::interim::InterimResponses;
use crate::http::request::{self, StartedRequest};
use crate::observe::request::RecordedBody;

/// Serves HTTP/3 until the connection ends. `deadline`: for the handshake and the first request.
pub(crate) async fn serve(
    connection: &Arc<Connection>,
    quic: &QuicConnection,
    deadline: Instant,
    stop: &mut watch::Receiver<ShutdownStage>,
) {
    let header_size = connection.snapshot.limits.header_size as u64;
    // Heads that are slightly too large get a 431 response; larger ones are aborted.
    let link = H3Connection::new(quic.clone(), header_size * 2, connection.shared.memory.clone());
    let watch = link.watch();
    let mut builder = h3::server::builder();
    // Early data is bound to these settings (RFC 9114 section 7.2.4.2). They follow from the
    // configuration alone, so random reserved settings are off.
    builder.max_field_section_size(header_size).send_grease(false);
    let built = timeout_at(deadline.into(), builder.build(link)).await;
    let Ok(Ok(http)) = built.inspect_err(|_| connection.note_timeout()) else { return };
    let mut session = Session {
        connection: connection.clone(),
        quic: quic.clone(),
        http,
        watch,
        requests: FuturesUnordered::new(),
        first_request_deadline: deadline,
        idle_since: Instant::now(),
        finishing: false,
        is_last: false,
        client_sent_goaway: false,
        cancelled: CancelledRequests::default(),
        timer: Box::pin(sleep_until(deadline.into())),
    };
    if let Err(error) = session.run(stop).await {
        debug!("{}: {error}", connection.facts().client);
    }
}

struct Session {
    connection: Arc<Connection>,
    quic: QuicConnection,
    http: h3::server::Connection<H3Connection, Bytes>,
    watch: Arc<ConnectionWatch>,
    requests: FuturesUnordered<BoxFuture<'static, StreamEnd>>,
    first_request_deadline: Instant,
    /// Since when no request has been running.
    idle_since: Instant,
    /// Whether a GOAWAY has been sent.
    finishing: bool,
    /// Whether the connection ends after its first request.
    is_last: bool,
    /// Whether the client has sent a GOAWAY, and no further request of it is left to accept.
    client_sent_goaway: bool,
    cancelled: CancelledRequests,
    /// Ends at [`Session::deadline`] or earlier.
    timer: Pin<Box<Sleep>>,
}

impl Session {
    async fn run(
        &mut self,
        stop: &mut watch::Receiver<ShutdownStage>,
    ) -> Result<(), ConnectionError> {
        loop {
            self.finish_if_last(stop).await?;
            if self.client_sent_goaway && self.requests.is_empty() {
                return Ok(());
            }
            self.set_timer();
            // All pending requests are accepted before the first response is sent, so that
            // responses share packets.
            tokio::select! {
                biased;
                request = self.http.accept(), if !self.client_sent_goaway => match request? {
                    Some(request) => self.accept_request(request),
                    // Running requests still have to be finished.
                    None => self.client_sent_goaway = true,
                },
                Some(ended) = self.requests.next(), if !self.requests.is_empty() => {
                    self.idle_since = Instant::now();
                    self.cancelled.count(ended);
                    if self.cancelled.is_abused(self.connection.requests_received()) {
                        self.close(Code::H3_EXCESSIVE_LOAD);
                        return Ok(());
                    }
                }
                now = next_stage(stop, self.finishing || self.is_last) => match now {
                    ShutdownStage::Abort => return Ok(()),
                    // The first request is on its way, and is the last one.
                    _ if self.connection.requests_received() == 0 => self.is_last = true,
                    _ => self.finish(stop).await?,
                },
                () = &mut self.timer => {
                    // The deadline has moved, at least for each request: setting the timer again
                    // only when it ends is cheaper.
                    let deadline = self.deadline();
                    if deadline > Instant::now() {
                        self.timer.as_mut().reset(deadline.into());
                        continue;
                    }
                    self.connection.note_timeout();
                    if self.finishing || !self.connection.is_complete() {
                        return Ok(());
                    }
                    self.finish(stop).await?;
                }
            }
        }
    }

    fn accept_request(&mut self, request: RequestResolver<H3Connection, Bytes>) {
        let Some(watch) = self.watch.take_accepted() else { return };
        let serving = serve_request(self.connection.clone(), self.quic.clone(), request, watch);
        self.requests.push(Box::pin(serving));
    }

    /// Whether all requests of the connection's flight get 425.
    fn has_lost_claim(&self) -> bool {
        self.connection.facts().lost_claim() || self.connection.is_replayed()
    }

    /// Starts the shutdown of a connection that accepts no further requests.
    async fn finish_if_last(
        &mut self,
        stop: &mut watch::Receiver<ShutdownStage>,
    ) -> Result<(), ConnectionError> {
        let received = self.connection.requests_received();
        let last = self.is_last
            || !self.connection.snapshot.keep_alive
            || self.connection.is_complete() && self.has_lost_claim();
        match last && received > 0 && !self.finishing {
            true => self.finish(stop).await,
            false => Ok(()),
        }
    }

    /// Sends a GOAWAY (RFC 9114 section 5.2). Requests that have not arrived are rejected, which
    /// tells the client that nobody has executed them.
    ///
    /// If another connection has the flight's claim, or may have it because the flight is not spent
    /// yet, that may be untrue. Requests are then still accepted, including late ones, to get 425.
    async fn finish(
        &mut self,
        stop: &mut watch::Receiver<ShutdownStage>,
    ) -> Result<(), ConnectionError> {
        self.finishing = true;
        self.idle_since = Instant::now();
        let claim_lost = self.has_lost_claim() || self.connection.may_be_replayed();
        if claim_lost && self.watch.next_id() == 0 {
            self.close(Code::H3_NO_ERROR);
            return Ok(());
        }
        let further = if claim_lost { self.connection.snapshot.limits.streams } else { 0 };
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
                Some(ended) = self.requests.next(), if !is_idle => {
                    self.idle_since = Instant::now();
                    self.cancelled.count(ended);
                }
                // The caller waits for the same stage again, and handles it.
                _ = next_stage(stop, true) => return Ok(()),
                // The client does not even read the GOAWAY.
                () = sleep_until(limit.into()), if is_idle => {
                    close(&self.quic, Code::H3_NO_ERROR);
                    return Ok(());
                }
            }
        }
    }

    /// When the connection ends if nothing else happens.
    fn deadline(&self) -> Instant {
        let limits = &self.connection.snapshot.limits;
        let received = self.connection.requests_received();
        let first = (!self.connection.is_complete() || received == 0)
            .then_some(self.first_request_deadline);
        let idle = self.requests.is_empty().then(|| {
            self.idle_since + if self.finishing { CLOSE_TIMEOUT } else { limits.idle_timeout }
        });
        let never = || Instant::now() + Duration::from_secs(3600);
        [first, idle].into_iter().flatten().min().unwrap_or_else(never)
    }

    /// Moves the timer to the deadline, if it would end later.
    fn set_timer(&mut self) {
        let deadline = self.deadline().into();
        if deadline < self.timer.deadline() {
            self.timer.as_mut().reset(deadline);
        }
    }

    fn close(&self, code: Code) {
        close(&self.quic, code);
    }
}

fn close(quic: &QuicConnection, code: Code) {
    quic.close(varint(code.value()), b"");
}

/// How long a client has to read the last bytes of an idle or stopped connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Responds to a request and waits until its client has the response. A request that is dropped
/// before resets its stream.
async fn serve_request(
    connection: Arc<Connection>,
    quic: QuicConnection,
    resolver: RequestResolver<H3Connection, Bytes>,
    watch: StreamWatch,
) -> StreamEnd {
    let StreamWatch { early, state, mut ended } = watch;
    let limits = &connection.snapshot.limits;
    let responded = tokio::select! {
        biased;
        responded = respond(&connection, resolver, early, &state) => responded,
        // The client has cancelled the request.
        ended = &mut ended => {
            return if state.has_head() { ended } else { StreamEnd::Headless };
        }
    };
    // Kept until the client has acknowledged the whole response, so that a client that cancels
    // before gets a reset.
    let _stream = match responded {
        Ok(stream) => Some(stream),
        Err(error) => {
            debug!("{}: {error}", connection.facts().client);
            // The library has responded to a head that is too large. Otherwise the stream is reset now,
            // and quinn-proto does not say when the client has acknowledged that. The same error tells
            // that a response's head is larger than the client permits.
            let is_too_big =
                matches!(error, RequestError::Stream(StreamError::HeaderTooBig { .. }));
            if !is_too_big || state.has_head() {
                let end = match error {
                    _ if !state.has_head() => return StreamEnd::Headless,
                    RequestError::Stalled(_) => StreamEnd::Abandoned,
                    _ => StreamEnd::Reset,
                };
                return ended.now_or_never().unwrap_or(end);
            }
            None
        }
    };
    // A slow client may take its time for what is already written, as long as it makes progress.
    loop {
        let sent = quic.stats().frame_tx.stream;
        match timeout(limits.idle_timeout, &mut ended).await {
            Ok(ended) => return ended,
            Err(_) if quic.stats().frame_tx.stream == sent => return StreamEnd::Abandoned,
            Err(_) => {}
        }
    }
}

/// Why a request got no complete response.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("no request head within {0:?}")]
    HeadTimeout(Duration),
    #[error("the client has accepted no response bytes for {0:?}")]
    Stalled(Duration),
    #[error("the connection ended before its handshake")]
    ConnectionEnded,
    #[error("{0}")]
    Stream(#[from] StreamError),
    #[error("{0}")]
    InvalidContentLength(#[from] InvalidContentLength),
    #[error("{0}")]
    Body(BodyError),
}

async fn respond(
    connection: &Arc<Connection>,
    resolver: RequestResolver<H3Connection, Bytes>,
    early: bool,
    state: &Arc<StreamState>,
) -> Result<RequestStream<H3SendStream, Bytes>, RequestError> {
    let limits = &connection.snapshot.limits;
    let (request, stream) = head(resolver, state, limits.header_timeout).await?;
    if !early && !connection.handshake.completes().await {
        return Err(RequestError::ConnectionEnded);
    }
    // If another connection has claimed the flight, a late request may be one that was lost and
    // sent again.
    let early = early || connection.facts().lost_claim();
    let started = request::start(connection, &request, early);
    let (send, recv) = stream.split();
    let content_length =
        content_length(request.headers()).inspect_err(|_| state.note_malformed())?;
    let mut writer = ResponseWriter { send, state, stall_timeout: limits.idle_timeout };
    // Boxed, as it is moved through each stage that the request passes.
    let mut body = Box::new(RequestBody::new(recv, state.clone(), content_length));
    poll_fn(|cx| Poll::Ready(body.peek(cx))).await.map_err(RequestError::Body)?;
    if request.headers().contains_key(header::EXPECT) && !body.is_end_stream() {
        Box::pin(writer.send_continue()).await?;
    }
    let head_only = request.method() == Method::HEAD;
    let request = request.map(|()| body);
    let response = final_response(connection, request, started, &mut writer).await?;
    writer.send(response, head_only).await
}

/// Runs a request, and writes Early Hints until there is a response.
///
/// Not in [`respond`]: a future that is polled in several places would keep its memory there to the end.
async fn final_response(
    connection: &Connection,
    request: Request<Box<RequestBody>>,
    started: StartedRequest,
    writer: &mut ResponseWriter<'_>,
) -> Result<Response<RecordedBody>, RequestError> {
    let complete = || connection.is_complete();
    let interim = InterimResponses::http3();
    let mut responding = pin!(request::respond(connection, complete, request, started, &interim));
    loop {
        let next = poll_fn(|cx| match responding.as_mut().poll(cx) {
            Poll::Ready(response) => Poll::Ready(Ok(response)),
            Poll::Pending => match interim.take() {
                hints if hints.is_empty() => Poll::Pending,
                hints => Poll::Ready(Err(hints)),
            },
        });
        match next.await {
            Ok(response) => return response.ok_or(RequestError::ConnectionEnded),
            Err(hints) => {
                for hint in hints {
                    Box::pin(writer.send_interim(hint)).await?;
                }
            }
        }
    }
}

/// Reads the request's head. The library responds to a head that is slightly too large;
/// [`crate::http::h3_streams`] aborts a larger one.
async fn head(
    resolver: RequestResolver<H3Connection, Bytes>,
    state: &StreamState,
    limit: Duration,
) -> Result<(Request<()>, RequestStream<H3BidiStream, Bytes>), RequestError> {
    let mut resolving = pin!(resolver.resolve_request());
    let resolved = match poll_immediate(&mut resolving).await {
        Some(resolved) => resolved,
        None => timeout(limit, resolving).await.map_err(|_| {
            state.abort();
            RequestError::HeadTimeout(limit)
        })?,
    }?;
    state.note_head();
    Ok(resolved)
}

/// Writes the response.
struct ResponseWriter<'a> {
    send: RequestStream<H3SendStream, Bytes>,
    state: &'a StreamState,
    stall_timeout: Duration,
}

impl ResponseWriter<'_> {
    /// Sends 100 (Continue) to a client that waits for it before it sends its body (RFC 9110
    /// section 10.1.1).
    async fn send_continue(&mut self) -> Result<(), RequestError> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::CONTINUE;
        self.send_interim(response).await
    }

    /// Sends a 1xx response.
    async fn send_interim(&mut self, response: Response<()>) -> Result<(), RequestError> {
        send_with_progress(self.state, self.stall_timeout, self.send.send_response(response)).await
    }

    async fn send(
        mut self,
        response: Response<RecordedBody>,
        head_only: bool,
    ) -> Result<RequestStream<H3SendStream, Bytes>, RequestError> {
        let (mut parts, mut body) = response.into_parts();
        let bodyless =
            head_only || matches!(parts.status, StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT);
        let headers = &mut parts.headers;
        if let (false, Some(length)) = (bodyless, body.size_hint().exact()) {
            headers.entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
        }
        if let Some(date) = date::now() {
            headers.entry(header::DATE).or_insert(date);
        }
        let head = Response::from_parts(parts, ());
        send_with_progress(self.state, self.stall_timeout, self.send.send_response(head)).await?;
        while !bodyless && let Some(frame) = body.frame().await {
            match frame.map_err(RequestError::Body)?.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    send_with_progress(self.state, self.stall_timeout, self.send.send_data(data))
                        .await?;
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        let sending = self.send.send_trailers(trailers);
                        send_with_progress(self.state, self.stall_timeout, sending).await?;
                    }
                }
            }
        }
        self.send.finish().await?;
        Ok(self.send)
    }
}

/// Sends for as long as the client makes progress.
async fn send_with_progress(
    state: &StreamState,
    limit: Duration,
    sending: impl Future<Output = Result<(), StreamError>>,
) -> Result<(), RequestError> {
    let mut sending = pin!(sending);
    // Most writes complete at once, and need no timer.
    if let Some(sent) = poll_immediate(&mut sending).await {
        return Ok(sent?);
    }
    loop {
        let written = state.written();
        tokio::select! {
            biased;
            sent = &mut sending => return Ok(sent?),
            () = sleep(limit) => {
                if state.written() == written {
                    return Err(RequestError::Stalled(limit));
                }
            }
        }
    }
}

/// The body of an HTTP/3 request.
pub(crate) struct RequestBody {
    stream: RequestStream<H3RecvStream, Bytes>,
    state: Arc<StreamState>,
    /// Data that was read to find out whether there is a body.
    peeked: Option<Bytes>,
    trailers: Option<HeaderMap>,
    /// Bytes of the body that have not arrived, if the head has a length (RFC 9114 section 4.1.2).
    remaining: Option<u64>,
    stage: BodyStage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyStage {
    Data,
    Trailers,
    End,
}

/// The body is shorter or longer than its `Content-Length`.
#[derive(Debug, thiserror::Error)]
#[error("the request's body does not have the length of its content-length")]
struct LengthMismatch;

/// The body's length according to the head. Several values have to agree (RFC 9110 section 8.6).
/// Otherwise an upstream may use another one than this server, or parse a value differently, and
/// find the next request at another offset.
///
/// # Errors
/// [`InvalidContentLength`]: the request is malformed (RFC 9114 section 4.1.2).
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, InvalidContentLength> {
    let mut found = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        let digits = value.to_str().ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let length = digits.and_then(|text| text.parse().ok()).ok_or(InvalidContentLength)?;
        if found.is_some_and(|before| before != length) {
            return Err(InvalidContentLength);
        }
        found = Some(length);
    }
    Ok(found)
}

/// The `Content-Length` is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request's content-length is not a number, or has several different values")]
pub(crate) struct InvalidContentLength;

impl RequestBody {
    /// `content_length`: the result of [`content_length`].
    pub(crate) fn new(
        stream: RequestStream<H3RecvStream, Bytes>,
        state: Arc<StreamState>,
        content_length: Option<u64>,
    ) -> Self {
        Self {
            stream,
            state,
            peeked: None,
            trailers: None,
            remaining: content_length,
            stage: BodyStage::Data,
        }
    }

    /// Checks whether the body is empty, as most are, so that the upstream gets a request without a
    /// body.
    pub(crate) fn peek(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        match self.poll_data(cx) {
            Poll::Ready(Ok(Some(data))) => self.peeked = Some(data),
            Poll::Ready(Ok(None)) => match self.poll_trailers(cx) {
                Poll::Ready(Ok(trailers)) => {
                    self.stage =
                        if trailers.is_some() { BodyStage::Trailers } else { BodyStage::End };
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
        self.state.add_delivered(count);
        let left = self.remaining.map(|left| left.checked_sub(count));
        match (left, &data) {
            (Some(None), _) | (Some(Some(1..)), None) => {
                self.state.note_malformed();
                self.stream.stop_sending(Code::H3_MESSAGE_ERROR);
                return Poll::Ready(Err(Box::new(LengthMismatch)));
            }
            (left, _) => self.remaining = left.flatten(),
        }
        if data.is_none() {
            self.stage = BodyStage::Trailers;
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
        if let Some(first) = this.peeked.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if this.stage == BodyStage::Data
            && let Some(data) = ready!(this.poll_data(cx))?
        {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if this.stage == BodyStage::Trailers {
            let trailers = match this.trailers.take() {
                None => ready!(this.poll_trailers(cx))?,
                known => known,
            };
            this.stage = BodyStage::End;
            if let Some(trailers) = trailers {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.stage == BodyStage::End && self.peeked.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.peeked.as_ref().map_or(0, |first| first.len() as u64);
        match (self.stage, self.remaining) {
            (BodyStage::Data, Some(left)) => SizeHint::with_exact(left + first),
            (BodyStage::Data, None) => SizeHint::default(),
            _ => SizeHint::with_exact(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(values: &[&'static str]) -> Result<Option<u64>, InvalidContentLength> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CONTENT_LENGTH, value.parse().unwrap());
        }
        content_length(&headers)
    }

    #[test]
    fn rfc9110_8_6_different_or_non_numeric_lengths_are_malformed() {
        assert_eq!((parsed(&[]), parsed(&["7"])), (Ok(None), Ok(Some(7))));
        assert_eq!(parsed(&["5", "5"]), Ok(Some(5)));
        for bad in [&["0", "5"][..], &["+5"], &["5, 5"], &[""], &["18446744073709551616"]] {
            assert_eq!(parsed(bad), Err(InvalidContentLength), "{bad:?}");
        }
    }
}
