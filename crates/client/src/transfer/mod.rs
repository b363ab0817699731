//! One transfer: its connections, requests and redirections, and the cleanup at its end.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_tls::Session;
use http::header::LOCATION;
use hyper::body::Incoming;
use tokio::net::TcpStream;

use self::race::{TcpReady, Winner};
use self::sessions::JarTickets;
use crate::client::{can_retry_without_early_data, is_safe};
use crate::quic::QuicHandle;
use crate::{
    Client, ClientError, EarlyPolicy, Event, Exchange, Head, Http3, HttpVersions, Listener,
    PendingResponse, PhaseInstants, Report, Request, Scheme, SharedStream, Stream, Target,
};

mod over_quic;
mod over_tcp;
mod race;
mod sessions;
mod unanswered;

impl Client {
    /// Makes a request and passes its response to `listener` as it arrives. The report contains the
    /// error, if any, and everything that was reached before it.
    pub async fn fetch(&self, request: Request, listener: &mut dyn Listener) -> Report {
        let mut transfer = Transfer::new(self, &request, listener);
        let result = match self.config.max_time {
            None => transfer.run(request).await,
            Some(after) => match tokio::time::timeout(after, transfer.run(request)).await {
                Ok(result) => result,
                // Only tickets were still waited for.
                Err(_) if transfer.is_delivered => Ok(()),
                Err(_) => Err(ClientError::Timeout { phase: "the transfer", after }),
            },
        };
        let stored = transfer.store_sessions();
        let mut report = transfer.into_report();
        report.error = result.and(stored).err();
        report.marks.end.get_or_insert_with(Instant::now);
        report
    }
}

/// One transfer in progress.
struct Transfer<'a> {
    client: &'a Client,
    report: Report,
    listener: &'a mut dyn Listener,
    jar_tickets: JarTickets,
    stream: Option<SharedStream<TcpStream>>,
    /// Every QUIC connection that was started; each may receive a session or token.
    links: RefCell<Vec<QuicHandle>>,
    sessions: Vec<Session>,
    /// Whether the request was sent again; each redirection makes another request.
    retried: bool,
    /// Whether the listener has the whole response.
    is_delivered: bool,
}

/// How one connection ended.
enum Outcome {
    Done,
    Redirect(Target, u16),
    Retry(&'static str),
}

/// How the use of one TCP connection ended.
enum TcpOutcome {
    Ended(Outcome),
    /// The first flight with early data stayed unanswered. The value is a second connection,
    /// without early data, whose handshake is complete.
    Unanswered(Box<TcpReady>),
}

/// The transports to try for a target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transports {
    Tcp,
    Quic,
    Both,
}

impl<'a> Transfer<'a> {
    pub(crate) fn new(
        client: &'a Client,
        request: &Request,
        listener: &'a mut dyn Listener,
    ) -> Self {
        Self {
            client,
            report: Report::new(request),
            listener,
            jar_tickets: JarTickets::default(),
            stream: None,
            links: RefCell::default(),
            sessions: Vec::new(),
            retried: false,
            is_delivered: false,
        }
    }

    pub(crate) fn into_report(self) -> Report {
        self.report
    }

    pub(crate) async fn run(&mut self, mut request: Request) -> Result<(), ClientError> {
        let mut first_attempt = true;
        let mut start = None;
        loop {
            let early = first_attempt && self.client.config.early_data.allows(&request.method);
            let transports = self.transports(&request.target)?;
            self.take_from_jar(&request.target, transports, early)?;
            let has_session = self.jar_tickets.tcp.is_some() || self.jar_tickets.quic.is_some();
            self.report.early_data_obstacle = match self.client.config.early_data {
                EarlyPolicy::Never => Some("not_requested"),
                _ if !first_attempt => Some("sent_again"),
                _ if !early => Some("unsafe_method"),
                _ if !has_session => Some("no_session"),
                // TCP, which is tried too, might win, and the request must not run twice.
                _ if transports == Transports::Both && !is_safe(&request.method) => {
                    Some("two_transports")
                }
                _ => None,
            };
            // Reading the jar is not network time: the clock starts here.
            let start = *start.get_or_insert_with(Instant::now);
            self.report.marks = PhaseInstants::new(start);
            self.report.early_bytes = 0;
            let outcome = match self.attempt(&request, transports, early).await {
                Err(ClientError::Tls(error))
                    if !self.retried && can_retry_without_early_data(&error) =>
                {
                    Outcome::Retry("the server no longer accepts what the session promised")
                }
                Err(ClientError::NotProcessed) if !self.retried => {
                    Outcome::Retry("the server had not started to process it; on a new connection")
                }
                other => other?,
            };
            match outcome {
                Outcome::Done => return Ok(()),
                Outcome::Retry(why) => {
                    self.record_tcp();
                    self.store_sessions()?;
                    self.report.retries += 1;
                    self.retried = true;
                    self.listener.event(&Event::Retrying(why));
                    first_attempt = false;
                }
                Outcome::Redirect(target, status) => {
                    self.store_sessions()?;
                    self.report.num_redirects += 1;
                    self.report.redirect_time = start.elapsed().as_secs_f64();
                    self.listener.event(&Event::Redirected(&target.to_string()));
                    request = request.redirected(status, target);
                    self.report.url_effective = request.target.to_string();
                    self.report.scheme = request.target.scheme().name();
                    self.report.method = request.method.to_string();
                    first_attempt = true;
                    self.retried = false;
                }
            }
        }
    }

    /// Makes, uses and closes one connection.
    async fn attempt(
        &mut self,
        request: &Request,
        transports: Transports,
        early: bool,
    ) -> Result<Outcome, ClientError> {
        let connecting = ConnectLimit::new(self.client.config.connect_timeout);
        let addresses = connecting.within(self.resolve(&request.target)).await?;
        match transports {
            Transports::Tcp => {
                let stream = self.establish(request, early, &addresses);
                let stream = connecting.within(stream).await?;
                self.over_tcp_with_fallback(stream, request, &connecting, &addresses).await
            }
            Transports::Quic => {
                let dialling = self.dial_quic(request, early, true, &addresses);
                match connecting.within(dialling).await {
                    Ok(quic_ready) => self.over_quic(quic_ready, request).await,
                    Err(error) => {
                        self.record_failed_link();
                        Err(error)
                    }
                }
            }
            Transports::Both => {
                match connecting.within(self.race(request, early, &addresses)).await {
                    Ok(Winner::Quic(quic_ready)) => self.over_quic(*quic_ready, request).await,
                    Ok(Winner::Tcp(tcp_ready, why)) => {
                        let stream = self.take_over(tcp_ready, request, &why);
                        self.over_tcp_with_fallback(stream, request, &connecting, &addresses).await
                    }
                    Err(error) => {
                        self.record_failed_link();
                        Err(error)
                    }
                }
            }
        }
    }

    /// Exchanges request and response on a TCP connection, or on a second one if the first flight of
    /// this one stays unanswered.
    async fn over_tcp_with_fallback(
        &mut self,
        stream: Stream<TcpStream>,
        request: &Request,
        connecting: &ConnectLimit,
        addresses: &[SocketAddr],
    ) -> Result<Outcome, ClientError> {
        match self.over_tcp(stream, request, connecting, addresses).await? {
            TcpOutcome::Ended(outcome) => Ok(outcome),
            TcpOutcome::Unanswered(second) => {
                self.report.retries += 1;
                let why = "the first flight stayed unanswered; on a connection without early data";
                self.listener.event(&Event::Retrying(why));
                let stream = self.take_connection(second, request);
                match self.over_tcp(stream, request, connecting, addresses).await? {
                    TcpOutcome::Ended(outcome) => Ok(outcome),
                    // Impossible: the second connection has no early data.
                    TcpOutcome::Unanswered(_) => Err(ClientError::EmptyReply),
                }
            }
        }
    }

    fn transports(&self, target: &Target) -> Result<Transports, ClientError> {
        let secure = target.scheme() == Scheme::Https;
        match (self.client.config.http, secure) {
            (HttpVersions::Three, true) => Ok(Transports::Quic),
            (HttpVersions::Three, false) => Err(ClientError::BadUrl {
                url: target.to_string(),
                reason: "HTTP/3 needs https".to_owned(),
            }),
            (HttpVersions::ThreeFirst, true) if self.client.quic.is_some() => Ok(Transports::Both),
            _ => Ok(Transports::Tcp),
        }
    }

    async fn resolve(&mut self, target: &Target) -> Result<Vec<SocketAddr>, ClientError> {
        let resolver = &self.client.config.resolver;
        let addresses = resolver.resolve(target.host(), target.port()).await?;
        self.report.marks.resolved = Some(Instant::now());
        self.listener.event(&Event::Resolved { host: target.host(), addresses: &addresses });
        Ok(addresses)
    }

    fn note_request(
        &mut self,
        request: &Request,
        version: http::Version,
    ) -> Result<(), ClientError> {
        let text = request.head_text(version)?;
        self.report.size_request += text.len() as u64;
        self.report.size_upload += request.body.len() as u64;
        self.listener.event(&Event::RequestHead(&text));
        Ok(())
    }
}

/// The time limit for connecting: name resolution, the connection and its TLS handshake.
struct ConnectLimit {
    timeout: Option<Duration>,
    deadline: Option<tokio::time::Instant>,
}

impl ConnectLimit {
    fn new(timeout: Option<Duration>) -> Self {
        // There is no limit if the clock cannot represent the deadline.
        let deadline = timeout.and_then(|timeout| tokio::time::Instant::now().checked_add(timeout));
        Self { timeout, deadline }
    }

    fn timeout_error(&self) -> ClientError {
        ClientError::Timeout { phase: "connecting", after: self.timeout.unwrap_or_default() }
    }

    async fn within<T>(
        &self,
        future: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match self.deadline {
            None => future.await,
            Some(deadline) => tokio::time::timeout_at(deadline, future)
                .await
                .unwrap_or_else(|_| Err(self.timeout_error())),
        }
    }
}

/// The body of a response over any transport.
trait Body {
    /// Returns the next bytes, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError>;
}

/// A body received over TCP.
struct TcpBody<'a>(pub(super) &'a mut Exchange<TcpStream>, pub(super) &'a mut Incoming);

impl Body for TcpBody<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.0.read_body(self.1).await
    }
}

/// A body received over QUIC.
struct QuicBody<'a>(pub(super) &'a mut Http3, pub(super) &'a mut PendingResponse);

impl Body for QuicBody<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.0.read_body(self.1).await
    }
}

/// Maximum number of bytes of an unused body that are read to keep its connection.
const MAX_DISCARDED_BYTES: usize = 64 * 1024;

impl Transfer<'_> {
    /// Passes a response to the listener.
    async fn deliver(
        &mut self,
        head: Head,
        mut body: impl Body,
        request: &Request,
    ) -> Result<Outcome, ClientError> {
        self.report.size_header += head.raw.len() as u64;
        self.listener.event(&Event::ResponseHead(&head.raw));
        let status = head.status.as_u16();
        let next = redirection(&head, &request.target);
        self.report.redirect_url =
            next.as_ref().and_then(|next| Some(next.as_ref().ok()?.to_string()));
        self.report.head = Some(head.clone());
        if self.client.config.fail && status >= 400 {
            return Err(ClientError::Status(status));
        }
        self.listener.head(&head).map_err(ClientError::Write)?;
        if let (Some(max), Some(next)) = (self.client.config.redirects, next) {
            if self.report.num_redirects >= max {
                return Err(ClientError::TooManyRedirects(max));
            }
            let next = next?;
            self.report.redirect_url = None;
            discard(body).await;
            return Ok(Outcome::Redirect(next, status));
        }
        while let Some(bytes) = body.next().await? {
            self.report.size_download += bytes.len() as u64;
            self.listener.body(&bytes).map_err(ClientError::Write)?;
        }
        Ok(Outcome::Done)
    }
}

/// Returns the target of a 3xx response (RFC 9110 section 15.4), or why there is none.
fn redirection(head: &Head, from: &Target) -> Option<Result<Target, ClientError>> {
    if !matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    // An empty reference is the same URL; curl ignores it too.
    let location = head.headers.get(LOCATION).filter(|value| !value.is_empty())?;
    // Some servers send UTF-8 unescaped.
    Some(from.join(&String::from_utf8_lossy(location.as_bytes())))
}

/// Reads a body to its end. Returns whether the end came within the limit.
async fn discard(mut body: impl Body) -> bool {
    let mut count = 0;
    loop {
        match body.next().await {
            Ok(None) => return true,
            Ok(Some(bytes)) if count + bytes.len() <= MAX_DISCARDED_BYTES => count += bytes.len(),
            _ => return false,
        }
    }
}
