//! Each HTTP request: through the gate, to the content, into the access log.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use firstflight_replay::Decision;
use firstflight_tls::HandshakeDriver;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::Body;
use hyper::body::Incoming;

use crate::handler::proxy::Forwarding;
use crate::handler::response::{BodyError, ResponseBody, plain};
use crate::handler::websocket::{self, Carried};
use crate::http::connection::{Admission, Connection};
use crate::http::framed_stream::RequestFraming;
use crate::http::socket::Socket;
use crate::observe::request::{Head, RecordedBody, RequestRecord};
use crate::route::early::RequiredClaims;
use crate::route::validation;

/// Answers the requests of one connection.
pub(crate) struct HttpService {
    connection: Arc<Connection>,
    driver: HandshakeDriver<Socket>,
    /// Those of an HTTP/1.1 connection's stream.
    requests: Option<RequestFraming>,
}

/// The connection ended before the request could be run.
#[derive(Debug)]
pub(crate) struct Gone;

impl HttpService {
    /// `requests`: those of an HTTP/1.1 connection's stream.
    pub(crate) fn new(
        connection: Arc<Connection>,
        driver: HandshakeDriver<Socket>,
        requests: Option<RequestFraming>,
    ) -> Self {
        Self { connection, driver, requests }
    }
}

impl hyper::service::Service<Request<Incoming>> for HttpService {
    type Response = Response<RecordedBody>;
    type Error = Gone;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Gone>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // Here, not in the future: the library calls this while it parses, so at this moment the
        // stream still knows whether all that it gave so far was early data.
        let (decision, record) = begin(&self.connection, &request, self.driver.reading_early());
        if let Some(requests) = &self.requests {
            requests.head_read(request.body().size_hint().exact());
        }
        let (connection, driver) = (self.connection.clone(), self.driver.clone());
        let requests = self.requests.clone();
        Box::pin(async move {
            let complete = || driver.is_complete();
            let answer = respond(&connection, complete, request, decision, record).await;
            let answer = answer.map(|answer| advertise(&connection, answer)).ok_or(Gone)?;
            if let (Some(requests), StatusCode::SWITCHING_PROTOCOLS) = (requests, answer.status()) {
                requests.become_tunnel();
            }
            Ok(say_goodbye(&connection, answer))
        })
    }
}

/// The gate's first word on a request, and the new_connection of its record. `early`: it came as early
/// data.
pub(crate) fn begin<B>(
    connection: &Arc<Connection>,
    request: &Request<B>,
    early: bool,
) -> (Option<Decision>, RequestRecord) {
    let decision = match early {
        true => {
            let service = &connection.snapshot.service;
            // A tunnel is more than one request, so it waits.
            let is_tunnel = websocket::asked(request).is_some();
            connection.arrive(!is_tunnel && service.may_run_early(request))
        }
        false => None,
    };
    let target = request.uri().path_and_query().map_or("*", |target| target.as_str());
    let protocol = version_name(request.version());
    let method = request.method().as_str();
    let host = request.uri().host().or_else(|| request.headers().get(header::HOST)?.to_str().ok());
    let head = Head { method, target, protocol, host, headers: Some(request.headers()) };
    let mut record = RequestRecord::begin(connection, &head, decision.is_some());
    connection.note(decision, &mut record);
    (decision, record)
}

/// Carries the gate's word out and answers. `None`: nobody is left to be answered.
pub(crate) async fn respond<B>(
    connection: &Connection,
    complete: impl Fn() -> bool,
    mut request: Request<B>,
    decision: Option<Decision>,
    mut record: RequestRecord,
) -> Option<Response<RecordedBody>>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let head = request.method() == Method::HEAD;
    let of_form = validation::check(&request);
    validation::remove_lookalikes(request.headers_mut());
    let is_tunnel = websocket::asked(&request).is_some();
    let admission = match record.fits() {
        true => connection.admit(decision, &mut record).await,
        false => Admission::Busy,
    };
    let mut answer = match (admission, of_form) {
        (Admission::Gone, _) => return None,
        (Admission::Busy, _) => plain(StatusCode::SERVICE_UNAVAILABLE),
        (_, Err(status)) => validation::refusal(status, request.version()),
        (Admission::TooEarly, _) => {
            connection.note_too_early();
            plain(StatusCode::TOO_EARLY)
        }
        // Tunnels to anywhere are none of our jobs. What follows is meant for one.
        (Admission::Run, _) if request.method() == Method::CONNECT && !is_tunnel => {
            validation::refusal(StatusCode::NOT_IMPLEMENTED, request.version())
        }
        (Admission::Run, _) => run(connection, complete, request, decision, &mut record).await?,
    };
    record.status(answer.status().as_u16());
    if let Some(tunnel) = Carried::take(&mut answer) {
        // The request runs as long as its tunnel.
        connection.tunnels.add(Box::pin(tunnel.run(record)));
        return Some(answer.map(RecordedBody::of_tunnel));
    }
    let bodyless = head
        || answer.status() == StatusCode::NOT_MODIFIED
        || answer.status() == StatusCode::NO_CONTENT;
    let announced = answer.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    Some(answer.map(|body| RecordedBody::new(body, record, announced, bodyless)))
}

/// Runs a request that may run, once its route has nothing against it.
async fn run<B>(
    connection: &Connection,
    complete: impl Fn() -> bool,
    request: Request<B>,
    decision: Option<Decision>,
    record: &mut RequestRecord,
) -> Option<Response<ResponseBody>>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    // Where `redirect`, or somebody before this server, has sent an authority.
    if let Some(answer) = connection.server.acme.answer(&request) {
        record.executed();
        return Some(answer);
    }
    let snapshot = match decision {
        // By the same rules as the gate's first word.
        Some(_) => connection.snapshot.clone(),
        None => connection.server.current(),
    };
    let gate = &connection.server.gate;
    let required = match snapshot.service.rules(&request, connection) {
        Some(rules) => rules.required_claims(&request, (decision, connection.flight())),
        None => Ok(RequiredClaims::default()),
    };
    let claimed = match required {
        Ok(required) => required.claim(gate).await,
        Err(rejection) => Err(rejection),
    };
    let claims = match claimed {
        Ok(claims) => claims,
        Err(rejection) => {
            connection.note_barred(rejection);
            return Some(rejection.answer());
        }
    };
    record.executed();
    let forwarding = Forwarding {
        connection,
        before_completion: decision.is_some() && !complete(),
        claims: &claims,
        record,
        traceparent: record.traceparent(),
    };
    let request = request.map(|body| record.count(body));
    let answer = snapshot.service.answer(request, forwarding).await?;
    claims.leave(answer.extensions(), gate).await;
    Some(answer)
}

/// Says that the same is to be had over HTTP/3 (RFC 7838). What an upstream says of itself is of
/// no use to this server's clients.
fn advertise<B>(connection: &Connection, mut answer: Response<B>) -> Response<B> {
    match &connection.alt_svc {
        Some(alt_svc) => answer.headers_mut().insert(header::ALT_SVC, alt_svc.clone()),
        None => answer.headers_mut().remove(header::ALT_SVC),
    };
    answer
}

/// The last answer on a connection says so (RFC 9112 section 9.6): while the server stops, and where
/// a copy of the connection's flight has run, so that the client makes its next try elsewhere.
fn say_goodbye<B>(connection: &Connection, mut answer: Response<B>) -> Response<B> {
    let tunnel = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    let http1 = connection.facts.alpn.as_deref() != Some(b"h2");
    let last = connection.server.is_finishing() || connection.is_overtaken();
    if http1 && !tunnel && last {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection ended before its handshake")
    }
}

impl std::error::Error for Gone {}

fn version_name(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_3 => "HTTP/3",
        _ => "HTTP/1.1",
    }
}
