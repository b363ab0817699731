//! What is told about requests, and to whom.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use firstflight_units::{DurationOrOff, OptionalText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

/// Traces, and metrics that are sent, by OTLP. Without this section no request has a trace.
// `Default`: ids for the access log and for upstreams, and nothing sent.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySettings {
    /// The collector, such as `"http://127.0.0.1:4318"`.
    ///
    /// By default none, and nothing is sent. Requests have trace ids all the same, for the access
    /// log and for upstreams.
    #[serde(with = "OptionalText::<Endpoint>")]
    pub otlp: Option<Endpoint>,
    /// Which part of requests is traced, 0 to 1.
    ///
    /// By default, at 1,000 requests a second, ten of them: enough to see what is slow, too few to
    /// be felt.
    pub traces_sampled: f64,
    /// Whether a client's `traceparent` is trusted.
    ///
    /// By default it is not: anybody on the internet may send one, and could have all of its
    /// requests traced or join the traces of others.
    pub trust_traceparent: bool,
    /// How often metrics are sent too; with `false` never.
    ///
    /// By default as the OpenTelemetry SDKs have it.
    #[serde(with = "DurationOrOff")]
    pub metrics_interval: Option<Duration>,
    /// The name of this service (`service.name`).
    ///
    /// By default the program's: give each installation its own where several send to one
    /// collector.
    pub service_name: String,
    /// Spans that wait to be sent; further ones are dropped.
    ///
    /// The default takes about 8 MB.
    pub queue: usize,
}

/// Where a collector takes OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

/// What is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address of a collector; allowed is http://HOST:PORT, such as \
     http://127.0.0.1:4318 (for TLS, run a collector on this machine that sends on)"
)]
pub struct InvalidEndpoint(String);

impl Default for TelemetrySettings {
    fn default() -> Self {
        Self {
            otlp: None,
            traces_sampled: 0.01,
            trust_traceparent: false,
            metrics_interval: Some(Duration::from_secs(60)),
            service_name: "firstflight".to_owned(),
            queue: 8192,
        }
    }
}

impl Endpoint {
    /// Reads `http://HOST:PORT`, with a path before `/v1/traces` if the collector wants one.
    ///
    /// # Errors
    /// [`InvalidEndpoint`].
    pub fn parse(text: &str) -> Result<Self, InvalidEndpoint> {
        let bad = || InvalidEndpoint(text.to_owned());
        let url = Url::parse(text).map_err(|_| bad())?;
        let plain = url.scheme() == "http"
            && url.host_str().is_some()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        match plain {
            true => Ok(Self(url.as_str().trim_end_matches('/').to_owned())),
            false => Err(bad()),
        }
    }

    /// The URL of a signal, such as `traces`.
    pub(crate) fn signal(&self, name: &str) -> String {
        format!("{}/v1/{name}", self.0)
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        Self::parse(text)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_http_without_secrets() {
        for text in ["http://127.0.0.1:4318", "http://127.0.0.1:4318/", "http://c:4318/otlp"] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert!(endpoint.signal("traces").ends_with("/v1/traces"));
            assert!(!endpoint.signal("traces").contains("//v1"));
        }
        for text in ["127.0.0.1:4318", "https://c", "http://u:p@c", "http://c?x", "grpc://c", ""] {
            assert!(Endpoint::parse(text).unwrap_err().to_string().contains("4318"), "{text}");
        }
    }
}
