//! A run of the lab from start to end.

use std::time::Instant;

use firstflight_emulator::{Network, NetworkConfig, PathConfig};
use firstflight_report::{
    Experiment as ExperimentFacts, Record, SCHEMA, ServerFacts, control, effects,
};

use firstflight_samples::{RequestedConnection, machine_facts, utc_now};

use crate::cold_start::{self, ColdStartRun};
use crate::config::{LabConfig, Progress};
use crate::measure::Run;
use crate::middlebox::MiddleboxConfig;
use crate::paths::PlannedPath;
use crate::plan::{Plan, paths};
use crate::results::cells;
use crate::servers::{Requirements, RunningServer, Site};
use crate::stalls::{StallConfig, StallRun};
use crate::{Experiment, LabError, ServerKind, link, replay};

/// Builds the network, starts the servers, measures, attacks, and returns the record. The calling
/// process needs the privileges that `firstflight_emulator::enter_user_namespace` provides.
///
/// # Errors
/// [`LabError`] if the run fails. A sample that fails is part of the record instead, and so is
/// a stage that fails after the samples ([`Record::failed_stages`]).
pub fn run(config: &LabConfig, progress: &(dyn Fn(Progress) + Sync)) -> Result<Record, LabError> {
    let started = Instant::now();
    let date = utc_now();
    progress(Progress::Starting);
    let planned = paths(&config.experiments);
    let middleboxes: Vec<_> =
        config.middleboxes.iter().flat_map(MiddleboxConfig::profiles).collect();
    let stalls = config.stalls.iter().flat_map(StallConfig::profiles);
    let cold_start = (config.restarts > 0).then(cold_start::profile);
    let first_stall = planned.len() + middleboxes.len();
    let extra_profiles = middleboxes.into_iter().chain(stalls).chain(cold_start);
    let all: Vec<PathConfig> = planned
        .iter()
        .map(|path| PathConfig::from(&path.profile))
        .chain(extra_profiles.map(|profile| PathConfig::from(&profile)))
        .collect();
    if all.is_empty() {
        return Err(LabError::EmptyPlan("nothing to measure: name an experiment".to_owned()));
    }
    let (workloads, certificates, sizes) = config.required();
    let site = Site::create(&config.directory, &config.program, &certificates)?;
    let keep_awake = config.keep_awake.unwrap_or_else(link::machine_is_idle);
    let network = Network::build(network_config(config, all, keep_awake))?;
    let required =
        Requirements { workloads: &workloads, certificates: &certificates, sizes: &sizes };
    let servers = config
        .servers()
        .into_iter()
        .map(|server| RunningServer::start(server, &required, &network, &site))
        .collect::<Result<Vec<_>, _>>()?;
    let plan = plan(config, &servers)?;
    let run =
        Run { config, plan: &plan, network: &network, servers: &servers, site: &site, keep_awake };
    let mut measured = network.client().run(|| run.measure(progress))??;
    let mut failed = measured.failed;
    let (stalls, stalls_left_out) = match &config.stalls {
        Some(config) => {
            progress(Progress::Stalls);
            let run = StallRun { config, first_path: first_stall, network: &network, site: &site };
            failed.attempt("stalls", run.run())
        }
        None => Default::default(),
    };
    let (cold_starts, cold_starts_left_out) = match config.restarts {
        0 => Default::default(),
        restarts => {
            progress(Progress::Restarting);
            let path = network.paths().len() - 1;
            let run = ColdStartRun { restarts, network: &network, site: &site, path };
            let measure = || network.client().run(|| run.run())?;
            failed.attempt("cold starts", measure())
        }
    };
    replay::drop_ended(&servers, &mut measured.flights, &mut failed);
    servers.iter().for_each(RunningServer::stop);
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
        replays: replay::count_replays(&servers, &measured.flights, &mut failed),
        middleboxes: measured.middleboxes,
        stalls,
        cold_starts,
        left_out: plan.left_out.clone(),
        samples: measured.samples,
        ..Record::default()
    };
    let (waterfalls, captures) = measured.captures.finish(&record.cells);
    record.waterfalls = waterfalls;
    record.captures = failed.attempt("captures", captures);
    record.failed_stages = failed.0;
    compare(&mut record, &plan);
    record.left_out.extend(stalls_left_out.into_iter().chain(cold_starts_left_out));
    record.left_out.extend(replay::skipped_attacks(&servers, config.flights));
    record.seconds = started.elapsed().as_secs_f64();
    Ok(record)
}

/// The network with these paths.
fn network_config(config: &LabConfig, paths: Vec<PathConfig>, keep_awake: bool) -> NetworkConfig {
    NetworkConfig {
        backend: config.backend,
        keep_awake,
        seed: config.seed,
        ..NetworkConfig::new(paths)
    }
}

fn plan(config: &LabConfig, servers: &[RunningServer]) -> Result<Plan, LabError> {
    let limitation = |server: ServerKind, requested: &RequestedConnection| {
        let running = servers.iter().find(|running| running.kind == server)?;
        let (capability, why) = running.capabilities.first_missing(requested)?;
        Some(format!("without {capability}: {why}"))
    };
    let plan = Plan::new(&config.experiments, &limitation, config.seed);
    let has_other_measurements = config.middleboxes.is_some() || config.stalls.is_some();
    if plan.cells.is_empty() && !has_other_measurements && config.restarts == 0 {
        let reasons = plan.left_out.join("; ");
        return Err(LabError::EmptyPlan(format!("no cell can be measured: {reasons}")));
    }
    Ok(plan)
}

/// Computes effects and the A/A control.
fn compare(record: &mut Record, plan: &Plan) {
    record.effects = effects(&record.cells, &record.samples, plan.seed);
    let twins = plan.cells.iter().enumerate();
    let twins = twins.filter_map(|(twin, cell)| Some((cell.control_of?, twin)));
    record.control = control(twins, plan.cells.len(), &record.samples, plan.seed);
}

fn experiment_facts(experiment: &Experiment) -> ExperimentFacts {
    ExperimentFacts { name: experiment.name.clone(), title: experiment.title.clone() }
}

fn server_facts(server: &RunningServer) -> ServerFacts {
    let note = |(capability, why): &crate::servers::MissingCapability| {
        format!("without {capability}: {why}")
    };
    ServerFacts {
        name: server.kind.name().to_owned(),
        version: server.version.clone(),
        notes: server.capabilities.missing().iter().map(note).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use firstflight_emulator::Backend;

    use super::*;

    #[test]
    fn the_network_has_the_backend_and_the_seed_of_the_run() {
        for backend in [Backend::PacketRings, Backend::Tun] {
            let config = LabConfig {
                backend,
                ..LabConfig::new(Vec::new(), 7, PathBuf::new(), PathBuf::new())
            };
            let network = network_config(&config, Vec::new(), true);
            assert_eq!((network.backend, network.seed, network.keep_awake), (backend, 7, true));
        }
    }
}
