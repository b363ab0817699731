//! Messages to the collector, over HTTP.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use tokio::time::timeout;

/// Posts messages.
pub(crate) struct Sender {
    client: Client<HttpConnector, Full<Bytes>>,
}

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// It may be taken later, and not before so long if the collector says so.
    #[error("{reason}")]
    Later { reason: String, after: Option<Duration> },
    /// Never.
    #[error("{0}")]
    Never(String),
}

impl Sender {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        Self { client: Client::builder(TokioExecutor::new()).build(connector) }
    }

    /// Posts one message.
    ///
    /// # Errors
    /// [`Refusal`], as OTLP's specification sorts failures.
    pub(crate) async fn post(&self, url: &str, message: &impl Message) -> Result<(), Refusal> {
        let later = |reason: String| Refusal::Later { reason, after: None };
        let request = Request::builder()
            .method(Method::POST)
            .uri(url)
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .header(header::USER_AGENT, concat!("firstflight/", env!("CARGO_PKG_VERSION")))
            .body(Full::from(message.encode_to_vec()))
            .map_err(|error| Refusal::Never(error.to_string()))?;
        let answering = async {
            let response = self.client.request(request).await.map_err(|error| {
                let cause = std::error::Error::source(&error);
                later(cause.map_or_else(|| error.to_string(), ToString::to_string))
            })?;
            let (parts, body) = response.into_parts();
            // Read to its end, so that the connection can be used again.
            let _ = Limited::new(body, MAX_ANSWER).collect().await;
            Ok(parts)
        };
        let parts = timeout(ANSWER, answering)
            .await
            .map_err(|_| later(format!("no answer within {ANSWER:?}")))??;
        match parts.status {
            status if status.is_success() => Ok(()),
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => Err(Refusal::Later {
                reason: format!("it answered {status}"),
                after: retry_after(&parts.headers),
            }),
            status => Err(Refusal::Never(format!("it answered {status}"))),
        }
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);

/// Bytes of a response that are read.
const MAX_ANSWER: usize = 64 * 1024;
