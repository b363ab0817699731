//! One attempt to get a response from one server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, Version, header, request};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tracing::debug;

use crate::connection_cache::Owner;
use crate::proxy_protocol::Addresses;
use crate::response_body::{Completion, ResponseBody};
use crate::retry::Failure;
use crate::sender::{Sender, failure};
use crate::server::Checkout;
use crate::shared::{Permit, Shared};
use crate::upload::{Progress, Upload};
use crate::{Body, PoolConfig, Protocol, SendError};

/// The client of a request, and the observer of its attempts.
#[derive(Clone, Copy)]
pub struct SendOptions<'a> {
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// Whether the request must not run twice, although its method is safe.
    pub once: bool,
    /// Receives each attempt.
    pub observer: &'a dyn Observer,
}

/// A failed attempt.
pub(crate) struct AttemptError {
    pub(crate) failure: Failure,
    pub(crate) error: SendError,
    /// The request, if no byte of it was sent.
    pub(crate) unsent: Option<Request<Upload>>,
}

impl Shared {
    /// Sends a request to one server. `fresh`: over a new connection.
    pub(crate) async fn attempt(
        &self,
        permit: Permit,
        request: Request<Upload>,
        progress: &Progress,
        options: &SendOptions<'_>,
        fresh: bool,
    ) -> Result<Response<Body>, Box<AttemptError>> {
        let started = Instant::now();
        let mut connected = None;
        let result =
            match permit.server().connection(&self.config, self.owner(options), fresh).await {
                Ok(checkout) => {
                    connected = checkout.connected;
                    options.observer.sending();
                    self.exchange(&permit, checkout, request, progress).await
                }
                Err(error) => {
                    let (failure, error) = (Failure::Connect, SendError::Connect(error));
                    Err(AttemptError::new(failure, error, Some(request)))
                }
            };
        let now = Instant::now();
        options.observer.attempt(&Attempt {
            pool: &self.name,
            server: &permit.server().name,
            started,
            connected,
            took: now - started,
            result: match &result {
                Ok((response, _)) => Ok(response.status()),
                Err(failed) => Err(failed.error.name()),
            },
            may_be_processed: result.as_ref().err().is_none_or(|failed| failed.may_be_processed()),
        });
        match result {
            Ok((response, sender)) => {
                let change = self.lock().responded(permit.index, response.status(), now);
                self.log_change(permit.index, change, "it responded");
                Ok(self.response(response, permit, sender, progress))
            }
            Err(failed) => {
                let change = self.lock().failed(permit.index, permit.picked, failed.failure, now);
                debug!("upstream {}, {}: {}", self.name, permit.server().name, failed.error);
                self.log_change(permit.index, change, &failed.error.to_string());
                Err(failed)
            }
        }
    }

    /// Sends a request on a connection and waits for the response head.
    async fn exchange(
        &self,
        permit: &Permit,
        checkout: Checkout,
        request: Request<Upload>,
        progress: &Progress,
    ) -> Result<(Response<Incoming>, Sender), Box<AttemptError>> {
        let Checkout { mut sender, connected } = checkout;
        let upgrade_requested = request.headers().contains_key(header::UPGRADE);
        let limit = self.response_timeout();
        // Connecting had a limit of its own.
        progress.touch();
        let sent = tokio::select! {
            sent = sender.send(request) => sent,
            client_stalled = progress.stalled_for(limit) => {
                return Err(match client_stalled {
                    true => AttemptError::by_client(SendError::ClientStalled(limit)),
                    false => AttemptError::timed_out(permit, &sender, limit),
                });
            }
        };
        match sent {
            Ok(response)
                if response.status() == StatusCode::SWITCHING_PROTOCOLS && !upgrade_requested =>
            {
                let error = SendError::UnexpectedUpgrade;
                Err(AttemptError::new(Failure::Broken, error, None))
            }
            Ok(response) if !is_readable(response.headers()) => {
                let error = SendError::TransferCoding;
                Err(AttemptError::new(Failure::Broken, error, None))
            }
            Ok(response) => Ok((response, sender)),
            Err(_) if progress.is_broken() => Err(AttemptError::by_client(SendError::ClientGone)),
            Err(mut error) => {
                let unsent = error.take_message();
                let error = error.into_error();
                let failure = failure(&error, connected.is_none());
                Err(AttemptError::new(failure, SendError::Broken(error), unsent))
            }
        }
    }

    fn response(
        &self,
        response: Response<Incoming>,
        permit: Permit,
        sender: Sender,
        progress: &Progress,
    ) -> Response<Body> {
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let completion = Completion {
            permit,
            sender,
            upgraded,
            upload: progress.clone(),
            upload_limits: (
                self.response_timeout().min(UPLOAD_TIMEOUT),
                self.response_timeout().max(UPLOAD_TIMEOUT),
            ),
        };
        let limit = self.config.body_timeout;
        let mut response =
            response.map(|body| ResponseBody::new(body, limit, completion).boxed_unsync());
        // The server's HTTP version does not concern the client.
        *response.version_mut() = Version::HTTP_11;
        response
    }

    fn response_timeout(&self) -> Duration {
        self.config.response_timeout.unwrap_or(RESPONSE_TIMEOUT)
    }

    fn owner(&self, options: &SendOptions<'_>) -> Owner {
        self.config
            .proxy_protocol
            .map(|_| Addresses { source: options.client, destination: options.local })
    }
}

impl AttemptError {
    /// Boxed, because each stage moves its result, and few results are errors.
    fn new(failure: Failure, error: SendError, unsent: Option<Request<Upload>>) -> Box<Self> {
        Box::new(Self { failure, error, unsent })
    }

    fn may_be_processed(&self) -> bool {
        self.unsent.is_none() && self.failure != Failure::Refused
    }

    fn by_client(error: SendError) -> Box<Self> {
        Self::new(Failure::Client, error, None)
    }

    /// The server timed out. Also discards its HTTP/2 connection, because other requests on it
    /// would time out too.
    fn timed_out(permit: &Permit, sender: &Sender, limit: Duration) -> Box<Self> {
        if let Sender::Http2(_, stream) = sender {
            permit.server().cache.discard(stream);
        }
        Self::new(Failure::Timeout, SendError::Timeout(limit), None)
    }
}

/// Returns whether the body can be decoded (RFC 9112 section 7). hyper decodes only `chunked`, and
/// other codings cannot be announced to the client.
fn is_readable(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    codings
        .next()
        .is_none_or(|first| first.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

/// Default of `response_timeout`, as in nginx.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time that an upload may stall after the end of its response: enough for lost packets and
/// slow clients. Clients that get an early response seldom send the rest.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Adapts a request head to the protocol of the servers.
pub(crate) fn prepare(
    head: &mut request::Parts,
    body: &Body,
    config: &PoolConfig,
) -> Result<(), SendError> {
    let default_host = || config.servers[0].authority();
    match config.protocol {
        Protocol::Http1 => {
            head.version = Version::HTTP_11;
            if !body.is_end_stream() && body.size_hint().exact().is_none() {
                // RFC 9112 section 6.1. hyper does this for some methods only, and drops the body
                // of a GET or HEAD.
                head.headers.remove(header::CONTENT_LENGTH);
                head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            if head.headers.contains_key(header::TE) {
                // RFC 9110 section 10.1.4.
                head.headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
            }
            if !head.headers.contains_key(header::HOST)
                && let Ok(host) = HeaderValue::from_str(&default_host())
            {
                head.headers.insert(header::HOST, host);
            }
        }
        Protocol::Http2 if head.headers.contains_key(header::UPGRADE) => {
            return Err(SendError::NoUpgrade);
        }
        Protocol::Http2 => {
            // RFC 9113 section 8.3.1: `:authority` in place of `Host`.
            head.version = Version::HTTP_2;
            let host = head.headers.remove(header::HOST);
            let host = host.and_then(|host| host.to_str().map(str::to_owned).ok());
            let target = match head.uri.path_and_query() {
                // A URL may have a query without a path. `Display` writes the slash.
                Some(target) if target.as_str().starts_with('?') => {
                    target.to_string().try_into().map_err(|_| SendError::BadHost)?
                }
                Some(target) => target.clone(),
                None => PathAndQuery::from_static("/"),
            };
            head.uri = Uri::builder()
                .scheme(if config.servers[0].is_tls() { "https" } else { "http" })
                .authority(host.unwrap_or_else(default_host))
                .path_and_query(target)
                .build()
                .map_err(|_| SendError::BadHost)?;
        }
    }
    Ok(())
}

/// Receives each attempt, when its response head has arrived or it has failed.
pub trait Observer: Send + Sync {
    /// Called before an attempt may send its first byte. Must not block.
    fn sending(&self) {}

    /// Called after an attempt. Must not block.
    fn attempt(&self, attempt: &Attempt<'_>);
}

/// An attempt to send a request to a server.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The pool's name.
    pub pool: &'a str,
    /// The server's address.
    pub server: &'a str,
    /// When the attempt started.
    pub started: Instant,
    /// How long connecting took; `None` on a reused connection.
    pub connected: Option<Duration>,
    /// How long the attempt took, connecting included.
    pub took: Duration,
    /// The response's status, or [`crate::SendError::name`].
    pub result: Result<StatusCode, &'static str>,
    /// Whether the server may have processed the request. False if no byte of it was sent, or if
    /// the server reports that it was not processed (RFC 9113 section 8.7).
    pub may_be_processed: bool,
}

/// Ignores attempts.
impl Observer for () {
    fn attempt(&self, _: &Attempt<'_>) {}
}
