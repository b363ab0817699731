//! Measurements other than cells and samples: effects, control, costs, replays, middleboxes,
//! waterfalls, load.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cells::tcp;
use super::{Figures, Interval};

/// What one cell saves against another that differs from it in one respect.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// In words, such as `0-RTT instead of full`.
    pub what: String,
    /// The cell compared with, by its index in [`Record::cells`](crate::Record::cells).
    pub from: usize,
    /// The cell that is different.
    pub to: usize,
    /// `to` minus `from`, medians of the first byte, in milliseconds; a bootstrap interval over
    /// blocks.
    pub difference_ms: Interval,
    /// The difference in round trips of the profile.
    pub difference_rtt: Interval,
    /// Whether 0 lies outside the interval.
    pub significant: bool,
}

/// The A/A control of a run: how often two equal arms seem to differ.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Control {
    /// The pairs.
    pub pairs: Vec<ControlPair>,
    /// How many pairs may differ at 95 % by chance, in 39 of 40 runs.
    pub allowed: usize,
    /// How many pairs differ.
    pub differing: usize,
}

/// Two cells that differ only in their names.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ControlPair {
    /// The cell, by its index in [`Record::cells`](crate::Record::cells).
    pub cell: usize,
    /// Its second arm.
    pub twin: usize,
    /// Second arm minus first, medians of the first byte.
    pub difference_ms: Interval,
    /// Whether 0 lies outside the interval.
    pub differs: bool,
}

/// Processor time of a connection, measured apart from the samples, one connection after the other.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// The server.
    pub server: String,
    /// `ping-pong` or `get`.
    pub workload: String,
    /// What TLS runs over: `tcp` or `quic`.
    #[serde(default = "tcp")]
    pub transport: String,
    /// TLS version.
    pub tls: String,
    /// `full`, `resumed` or `0-RTT`.
    pub kind: String,
    /// Key-share group.
    pub group: String,
    /// The cipher suite that the client offers; empty if it offers all.
    #[serde(default)]
    pub cipher: String,
    /// The server's certificate.
    pub certificate: String,
    /// Connections counted.
    pub connections: usize,
    /// Processor time of the client, in microseconds per connection, kernel included.
    pub client_us: f64,
    /// Processor time of the server's processes, likewise.
    pub server_us: f64,
    /// Cycles of the client; `None` without counters.
    pub client_cycles: Option<f64>,
    /// Instructions of the client.
    pub client_instructions: Option<f64>,
    /// Cycles of the server.
    pub server_cycles: Option<f64>,
    /// Instructions of the server.
    pub server_instructions: Option<f64>,
}

/// The outcome of the replays at one server.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Replay {
    /// The server.
    pub server: String,
    /// What the flights were sent over: `tcp` or `quic`.
    #[serde(default = "tcp")]
    pub transport: String,
    /// Captured first flights.
    pub flights: usize,
    /// Tries over all flights that reached the server.
    pub tries: usize,
    /// Further tries, which did not reach the server: it refused the connection, or sending failed.
    #[serde(default)]
    pub failed: usize,
    /// How often the server executed a replayed request, by its own log.
    pub executed: usize,
    /// Mean number of response bytes per try (an attacker cannot read them).
    pub bytes_per_try: f64,
    /// How often the original flights' requests were executed. If not once each, the count is not
    /// reliable.
    pub originals: usize,
}

impl Control {
    /// Whether chance allows fewer than all pairs to differ. A control of a single pair shows
    /// nothing.
    pub fn is_decidable(&self) -> bool {
        self.allowed < self.pairs.len()
    }
}

impl Replay {
    /// The server's name with the transport: `envoy`, or `envoy over QUIC`.
    pub fn name(&self) -> String {
        match self.transport.as_str() {
            "quic" => format!("{} over QUIC", self.server),
            _ => self.server.clone(),
        }
    }

    /// Why the count of executed replays is not reliable; `None` if it is.
    pub fn doubt(&self) -> Option<String> {
        if self.originals < self.flights {
            return Some(format!(
                "only {} of {} original flights were executed, so the count is not reliable",
                self.originals, self.flights
            ));
        }
        // One executed replay is enough to know.
        (self.failed > 0 && self.executed == 0).then(|| {
            let all = self.tries + self.failed;
            format!("{} of {all} resent flights did not reach the server", self.failed)
        })
    }
}

/// What a middlebox did to connections of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct MiddleboxOutcome {
    /// The middlebox, by its cell's name.
    pub middlebox: String,
    /// The server.
    pub server: String,
    /// What the connections ran over: `tcp` or `quic`.
    #[serde(default = "tcp")]
    pub transport: String,
    /// What was requested: `full`, `resumed` or `0-RTT`.
    pub kind: String,
    /// Whether TCP Fast Open was requested.
    pub tfo: bool,
    /// Key-share group.
    pub group: String,
    /// Round-trip time of the path.
    pub rtt_ms: f64,
    /// Connections tried.
    pub tries: usize,
    /// What their packets show, in words, and how often.
    pub labels: Vec<(String, usize)>,
    /// Time to the first byte, over the connections that got one.
    pub first_byte: Option<Figures>,
    /// Median of the same connections without the middlebox.
    pub undisturbed_p50_ms: Option<f64>,
    /// How many connections failed.
    pub failed: usize,
    /// Why the first failed.
    pub failure: Option<String>,
    /// Packets that the middlebox dropped or changed, per connection.
    pub packets_hit: f64,
}

/// How long `firstflight fetch` waited for a response behind something that interferes with early
/// data.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Stall {
    /// What is on the path: `nothing`, a middlebox by its cell's name, or a proxy.
    pub on_the_way: String,
    /// Who issued the ticket that the client offers: `server` or `proxy`.
    pub tickets_of: String,
    /// Whether the client may open a second connection.
    pub second_connection: bool,
    /// Round-trip time of the path.
    pub rtt_ms: f64,
    /// How long the client waits at most.
    pub limit_ms: f64,
    /// Fetches.
    pub tries: usize,
    /// What the packets of their connections show, in words, and how often.
    pub happened: Vec<(String, usize)>,
    /// From the first packet to the first byte of the response, over the fetches that got one.
    pub first_byte: Option<Figures>,
    /// Fetches without a response.
    pub failed: usize,
}

/// Restarts of this project's server with one way of keeping its ticket keys: what they cost a
/// client that had a session before.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ColdStart {
    /// Where the ticket keys are: `punctured`, `process`, `file`, `store`, or `single-use` with
    /// sessions in the store.
    pub keys: String,
    /// How often the server was restarted.
    pub restarts: usize,
    /// What the packets of the first connection after a restart show, in words, and how often.
    pub first: Vec<(String, usize)>,
    /// Connections up to and including the first with accepted early data; the maximum over all
    /// restarts.
    pub connections: usize,
    /// From the start of the process to the first byte of the first response.
    pub response: Option<Figures>,
    /// From the start of the process to the first byte of the first response to accepted early data.
    pub early: Option<Figures>,
    /// Processor time of the server until the first response to accepted early data.
    pub server_cpu: Option<Figures>,
}

/// The packets of one sample.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Waterfall {
    /// Its cell, by its index in [`Record::cells`](crate::Record::cells).
    pub cell: usize,
    /// What its packets show, in words.
    pub label: String,
    /// When the first byte of the response was delivered, in milliseconds since the first packet.
    pub first_byte_ms: f64,
    /// When the last byte of the response was delivered.
    pub last_byte_ms: f64,
    /// The packets, in the order in which they were sent.
    pub packets: Vec<WaterfallPacket>,
    /// The capture that holds them, a file's name beside the record.
    pub capture: Option<String>,
}

/// A packet of a waterfall.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WaterfallPacket {
    /// From client to server.
    pub up: bool,
    /// When it was sent, in milliseconds since the first packet.
    pub sent_ms: f64,
    /// When it was delivered; `None` if it was dropped.
    pub delivered_ms: Option<f64>,
    /// What is in it, such as `ClientHello`, `early data 312 B`.
    pub what: Vec<String>,
    /// Payload of TCP or UDP in bytes.
    pub payload: u32,
    /// Whether it was sent before.
    pub again: bool,
    /// Its causal depth: how many round trips led to it.
    pub depth: Option<u32>,
}

/// A capture beside the record.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Capture {
    /// The file's name, relative to the record.
    pub file: String,
    /// What was captured, in words.
    pub what: String,
    /// Connections in it.
    pub connections: usize,
}

/// One load run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// The server, or the URL.
    pub server: String,
    /// `open` (connections start at intended times, latency counts from them) or `closed` (a new
    /// one starts when another has ended; waiting in line does not show in its latency).
    pub model: String,
    /// HTTP version: `1.1` (over TCP) or `3` (over QUIC).
    #[serde(default = "http_one")]
    pub http: String,
    /// `full`, `resumed` or `0-RTT`.
    pub kind: String,
    /// Threads of the client.
    pub threads: usize,
    /// Connections at a time; closed only.
    pub connections: Option<usize>,
    /// Connections per second that were requested; open only.
    pub rate_wanted: Option<f64>,
    /// Connections per second that were completed.
    pub rate: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Connections that were completed.
    pub completed: u64,
    /// Those whose handshake was of the requested kind; `None` in older records.
    pub as_requested: Option<u64>,
    /// Handshakes by the TLS state: kind and number.
    pub handshakes: Vec<(String, u64)>,
    /// Errors, and how often each occurred.
    pub errors: Vec<(String, u64)>,
    /// Connections that were due but never started.
    pub not_begun: u64,
    /// TLS set-up.
    pub setup: Option<LoadLatency>,
    /// First byte.
    pub first_byte: Option<LoadLatency>,
    /// Last byte.
    pub total: Option<LoadLatency>,
    /// Processor time of the client in microseconds per connection.
    pub client_us: f64,
    /// Processor time of the server, likewise; `None` if its process is not known.
    pub server_us: Option<f64>,
    /// What a reader of the figures has to know, a sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The default for records before HTTP/3 load runs.
fn http_one() -> String {
    "1.1".to_owned()
}

/// Latency of a load run in milliseconds; percentiles only where the samples suffice.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LoadLatency {
    /// Minimum.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile.
    pub p95_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// 99.9th percentile.
    pub p999_ms: Option<f64>,
    /// Maximum.
    pub max_ms: f64,
}
