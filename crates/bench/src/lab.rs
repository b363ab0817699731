use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use firstflight_link::{Network, NetworkConfig, PathConfig, monotonic_ns};
use firstflight_report::{Cell, Figures, LinkFacts, Record, SCHEMA, Sample, ServerFacts, Summary};
use firstflight_statistics::{ascending, median_interval, percentile, reported_percentile};
use firstflight_tls::{KeyLogLines, Version};
use tokio::runtime::Runtime;

use crate::judge::Judge;
use crate::plan::{Axes, Plan};
use crate::sampler::{Job, Pace, Sampler};
use crate::servers::{Running, Site, Wanted};
use crate::{Ability, BenchError, Certificate, ServerKind, Size, machine, replay};
use crate::{Kind, Workload};

/// What to measure.
#[derive(Clone, Debug)]
pub struct LabConfig {
    /// Round-trip times of the paths.
    pub rtts: Vec<Duration>,
    /// Servers side by side.
    pub servers: Vec<ServerKind>,
    /// What is asked of them.
    pub workloads: Vec<Workload>,
    /// TLS versions.
    pub versions: Vec<Version>,
    /// Handshake kinds.
    pub kinds: Vec<Kind>,
    /// Without and with TCP Fast Open.
    pub tfo: Vec<bool>,
    /// Samples a cell.
    pub samples: usize,
    /// Flights to capture for the attack; 0: no attack.
    pub flights: usize,
    /// How often each is resent.
    pub replays: usize,
    /// Orders the samples.
    pub seed: u64,
    /// Whether to keep the processors from falling asleep while they wait; `None`: if the machine
    /// has nothing else to do. A sleeping virtual processor takes tenths of a millisecond to wake.
    pub keep_awake: Option<bool>,
    /// An empty directory for what the servers need during the run; the caller removes it.
    pub directory: PathBuf,
    /// This program, which is started again as server.
    pub program: PathBuf,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The network is being built and the servers are being started.
    Starting,
    /// Samples are being taken.
    Measuring {
        /// Samples taken.
        done: usize,
        /// Samples in all.
        total: usize,
    },
    /// Packets are being judged.
    Judging,
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
/// the privilege that `firstflight_link::enter_user_namespace` gives.
///
/// # Errors
/// [`BenchError`] when the run cannot be made; a sample that fails is in the record instead.
pub fn run(config: &LabConfig, progress: &(dyn Fn(Progress) + Sync)) -> Result<Record, BenchError> {
    let began = Instant::now();
    let date = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    progress(Progress::Starting);
    let mut plan = plan(config)?;
    let site = Site::make(&config.directory, &config.program, WANTED.certificates)?;
    let keep_awake = config.keep_awake.unwrap_or_else(machine::is_idle);
    let network = Network::build(NetworkConfig {
        keep_awake,
        ..NetworkConfig::new(plan.rtts.iter().map(path).collect())
    })?;
    let wanted = Wanted { workloads: &config.workloads, ..WANTED };
    let servers = config
        .servers
        .iter()
        .map(|server| Running::start(*server, &wanted, &network, &site))
        .collect::<Result<Vec<_>, _>>()?;
    let notes: Vec<Vec<String>> =
        servers.iter().map(|server| leave_out(&mut plan, server)).collect();
    if plan.cells.is_empty() {
        return Err(BenchError::EmptyPlan(format!(
            "nothing is left to measure: {}",
            notes.concat().join("; ")
        )));
    }
    let bench = Bench { config, plan: &plan, network: &network, servers: &servers, site: &site };
    let measured = network.client().run(|| bench.measure(progress))??;
    servers.iter().for_each(Running::stop);
    let replays = match measured.quarries.is_empty() {
        true => Vec::new(),
        false => servers
            .iter()
            .filter(|server| measured.quarries.iter().any(|quarry| quarry.is_of(server.kind)))
            .map(|server| replay::count(server, &measured.quarries))
            .collect::<Result<_, _>>()?,
    };
    Ok(Record {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        date,
        seconds: began.elapsed().as_secs_f64(),
        seed: config.seed,
        machine: machine::facts(),
        servers: servers
            .iter()
            .zip(notes)
            .map(|(server, notes)| ServerFacts {
                name: server.kind.name().to_owned(),
                version: server.version.clone(),
                notes,
            })
            .collect(),
        link: Some(LinkFacts { keep_awake, ..measured.link }),
        cells: cells(&plan, &measured.samples),
        samples: measured.samples,
        replays,
        ..Record::default()
    })
}

/// What the plan's one page and one certificate take.
const WANTED: Wanted<'static> = Wanted {
    workloads: &Workload::ALL,
    certificates: &[Certificate::EcdsaP256],
    sizes: &[Size::OneKib],
};

/// Takes out of the plan what the server cannot do, and returns the reasons in words.
fn leave_out(plan: &mut Plan, server: &Running) -> Vec<String> {
    let mut notes = Vec::new();
    plan.cells.retain(|cell| {
        let lack = server.abilities.lack(&cell.asked()).filter(|_| cell.server == server.kind);
        if let Some((ability, why)) = lack {
            let note = format!("{} without {ability}: {why}", server.kind);
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        lack.is_none()
    });
    notes
}

/// Paths at least this long are measured side by side: waiting is most of their time.
const SIDE_BY_SIDE: Duration = Duration::from_millis(10);

/// How often a connection begins in all while long paths are measured. At a millisecond of work a
/// connection for all parts together this keeps two processors at an eighth: rarely does one
/// connection wait for another.
const EVERY: Duration = Duration::from_micros(4500);

fn plan(config: &LabConfig) -> Result<Plan, BenchError> {
    let axes = Axes {
        servers: &config.servers,
        workloads: &config.workloads,
        versions: &config.versions,
        kinds: &config.kinds,
        tfo: &config.tfo,
    };
    let plan = Plan::new(&config.rtts, &axes, config.samples, config.seed);
    if plan.cells.is_empty() {
        return Err(BenchError::EmptyPlan(
            "nothing to measure: 0-RTT needs TLS 1.3, and only firstflight answers ping-pong"
                .to_owned(),
        ));
    }
    Ok(plan)
}

fn path(rtt: &Duration) -> PathConfig {
    PathConfig::symmetric(format!("{} ms", rtt.as_secs_f64() * 1e3), *rtt)
}

/// A run in progress.
struct Bench<'a> {
    config: &'a LabConfig,
    plan: &'a Plan,
    network: &'a Network,
    servers: &'a [Running],
    site: &'a Site,
}

struct Measured {
    samples: Vec<Sample>,
    link: LinkFacts,
    quarries: Vec<replay::Quarry>,
}

impl Bench<'_> {
    /// All that happens in the client's namespace, on one thread.
    fn measure(&self, progress: &(dyn Fn(Progress) + Sync)) -> Result<Measured, BenchError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| BenchError::System { what: "start the client", source })?;
        let key_log = Arc::new(KeyLogLines::default());
        let shortest = self.address(self.plan.rtts.len() - 1)?;
        let sampler = Sampler::new(&self.site.trust, &key_log, shortest)?;
        runtime.block_on(self.warm_up(&sampler))?;
        self.network.tap().reset_lateness();
        let origin = monotonic_ns();
        let done = AtomicUsize::new(0);
        let total = self.plan.cells.len() * self.plan.samples;
        let step = || {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Progress::Measuring { done, total });
        };
        let mut samples = Vec::new();
        for (paths, pace) in self.stretches() {
            self.network.tap().take();
            key_log.take();
            let taken = self.stretch(&runtime, &sampler, &paths, pace, &step)?;
            progress(Progress::Judging);
            let judge = Judge::new(&self.network.tap().take(), &key_log.take());
            samples.extend(taken.iter().map(|taken| judge.sample(taken, self.plan, origin)));
        }
        samples.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
        let link = self.link_facts();
        let mut quarries = Vec::new();
        for server in self.servers.iter().filter(|server| self.attackable(server)) {
            let attack =
                replay::attack(server, &sampler, self.network, &key_log, self.config, progress);
            quarries.extend(runtime.block_on(attack)?);
        }
        Ok(Measured { samples, link, quarries })
    }

    /// Whether its early data can be captured, and its executions counted.
    fn attackable(&self, server: &Running) -> bool {
        self.config.flights > 0
            && self.config.workloads.contains(&Workload::Get)
            && [Ability::EarlyData, Ability::Counts]
                .into_iter()
                .all(|need| server.abilities.can(need))
    }

    /// Which paths are measured together, and how their samples follow each other.
    fn stretches(&self) -> Vec<(Vec<usize>, Pace)> {
        let (long, short): (Vec<usize>, Vec<usize>) = (0..self.plan.rtts.len()).partition(|path| {
            self.plan.rtts[*path] >= SIDE_BY_SIDE
                && self.servers.iter().all(|server| server.abilities.can(Ability::SideBySide))
        });
        let pace = Pace::Every(EVERY * long.len() as u32);
        let together = (!long.is_empty()).then_some((long, pace));
        together
            .into_iter()
            .chain(short.into_iter().map(|path| (vec![path], Pace::OneByOne)))
            .collect()
    }

    fn stretch(
        &self,
        runtime: &Runtime,
        sampler: &Sampler,
        paths: &[usize],
        pace: Pace,
        step: &dyn Fn(),
    ) -> Result<Vec<crate::sampler::Taken>, BenchError> {
        let mut queues = Vec::new();
        for &path in paths {
            let server = self.address(path)?;
            let jobs: Vec<Job> = self
                .plan
                .order(path)
                .into_iter()
                .map(|cell| Job { cell, planned: self.plan.cells[cell].clone(), server })
                .collect();
            queues.push(sampler.take(jobs, pace, step));
        }
        let taken = runtime.block_on(futures_util::future::join_all(queues));
        Ok(taken.into_iter().flatten().collect())
    }

    /// Fetches the first tickets and, on every path, the TCP Fast Open cookie.
    async fn warm_up(&self, sampler: &Sampler) -> Result<(), BenchError> {
        let shortest = self.plan.rtts.len() - 1;
        let mut listeners: Vec<(ServerKind, Workload, Version)> =
            self.plan.cells.iter().map(|c| (c.server, c.workload, c.version)).collect();
        listeners.dedup();
        listeners.sort_by_key(|(server, workload, version)| {
            (server.port(*workload, Certificate::EcdsaP256), *version)
        });
        listeners.dedup();
        for (server, workload, version) in &listeners {
            sampler.warm_up(*server, *workload, *version, self.address(shortest)?).await?;
        }
        // One cookie serves all listeners of an address (RFC 7413 section 3).
        let gives_cookies = |listener: &&(ServerKind, Workload, Version)| {
            let mut running = self.servers.iter().filter(|server| server.kind == listener.0);
            running.any(|server| server.abilities.can(Ability::FastOpen))
        };
        let Some(&(server, workload, version)) = listeners.iter().find(gives_cookies) else {
            return Ok(());
        };
        for path in 0..self.plan.rtts.len() {
            sampler.warm_up(server, workload, version, self.address(path)?).await?;
        }
        Ok(())
    }

    fn address(&self, path: usize) -> Result<IpAddr, BenchError> {
        Ok(self.network.path(path)?.server.into())
    }

    fn link_facts(&self) -> LinkFacts {
        let lateness = self.network.lateness();
        let defaults = NetworkConfig::new(Vec::new());
        LinkFacts {
            congestion_control: defaults.congestion_control,
            initial_window: defaults.initial_window,
            packets: lateness.packets,
            lateness_p50_us: lateness.p50_ns as f64 / 1e3,
            lateness_p99_us: lateness.p99_ns as f64 / 1e3,
            lateness_max_us: lateness.max_ns as f64 / 1e3,
            refused_settings: self.network.refused_settings().to_vec(),
            ..LinkFacts::default()
        }
    }
}

fn cells(plan: &Plan, samples: &[Sample]) -> Vec<Cell> {
    let cell = |(index, planned): (usize, &crate::PlannedCell)| {
        let good: Vec<&Sample> = samples
            .iter()
            .filter(|sample| sample.cell == index && sample.fault.is_none())
            .collect();
        Cell {
            server: planned.server.name().to_owned(),
            workload: planned.workload.name().to_owned(),
            rtt_ms: plan.rtts[planned.path].as_secs_f64() * 1e3,
            tls: planned.version.name().trim_start_matches("TLSv").to_owned(),
            kind: planned.kind.name().to_owned(),
            tfo: planned.tfo,
            summary: summary(&good),
            ..Cell::default()
        }
    };
    plan.cells.iter().enumerate().map(cell).collect()
}

fn summary(good: &[&Sample]) -> Option<Summary> {
    let times = ascending(good.iter().filter_map(|sample| sample.time_ms));
    let wire = ascending(good.iter().filter_map(|sample| sample.wire_ms));
    Some(Summary {
        samples: times.len(),
        first_byte: Figures {
            min_ms: *times.first()?,
            p50_ms: percentile(&times, 0.5)?,
            p50_interval_ms: median_interval(&times)?,
            p95_ms: reported_percentile(&times, 0.95),
            max_ms: *times.last()?,
            ..Figures::default()
        },
        wire_p50_ms: percentile(&wire, 0.5),
        round_trips: usual_round_trips(good),
        ..Summary::default()
    })
}

/// What all but one in twenty samples took, if they agree so far. A packet that a busy machine
/// sends late can take a round trip more without being wrong; [`Sample::round_trips`] has each.
fn usual_round_trips(good: &[&Sample]) -> Option<u32> {
    let mut counts: Vec<u32> = good.iter().filter_map(|sample| sample.round_trips).collect();
    counts.sort_unstable();
    let median = *counts.get(counts.len() / 2)?;
    let agree = counts.iter().filter(|count| **count == median).count();
    (agree * 20 >= good.len() * 19).then_some(median)
}
