//! What a server serves, checked and ready: files, an upstream, or ping-pong.

use std::path::Path;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Empty, Full};
use tower_http::services::ServeDir;
use tower_http::services::fs::DefaultServeDirFallback;
use tower_service::Service as _;

use crate::prompt_files::PromptFiles;
use crate::proxy::{Forwarding, Proxy};
use crate::{Content, Limits, ServerError};

/// Why an answer's body broke off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of any answer.
pub(crate) type AnswerBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BodyError>;

/// What answers requests.
pub(crate) enum Service {
    /// A directory. Index pages, ranges, conditions and types are tower-http's; `..` cannot leave
    /// the directory, but symbolic links in it are followed, because whoever can place one there
    /// can place a copy too.
    Files(ServeDir<DefaultServeDirFallback, PromptFiles>),
    /// An HTTP server behind this one.
    Proxy(Box<Proxy>),
    /// No HTTP.
    PingPong,
}

impl Service {
    /// Checks what the configuration names.
    ///
    /// # Errors
    /// [`ServerError::Root`] or [`ServerError::Upstream`].
    pub(crate) fn new(content: &Content, limits: &Limits) -> Result<Self, ServerError> {
        match content {
            Content::Files(root) => files(root).map(Self::Files),
            Content::Upstream(url) => {
                Proxy::new(url, limits.upstream_timeout).map(|proxy| Self::Proxy(Box::new(proxy)))
            }
            Content::PingPong => Ok(Self::PingPong),
        }
    }

    /// Answers a request. `None`: the client went away and needs no answer.
    pub(crate) async fn answer<B>(
        &self,
        request: Request<B>,
        forwarding: Forwarding<'_>,
    ) -> Option<Response<AnswerBody>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        match self {
            Self::Files(files) => {
                let Ok(answer) = files.clone().call(request).await;
                Some(answer.map(|body| body.map_err(BodyError::from).boxed_unsync()))
            }
            Self::Proxy(proxy) => proxy.forward(request, forwarding).await,
            Self::PingPong => Some(plain(StatusCode::NOT_FOUND)),
        }
    }
}

/// A short answer of our own.
pub(crate) fn plain(status: StatusCode) -> Response<AnswerBody> {
    let text = format!("{} {}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut answer = Response::new(Full::from(text).map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// No body.
pub(crate) fn empty() -> AnswerBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

fn files(root: &Path) -> Result<ServeDir<DefaultServeDirFallback, PromptFiles>, ServerError> {
    let wrong = |reason: String| ServerError::Root { path: root.to_owned(), reason };
    let metadata = std::fs::metadata(root).map_err(|error| wrong(error.to_string()))?;
    if !metadata.is_dir() {
        return Err(wrong("it is no directory".to_owned()));
    }
    std::fs::read_dir(root).map_err(|error| wrong(error.to_string()))?;
    Ok(ServeDir::with_backend(root, PromptFiles))
}
