//! Visits: real browsers in the client's namespace open pages of the servers under test.
//!
//! Visits are classified by their packets. The record also has the times that the browser reports,
//! and a warning where the two disagree.

mod figures;
mod films;
mod packets;
mod pages;
mod plan;
mod validation;
mod worker;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use firstflight_browser::{BrowserKind, Installed};
use firstflight_emulator::{Network, NetworkConfig, PathConfig, monotonic_ns};
use firstflight_report::{BrowserFacts, Filmstrip, Record, SCHEMA, ServerFacts, Visit};

use firstflight_samples::{machine_facts, utc_now};

use crate::error::FailedStages;
use crate::paths::PlannedPath;
use crate::servers::{HttpOptions, Site, VisitedFile, VisitedServer};
use crate::{HttpVersion, LabError, Progress, ServerKind, link};
use packets::PacketSorter;
use plan::Plan;
pub use plan::{VisitPage, VisitSet};
pub use worker::InNamespace;
use worker::{SharedState, Worker};

/// The configuration of visits by browsers.
#[derive(Clone, Debug)]
pub struct VisitsConfig {
    /// The browsers.
    pub browsers: Vec<Installed>,
    /// The sets of visits that each browser makes.
    pub sets: Vec<VisitSet>,
    /// How many browsers run at the same time, each on its own networks.
    pub workers: usize,
    /// The seed for the order of the blocks, the packets that the link drops, and the bootstrap.
    pub seed: u64,
    /// Whether to keep idle processors from sleeping.
    pub keep_awake: bool,
    /// An empty directory for the files of servers and browsers. The caller removes it.
    pub directory: PathBuf,
    /// The `firstflight` program, which is started as one of the servers.
    pub program: PathBuf,
    /// The directory of the record; filmstrips are written below it. Without it there are none.
    pub output: Option<PathBuf>,
    /// The command that repeats this run, for the record.
    pub command: Vec<String>,
}

/// Builds the network, starts servers and browsers, makes the visits, and returns the record. The
/// calling process needs the privileges that `firstflight_emulator::enter_user_namespace` provides.
///
/// # Errors
/// [`LabError`] if the run fails. A visit that fails is part of the record instead.
pub fn run_visits(
    config: &VisitsConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Record, LabError> {
    let started = Instant::now();
    let date = utc_now();
    progress(Progress::Starting);
    let plan = Plan::new(&config.browsers, &config.sets, config.seed);
    if plan.blocks.is_empty() {
        let reasons = plan.left_out.join("; ");
        return Err(LabError::EmptyPlan(format!("no page can be visited: {reasons}")));
    }
    let files = pages::files();
    let site = Site::for_browsers(&config.directory, &config.program, &files)?;
    let network = network(config, &plan)?;
    let servers = servers(&plan, &site, &pages::describe_files(&files), &network)?;
    let shared = SharedState {
        plan: &plan,
        browsers: &config.browsers,
        network: &network,
        servers: &servers,
        site: &site,
        packets: PacketSorter::new(network.tap(), network.paths().len()),
        origin: monotonic_ns(),
        started_once: config.browsers.iter().map(|_| AtomicBool::new(false)).collect(),
    };
    let before = link::MachineTimes::now(&network);
    let mut visits = all_visits(config, &shared, progress)?;
    visits.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    let link = link::link_facts(&network, config.keep_awake, before);
    progress(Progress::Filming);
    let mut failed = FailedStages::default();
    let filmstrips = failed.attempt("filmstrips", filmstrips(config, &shared));
    let rounds: Vec<usize> = plan.blocks.iter().map(|block| block.round).collect();
    Ok(Record {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: config.command.clone(),
        date,
        seed: config.seed,
        machine: machine_facts(),
        servers: server_facts(&servers),
        link: Some(link),
        profiles: plan.networks.iter().map(PlannedPath::facts).collect(),
        browsers: browser_facts(&config.browsers),
        visit_cells: figures::cells(&plan, &config.browsers, &visits),
        visit_effects: figures::effects(&plan, &rounds, &visits, config.seed),
        visits,
        filmstrips,
        left_out: plan.left_out.clone(),
        failed_stages: failed.0,
        seconds: started.elapsed().as_secs_f64(),
        ..Record::default()
    })
}

/// Builds all networks of the plan, once for each worker.
fn network(config: &VisitsConfig, plan: &Plan) -> Result<Network, LabError> {
    let workers = (0..config.workers).flat_map(|_| &plan.networks);
    let paths = workers.map(|path| PathConfig::from(&path.profile)).collect();
    Ok(Network::build(NetworkConfig {
        keep_awake: config.keep_awake,
        seed: config.seed,
        ..NetworkConfig::new(paths)
    })?)
}

fn servers(
    plan: &Plan,
    site: &Site,
    pages: &[VisitedFile],
    network: &Network,
) -> Result<Vec<VisitedServer>, LabError> {
    let mut required: Vec<(ServerKind, HttpVersion)> = Vec::new();
    for cell in &plan.cells {
        if !required.contains(&(cell.server, cell.http)) {
            required.push((cell.server, cell.http));
        }
    }
    let start = |(kind, http): (ServerKind, HttpVersion)| {
        let options = HttpOptions { http: Some(http), keep_alive: http != HttpVersion::One };
        VisitedServer::start(kind, options, http, site, pages, network)
    };
    required.into_iter().map(start).collect()
}

/// Makes the visits of all blocks.
fn all_visits(
    config: &VisitsConfig,
    shared: &SharedState<'_>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Visit>, LabError> {
    let (done, total) = (AtomicUsize::new(0), shared.plan.visits());
    progress(Progress::Visiting { done: 0, total });
    let step = || {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(Progress::Visiting { done, total });
    };
    let blocks: Vec<usize> = (0..shared.plan.blocks.len()).collect();
    let visit =
        |worker: &Worker<'_>, index: usize| worker.visit(index, &shared.plan.blocks[index], &step);
    Ok(run_jobs(config.workers, shared, &blocks, &visit)?.into_iter().flatten().collect())
}

/// Films each scene. Scenes without a successful attempt are left out.
fn filmstrips(config: &VisitsConfig, shared: &SharedState<'_>) -> Result<Vec<Filmstrip>, LabError> {
    let Some(output) = &config.output else { return Ok(Vec::new()) };
    films::clear(output);
    let names = figures::names(&config.browsers);
    let scenes = films::scenes(shared.plan);
    let film = |worker: &Worker<'_>, index: usize| {
        let scene = &scenes[index];
        let early = if scene.early { "on" } else { "off" };
        let name = format!("{}-{early}", names[scene.browser]);
        films::film(worker, scene, (index, &name), output)
    };
    let indices: Vec<usize> = (0..scenes.len()).collect();
    Ok(run_jobs(config.workers, shared, &indices, &film)?.into_iter().flatten().collect())
}

/// Runs jobs on the workers, in their order, until all are done or one fails.
fn run_jobs<T: Send>(
    workers: usize,
    shared: &SharedState<'_>,
    jobs: &[usize],
    work: &(dyn Fn(&Worker<'_>, usize) -> Result<T, LabError> + Sync),
) -> Result<Vec<T>, LabError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Result<T, LabError>>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..workers {
            let (next, results) = (&next, &results);
            scope.spawn(move || {
                let worker = Worker { shared, number };
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(&worker, *job);
                    if result.is_err() {
                        // The run fails, so no further job is started.
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
}

fn server_facts(servers: &[VisitedServer]) -> Vec<ServerFacts> {
    let mut facts: Vec<ServerFacts> = Vec::new();
    for server in servers {
        if !facts.iter().any(|known| known.name == server.kind.name()) {
            let (name, version) = (server.kind.name().to_owned(), server.version.clone());
            facts.push(ServerFacts { name, version, notes: Vec::new() });
        }
    }
    facts
}

fn browser_facts(browsers: &[Installed]) -> Vec<BrowserFacts> {
    let names = figures::names(browsers);
    names.into_iter().zip(browsers).map(|(name, browser)| browser_facts_of(name, browser)).collect()
}

fn browser_facts_of(name: String, browser: &Installed) -> BrowserFacts {
    let mut notes = vec![
        match browser.kind {
            BrowserKind::Chromium => {
                "0-RTT over TCP is its feature EnableTLS13EarlyData, which is off by default"
            }
            BrowserKind::Firefox => {
                "0-RTT is its preference security.tls.enable_0rtt_data, which is on by default"
            }
        }
        .to_owned(),
    ];
    if browser.kind == BrowserKind::Firefox {
        notes.push(
            "over HTTP/3 it does not resume with 0-RTT off: those visits are full handshakes"
                .to_owned(),
        );
    }
    notes.extend(NOTES.map(str::to_owned));
    BrowserFacts { name, version: browser.version.clone(), notes }
}

const NOTES: [&str; 4] = [
    "headless, a fresh profile for each block, no HTTP cache",
    "speculative connections are off, since they hide how long a handshake takes",
    "over HTTP/1.1 the server closes each connection after its response, if it can",
    "a round trip after the page is complete, the browser closes all connections and keeps its \
     sessions",
];
