//! A run of the lab: builds the network, starts the servers, measures, attacks.

use std::path::PathBuf;
use std::time::Instant;

use firstflight_emulator::{Backend, Network, NetworkConfig, PathConfig};
use firstflight_report::{Experiment as ExperimentFacts, Record, SCHEMA, ServerFacts};

use crate::captures::Captures;
use crate::effects::{control, effects};
use crate::figures::cells;
use crate::measure::Bench;
use crate::middlebox::MiddleboxConfig;
use crate::paths::PlannedPath;
use crate::plan::{Plan, paths};
use crate::servers::{Asked, Running, Site, Wanted};
use crate::{
    BenchError, Certificate, Experiment, ServerKind, Size, Workload, counters, machine, replay,
};

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

    fn wanted(&self) -> (Vec<Workload>, Vec<Certificate>, Vec<Size>) {
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

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The network is being built and the servers are being started.
    Starting,
    /// The link is being held against its configuration.
    Calibrating,
    /// Samples are being taken.
    Measuring {
        /// Samples taken.
        done: usize,
        /// Samples in all.
        total: usize,
    },
    /// Browsers are visiting.
    Visiting {
        /// Visits made.
        done: usize,
        /// Visits in all.
        total: usize,
    },
    /// Browsers are being filmed.
    Filming,
    /// Packets are being judged.
    Judging,
    /// Processor time is being counted.
    Costing,
    /// Middleboxes are being tried.
    Middleboxes,
    /// Flights are being resent.
    Replaying {
        /// Flights done at this server.
        done: usize,
        /// Flights in all at this server.
        total: usize,
        /// Which server.
        server: ServerKind,
    },
}

/// Builds the network, measures, attacks, and returns what was found. The calling process needs
/// the privilege that `firstflight_emulator::enter_user_namespace` gives.
///
/// # Errors
/// [`BenchError`] when the run cannot be made; a sample that fails is in the record instead.
pub fn run(config: &LabConfig, progress: &(dyn Fn(Progress) + Sync)) -> Result<Record, BenchError> {
    let began = Instant::now();
    let date = now();
    progress(Progress::Starting);
    let planned = paths(&config.experiments);
    let middleboxes = config.middleboxes.iter().flat_map(MiddleboxConfig::profiles);
    let all: Vec<PathConfig> = planned
        .iter()
        .map(|path| PathConfig::from(&path.profile))
        .chain(middleboxes.map(|profile| PathConfig::from(&profile)))
        .collect();
    if all.is_empty() {
        return Err(BenchError::EmptyPlan("nothing to measure: name an experiment".to_owned()));
    }
    let (workloads, certificates, sizes) = config.wanted();
    let site = Site::make(&config.directory, &config.program, &certificates)?;
    let keep_awake = config.keep_awake.unwrap_or_else(machine::is_idle);
    let network =
        Network::build(NetworkConfig { keep_awake, seed: config.seed, ..NetworkConfig::new(all) })?;
    let wanted = Wanted { workloads: &workloads, certificates: &certificates, sizes: &sizes };
    let servers = config
        .servers()
        .into_iter()
        .map(|server| Running::start(server, &wanted, &network, &site))
        .collect::<Result<Vec<_>, _>>()?;
    let plan = plan(config, &servers)?;
    let bench = Bench {
        config,
        plan: &plan,
        network: &network,
        servers: &servers,
        site: &site,
        keep_awake,
    };
    let measured = network.client().run(|| bench.measure(progress))??;
    servers.iter().for_each(Running::stop);
    let mut record = Record {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: config.command.clone(),
        date,
        seed: config.seed,
        machine: machine::facts(counters::why_none()),
        servers: servers.iter().map(server_facts).collect(),
        link: Some(measured.link),
        profiles: planned.iter().map(PlannedPath::facts).collect(),
        experiments: config.experiments.iter().map(experiment_facts).collect(),
        cells: cells(&plan, &config.experiments, &measured.samples, &measured.costs),
        costs: measured.costs,
        replays: replay::count_all(&servers, &measured.quarries)?,
        middleboxes: measured.middleboxes,
        left_out: plan.left_out.clone(),
        samples: measured.samples.into_iter().map(|weighed| weighed.sample).collect(),
        ..Record::default()
    };
    (record.waterfalls, record.captures) = measured.album.finish(&record.cells)?;
    compare(&mut record, &plan);
    record.left_out.extend(replay::uncountable(&servers, config.flights));
    record.seconds = began.elapsed().as_secs_f64();
    Ok(record)
}

fn plan(config: &LabConfig, servers: &[Running]) -> Result<Plan, BenchError> {
    let cannot = |server: ServerKind, asked: &Asked| {
        let running = servers.iter().find(|running| running.kind == server)?;
        let (ability, why) = running.abilities.lack(asked)?;
        Some(format!("without {ability}: {why}"))
    };
    let plan = Plan::new(&config.experiments, &cannot, config.seed);
    if plan.cells.is_empty() && config.middleboxes.is_none() {
        let reasons = plan.left_out.join("; ");
        return Err(BenchError::EmptyPlan(format!("nothing is left to measure: {reasons}")));
    }
    Ok(plan)
}

/// Effects and the A/A control, from cells and samples.
pub(crate) fn compare(record: &mut Record, plan: &Plan) {
    record.effects = effects(&record.cells, &record.samples, plan.seed);
    let twins = plan.cells.iter().enumerate();
    let twins = twins.filter_map(|(twin, cell)| Some((cell.twin_of?, twin)));
    record.control = control(twins, plan.cells.len(), &record.samples, plan.seed);
}

fn experiment_facts(experiment: &Experiment) -> ExperimentFacts {
    ExperimentFacts { name: experiment.name.clone(), title: experiment.title.clone() }
}

fn server_facts(server: &Running) -> ServerFacts {
    let note = |(ability, why): &crate::servers::Lack| format!("without {ability}: {why}");
    ServerFacts {
        name: server.kind.name().to_owned(),
        version: server.version.clone(),
        notes: server.abilities.lacks().iter().map(note).collect(),
    }
}

/// Now, in UTC.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
