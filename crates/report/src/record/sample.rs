//! Samples: one connection each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One connection. Times start with the connect call.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Which cell, by its place in [`Record::cells`](crate::Record::cells).
    pub cell: usize,
    /// Which block: in each, every cell of a path comes once, in random order.
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
    /// The same to its last byte.
    #[serde(default)]
    pub wire_total_ms: Option<f64>,
    /// Round trips to the first byte of the response, counted from packets.
    pub round_trips: Option<u32>,
    /// Round trips to its last byte.
    pub total_round_trips: Option<u32>,
    /// What its packets show, in words.
    pub label: Option<String>,
    /// How late the link delivered its latest packet, in microseconds.
    pub lateness_us: f64,
    /// Packets of it that the link dropped on purpose: by loss, queue or middlebox.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub dropped: u32,
    /// Why it does not enter the figures.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fault: Option<Fault>,
}

/// Why a sample does not enter the figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind", content = "why")]
pub enum Fault {
    /// The machine stalled: the link was late, or packets were sent twice without its doing.
    Spoiled(String),
    /// Packets that the network dropped on purpose made it something else than its cell asked for,
    /// or made it fail.
    Disturbed(String),
    /// Its packets show something else than its cell asked for. This fails the run.
    Mislabelled(String),
    /// The connection failed. This fails the run.
    Failed(String),
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}
