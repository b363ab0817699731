//! Visits: real browsers inside the client's namespace open pages of the servers under test.
//!
//! What a visit was is read from its packets, as everywhere; the browser's own times stand beside
//! them, and where the two disagree the record says so.

mod axes;
mod figures;
mod films;
mod judge;
mod lane;
mod packets;
mod pages;
mod place;
mod plan;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use firstflight_browser::{Installed, Make};
use firstflight_emulator::{Network, NetworkConfig, PathConfig, monotonic_ns};
use firstflight_report::{BrowserFacts, Filmstrip, Record, SCHEMA, ServerFacts, Visit};

pub use axes::VisitPage;
pub use place::InNamespace;
pub use plan::VisitSet;

use firstflight_samples::{machine_facts, now};

use crate::paths::PlannedPath;
use crate::servers::{Manner, Site, Visited};
use crate::{Http, LabError, Progress, ServerKind, machine};
use lane::{Lane, SharedState};
use packets::Sorter;
use plan::Plan;

/// What to visit, and by whom.
#[derive(Clone, Debug)]
pub struct VisitsConfig {
    /// The browsers.
    pub browsers: Vec<Installed>,
    /// What they visit.
    pub sets: Vec<VisitSet>,
    /// How many browsers run at a time, each on networks of its own.
    pub lanes: usize,
    /// Orders the blocks, decides what the link drops, and draws the bootstrap's resamples.
    pub seed: u64,
    /// Whether to keep the processors from falling asleep while they wait.
    pub keep_awake: bool,
    /// An empty directory for servers and browsers; the caller removes it.
    pub directory: PathBuf,
    /// This program, which is started again as server.
    pub program: PathBuf,
    /// Where the record will lie; filmstrips are written below it. `None`: no filmstrips.
    pub output: Option<PathBuf>,
    /// The command that makes this run again, for the record.
    pub command: Vec<String>,
}

/// Builds the network, starts servers and browsers, visits, and returns what was found. The calling
/// process needs the privilege that `firstflight_emulator::enter_user_namespace` gives.
///
/// # Errors
/// [`LabError`] when the run cannot be made; a visit that fails is in the record instead.
pub fn visit(
    config: &VisitsConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Record, LabError> {
    let began = Instant::now();
    let date = now();
    progress(Progress::Starting);
    let plan = Plan::new(&config.browsers, &config.sets, config.seed);
    if plan.blocks.is_empty() {
        let reasons = plan.left_out.join("; ");
        return Err(LabError::EmptyPlan(format!("nothing is left to visit: {reasons}")));
    }
    let files = pages::files();
    let site = Site::for_browsers(&config.directory, &config.program, &files)?;
    let network = network(config, &plan)?;
    let servers = servers(&plan, &site, &pages::served(&files), &network)?;
    let ground = SharedState {
        plan: &plan,
        browsers: &config.browsers,
        network: &network,
        servers: &servers,
        site: &site,
        sorter: Sorter::new(network.tap(), network.paths().len()),
        origin: monotonic_ns(),
        seen_alive: config.browsers.iter().map(|_| AtomicBool::new(false)).collect(),
    };
    let mut visits = all_visits(config, &ground, progress)?;
    visits.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    let link = machine::link_facts(&network, config.keep_awake);
    progress(Progress::Filming);
    let filmstrips = filmstrips(config, &ground)?;
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
        seconds: began.elapsed().as_secs_f64(),
        ..Record::default()
    })
}

/// All networks of the plan, once for each lane.
fn network(config: &VisitsConfig, plan: &Plan) -> Result<Network, LabError> {
    let lanes = (0..config.lanes).flat_map(|_| &plan.networks);
    let paths = lanes.map(|path| PathConfig::from(&path.profile)).collect();
    Ok(Network::build(NetworkConfig {
        keep_awake: config.keep_awake,
        seed: config.seed,
        ..NetworkConfig::new(paths)
    })?)
}

fn servers(
    plan: &Plan,
    site: &Site,
    pages: &[crate::servers::VisitedPage],
    network: &Network,
) -> Result<Vec<Visited>, LabError> {
    let mut wanted: Vec<(ServerKind, Http)> = Vec::new();
    for cell in &plan.cells {
        if !wanted.contains(&(cell.server, cell.http)) {
            wanted.push((cell.server, cell.http));
        }
    }
    let start = |(kind, http): (ServerKind, Http)| {
        let manner = Manner { http: Some(http), keep_alive: http != Http::One };
        Visited::start(kind, manner, http, site, pages, network)
    };
    wanted.into_iter().map(start).collect()
}

/// Has the lanes work off the blocks.
fn all_visits(
    config: &VisitsConfig,
    ground: &SharedState<'_>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Visit>, LabError> {
    let (done, total) = (AtomicUsize::new(0), ground.plan.visits());
    progress(Progress::Visiting { done: 0, total });
    let step = || {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(Progress::Visiting { done, total });
    };
    let blocks: Vec<usize> = (0..ground.plan.blocks.len()).collect();
    let visit =
        |lane: &Lane<'_>, index: usize| lane.visit(index, &ground.plan.blocks[index], &step);
    Ok(shared_out(config.lanes, ground, &blocks, &visit)?.into_iter().flatten().collect())
}

/// One filmstrip of each scene that succeeds.
fn filmstrips(config: &VisitsConfig, ground: &SharedState<'_>) -> Result<Vec<Filmstrip>, LabError> {
    let Some(output) = &config.output else { return Ok(Vec::new()) };
    films::clear(output);
    let names = figures::names(&config.browsers);
    let scenes = films::scenes(ground.plan);
    let film = |lane: &Lane<'_>, index: usize| {
        let scene = &scenes[index];
        let early = if scene.early { "on" } else { "off" };
        let name = format!("{}-{early}", names[scene.browser]);
        films::film(lane, scene, (index, &name), output)
    };
    let indices: Vec<usize> = (0..scenes.len()).collect();
    Ok(shared_out(config.lanes, ground, &indices, &film)?.into_iter().flatten().collect())
}

/// Has lanes take jobs in their order until there are none, or one fails.
fn shared_out<T: Send>(
    lanes: usize,
    ground: &SharedState<'_>,
    jobs: &[usize],
    work: &(dyn Fn(&Lane<'_>, usize) -> Result<T, LabError> + Sync),
) -> Result<Vec<T>, LabError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Result<T, LabError>>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..lanes {
            let (next, results) = (&next, &results);
            scope.spawn(move || {
                let lane = Lane { ground, number };
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(&lane, *job);
                    if result.is_err() {
                        // The others need not start what comes to nothing.
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
}

fn server_facts(servers: &[Visited]) -> Vec<ServerFacts> {
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
    names.into_iter().zip(browsers).map(|(name, browser)| facts_of(name, browser)).collect()
}

fn facts_of(name: String, browser: &Installed) -> BrowserFacts {
    let mut notes = vec![
        match browser.make {
            Make::Chromium => {
                "0-RTT over TCP is its feature EnableTLS13EarlyData, which is off unless asked for"
            }
            Make::Firefox => {
                "0-RTT is its preference security.tls.enable_0rtt_data, which is on unless set"
            }
        }
        .to_owned(),
    ];
    if browser.make == Make::Firefox {
        notes.push(
            "over HTTP/3 it does not resume with 0-RTT off: those returns are full".to_owned(),
        );
    }
    notes.extend(NOTES.map(str::to_owned));
    BrowserFacts { name, version: browser.version.clone(), notes }
}

const NOTES: [&str; 4] = [
    "no window, a fresh profile for each block, no HTTP cache",
    "connections before they are needed are off, since they hide how long a handshake takes",
    "over HTTP/1.1 the server ends each connection with its answer, where it can be told to",
    "a round trip after the page was there the browser is told to end all connections, and keeps \
     its sessions",
];
