//! The configuration of a run, and its progress.

use std::path::PathBuf;

use firstflight_emulator::Backend;

use crate::captures::Captures;
use crate::middlebox::MiddleboxConfig;
use crate::stalls::StallConfig;
use crate::{CertificateKind, Experiment, ResponseSize, ServerKind, Workload};

/// What a run of the lab measures, and how.
#[derive(Clone, Debug)]
pub struct LabConfig {
    /// The experiments to measure.
    pub experiments: Vec<Experiment>,
    /// The middleboxes to measure, if any.
    pub middleboxes: Option<MiddleboxConfig>,
    /// How to measure fetches behind middleboxes and proxies that interfere with early data, if at
    /// all.
    pub stalls: Option<StallConfig>,
    /// How often to restart this project's server with each ticket-key setting.
    pub restarts: usize,
    /// First flights to capture at each server for the replay attack. 0 disables the attack.
    pub flights: usize,
    /// How often each captured flight is resent.
    pub replays: usize,
    /// Whether to measure the processor time of connections, in addition to the samples. Residuals
    /// against the model need it.
    pub costs: bool,
    /// The seed for the order of the samples, the packets that the link drops, and the bootstrap.
    pub seed: u64,
    /// Whether to keep idle processors from sleeping; `None` does so if the machine is idle. A
    /// sleeping virtual processor takes tenths of a millisecond to wake up.
    pub keep_awake: Option<bool>,
    /// How the link forwards packets.
    pub backend: Backend,
    /// An empty directory for the files of the servers. The caller removes it after the run.
    pub directory: PathBuf,
    /// The `firstflight` program, which is started as one of the servers.
    pub program: PathBuf,
    /// The directory of the record; captures are written below it. Without it there are no
    /// captures.
    pub output: Option<PathBuf>,
    /// Which captures to write.
    pub captures: Captures,
    /// The command that repeats this run, for the record.
    pub command: Vec<String>,
}

impl LabConfig {
    /// A run of these experiments with costs, a capture of one sample of each cell if `output` is
    /// set, and a replay attack on each server with 10 flights that are resent 100 times.
    pub fn new(
        experiments: Vec<Experiment>,
        seed: u64,
        directory: PathBuf,
        program: PathBuf,
    ) -> Self {
        Self {
            experiments,
            middleboxes: None,
            stalls: None,
            restarts: 0,
            flights: 10,
            replays: 100,
            costs: true,
            seed,
            keep_awake: None,
            backend: Backend::default(),
            directory,
            program,
            output: None,
            captures: Captures::default(),
            command: Vec::new(),
        }
    }

    /// The servers of all experiments, without duplicates.
    pub fn servers(&self) -> Vec<ServerKind> {
        let boxes = self.middleboxes.iter().flat_map(|config| &config.servers);
        distinct(self.experiments.iter().flat_map(|e| &e.axes.servers).chain(boxes))
    }

    /// The workloads, certificates and response sizes that the servers must provide.
    pub(crate) fn required(&self) -> (Vec<Workload>, Vec<CertificateKind>, Vec<ResponseSize>) {
        let all = || self.experiments.iter().map(|experiment| &experiment.axes.connections);
        let (get, ecdsa, small) = (Workload::Get, CertificateKind::EcdsaP256, ResponseSize::OneKib);
        // Middleboxes and the attack use GETs of the smallest page.
        let attacked = self.flights > 0 && !self.servers().is_empty();
        let has_plain_gets = self.middleboxes.is_some() || attacked;
        let uses_ecdsa = has_plain_gets || self.stalls.is_some() || self.restarts > 0;
        (
            distinct(all().flat_map(|axes| &axes.workloads).chain(has_plain_gets.then_some(&get))),
            distinct(all().flat_map(|axes| &axes.certificates).chain(uses_ecdsa.then_some(&ecdsa))),
            distinct(all().flat_map(|axes| &axes.sizes).chain(has_plain_gets.then_some(&small))),
        )
    }
}

fn distinct<'a, T: Copy + PartialEq + 'a>(values: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for value in values {
        if !found.contains(value) {
            found.push(*value);
        }
    }
    found
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The network is being built and the servers are being started.
    Starting,
    /// The link is being compared with its configuration.
    Calibrating,
    /// Samples are being taken.
    Measuring {
        /// Samples taken.
        done: usize,
        /// Samples of the run.
        total: usize,
    },
    /// Browsers are visiting pages.
    Visiting {
        /// Visits made.
        done: usize,
        /// Visits of the run.
        total: usize,
    },
    /// Browsers are being filmed.
    Filming,
    /// Packets are being classified.
    Classifying,
    /// Processor time is being measured.
    MeasuringCosts,
    /// Connections through middleboxes are being measured.
    Middleboxes,
    /// Fetches behind middleboxes and proxies that interfere with early data are being made.
    Stalls,
    /// This project's server is being restarted.
    Restarting,
    /// Captured flights are being resent.
    Replaying {
        /// Flights resent to this server.
        done: usize,
        /// Flights to be resent to this server.
        total: usize,
        /// The server.
        server: ServerKind,
    },
}
