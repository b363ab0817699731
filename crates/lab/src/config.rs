//! What a run of the lab measures, and how.

use std::path::PathBuf;

use firstflight_emulator::Backend;

use crate::captures::Captures;
use crate::middlebox::MiddleboxConfig;
use crate::{Certificate, Experiment, ServerKind, Size, Workload};

/// What to measure.
#[derive(Clone, Debug)]
pub struct LabConfig {
    /// What is measured.
    pub experiments: Vec<Experiment>,
    /// Middleboxes to try; `None`: none.
    pub middleboxes: Option<MiddleboxConfig>,
    /// Flights to capture for the attack on each server; 0: no attack.
    pub flights: usize,
    /// How often each is resent.
    pub replays: usize,
    /// Whether to measure the processor time of connections, apart from the samples. Without it
    /// there are no residuals against the model either.
    pub costs: bool,
    /// Orders the samples, decides what the link drops, and draws the bootstrap's resamples.
    pub seed: u64,
    /// Whether to keep the processors from falling asleep while they wait; `None`: if the machine
    /// has nothing else to do. A sleeping virtual processor takes tenths of a millisecond to wake.
    pub keep_awake: Option<bool>,
    /// What the link is made of.
    pub backend: Backend,
    /// An empty directory for what the servers need during the run; the caller removes it.
    pub directory: PathBuf,
    /// This program, which is started again as server.
    pub program: PathBuf,
    /// Where the record will lie; captures are written below it. `None`: no captures.
    pub output: Option<PathBuf>,
    /// Which captures.
    pub captures: Captures,
    /// The command that makes this run again, for the record.
    pub command: Vec<String>,
}

impl LabConfig {
    /// A run of these experiments with everything that belongs to it, at a seed: costs, captures
    /// of one sample a cell if there is an output, and 10 flights resent 100 times at each server.
    pub fn new(
        experiments: Vec<Experiment>,
        seed: u64,
        directory: PathBuf,
        program: PathBuf,
    ) -> Self {
        Self {
            experiments,
            middleboxes: None,
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

    /// The servers of all experiments, in their order.
    pub fn servers(&self) -> Vec<ServerKind> {
        let boxes = self.middleboxes.iter().flat_map(|config| &config.servers);
        once(self.experiments.iter().flat_map(|e| &e.axes.servers).chain(boxes))
    }

    pub(crate) fn wanted(&self) -> (Vec<Workload>, Vec<Certificate>, Vec<Size>) {
        let all = || self.experiments.iter().map(|experiment| &experiment.axes);
        let (get, ecdsa, small) = (Workload::Get, Certificate::EcdsaP256, Size::OneKib);
        // Middleboxes and the attack are tried by GETs of the smallest page.
        let attacked = self.flights > 0 && self.servers().iter().any(|_| true);
        let also = self.middleboxes.is_some() || attacked;
        (
            once(all().flat_map(|axes| &axes.workloads).chain(also.then_some(&get))),
            once(all().flat_map(|axes| &axes.certificates).chain(also.then_some(&ecdsa))),
            once(all().flat_map(|axes| &axes.sizes).chain(also.then_some(&small))),
        )
    }
}

fn once<'a, T: Copy + PartialEq + 'a>(values: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for value in values {
        if !found.contains(value) {
            found.push(*value);
        }
    }
    found
}
