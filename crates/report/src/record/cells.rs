//! Cells of the matrix, their figures and their samples.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::statistics::{
    ascending, consensus, mean, median_interval, percentile, percentile_interval,
    reported_percentile,
};

/// One combination of the axes, and what was measured in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// Which experiment it belongs to, by name.
    pub experiment: String,
    /// The client, by name: `firstflight`, or another one, which is measured from its packets alone.
    #[serde(default = "ours")]
    pub client: String,
    /// The server under test, by name.
    pub server: String,
    /// `ping-pong` or `get`.
    pub workload: String,
    /// The network, by its profile's name.
    pub profile: String,
    /// Median round-trip time of the profile: the unit of round trips.
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
    /// Whether the client sent an address token from an earlier connection (QUIC; RFC 9000
    /// section 8.1.3).
    #[serde(default)]
    pub token: bool,
    /// HTTP version: `1.1`, `2` or `3`; empty for ping-pong.
    pub http: String,
    /// The group of the client's key share, such as `X25519`.
    pub group: String,
    /// The cipher suite of TLS 1.3 that the client offers, such as `AES-128-GCM`; empty if it offers
    /// all.
    #[serde(default)]
    pub cipher: String,
    /// The server's certificate: `ecdsa-p256`, `rsa-2048`, `ed25519`, or `rsa-4096-chain` with two
    /// intermediate certificates; followed by ` compressed` if it was (RFC 8879).
    pub certificate: String,
    /// Length of the response's content in bytes.
    pub response_bytes: u64,
    /// Whether it is the second arm of an A/A control, otherwise equal to another cell.
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

    /// Whether times are meaningful in round trips: below 0.1 ms, computing dominates.
    pub(crate) fn counts_in_round_trips(&self) -> bool {
        self.rtt_ms >= 0.1
    }
}

/// The default for records before schema 3.
pub(super) fn ours() -> String {
    "firstflight".to_owned()
}

/// The default for records before schema 3.
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
    /// Median time to the first byte by the packets, without client and kernel.
    pub wire_p50_ms: Option<f64>,
    /// Median time to the last byte by the packets.
    #[serde(default)]
    pub wire_total_p50_ms: Option<f64>,
    /// Round trips from the first packet to the first byte of the response, counted from packets:
    /// the value of at least 19 in 20 samples; `None` if fewer agree.
    pub round_trips: Option<u32>,
    /// Round trips to the last byte of the response, likewise.
    pub total_round_trips: Option<u32>,
    /// Bytes until the handshake was complete: medians, see [`Sample::handshake_bytes`].
    #[serde(default)]
    pub handshake_bytes: Option<Bytes>,
    /// Bytes until the first byte of the response: medians, see [`Sample::first_byte_bytes`].
    #[serde(default)]
    pub first_byte_bytes: Option<Bytes>,
    /// By how much the median of the first byte exceeds the model.
    pub residual: Option<Residual>,
}

impl Summary {
    /// The figures of good samples of one cell, without a residual; `None` if none of them has a
    /// response.
    pub fn of_samples<'a>(good: impl Iterator<Item = &'a Sample>) -> Option<Self> {
        let good: Vec<&Sample> = good.collect();
        let times =
            |value: fn(&Sample) -> Option<f64>| good.iter().filter_map(move |sample| value(sample));
        let median = |value: fn(&Sample) -> Option<f64>| percentile(&ascending(times(value)), 0.5);
        let bytes = |value: fn(&Sample) -> Option<Bytes>| {
            Bytes::medians(good.iter().filter_map(|sample| value(sample)))
        };
        Some(Self {
            samples: good.len(),
            setup: Figures::from_values(times(|sample| sample.setup_ms)),
            first_byte: Figures::from_values(times(|sample| sample.time_ms))?,
            total: Figures::from_values(times(|sample| sample.total_ms)),
            wire_p50_ms: median(|sample| sample.wire_ms),
            wire_total_p50_ms: median(|sample| sample.wire_total_ms),
            round_trips: consensus(good.iter().map(|sample| sample.round_trips)),
            total_round_trips: consensus(good.iter().map(|sample| sample.total_round_trips)),
            handshake_bytes: bytes(|sample| sample.handshake_bytes),
            first_byte_bytes: bytes(|sample| sample.first_byte_bytes),
            residual: None,
        })
    }
}

/// Bytes of IP packets each way, without bare acknowledgements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Bytes {
    /// To the server.
    pub up: u64,
    /// To the client.
    pub down: u64,
}

impl Bytes {
    /// The medians of each way; `None` without values.
    pub fn medians(values: impl Iterator<Item = Self>) -> Option<Self> {
        let values: Vec<Self> = values.collect();
        let median = |way: fn(&Self) -> u64| {
            let mut bytes: Vec<u64> = values.iter().map(way).collect();
            bytes.sort_unstable();
            bytes.get(bytes.len().saturating_sub(1) / 2).copied()
        };
        Some(Self { up: median(|bytes| bytes.up)?, down: median(|bytes| bytes.down)? })
    }
}

/// A distribution in figures, in milliseconds. Percentiles are nearest ranks with order-statistic
/// 95 % intervals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// Minimum.
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
    /// Maximum.
    pub max_ms: f64,
    /// Mean, for comparison with published means.
    pub mean_ms: f64,
}

impl Figures {
    /// Summarizes values in milliseconds. Returns `None` if there are none.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values = ascending(values);
        let interval = |p, reported: Option<f64>| reported.and(percentile_interval(&values, p));
        let high = |p| {
            let reported = reported_percentile(&values, p);
            (reported, interval(p, reported))
        };
        let ((p95_ms, p95_interval_ms), (p99_ms, p99_interval_ms)) = (high(0.95), high(0.99));
        Some(Self {
            min_ms: *values.first()?,
            p50_ms: percentile(&values, 0.5)?,
            p50_interval_ms: median_interval(&values)?,
            p95_ms,
            p95_interval_ms,
            p99_ms,
            p99_interval_ms,
            p999_ms: reported_percentile(&values, 0.999),
            max_ms: *values.last()?,
            mean_ms: mean(&values)?,
        })
    }
}

/// Measured minus model, where the model is round trips times RTT, the rates' part, and the
/// processor time of both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Residual {
    /// The time that the model predicts.
    pub model_ms: f64,
    /// The measured median minus the model.
    pub residual_ms: f64,
    /// Whether the residual exceeds the model's tolerance.
    pub flagged: bool,
}

/// One connection. Times start with the connect call.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// The cell, by its index in [`Record::cells`](crate::Record::cells).
    pub cell: usize,
    /// The block. Each block has every cell of a path once, in random order.
    #[serde(default)]
    pub block: usize,
    /// When it started, in milliseconds since the measuring started.
    pub at_ms: f64,
    /// Until TLS could carry requests without early data.
    pub setup_ms: Option<f64>,
    /// To the first byte of the response; `None` if there was none.
    pub time_ms: Option<f64>,
    /// To the last byte of the response.
    pub total_ms: Option<f64>,
    /// From the first packet to the first byte of the response on the wire, both delays included.
    pub wire_ms: Option<f64>,
    /// From the first packet to the last byte of the response on the wire.
    #[serde(default)]
    pub wire_total_ms: Option<f64>,
    /// Round trips to the first byte of the response, counted from packets.
    pub round_trips: Option<u32>,
    /// Round trips to the last byte of the response.
    pub total_round_trips: Option<u32>,
    /// Bytes that the client had sent and received when it got the server's Finished and could send
    /// requests without early data. Includes early data. Counted from packets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub handshake_bytes: Option<Bytes>,
    /// Bytes that each side sent up to and including the packet with the first byte of the response.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_byte_bytes: Option<Bytes>,
    /// What its packets show, in words.
    pub label: Option<String>,
    /// How late the link delivered its latest packet, in microseconds.
    pub lateness_us: f64,
    /// The part of `lateness_us` in which the machine did not run the link, because its thread woke
    /// late or was stopped by the scheduler or the hypervisor. The rest is the link's own error.
    #[serde(skip_serializing_if = "is_zero_time", default)]
    pub stalled_us: f64,
    /// Packets of the connection that the link dropped on purpose: by loss, queue or middlebox.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub dropped: u32,
    /// Why the sample is excluded from the figures.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fault: Option<Fault>,
}

/// Why a sample is excluded from the figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind", content = "why")]
pub enum Fault {
    /// The machine stalled: the link was late, or dropped packets that its profile does not drop.
    Spoiled(String),
    /// Packets that the network dropped on purpose changed the kind of the connection, or made it
    /// fail.
    Disturbed(String),
    /// The packets show another kind of connection than the cell requires. This fails the run.
    Mislabelled(String),
    /// The connection failed. This fails the run.
    Failed(String),
}

impl Fault {
    /// What is wrong with the sample, as a predicate for its cell's name.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Mislabelled(why) => format!("shows {why}"),
            Self::Failed(why) => format!("failed: {why}"),
            Self::Spoiled(why) => format!("was spoiled: {why}"),
            Self::Disturbed(why) => format!("was disturbed by its network: {why}"),
        }
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_zero_time(time: &f64) -> bool {
    *time == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_need_enough_samples() {
        let few = Figures::from_values((1..=58).map(f64::from)).unwrap();
        assert_eq!((few.min_ms, few.p50_ms, few.max_ms, few.mean_ms), (1.0, 29.0, 58.0, 29.5));
        assert_eq!((few.p95_ms, few.p95_interval_ms), (None, None));
        let many = Figures::from_values((1..=3_000).map(f64::from)).unwrap();
        assert_eq!((many.p95_ms, many.p99_ms), (Some(2_850.0), Some(2_970.0)));
        assert_eq!(many.p999_ms, Some(2_997.0));
        let (low, high) = many.p99_interval_ms.unwrap();
        assert!(low < 2_970.0 && 2_970.0 < high);
        assert!(Figures::from_values([]).is_none());
    }
}
