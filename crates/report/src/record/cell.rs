//! A cell of the matrix and its figures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One combination of the axes, and what was measured in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// Which experiment it belongs to, by name.
    pub experiment: String,
    /// The client, by name: `firstflight`, or another make that is measured from its packets alone.
    #[serde(default = "ours")]
    pub client: String,
    /// The server under test, by name.
    pub server: String,
    /// `ping-pong` or `get`.
    pub workload: String,
    /// The network, by its profile's name.
    pub profile: String,
    /// Round-trip time of the profile.
    pub rtt_ms: f64,
    /// What TLS runs over: `tcp` or `quic`.
    #[serde(default = "tcp")]
    pub transport: String,
    /// TLS version: `1.0` to `1.3`.
    pub tls: String,
    /// `full`, `resumed`, `0-RTT` or `refused` (early data that the server is made to refuse).
    pub kind: String,
    /// Whether TCP Fast Open was requested.
    pub tfo: bool,
    /// Whether the client brought an address token from an earlier connection (QUIC; RFC 9000
    /// section 8.1.3).
    #[serde(default)]
    pub token: bool,
    /// HTTP version: `1.1`, `2` or `3`; empty for ping-pong.
    pub http: String,
    /// The group of the client's key share, such as `X25519`.
    pub group: String,
    /// The server's certificate: `ecdsa-p256`, `rsa-2048`, `ed25519`.
    pub certificate: String,
    /// Length of the response's content in bytes.
    pub response_bytes: u64,
    /// Whether it is the second arm of an A/A control, equal to another cell in all else.
    pub control: bool,
    /// Round trips to the first byte that the protocols need; `None` where that is not known.
    pub expected_round_trips: Option<u32>,
    /// The figures; `None` if no sample was good.
    pub summary: Option<Summary>,
}

impl Cell {
    /// Whether its connections ran over QUIC.
    pub fn over_quic(&self) -> bool {
        self.transport == "quic"
    }

    /// Whether a difference in times says something as round trips: below a tenth of a millisecond
    /// computing is most of it.
    pub(crate) fn counts_in_round_trips(&self) -> bool {
        self.rtt_ms >= 0.1
    }
}

/// What went without saying before schema 3.
pub(super) fn ours() -> String {
    "firstflight".to_owned()
}

/// What went without saying before schema 3.
pub(super) fn tcp() -> String {
    "tcp".to_owned()
}

/// The figures of a cell, over its good samples.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Good samples.
    pub samples: usize,
    /// From the connect call until the TLS connection could carry requests without early data
    /// (curl: `time_appconnect`).
    pub setup: Option<Figures>,
    /// From the connect call to the first byte of the response in the client
    /// (curl: `time_starttransfer`).
    pub first_byte: Figures,
    /// From the connect call to the last byte of the response (curl: `time_total`).
    pub total: Option<Figures>,
    /// The first byte as the packets have it, without client and kernel: median.
    pub wire_p50_ms: Option<f64>,
    /// The last byte likewise.
    #[serde(default)]
    pub wire_total_p50_ms: Option<f64>,
    /// Round trips from the first packet to the first byte of the response, counted from packets;
    /// what all but one in twenty samples took, `None` if fewer agree.
    pub round_trips: Option<u32>,
    /// The same to the last byte of the response.
    pub total_round_trips: Option<u32>,
    /// What the median of the first byte has beyond the model.
    pub residual: Option<Residual>,
}

/// A distribution in figures, in milliseconds. Percentiles are nearest ranks with order-statistic
/// 95 % intervals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// Least.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// Its interval; fewer than 6 samples give the whole range, which holds less than 95 %.
    pub p50_interval_ms: (f64, f64),
    /// 95th percentile, from 59 samples on.
    pub p95_ms: Option<f64>,
    /// Its interval; `None` where the samples bound it on one side only.
    pub p95_interval_ms: Option<(f64, f64)>,
    /// 99th percentile, from 299 samples on.
    pub p99_ms: Option<f64>,
    /// Its interval.
    pub p99_interval_ms: Option<(f64, f64)>,
    /// 99.9th percentile, from 2,995 samples on.
    pub p999_ms: Option<f64>,
    /// Worst.
    pub max_ms: f64,
    /// Mean: for comparison with figures of others, who publish means.
    pub mean_ms: f64,
}

/// An estimate with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// The estimate.
    pub estimate: f64,
    /// Upper end.
    pub high: f64,
}

/// Measured less model, where the model is round trips times RTT, the rates' part, and the
/// processor time of both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Residual {
    /// What the model says.
    pub model_ms: f64,
    /// What the median has more.
    pub residual_ms: f64,
    /// Whether that is more than the model leaves open, so that a reader should ask why.
    pub flagged: bool,
}
