//! One try to have a request answered.

use std::time::{Duration, Instant};

use crate::proxy_protocol::Addresses;
use http::{HeaderMap, Request, Response, StatusCode, Version, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tracing::debug;

use crate::kept::Owner;
use crate::observer::Attempt;
use crate::pool::{Permit, SendOptions, Shared};
use crate::progress::{Progress, Upload};
use crate::response::{AnswerBody, AtEnd};
use crate::retry::Failure;
use crate::sender::{Sender, failure};
use crate::server::Line;
use crate::{Body, SendError};

/// A try that failed.
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    pub(crate) error: SendError,
    /// The request, if no byte of it was sent.
    pub(crate) unsent: Option<Request<Upload>>,
}

impl Shared {
    /// Sends a request to one server.
    pub(crate) async fn attempt(
        &self,
        lease: Permit,
        request: Request<Upload>,
        progress: &Progress,
        terms: &SendOptions<'_>,
        fresh: bool,
    ) -> Result<Response<Body>, Failed> {
        let began = Instant::now();
        let mut connected = None;
        let result = match lease.server().line(&self.config, self.owner(terms), fresh).await {
            Ok(line) => {
                connected = line.connected;
                self.exchange(&lease, line, request, progress).await
            }
            Err(error) => Err(Failed {
                failure: Failure::Connect,
                error: SendError::Connect(error),
                unsent: Some(request),
            }),
        };
        let now = Instant::now();
        terms.observer.attempt(&Attempt {
            pool: &self.name,
            server: &lease.server().name,
            began,
            connected,
            took: now - began,
            result: match &result {
                Ok((response, _)) => Ok(response.status()),
                Err(failed) => Err(failed.error.name()),
            },
        });
        match result {
            Ok((response, sender)) => {
                let change = self.lock().answered(lease.at, response.status(), now);
                self.tell(lease.at, change, "it answers");
                Ok(self.response(response, lease, sender))
            }
            Err(failed) => {
                let change = self.lock().failed(lease.at, failed.failure, now);
                debug!("upstream {}, {}: {}", self.name, lease.server().name, failed.error);
                self.tell(lease.at, change, &failed.error.to_string());
                Err(failed)
            }
        }
    }

    /// Sends a request on a connection, and waits for the head of its response.
    async fn exchange(
        &self,
        lease: &Permit,
        line: Line,
        request: Request<Upload>,
        progress: &Progress,
    ) -> Result<(Response<Incoming>, Sender), Failed> {
        let Line { mut sender, connected } = line;
        let asked = request.headers().contains_key(header::UPGRADE);
        let limit = self.config.response_timeout.unwrap_or(RESPONSE_TIMEOUT);
        let sent = tokio::select! {
            sent = sender.send(request) => sent,
            client = progress.stalls_for(limit) => {
                return Err(match client {
                    true => Failed::by_client(SendError::ClientStalled(limit)),
                    false => Failed::in_time(lease, &sender, limit),
                });
            }
        };
        match sent {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS && !asked => {
                let error = SendError::Unasked;
                Err(Failed { failure: Failure::Broken, error, unsent: None })
            }
            Ok(response) if !is_readable(response.headers()) => {
                let error = SendError::Coding;
                Err(Failed { failure: Failure::Broken, error, unsent: None })
            }
            Ok(response) => Ok((response, sender)),
            Err(_) if progress.is_broken() => Err(Failed::by_client(SendError::ClientGone)),
            Err(mut error) => {
                let unsent = error.take_message();
                let error = error.into_error();
                let failure = failure(&error, connected.is_none());
                Err(Failed { failure, error: SendError::Broken(error), unsent })
            }
        }
    }

    fn response(
        &self,
        response: Response<Incoming>,
        lease: Permit,
        sender: Sender,
    ) -> Response<Body> {
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let tail = AtEnd { lease, sender, upgraded };
        let limit = self.config.body_timeout;
        let mut response = response.map(|body| AnswerBody::new(body, limit, tail).boxed_unsync());
        // What was spoken to the server is of no interest to the client.
        *response.version_mut() = Version::HTTP_11;
        response
    }

    fn owner(&self, terms: &SendOptions<'_>) -> Owner {
        self.config
            .proxy_protocol
            .map(|_| Addresses { source: terms.client, destination: terms.local })
    }
}

impl Failed {
    fn by_client(error: SendError) -> Self {
        Self { failure: Failure::Client, error, unsent: None }
    }

    /// A connection on which a response does not come is of no use to others.
    fn in_time(lease: &Permit, sender: &Sender, limit: Duration) -> Self {
        if let Sender::Http2(_, stream) = sender {
            lease.server().kept.give_up(stream);
        }
        Self { failure: Failure::Timeout, error: SendError::Timeout(limit), unsent: None }
    }
}

/// RFC 9112 section 7: the library undoes chunks alone, and a client over another connection would
/// not be told of other codings.
fn is_readable(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    codings
        .next()
        .is_none_or(|first| first.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

/// Where nothing is said, as nginx has it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
