//! Handles each HTTP request: the gate, the handler, the access log.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use firstflight_replay::{Decision, HoldReason};
use firstflight_tls::HandshakeDriver;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::Body;
use hyper::body::Incoming;

use crate::context::{BodyError, ResponseBody};
use crate::handler::RequestContext;
use crate::handler::forwarded::remove_lookalikes;
use crate::handler::response::{empty, head_of, plain};
use crate::handler::websocket::{self, PendingTunnel, WebSocket};
use crate::http::connection::{Connection, RequestAdmission};
use crate::http::framed_stream::RequestFraming;
use crate::http::interim::InterimResponses;
use crate::http::socket::Socket;
use crate::observe::request::{RecordedBody, RequestHead, RequestRecord};
use crate::route::early::RequiredClaims;
use crate::route::{RequestMatch, client, validation};

/// Responds to the requests of one connection.
pub(crate) struct HttpService {
    connection: Arc<Connection>,
    driver: HandshakeDriver<Socket>,
    /// The framing of an HTTP/1.1 connection.
    framing: Option<RequestFraming>,
}

/// The connection ended before the request could be executed.
#[derive(Debug)]
pub(crate) struct ConnectionEnded;

impl HttpService {
    /// `framing`: set for an HTTP/1.1 connection.
    pub(crate) fn new(
        connection: Arc<Connection>,
        driver: HandshakeDriver<Socket>,
        framing: Option<RequestFraming>,
    ) -> Self {
        Self { connection, driver, framing }
    }
}

impl hyper::service::Service<Request<Incoming>> for HttpService {
    type Response = Response<RecordedBody>;
    type Error = ConnectionEnded;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectionEnded>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // Not in the future: the library calls this while it parses, so the stream still knows
        // whether everything that it has delivered was early data.
        let started = start(&self.connection, &request, self.driver.reading_early());
        if let Some(framing) = &self.framing {
            framing.head_read(request.body().size_hint().exact());
        }
        let (connection, driver) = (self.connection.clone(), self.driver.clone());
        let framing = self.framing.clone();
        let interim = InterimResponses::http1(&request, framing.as_ref());
        Box::pin(async move {
            let complete = || driver.is_complete();
            let response = respond(&connection, complete, request, started, &interim).await;
            if let Some(framing) = &framing {
                framing.start_response();
            }
            let response = response.ok_or(ConnectionEnded)?;
            if let (Some(framing), StatusCode::SWITCHING_PROTOCOLS) = (framing, response.status()) {
                framing.become_tunnel();
            }
            Ok(close_after_last(&connection, response))
        })
    }
}

/// A request whose head has been read, with the gate's decision about it.
pub(crate) struct StartedRequest {
    decision: Option<Decision>,
    /// Set for an early request: matched by the same snapshot as the decision. Other requests are
    /// matched by the newest snapshot when they run.
    matched: Option<RequestMatch>,
    websocket: Option<WebSocket>,
    record: RequestRecord,
}

/// Decides about a request whose head has been read, and starts its record. `early`: it arrived as
/// early data.
pub(crate) fn start<B>(
    connection: &Connection,
    request: &Request<B>,
    early: bool,
) -> StartedRequest {
    let websocket = websocket::requested(request);
    let early = early && connection.facts().flight.is_some();
    let matched = early.then(|| connection.match_request(&connection.snapshot, request));
    let decision = matched.as_ref().and_then(|matched| {
        // A tunnel is more than one request, so it is held.
        connection.decide_early(websocket.is_none() && matched.may_run_early(request))
    });
    let target = request.uri().path_and_query().map_or("*", |target| target.as_str());
    let protocol = version_name(request.version());
    let method = request.method().as_str();
    let host = request.uri().host().or_else(|| request.headers().get(header::HOST)?.to_str().ok());
    let headers = request.headers();
    // Trusted proxies are those of the newest snapshot, unless the request is early.
    let newest = matched.is_none().then(|| connection.shared.snapshot.load());
    let snapshot = newest.as_deref().unwrap_or(&connection.snapshot);
    let trusted = &snapshot.trusted_proxies;
    let client = client::of_request(connection.facts().client, headers, trusted);
    let head = RequestHead { method, target, protocol, host, headers: Some(headers), client };
    let mut record = RequestRecord::start(&connection.observer, &head, decision.is_some());
    connection.record_decision(decision, &mut record);
    StartedRequest { decision, matched, websocket, record }
}

/// Applies the gate's decision and responds. `interim`: sends Early Hints before the response.
/// Returns `None` if the connection has ended.
pub(crate) async fn respond<B>(
    connection: &Connection,
    complete: impl Fn() -> bool,
    mut request: Request<B>,
    mut started: StartedRequest,
    interim: &InterimResponses,
) -> Option<Response<RecordedBody>>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let is_head = request.method() == Method::HEAD;
    let (version, websocket) = (request.version(), started.websocket);
    let validated = validation::check(&request);
    remove_lookalikes(request.headers_mut());
    let is_replayed = started.decision == Some(Decision::Hold(HoldReason::Replayed));
    // A 503 would say that the request was not executed, but a copy of it may have been.
    let busy = || match is_replayed || connection.may_be_replayed() {
        true => RequestAdmission::TooEarly,
        false => RequestAdmission::Busy,
    };
    let mut admission = match started.record.fits() {
        true => connection.admit(started.decision, &mut started.record).await,
        false => busy(),
    };
    let may_run = matches!(admission, RequestAdmission::Run) && validated.is_ok();
    let has_body = !request.body().is_end_stream();
    if may_run && !connection.wait_to_run(&mut started.record, has_body).await {
        admission = busy();
    }
    let mut response = match (admission, validated) {
        (RequestAdmission::ConnectionEnded, _) => return None,
        (RequestAdmission::Busy, _) => plain(StatusCode::SERVICE_UNAVAILABLE),
        (_, Err(status)) => validation::refusal(status, version),
        (RequestAdmission::TooEarly, _) => {
            connection.note_too_early();
            plain(StatusCode::TOO_EARLY)
        }
        // This server is not a forward proxy. Bytes after the request were meant for a tunnel.
        (RequestAdmission::Run, _)
            if request.method() == Method::CONNECT && websocket.is_none() =>
        {
            validation::refusal(StatusCode::NOT_IMPLEMENTED, version)
        }
        (RequestAdmission::Run, _) => {
            run(connection, complete, request, &mut started, interim).await?
        }
    };
    let mut record = started.record;
    let tunnel = PendingTunnel::take(&mut response);
    if tunnel.is_none() && websocket == Some(WebSocket::Connect) && response.status().is_success() {
        // A success would tell the client that its tunnel is open (RFC 9110 section 9.3.6).
        response = validation::refusal(StatusCode::NOT_IMPLEMENTED, version);
    }
    // An upstream's own `Alt-Svc` (RFC 7838) does not apply to this server's clients.
    match &connection.alt_svc {
        Some(alt_svc) => response.headers_mut().insert(header::ALT_SVC, alt_svc.clone()),
        None => response.headers_mut().remove(header::ALT_SVC),
    };
    record.set_status(response.status().as_u16());
    if let Some(tunnel) = tunnel {
        // The request lasts as long as its tunnel.
        connection.tunnels.add(Box::pin(tunnel.run(record)));
        return Some(response.map(RecordedBody::for_tunnel));
    }
    // Over HTTP/2 the library would send content that the response must not have.
    if is_head {
        response = head_of(response);
    } else if matches!(response.status(), StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT) {
        response = response.map(|_| empty());
    }
    let (parts, body) = response.into_parts();
    let body = RecordedBody::new(body, record, &parts.headers);
    Some(Response::from_parts(parts, body))
}

/// Executes a request, unless its route's rules reject it.
async fn run<B>(
    connection: &Connection,
    complete: impl Fn() -> bool,
    request: Request<B>,
    started: &mut StartedRequest,
    interim: &InterimResponses,
) -> Option<Response<ResponseBody>>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let StartedRequest { decision, matched, websocket, record } = started;
    // A validation request of an ACME authority may be redirected here, by this server or by
    // another.
    if let Some(response) = connection.shared.challenges.respond(&request) {
        return Some(response);
    }
    let newest = || connection.match_request(&connection.shared.snapshot(), &request);
    let matched = matched.take().unwrap_or_else(newest);
    let gate = &connection.shared.gate;
    let route = matched.route();
    if let Some(route) = route
        && let Err(refusal) = route.check(request.headers(), record.client().ip()).await
    {
        return Some(refusal);
    }
    let required = match route {
        Some(route) => {
            let flight = connection.facts().flight;
            route.rules().required_claims(&request, (*decision, flight))
        }
        None => Ok(RequiredClaims::default()),
    };
    let claimed = match required {
        Ok(required) => required.claim(gate, || record.execution()).await,
        Err(rejection) => Err(rejection),
    };
    let claims = match claimed {
        Ok(claims) => claims,
        Err(rejection) => {
            connection.note_rejection(rejection);
            let response = rejection.response();
            return Some(match route {
                Some(route) => route.with_fields(response),
                None => response,
            });
        }
    };
    let early_hints = |headers| interim.send_early_hints(headers);
    let context = RequestContext {
        connection: &connection.observer,
        handshake: &connection.handshake,
        before_completion: decision.is_some() && !complete(),
        claims: &claims,
        record,
        traceparent: record.traceparent(),
        websocket: *websocket,
        early_hints: interim
            .are_possible()
            .then_some(&early_hints as &(dyn Fn(HeaderMap) + Send + Sync)),
        body_timeout: connection.snapshot.limits.header_timeout,
    };
    let request = request.map(|body| record.count_body(body));
    let response = match route {
        Some(route) => route.handle(request, &context).await?,
        None => matched.refusal(),
    };
    claims.release_unless_executed().await;
    Some(response)
}

/// Adds `Connection: close` to the last response (RFC 9112 section 9.6): while the server stops,
/// and after a copy of the connection's flight was executed, so that the client retries on another
/// connection.
fn close_after_last<B>(connection: &Connection, mut response: Response<B>) -> Response<B> {
    let tunnel = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let http1 = connection.facts().tls.alpn.as_deref() != Some(b"h2");
    let last = connection.shared.shutdown.is_finishing() || connection.is_replayed();
    if http1 && !tunnel && last {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

impl fmt::Display for ConnectionEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection ended before its handshake")
    }
}

impl std::error::Error for ConnectionEnded {}

fn version_name(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_3 => "HTTP/3",
        _ => "HTTP/1.1",
    }
}
