//! Settings of traces and of the export by OTLP.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use firstflight_units::{DurationOrOff, OptionalText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

/// Traces, and the export of traces and metrics by OTLP. Without this section, requests have no trace.
// `Default`: ids for the access log and for upstreams, and nothing sent.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySettings {
    /// Address of the collector, such as `"http://127.0.0.1:4318"`.
    ///
    /// By default none: trace ids are only for the access log and upstreams.
    #[serde(with = "OptionalText::<Endpoint>")]
    pub otlp: Option<Endpoint>,
    /// Share of the requests that are traced, 0 to 1.
    ///
    /// By default enough to find slow parts, without noticeable load.
    pub traces_sampled: f64,
    /// Whether to trust the `traceparent` of clients.
    ///
    /// By default false: any client could have all of its requests traced, or join other traces.
    pub trust_traceparent: bool,
    /// Interval of the export of metrics, 1s to 24h; `false`: never.
    ///
    /// The default is that of the OpenTelemetry SDKs.
    #[serde(with = "DurationOrOff")]
    pub metrics_interval: Option<Duration>,
    /// Name of this service (`service.name`). Set it if several installations use one collector.
    ///
    /// The default is the program's name.
    pub service_name: String,
    /// Maximum number of spans that wait for export, 1 to 1000000; further ones are dropped.
    ///
    /// The default takes about 8 MB.
    pub queue: usize,
}

/// The address of a collector for OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

/// An invalid address of a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the address of a collector; use http://HOST:PORT, such as \
     http://127.0.0.1:4318 (for TLS, run a collector on this machine that forwards)"
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
    /// Parses `http://HOST:PORT`, optionally with a path that precedes `/v1/traces`.
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

    /// Returns the URL of a signal, such as `traces`.
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
