//! A run of the lab: builds the network, starts the servers, measures, attacks.

use std::time::Instant;

use firstflight_emulator::{Network, NetworkConfig, PathConfig};
use firstflight_report::{
    Experiment as ExperimentFacts, Record, SCHEMA, ServerFacts, control, effects,
};

use firstflight_samples::{RequestedConnection, machine_facts, now};

use crate::config::LabConfig;
use crate::figures::cells;
use crate::measure::Bench;
use crate::middlebox::MiddleboxConfig;
use crate::paths::PlannedPath;
use crate::plan::{Plan, paths};
use crate::progress::Progress;
use crate::servers::{Running, Site, Wanted};
use crate::{Experiment, LabError, ServerKind, machine, replay};

/// Builds the network, measures, attacks, and returns what was found. The calling process needs
/// the privilege that `firstflight_emulator::enter_user_namespace` gives.
///
/// # Errors
/// [`LabError`] when the run cannot be made; a sample that fails is in the record instead.
pub fn run(config: &LabConfig, progress: &(dyn Fn(Progress) + Sync)) -> Result<Record, LabError> {
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
        return Err(LabError::EmptyPlan("nothing to measure: name an experiment".to_owned()));
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
        machine: machine_facts(),
        servers: servers.iter().map(server_facts).collect(),
        link: Some(measured.link),
        profiles: planned.iter().map(PlannedPath::facts).collect(),
        experiments: config.experiments.iter().map(experiment_facts).collect(),
        cells: cells(&plan, &config.experiments, &measured.samples, &measured.costs),
        costs: measured.costs,
        replays: replay::count_all(&servers, &measured.captured)?,
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

fn plan(config: &LabConfig, servers: &[Running]) -> Result<Plan, LabError> {
    let cannot = |server: ServerKind, asked: &RequestedConnection| {
        let running = servers.iter().find(|running| running.kind == server)?;
        let (ability, why) = running.abilities.lack(asked)?;
        Some(format!("without {ability}: {why}"))
    };
    let plan = Plan::new(&config.experiments, &cannot, config.seed);
    if plan.cells.is_empty() && config.middleboxes.is_none() {
        let reasons = plan.left_out.join("; ");
        return Err(LabError::EmptyPlan(format!("nothing is left to measure: {reasons}")));
    }
    Ok(plan)
}

/// Effects and the A/A control, from cells and samples.
fn compare(record: &mut Record, plan: &Plan) {
    record.effects = effects(&record.cells, &record.samples, plan.seed);
    let twins = plan.cells.iter().enumerate();
    let twins = twins.filter_map(|(twin, cell)| Some((cell.twin_of?, twin)));
    record.control = control(twins, plan.cells.len(), &record.samples, plan.seed);
}

fn experiment_facts(experiment: &Experiment) -> ExperimentFacts {
    ExperimentFacts { name: experiment.name.clone(), title: experiment.title.clone() }
}

fn server_facts(server: &Running) -> ServerFacts {
    let note =
        |(ability, why): &crate::servers::MissingAbility| format!("without {ability}: {why}");
    ServerFacts {
        name: server.kind.name().to_owned(),
        version: server.version.clone(),
        notes: server.abilities.lacks().iter().map(note).collect(),
    }
}
