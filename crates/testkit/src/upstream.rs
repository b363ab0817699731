//! An HTTP/1.1 origin for tests. A request that it received was executed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Collected, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use crate::child::TEST_TIMEOUT;
use crate::runtime::runtime;

/// An origin that records its requests. It serves until the test program ends; clones share what
/// they recorded.
#[derive(Clone)]
pub struct Upstream {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

/// A request as the origin received it.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The fields by their names in lower case.
    pub headers: HashMap<String, String>,
    /// The body; empty if it is incomplete.
    pub body: Bytes,
}

/// How the origin responds to a request.
#[derive(Clone, Debug)]
pub struct UpstreamResponse {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
    /// How long the origin waits before it responds.
    pub delay: Duration,
}

impl Default for UpstreamResponse {
    /// 200 with the line `upstream`, immediately.
    fn default() -> Self {
        Self { status: 200, body: "upstream\n".to_owned(), delay: Duration::ZERO }
    }
}

impl Upstream {
    /// Starts an origin that sends the default response to all requests.
    pub fn start() -> Self {
        Self::responding(|_| UpstreamResponse::default())
    }

    /// Starts an origin that sends the response that this function chooses.
    pub fn responding(
        respond: impl Fn(&ReceivedRequest) -> UpstreamResponse + Send + Sync + 'static,
    ) -> Self {
        let requests = Arc::<Mutex<Vec<ReceivedRequest>>>::default();
        let log = requests.clone();
        let address = listen(move |request| {
            let response = respond(&request);
            log.lock().unwrap_or_else(PoisonError::into_inner).push(request);
            response
        });
        Self { address, requests }
    }

    /// Starts an origin that records nothing, for long load tests; the function may count requests.
    /// Returns the address.
    pub fn unrecorded(
        respond: impl Fn(ReceivedRequest) -> UpstreamResponse + Send + Sync + 'static,
    ) -> SocketAddr {
        listen(respond)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the origin, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The requests so far whose target contains `word`.
    pub fn recorded(&self, word: &str) -> Vec<ReceivedRequest> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.iter().filter(|request| request.target.contains(word)).cloned().collect()
    }

    /// For each request: method, target, the field Early-Data (`-` without it), and the body.
    pub fn summaries(&self) -> Vec<String> {
        let summary = |request: ReceivedRequest| {
            let ReceivedRequest { method, target, headers, body } = request;
            let early = headers.get("early-data").map_or("-", String::as_str);
            format!("{method} {target} {early} {}", String::from_utf8_lossy(&body))
        };
        self.requests().into_iter().map(summary).collect()
    }

    /// Waits for a request whose target contains `word`. It does not block, because the server in
    /// front may run on the caller's runtime.
    ///
    /// # Panics
    /// If there is none in time.
    pub async fn wait_for(&self, word: &str) {
        let waiting = async {
            while self.recorded(word).is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let result = tokio::time::timeout(TEST_TIMEOUT, waiting).await;
        result.unwrap_or_else(|_| panic!("no request for {word}"));
    }
}

fn listen(
    respond: impl Fn(ReceivedRequest) -> UpstreamResponse + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    listener.set_nonblocking(true).expect("a socket");
    let respond = Arc::new(respond);
    runtime().spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        while let Ok((tcp, _)) = listener.accept().await {
            let _ = tcp.set_nodelay(true);
            let respond = respond.clone();
            tokio::spawn(async move {
                let service = service_fn(|request| handle(request, &*respond));
                let _ = http1::Builder::new().serve_connection(TokioIo::new(tcp), service).await;
            });
        }
    });
    address
}

async fn handle(
    request: Request<Incoming>,
    respond: &(impl Fn(ReceivedRequest) -> UpstreamResponse + Send + Sync),
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let headers = head.headers.iter();
    let headers = headers
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
        .collect();
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let UpstreamResponse { status, body, delay } = respond(ReceivedRequest {
        method: head.method.to_string(),
        target: head.uri.to_string(),
        headers,
        body,
    });
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn requests_are_recorded_with_their_bodies() {
        let upstream = Upstream::responding(|request| UpstreamResponse {
            status: if request.target == "/early" { 425 } else { 200 },
            ..UpstreamResponse::default()
        });
        let mut tcp = TcpStream::connect(upstream.address()).unwrap();
        let early = "GET /early HTTP/1.1\r\nHost: h\r\nEarly-Data: 1\r\n\r\n";
        let order = "POST /order HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\
                     Transfer-Encoding: chunked\r\n\r\n3\r\na=1\r\n0\r\n\r\n";
        tcp.write_all([early, order].concat().as_bytes()).unwrap();
        let mut response = String::new();
        tcp.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 425 "), "{response}");
        assert_eq!(response.matches("HTTP/1.1 200 ").count(), 1, "{response}");
        assert_eq!(upstream.summaries(), ["GET /early 1 ", "POST /order - a=1"]);
        assert_eq!(upstream.recorded("order").len(), 1);
    }
}
