//! All that the console shows, as data: what `/status.json` and `/events` say.

mod assemble;
mod moment;
mod schema;
mod state;

use schemars::JsonSchema;
use serde::Serialize;

pub use moment::Moment;
pub use schema::json_schema;
pub use state::{
    Certificate, EarlyDataState, Failure, KeyState, KeysState, Reload, Replay, ServerState, State,
};

/// All that the console shows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Status {
    /// The version of this form, 1. New fields may come within a version.
    pub schema: u32,
    /// When this was.
    pub at: Moment,
    /// The three questions, answered in words.
    pub answers: Answers,
    /// The process.
    pub server: ServerState,
    /// Whether early data is taken now.
    pub early_data: EarlyDataState,
    /// What there is at this moment.
    pub now: Now,
    /// What was counted in the last minute, five minutes and hour.
    pub windows: Vec<Window>,
    /// What was stopped.
    pub replays: Replays,
    /// Ticket keys.
    pub keys: KeysState,
    /// The strike register in this process.
    pub register: Register,
    /// The store that the nodes share; null: there is none.
    pub store: Option<Store>,
    /// The upstreams' servers.
    pub upstreams: Vec<Upstream>,
    /// The sites' certificates.
    pub certificates: Vec<Certificate>,
    /// The last five minutes in steps.
    pub steps: Steps,
}

/// The three questions that an operator has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Answers {
    /// Whether 0-RTT is used.
    pub used: Answer,
    /// Where it is not, why not.
    pub why_not: Answer,
    /// Whether anybody has tried to replay.
    pub replayed: Answer,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Answer {
    /// How it stands.
    pub mood: Mood,
    /// In a word or two; it changes seldom.
    pub word: String,
    /// In a sentence, with figures.
    pub sentence: String,
}

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mood {
    /// As it should be.
    Good,
    /// Nothing to say.
    Quiet,
    /// Somebody should look.
    Look,
    /// Something does not work, or was warded off.
    Bad,
}

/// What there is at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Now {
    /// Connections over TCP.
    pub tcp_connections: u64,
    /// Connections over QUIC.
    pub quic_connections: u64,
    /// Requests whose response has not ended.
    pub requests: u64,
    /// Early requests that wait for the end of their handshake.
    pub held: u64,
}

/// What was counted in a length of time up to now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Window {
    /// Its length in seconds.
    pub seconds: u64,
    /// How much of it there is: less where the process is younger.
    pub covered_seconds: f64,
    /// Requests a second.
    pub requests_per_second: f64,
    /// Requests.
    pub requests: u64,
    /// Requests that came early and ran at once.
    pub ran_early: u64,
    /// Requests that came early and did not run at once, by reason.
    pub held: Vec<Reason>,
    /// Answers 425 (Too Early).
    pub too_early: u64,
    /// Connections whose handshake ended, or which were answered before that.
    pub connections: u64,
    /// Those that offered early data.
    pub offered: u64,
    /// Those whose early data was accepted.
    pub accepted: u64,
    /// Those whose early data was not, by reason, the most frequent first.
    pub refused: Vec<Reason>,
    /// Connections by kind and transport, and how long they took.
    pub kinds: Vec<Kind>,
}

/// A reason, and how often it was met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Reason {
    /// As the metrics have it.
    pub reason: String,
    /// How often.
    pub count: u64,
}

/// Connections of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Kind {
    /// full, resumed or early.
    pub kind: String,
    /// tcp or quic.
    pub transport: String,
    /// How many.
    pub connections: u64,
    /// From a connection's start to its handshake's end.
    pub handshake: Option<Percentiles>,
    /// From a connection's start to the head of its first response.
    pub first_response: Option<Percentiles>,
}

/// How times are spread, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Percentiles {
    /// Half of them took no longer.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// 99 of a hundred.
    pub p99: f64,
}

/// What was stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Replays {
    /// Connections since the start whose flight another one had claimed.
    pub since_start: u64,
    /// The last flights that came more than once, the last one first.
    pub recent: Vec<Replay>,
}

/// The strike register in this process: with a store, the filter in front of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Register {
    /// Flights remembered now, with expired ones that were not swept yet.
    pub records: u64,
    /// Flights that fit.
    pub capacity: u64,
}

/// The store that the nodes share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Store {
    /// Whether flights are claimed there now.
    pub up: bool,
    /// Why not, if not, as the metrics have it.
    pub resting_because: Option<String>,
    /// Claims since the start: won.
    pub won: u64,
    /// Lost.
    pub lost: u64,
    /// Whose outcome is not known.
    pub unknown: u64,
    /// Connections made since the start.
    pub connections: u64,
    /// How long claims took in the last five minutes.
    pub claim: Option<Percentiles>,
}

/// A server of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Upstream {
    /// The pool's name.
    pub pool: String,
    /// The server's address.
    pub server: String,
    /// Whether it is given requests.
    pub up: bool,
    /// Requests since the start.
    pub requests: u64,
    /// Those that it did not answer.
    pub failures: u64,
}

/// The last five minutes in steps, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Steps {
    /// How long a step is, in seconds.
    pub seconds: u64,
    /// Connections with early data accepted.
    pub early: Vec<u64>,
    /// Connections that offered early data and were refused it, replays left out.
    pub refused: Vec<u64>,
    /// Connections that offered none, resumed or not.
    pub without: Vec<u64>,
    /// Requests.
    pub requests: Vec<u64>,
    /// Flights that came again.
    pub replays: Vec<u64>,
}

impl Status {
    /// As JSON, in one line.
    pub fn json(&self) -> String {
        // Made of text and numbers, which JSON always takes.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The version of [`Status`].
pub const SCHEMA: u32 = 1;
