//! Posts OTLP messages to the collector over HTTP, and computes the pauses between retries.

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

/// Why the collector did not accept a message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Temporary; the collector may have named the time of the next attempt.
    #[error("{reason}")]
    Later { reason: String, after: Option<Duration> },
    /// Permanent.
    #[error("{0}")]
    Never(String),
}

impl Sender {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Self { client: Client::builder(TokioExecutor::new()).build(connector) }
    }

    /// Posts one message.
    ///
    /// # Errors
    /// [`Refusal`], classified by OTLP's specification.
    pub(crate) async fn post(&self, url: &str, message: &impl Message) -> Result<(), Refusal> {
        let later = |reason: String| Refusal::Later { reason, after: None };
        let request = Request::builder()
            .method(Method::POST)
            .uri(url)
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .header(header::USER_AGENT, concat!("firstflight/", env!("CARGO_PKG_VERSION")))
            .body(Full::from(message.encode_to_vec()))
            .map_err(|error| Refusal::Never(error.to_string()))?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| {
                let cause = std::error::Error::source(&error);
                later(cause.map_or_else(|| error.to_string(), ToString::to_string))
            })?;
            let (parts, body) = response.into_parts();
            // Reading to the end allows reuse of the connection.
            let _ = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
            Ok(parts)
        };
        let parts = timeout(RESPONSE_TIMEOUT, exchange)
            .await
            .map_err(|_| later(format!("no response within {RESPONSE_TIMEOUT:?}")))??;
        match parts.status {
            status if status.is_success() => Ok(()),
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => Err(Refusal::Later {
                reason: format!("it responded {status}"),
                after: retry_after(&parts.headers),
            }),
            status => Err(Refusal::Never(format!("it responded {status}"))),
        }
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of bytes of a response that are read.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// The pauses between attempts for one batch: each twice as long as the last, up to a limit. After
/// `MAX_RETRY_TIME` in all, attempts included, there are no more attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    spent: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: INITIAL_BACKOFF, spent: Duration::ZERO }
    }

    /// Returns the pause after an attempt that took `took`, or the longer one that the collector
    /// requested (`Retry-After`). `jitter` is random, 0 to 1. Returns `None` when the batch is to be
    /// dropped.
    pub(crate) fn pause(
        &mut self,
        took: Duration,
        retry_after: Option<Duration>,
        jitter: f64,
    ) -> Option<Duration> {
        let own = self.next.mul_f64(1.0 - JITTER * jitter);
        let pause = own.max(retry_after.unwrap_or_default());
        self.next = (self.next * 2).min(MAX_BACKOFF);
        self.spent = self.spent.saturating_add(took).saturating_add(pause);
        (self.spent <= MAX_RETRY_TIME).then_some(pause)
    }
}

const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Spreads the attempts of nodes that lost the same collector.
const JITTER: f64 = 0.5;

/// How long a batch is retried: enough for a collector's restart, but not for an outage, which
/// would need too much memory.
const MAX_RETRY_TIME: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let mut backoff = Backoff::new();
        let next = || backoff.pause(Duration::ZERO, None, 0.0);
        let pauses: Vec<_> = std::iter::from_fn(next).collect();
        assert!(pauses.is_sorted() && pauses.len() == 6, "{pauses:?}");
        assert!(pauses.iter().sum::<Duration>() <= MAX_RETRY_TIME);
    }

    #[test]
    fn the_time_of_attempts_counts_too() {
        let mut backoff = Backoff::new();
        let next = || backoff.pause(RESPONSE_TIMEOUT, None, 0.0);
        assert_eq!(std::iter::from_fn(next).count(), 4);
    }

    #[test]
    fn a_retry_after_beyond_the_retry_time_ends_the_attempts() {
        let first = |retry_after, jitter| Backoff::new().pause(Duration::ZERO, retry_after, jitter);
        assert_eq!(first(Some(Duration::from_secs(61)), 0.0), None);
        assert_eq!(first(Some(Duration::from_secs(u64::MAX)), 0.0), None);
        let retry_after = Some(Duration::from_secs(7));
        assert_eq!(first(retry_after, 0.9), retry_after);
    }

    #[test]
    fn a_retry_after_of_zero_does_not_shorten_pauses() {
        let (mut requested, mut usual) = (Backoff::new(), Backoff::new());
        for _ in 0..7 {
            let pause = requested.pause(Duration::ZERO, Some(Duration::ZERO), 0.0);
            assert_eq!(pause, usual.pause(Duration::ZERO, None, 0.0));
        }
    }

    proptest! {
        #[test]
        fn every_sequence_of_pauses_ends(jitters in prop::collection::vec(0.0..=1.0f64, 400)) {
            let mut backoff = Backoff::new();
            let mut next = |jitter| backoff.pause(Duration::ZERO, None, jitter);
            let attempts = jitters.into_iter().take_while(|jitter| next(*jitter).is_some());
            prop_assert!(attempts.count() < 20);
        }
    }
}
