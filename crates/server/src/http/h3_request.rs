//! One request over HTTP/3: through the gate, to the content, into the access log.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h3::error::{Code, StreamError};
use h3::server::{RequestResolver, RequestStream};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::handler::response::BodyError;
use crate::http::connection::Connection;
use crate::http::h3_body::{self, BadLength, RequestBody};
use crate::http::h3_halves::Send;
use crate::http::h3_streams::{Bidi, Link, StreamEnd, StreamState, StreamWatch};
use crate::http::request;
use crate::observe::request::RecordedBody;

/// Answers a request, and waits until its client has the answer. What is dropped on the way ends
/// its stream with a reset.
pub(crate) async fn serve(
    connection: Arc<Connection>,
    quic: quinn::Connection,
    resolver: RequestResolver<Link, Bytes>,
    watch: StreamWatch,
) -> StreamEnd {
    let StreamWatch { early, state, mut over } = watch;
    let limits = &connection.snapshot.limits;
    let answered = tokio::select! {
        biased;
        answered = answer(&connection, resolver, early, &state) => answered,
        // Nobody wants the answer any more.
        over = &mut over => return over,
    };
    // Kept until the client has all of it: one that stops it by then is sent a reset.
    let _stream = answered.inspect_err(|error| debug!("{}: {error}", connection.client));
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
enum Broken {
    #[error("no head of a request within {0:?}")]
    SlowHead(Duration),
    #[error("the client has taken nothing of an answer for {0:?}")]
    Standstill(Duration),
    #[error("the connection ended before its handshake")]
    Gone,
    #[error("{0}")]
    Stream(#[from] StreamError),
    #[error("{0}")]
    BadLength(#[from] BadLength),
    #[error("{0}")]
    Body(BodyError),
}

async fn answer(
    connection: &Arc<Connection>,
    resolver: RequestResolver<Link, Bytes>,
    early: bool,
    state: &Arc<StreamState>,
) -> Result<RequestStream<Send, Bytes>, Broken> {
    let limits = &connection.snapshot.limits;
    let (request, stream) = head(resolver, state, limits.header_timeout).await?;
    // Of a flight that another connection has claimed each request is suspect, also one that comes
    // late: it may be what was lost on the way and is sent again.
    // And quinn hands streams of a connection over as late ones when it has ended, too, which is no
    // proof of anything.
    let early = early || !connection.is_complete() || connection.lost_claim();
    let (decision, record) = request::begin(connection, &request, early);
    let (mut send, recv) = stream.split();
    let announced = h3_body::announced(request.headers()).inspect_err(|_| {
        send.stop_stream(Code::H3_MESSAGE_ERROR);
    })?;
    let mut answer = Answer { send, state, standstill: limits.idle_timeout };
    let mut body = RequestBody::new(recv, state.clone(), announced);
    poll_fn(|cx| Poll::Ready(body.look(cx))).await.map_err(Broken::Body)?;
    if request.headers().contains_key(header::EXPECT) && !body.is_end_stream() {
        answer.go_on().await?;
    }
    let head_only = request.method() == Method::HEAD;
    let complete = || connection.is_complete();
    let request = request.map(|()| body);
    let response = request::respond(connection, complete, request, decision, record).await;
    answer.send(response.ok_or(Broken::Gone)?, head_only).await
}

/// Reads the request's head. One that is too large the library answers by itself, or
/// [`crate::http::h3_halves`] breaks off.
async fn head(
    resolver: RequestResolver<Link, Bytes>,
    state: &StreamState,
    limit: Duration,
) -> Result<(Request<()>, RequestStream<Bidi, Bytes>), Broken> {
    let mut resolving = std::pin::pin!(resolver.resolve_request());
    let resolved = tokio::select! {
        biased;
        resolved = &mut resolving => resolved?,
        () = sleep(limit) => {
            state.break_off();
            return Err(Broken::SlowHead(limit));
        }
    };
    state.head_is_there();
    Ok(resolved)
}

/// The way back to the client.
struct Answer<'a> {
    send: RequestStream<Send, Bytes>,
    state: &'a StreamState,
    standstill: Duration,
}

impl Answer<'_> {
    /// RFC 9110 section 10.1.1: a client that waits for it sends its body now.
    async fn go_on(&mut self) -> Result<(), Broken> {
        let mut answer = Response::new(());
        *answer.status_mut() = StatusCode::CONTINUE;
        steady(self.state, self.standstill, self.send.send_response(answer)).await
    }

    async fn send(
        mut self,
        answer: Response<RecordedBody>,
        head_only: bool,
    ) -> Result<RequestStream<Send, Bytes>, Broken> {
        let (mut parts, mut body) = answer.into_parts();
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
            match frame.map_err(Broken::Body)?.into_data() {
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
) -> Result<(), Broken> {
    let mut sending = std::pin::pin!(sending);
    loop {
        let written = state.written();
        tokio::select! {
            biased;
            sent = &mut sending => return Ok(sent?),
            () = sleep(limit) => {
                if state.written() == written {
                    return Err(Broken::Standstill(limit));
                }
            }
        }
    }
}

/// Now, as RFC 9110 section 6.6.1 has it in each answer.
fn date() -> Option<HeaderValue> {
    let now = jiff::Timestamp::now();
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    HeaderValue::from_str(&printer.timestamp_to_rfc9110_string(&now).ok()?).ok()
}
