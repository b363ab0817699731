//! Each HTTP request: through the gate, to the content, into the access log.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use firstflight_replay::Decision;
use firstflight_tls::HandshakeDriver;
use http::{Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;

use crate::connection::{Connection, Verdict};
use crate::content::plain;
use crate::proxy::Forwarding;
use crate::record::{Record, RecordedBody};
use crate::socket::Socket;

/// Answers the requests of one connection.
pub(crate) struct HttpService {
    connection: Arc<Connection>,
    driver: HandshakeDriver<Socket>,
}

/// The connection ended before the request could be run.
#[derive(Debug)]
pub(crate) struct Gone;

impl HttpService {
    pub(crate) fn new(connection: Arc<Connection>, driver: HandshakeDriver<Socket>) -> Self {
        Self { connection, driver }
    }
}

impl hyper::service::Service<Request<Incoming>> for HttpService {
    type Response = Response<RecordedBody>;
    type Error = Gone;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Gone>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // Here, not in the future: the library calls this while it parses, so at this moment the
        // stream still knows whether all that it gave so far was early data.
        let decision = match self.driver.reading_early() {
            true => {
                let uri = request.uri();
                let policy = &self.connection.server.gatekeeper.policy;
                let may_run = policy.may_run_early(request.method(), uri.path(), uri.query());
                self.connection.arrive(may_run)
            }
            false => None,
        };
        let target = request.uri().path_and_query().map_or("*", |target| target.as_str());
        let protocol = version_name(request.version());
        let early = decision.is_some();
        let method = request.method().as_str();
        let mut record = Record::begin(&self.connection, method, target, protocol, early);
        self.connection.note(decision, &mut record);
        let (connection, driver) = (self.connection.clone(), self.driver.clone());
        Box::pin(respond(connection, driver, request, decision, record))
    }
}

async fn respond(
    connection: Arc<Connection>,
    driver: HandshakeDriver<Socket>,
    request: Request<Incoming>,
    decision: Option<Decision>,
    mut record: Record,
) -> Result<Response<RecordedBody>, Gone> {
    let head = request.method() == Method::HEAD;
    let answer = match connection.admit(decision, &mut record).await {
        Verdict::Gone => return Err(Gone),
        Verdict::TooEarly => plain(StatusCode::TOO_EARLY),
        // A tunnel is none of our jobs.
        Verdict::Run if request.method() == Method::CONNECT => plain(StatusCode::NOT_IMPLEMENTED),
        Verdict::Run => {
            record.executed();
            let forwarding = Forwarding {
                connection: &connection,
                before_completion: decision.is_some() && !driver.is_complete(),
            };
            match connection.server.service.answer(request, forwarding).await {
                Some(answer) => answer,
                None => return Err(Gone),
            }
        }
    };
    record.status(answer.status().as_u16());
    let bodyless = head
        || answer.status() == StatusCode::NOT_MODIFIED
        || answer.status() == StatusCode::NO_CONTENT;
    let announced = answer.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    Ok(answer.map(|body| RecordedBody::new(body, record, announced, bodyless)))
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
        _ => "HTTP/1.1",
    }
}
