//! The record of a run: everything that was measured, as it is stored on disk.

mod cells;
mod file;
mod measurements;
mod visits;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::statistics::Interval;
pub use cells::{Bytes, Cell, Fault, Figures, Residual, Sample, Summary};
pub use file::{ParseError, RecordError, json_schema, parse, read, replace_file, write};
pub use measurements::{
    Capture, ColdStart, Control, ControlPair, Cost, Effect, Load, LoadLatency, MiddleboxOutcome,
    Replay, Stall, Waterfall, WaterfallPacket,
};
pub use visits::{
    BrowserFacts, BrowserTimings, Filmstrip, Frame, Visit, VisitCell, VisitEffect, VisitPackets,
    VisitSummary,
};

/// The version of the record's schema, raised when a field changes its meaning.
pub const SCHEMA: u32 = 3;

/// A complete run. Times are milliseconds and rates Mbit/s unless a field's name says otherwise.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The program's version.
    pub version: String,
    /// The command that makes this run again, seed included, without the program's path.
    pub command: Vec<String>,
    /// When the run started, in UTC, RFC 3339.
    pub date: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The seed that ordered the samples and decided what the link dropped; the same seed and plan
    /// give the same order.
    pub seed: u64,
    /// What the labels of the samples are based on.
    pub witness: Witness,
    /// Where it ran.
    pub machine: MachineFacts,
    /// The servers under test.
    pub servers: Vec<ServerFacts>,
    /// The emulated link; `None` for a remote server.
    pub link: Option<LinkFacts>,
    /// The networks, in the order of the tables.
    pub profiles: Vec<ProfileFacts>,
    /// The experiments of the cells, in the order of the report.
    pub experiments: Vec<Experiment>,
    /// The cells with their figures, in the order of the tables.
    pub cells: Vec<Cell>,
    /// Every sample, in the order in which they were started.
    pub samples: Vec<Sample>,
    /// What one kind of handshake saves against another.
    pub effects: Vec<Effect>,
    /// The A/A control: cells that were measured twice under two names.
    pub control: Option<Control>,
    /// The processor time of a connection, an entry for each cell in which it was counted.
    pub costs: Vec<Cost>,
    /// The outcomes of the replays, an entry for each server and transport.
    pub replays: Vec<Replay>,
    /// What middleboxes did to connections.
    pub middleboxes: Vec<MiddleboxOutcome>,
    /// How long responses to early data took behind middleboxes and proxies.
    #[serde(default)]
    pub stalls: Vec<Stall>,
    /// What restarts of the server cost, for each way of keeping its ticket keys.
    #[serde(default)]
    pub cold_starts: Vec<ColdStart>,
    /// The browsers that visited.
    #[serde(default)]
    pub browsers: Vec<BrowserFacts>,
    /// The cells of the visits with their figures, in the order of the tables.
    #[serde(default)]
    pub visit_cells: Vec<VisitCell>,
    /// Every visit, in the order in which they were started.
    #[serde(default)]
    pub visits: Vec<Visit>,
    /// What one kind of visit saves against another.
    #[serde(default)]
    pub visit_effects: Vec<VisitEffect>,
    /// What pages looked like while they were loaded.
    #[serde(default)]
    pub filmstrips: Vec<Filmstrip>,
    /// The packets of a typical sample of some cells.
    pub waterfalls: Vec<Waterfall>,
    /// The captures that were written beside the record.
    pub captures: Vec<Capture>,
    /// Load runs.
    pub loads: Vec<Load>,
    /// Combinations of the plan that were left out, and why, a sentence each.
    pub left_out: Vec<String>,
    /// The measurements after the samples that failed, and why, a sentence each. This fails the run.
    #[serde(default)]
    pub failed_stages: Vec<String>,
}

impl Record {
    /// Samples with a fault that fails the run.
    pub fn failures(&self) -> impl Iterator<Item = &Sample> {
        self.samples
            .iter()
            .filter(|sample| matches!(sample.fault, Some(Fault::Mislabelled(_) | Fault::Failed(_))))
    }

    /// Visits with a fault that fails the run.
    pub fn visit_failures(&self) -> impl Iterator<Item = &Visit> {
        self.visits
            .iter()
            .filter(|visit| matches!(visit.fault, Some(Fault::Mislabelled(_) | Fault::Failed(_))))
    }

    /// The good samples of each cell.
    pub(crate) fn good_samples(&self) -> Vec<usize> {
        let good = self.samples.iter().filter(|sample| sample.fault.is_none());
        counts(self.cells.len(), good.map(|sample| sample.cell))
    }

    /// The good visits of each visit cell.
    pub(crate) fn good_visits(&self) -> Vec<usize> {
        let good = self.visits.iter().filter(|visit| visit.fault.is_none());
        counts(self.visit_cells.len(), good.map(|visit| visit.cell))
    }

    /// The number of good samples whose round trips differ from those of most in their cell.
    pub fn deviating(&self) -> usize {
        let mut cells: Vec<BTreeMap<Option<u32>, usize>> = vec![BTreeMap::new(); self.cells.len()];
        for sample in self.samples.iter().filter(|sample| sample.fault.is_none()) {
            *cells[sample.cell].entry(sample.round_trips).or_default() += 1;
        }
        let others = |counts: &BTreeMap<Option<u32>, usize>| {
            counts.values().sum::<usize>() - counts.values().max().copied().unwrap_or_default()
        };
        cells.iter().map(others).sum()
    }

    /// The number of samples that the machine spoiled.
    pub fn spoiled(&self) -> usize {
        self.samples.iter().filter(|s| matches!(s.fault, Some(Fault::Spoiled(_)))).count()
    }

    /// The number of samples that intended packet loss excluded from their cells.
    pub fn disturbed(&self) -> usize {
        self.samples.iter().filter(|s| matches!(s.fault, Some(Fault::Disturbed(_)))).count()
    }

    /// The servers whose replay protection was tested, each once for all transports.
    pub fn replayed_servers(&self) -> Vec<&str> {
        let mut servers: Vec<&str> = Vec::new();
        for replay in &self.replays {
            if !servers.contains(&&*replay.server) {
                servers.push(&replay.server);
            }
        }
        servers
    }

    /// The profile of this name.
    pub fn profile(&self, name: &str) -> Option<&ProfileFacts> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}

/// How often each cell occurs.
fn counts(cells: usize, places: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut counts = vec![0; cells];
    places.for_each(|cell| counts[cell] += 1);
    counts
}

/// The machine of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct MachineFacts {
    /// Kernel release.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
    /// The number of available processors.
    pub processors: usize,
    /// Why there are no cycles and instructions in [`Record::costs`](crate::Record::costs); `None`
    /// if the machine counts them.
    pub no_counters: Option<String>,
}

/// What the labels of samples are based on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Witness {
    /// The packets, taken from the emulated link or a capture.
    #[default]
    Packets,
    /// The kernel's TCP_INFO and the client's TLS state: for a remote server without a capture.
    /// Round trips are then the time to the first byte in units of the kernel's minimum RTT.
    Kernel,
}

/// A server under test.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ServerFacts {
    /// Its name in cells.
    pub name: String,
    /// Its product name and version, as it reports them.
    pub version: String,
    /// Notes for the reader, such as missing features.
    pub notes: Vec<String>,
}

/// A network, built in or from a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProfileFacts {
    /// Its name in cells.
    pub name: String,
    /// Round-trip time of a small packet and its response; the median where jitter is part of it.
    pub rtt_ms: f64,
    /// Rate to the client; `None` if not limited.
    pub down_mbps: Option<f64>,
    /// Rate to the server; `None` if not limited.
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
    /// Median of its lateness in microseconds.
    pub lateness_p50_us: f64,
    /// 99th percentile.
    pub lateness_p99_us: f64,
    /// Maximum.
    pub lateness_max_us: f64,
    /// The 99th percentile of its lateness without the times at which the machine did not run it.
    #[serde(default)]
    pub own_lateness_p99_us: Option<f64>,
    /// How long its thread waited for a processor meanwhile, in milliseconds
    /// (`/proc/thread-self/schedstat`); `None` if the kernel does not report it.
    #[serde(default)]
    pub waited_ms: Option<f64>,
    /// How long the hypervisor ran others instead of the machine's processors meanwhile, in
    /// milliseconds (steal time in `/proc/stat`); `None` if the kernel does not report it.
    #[serde(default)]
    pub stolen_ms: Option<f64>,
    /// Kernel settings that the machine refused.
    pub refused_settings: Vec<String>,
    /// Whether processors were kept from falling asleep.
    pub keep_awake: bool,
    /// UDP echoes over each path before and after the samples.
    pub calibrations: Vec<Calibration>,
}

/// UDP echoes over a path: their round-trip time minus the configured RTT.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Calibration {
    /// The path's profile.
    pub profile: String,
    /// Whether it was before the samples, not after them.
    pub before: bool,
    /// The number of echoes.
    pub probes: usize,
    /// Minimum error in microseconds; negative if early.
    pub min_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile; the largest if there are fewer than 299 probes.
    pub p99_us: f64,
}

/// An experiment: a group of cells.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Experiment {
    /// Its name in cells: `ping-pong`, `get`, `curl`, `blueprint`, or `matrix` for axes that were
    /// chosen by hand.
    pub name: String,
    /// Its title.
    pub title: String,
}
