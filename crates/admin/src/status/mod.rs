//! Everything that the console shows, as data for `/status.json` and `/events`.

mod assemble;
mod state;
mod totals;

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

pub use state::{
    Certificate, EarlyDataState, Failure, KeyRingState, KeyState, Reload, Replay, ServerState,
    State,
};
pub use totals::Totals;

/// Everything that the console shows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Status {
    /// The version of this schema: 2. Fields may be added within a version.
    pub schema: u32,
    /// The time of this status.
    pub at: Moment,
    /// Answers to the three questions of an operator.
    pub answers: Answers,
    /// The process.
    pub server: ServerState,
    /// Whether early data is accepted at the moment.
    pub early_data: EarlyDataState,
    /// Current numbers of connections and requests.
    pub now: Gauges,
    /// Counts of the last minute, five minutes and hour.
    pub windows: Vec<Window>,
    /// Replays that were stopped.
    pub replays: Replays,
    /// Ticket keys.
    pub keys: KeyRingState,
    /// The tickets with keys of their own; null if the process issues none, or its successor has
    /// their keys.
    pub punctured: Option<PuncturedTickets>,
    /// The strike register of this process.
    pub register: Register,
    /// The store that the nodes share; null without a store.
    pub store: Option<Store>,
    /// The servers of the upstreams.
    pub upstreams: Vec<Upstream>,
    /// The certificates of the sites.
    pub certificates: Vec<Certificate>,
    /// The last five minutes in steps, for charts.
    pub steps: Steps,
}

/// Answers to the three questions of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Answers {
    /// Whether 0-RTT is used.
    pub used: Answer,
    /// Why it is not used, or not by all connections.
    pub why_not: Answer,
    /// Whether anybody has tried to replay.
    pub replayed: Answer,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Answer {
    /// How serious it is.
    pub severity: Severity,
    /// The answer in one or two words. Changes rarely.
    pub headline: String,
    /// The answer in one sentence, with figures.
    pub sentence: String,
}

/// How serious something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Everything works.
    Good,
    /// Nothing to report.
    Neutral,
    /// An operator should check it.
    Warning,
    /// Something does not work, or an attack was stopped.
    Critical,
}

/// Current numbers of connections and requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Gauges {
    /// Open connections over TCP.
    pub tcp_connections: u64,
    /// Open connections over QUIC.
    pub quic_connections: u64,
    /// Requests in progress.
    pub requests: u64,
    /// Early requests that wait for the end of their handshake.
    pub held: u64,
}

/// Counts of a period up to now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Window {
    /// Length of the period in seconds.
    pub seconds: u64,
    /// The covered length in seconds: less than `seconds` if the process started later.
    pub covered_seconds: f64,
    /// Requests per second.
    pub requests_per_second: f64,
    /// Counts of requests.
    #[serde(flatten)]
    pub totals: Totals,
    /// Early requests that were held, by reason.
    pub held: Vec<Reason>,
    /// Connections with a complete handshake or a response.
    pub connections: u64,
    /// Connections that offered early data.
    pub offered: u64,
    /// Connections whose early data was accepted.
    pub accepted: u64,
    /// Connections whose early data was refused, by reason, the most frequent first.
    pub refused: Vec<Reason>,
    /// Connections by kind and transport, with their durations.
    pub kinds: Vec<Kind>,
}

/// A reason with its count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Reason {
    /// The reason, as in the metrics.
    pub reason: String,
    /// Number of connections or requests.
    pub count: u64,
}

/// Connections of one kind on one transport.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Kind {
    /// `full`, `resumed` or `early`.
    pub kind: String,
    /// `tcp` or `quic`.
    pub transport: String,
    /// Number of connections.
    pub connections: u64,
    /// From the start of a connection to the end of its handshake.
    pub handshake: Option<Percentiles>,
    /// From the start of a connection to the head of its first response.
    pub first_response: Option<Percentiles>,
}

/// Percentiles of durations, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Replays that were stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Replays {
    /// Connections since the start whose flight was already claimed.
    pub since_start: u64,
    /// The last flights that were received more than once, the newest first.
    pub recent: Vec<Replay>,
}

/// Tickets with keys of their own, which are destroyed when the tickets are used (`keys =
/// "punctured"`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PuncturedTickets {
    /// Issued tickets that were neither used nor expired.
    pub outstanding: u64,
    /// Tickets that were used, since the start.
    pub used: u64,
    /// Tickets that expired unused, since the start.
    pub expired: u64,
    /// Unused tickets that were given up at the limit of memory, since the start.
    pub given_up: u64,
    /// The memory of the keys, in bytes.
    pub key_bytes: u64,
}

/// The strike register of this process. With a store, it is the filter in front of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Register {
    /// Number of recorded flights, including expired ones that were not removed yet.
    pub records: u64,
    /// Maximum number of flights.
    pub capacity: u64,
}

/// The store that the nodes share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Store {
    /// Whether flights are claimed in the store at the moment.
    pub up: bool,
    /// The reason if not, as in the metrics.
    pub resting_because: Option<String>,
    /// Won claims since the start.
    pub won: u64,
    /// Lost claims since the start.
    pub lost: u64,
    /// Claims since the start whose outcome is unknown.
    pub unknown: u64,
    /// Connections made since the start.
    pub connections: u64,
    /// Duration of claims in the last five minutes.
    pub claim: Option<Percentiles>,
}

/// A server of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Upstream {
    /// The pool's name.
    pub pool: String,
    /// The server's address.
    pub server: String,
    /// Whether it gets requests.
    pub up: bool,
    /// Requests since the start.
    pub requests: u64,
    /// Requests without a response.
    pub failures: u64,
}

/// The last five minutes in steps, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Steps {
    /// Length of a step in seconds.
    pub seconds: u64,
    /// Connections with early data accepted.
    pub early: Vec<u64>,
    /// Connections whose early data was refused, without replays.
    pub refused: Vec<u64>,
    /// Connections without early data, resumed or not.
    pub without: Vec<u64>,
    /// Requests.
    pub requests: Vec<u64>,
    /// Replays that were stopped.
    pub replays: Vec<u64>,
}

impl Status {
    /// Encodes the status as one line of JSON.
    pub fn json(&self) -> String {
        // Cannot fail: the status consists of text and numbers.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A point in time, in seconds since 1970. In JSON it is a UTC time by RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub i64);

impl Moment {
    /// The current time.
    pub fn now() -> Self {
        jiff::Timestamp::now().into()
    }

    /// Formats the time by RFC 3339, in UTC.
    pub fn text(self) -> String {
        let time = jiff::Timestamp::from_second(self.0);
        time.map_or_else(|_| self.0.to_string(), |time| time.to_string())
    }
}

impl From<jiff::Timestamp> for Moment {
    fn from(time: jiff::Timestamp) -> Self {
        Self(time.as_second())
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl JsonSchema for Moment {
    fn schema_name() -> Cow<'static, str> {
        "Moment".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "A point in time by RFC 3339, in UTC.",
        })
    }
}

/// The JSON Schema (draft 2020-12) of `/status.json`, indented: the content of
/// `docs/reference/status.schema.json`.
pub fn json_schema() -> String {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Status>();
    schema.insert("title".to_owned(), format!("firstflight status, schema {SCHEMA}").into());
    // Cannot fail: a schema consists of text, numbers and maps.
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}

/// The version of the schema of [`Status`].
pub const SCHEMA: u32 = 2;
