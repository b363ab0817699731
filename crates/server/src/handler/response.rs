//! What a server serves, checked and ready: sites, or ping-pong.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use firstflight_config::{Content, ServerConfig};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Empty, Full};
use tokio::time::timeout;

use crate::ServerError;
use crate::handler::proxy::Forwarding;
use crate::handler::upstreams::Pools;
use crate::http::connection::Connection;
use crate::route::early::RouteRules;
use crate::route::sites::Sites;

/// Why an answer's body broke off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of any answer.
pub(crate) type ResponseBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BodyError>;

/// What answers requests.
pub(crate) enum Service {
    /// HTTP.
    Sites(Sites),
    /// No HTTP.
    PingPong,
}

impl Service {
    /// Checks what the configuration names.
    ///
    /// # Errors
    /// [`ServerError::Root`] or [`ServerError::Config`].
    pub(crate) fn new(config: &ServerConfig, pools: &Pools) -> Result<Self, ServerError> {
        match &config.content {
            Content::Sites(sites) => Sites::new(sites, config, pools).map(Self::Sites),
            Content::PingPong => Ok(Self::PingPong),
        }
    }

    /// Whether a request may run from early data.
    pub(crate) fn may_run_early<B>(&self, request: &Request<B>) -> bool {
        match self {
            Self::Sites(sites) => sites.may_run_early(request),
            Self::PingPong => true,
        }
    }

    /// Whether a site has this name; any is known where no site has names.
    pub(crate) fn knows(&self, host: &str) -> bool {
        match self {
            Self::Sites(sites) => sites.knows(host),
            Self::PingPong => true,
        }
    }

    /// What else its route demands of a request.
    pub(crate) fn rules<B>(
        &self,
        request: &Request<B>,
        connection: &Connection,
    ) -> Option<&RouteRules> {
        match self {
            Self::Sites(sites) => sites.rules(request, connection),
            Self::PingPong => None,
        }
    }

    /// Answers a request. `None`: the client went away and needs no answer.
    pub(crate) async fn answer<B>(
        &self,
        request: Request<B>,
        forwarding: Forwarding<'_>,
    ) -> Option<Response<ResponseBody>>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        match self {
            Self::Sites(sites) => sites.answer(request, forwarding).await,
            Self::PingPong => Some(plain(StatusCode::NOT_FOUND)),
        }
    }
}

/// A short answer of our own.
pub(crate) fn plain(status: StatusCode) -> Response<ResponseBody> {
    let text = format!("{} {}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut answer = Response::new(Full::from(text).map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// Reads the body of a request that is answered without it, so that the request is known to be whole:
/// one whose length turns out wrong is not answered as if it were right (RFC 9113 section 8.1.1).
/// A long one is not waited for, and neither is one whose client waits to be asked for it.
/// `None`: it is broken.
pub(crate) async fn discard<B>(
    request: Request<B>,
    patience: Duration,
) -> Option<Request<ResponseBody>>
where
    B: Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    let reading = async {
        let (mut body, mut left) = (pin!(body), MAX_DISCARDED);
        while let Some(frame) = body.frame().await {
            let read = frame.ok()?.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(read) {
                Some(rest) => left = rest,
                None => break,
            }
        }
        Some(())
    };
    if !parts.headers.contains_key(header::EXPECT) {
        timeout(patience, reading).await.unwrap_or(Some(()))?;
    }
    Some(Request::from_parts(parts, empty()))
}

/// What a form sends to the wrong address, not an upload.
const MAX_DISCARDED: usize = 64 * 1024;

/// No body.
pub(crate) fn empty() -> ResponseBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}
