//! The record of a run: everything that was measured, as it is kept on disk.

mod cell;
mod extra;
mod file;
mod sample;
mod setting;
mod visits;

pub use cell::{Cell, Figures, Interval, Residual, Summary};
pub use extra::{
    Capture, Control, ControlPair, Cost, Effect, Load, LoadLatency, MiddleboxOutcome, Replay,
    Waterfall, WaterfallPacket,
};
pub use file::{ParseError, RecordError, parse, read, write};
pub use sample::{Fault, Sample};
pub use setting::{
    Calibration, Experiment, LinkFacts, MachineFacts, ProfileFacts, ServerFacts, Witness,
};

pub use visits::{
    BrowserFacts, BrowserTimings, Filmstrip, Frame, Visit, VisitCell, VisitEffect, VisitPackets,
    VisitSummary,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of the record's form; raised when a field changes its meaning.
pub const SCHEMA: u32 = 3;

/// One run, whole. Times are milliseconds and rates Mbit/s unless a field's name says otherwise.
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
    /// Who says what each sample was.
    pub witness: Witness,
    /// Where it ran.
    pub machine: MachineFacts,
    /// The servers under test.
    pub servers: Vec<ServerFacts>,
    /// The emulated link; `None` when the server was elsewhere.
    pub link: Option<LinkFacts>,
    /// The networks, in the order of the tables.
    pub profiles: Vec<ProfileFacts>,
    /// What the cells belong to, in the order in which a report shows them.
    pub experiments: Vec<Experiment>,
    /// The cells with their figures, in the order of the tables.
    pub cells: Vec<Cell>,
    /// Every sample, in the order in which they were started.
    pub samples: Vec<Sample>,
    /// What one kind of handshake saves against another.
    pub effects: Vec<Effect>,
    /// The A/A control: cells that were measured twice under two names.
    pub control: Option<Control>,
    /// What a connection costs in processor time, a row for each cell that was counted.
    pub costs: Vec<Cost>,
    /// What came of the replays, a row a server.
    pub replays: Vec<Replay>,
    /// What middleboxes did to connections.
    pub middleboxes: Vec<MiddleboxOutcome>,
    /// The browsers that visited.
    #[serde(default)]
    pub browsers: Vec<BrowserFacts>,
    /// What they visited, with the figures, in the order of the tables.
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

    /// Good samples that took another number of round trips than most of their cell.
    pub fn deviating(&self) -> usize {
        let usual = |sample: &&Sample| {
            let summary = self.cells[sample.cell].summary.as_ref();
            summary.and_then(|summary| summary.round_trips) == sample.round_trips
        };
        self.samples.iter().filter(|s| s.fault.is_none()).filter(|s| !usual(s)).count()
    }

    /// Samples that the machine spoiled.
    pub fn spoiled(&self) -> usize {
        self.samples.iter().filter(|s| matches!(s.fault, Some(Fault::Spoiled(_)))).count()
    }

    /// Samples that packets lost on purpose kept out of their cells.
    pub fn disturbed(&self) -> usize {
        self.samples.iter().filter(|s| matches!(s.fault, Some(Fault::Disturbed(_)))).count()
    }

    /// The servers that were attacked, each once, over whatever it was.
    pub fn attacked(&self) -> Vec<&str> {
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
