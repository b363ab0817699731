//! Where and with what a run was made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct MachineFacts {
    /// Kernel release.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
    /// How many processors were there to use.
    pub processors: usize,
    /// Why there are no cycles and instructions in [`Record::costs`](crate::Record::costs); `None`
    /// if the machine counts them.
    pub no_counters: Option<String>,
}

/// Who says what a sample was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Witness {
    /// Its packets, taken from the emulated link or a capture.
    #[default]
    Packets,
    /// The kernel's TCP_INFO and the client's TLS state: a server elsewhere, without a capture.
    /// Round trips are then the time to the first byte in units of the kernel's least RTT.
    Kernel,
}

/// A server under test.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ServerFacts {
    /// Its name in cells.
    pub name: String,
    /// What it calls itself, with its version.
    pub version: String,
    /// What a reader should know of it, such as what it cannot do.
    pub notes: Vec<String>,
}

/// A network: one built-in or from a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProfileFacts {
    /// Its name in cells.
    pub name: String,
    /// Round-trip time of a small packet and its response.
    pub rtt_ms: f64,
    /// Rate to the client; `None`: not limited.
    pub down_mbps: Option<f64>,
    /// Rate to the server; `None`: not limited.
    pub up_mbps: Option<f64>,
    /// Everything else in words: jitter, loss, queue, MTU. Empty if there is nothing.
    pub more: String,
    /// Where its figures come from; empty for one from the command line.
    pub source: String,
}

/// The emulated link of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LinkFacts {
    /// `packet rings` or `TUN`.
    pub backend: String,
    /// Congestion control of every route.
    pub congestion_control: String,
    /// Initial window in segments.
    pub initial_window: u32,
    /// Packets that it delivered.
    pub packets: u64,
    /// Its own lateness in microseconds: median.
    pub lateness_p50_us: f64,
    /// 99th percentile.
    pub lateness_p99_us: f64,
    /// Worst.
    pub lateness_max_us: f64,
    /// Kernel settings that the machine refused.
    pub refused_settings: Vec<String>,
    /// Whether processors were kept from falling asleep.
    pub keep_awake: bool,
    /// UDP echoes over each path before and after the samples.
    pub calibrations: Vec<Calibration>,
}

/// What UDP echoes say of a path: time there and back, less the configured RTT.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Calibration {
    /// The path's profile.
    pub profile: String,
    /// Before the samples; `false`: after them.
    pub before: bool,
    /// Echoes.
    pub probes: usize,
    /// Least error in microseconds; negative: early.
    pub min_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile; the largest if there are fewer than 299 probes.
    pub p99_us: f64,
}

/// What some cells were measured for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Experiment {
    /// Its name in cells: `ping-pong`, `get`, `curl`, `blueprint`, or `matrix` for axes that were
    /// chosen by hand.
    pub name: String,
    /// In words.
    pub title: String,
}
