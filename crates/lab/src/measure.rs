//! All that happens in the client's namespace, on one thread: calibration, samples, costs,
//! middleboxes, and the capturing of flights.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use firstflight_emulator::{Network, monotonic_ns};
use firstflight_packets::KeyLog;
use firstflight_report::{Calibration, Cost, LinkFacts, MiddleboxOutcome};
use firstflight_samples::{Bytes, ClientRecord, Flows, Slot};
use firstflight_tls::KeyLogLines;
use tokio::runtime::Runtime;

use crate::calibration::{Echo, calibrate};
use crate::captures::CaptureCollector;
use crate::config::LabConfig;
use crate::figures::Weighed;
use crate::middlebox::Trials;
use crate::paths::{Family, PlannedPath};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::sampler::{Job, Pace, SAMPLE_TIMEOUT, Sampler};
use crate::servers::{Ability, Running, Site};
use crate::third_party::ThirdParty;
use crate::{Client, LabError, ServerKind, Transport, costs, judge, machine, replay};

/// A run in progress.
pub(crate) struct Bench<'a> {
    pub config: &'a LabConfig,
    pub plan: &'a Plan,
    pub network: &'a Network,
    pub servers: &'a [Running],
    pub site: &'a Site,
    pub keep_awake: bool,
}

/// What a run has found, before it becomes a record.
pub(crate) struct Measured<'a> {
    pub samples: Vec<Weighed>,
    pub link: LinkFacts,
    pub costs: Vec<Cost>,
    pub middleboxes: Vec<MiddleboxOutcome>,
    pub captured: Vec<replay::CapturedFlight>,
    pub album: CaptureCollector<'a>,
}

/// How often a connection starts in all while long paths are measured. At a millisecond of work a
/// connection for all parts together this keeps two processors at an eighth: rarely does one
/// connection wait for another.
const EVERY: Duration = Duration::from_micros(4500);

/// What the tap is asked to hold at most before packets are judged, in bytes of responses.
const JUDGED_AT_ONCE: usize = 128 << 20;
/// What a connection leaves in the tap beside its response, in bytes.
const HANDSHAKE: usize = 12 << 10;

/// The samples of some paths that are taken together, as queues side by side.
struct Stretch(Vec<(Pace, Vec<Job>)>);

impl<'a> Bench<'a> {
    pub(crate) fn measure(
        &self,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Measured<'a>, LabError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| LabError::System { what: "start the client", source })?;
        let key_log = Arc::new(KeyLogLines::default());
        let shortest = self.shortest()?;
        let others = ThirdParty {
            namespace: self.network.client(),
            trust: self.site.trust.clone(),
            directory: self.site.directory.join("clients"),
            key_log: &key_log,
            connections: Default::default(),
        };
        let sampler = Sampler::new(&self.site.trust, &key_log, shortest, others);
        runtime.block_on(self.warm_up(&sampler))?;
        progress(Progress::Calibrating);
        let echo = Echo::start(self.network)?;
        let mut calibrations = self.calibrate(true)?;
        let (samples, album) = self.samples(&runtime, &sampler, &key_log, progress)?;
        // Read before the second calibration and all else that is no sample.
        let mut link = machine::link_facts(self.network, self.keep_awake);
        progress(Progress::Calibrating);
        calibrations.append(&mut self.calibrate(false)?);
        drop(echo);
        link.calibrations = calibrations;
        if self.config.costs {
            progress(Progress::Costing);
        }
        let count = costs::count(self.plan, self.servers, &sampler, shortest);
        let costs = match self.config.costs {
            true => runtime.block_on(count)?,
            false => Vec::new(),
        };
        let middleboxes = self.middleboxes(&runtime, &sampler, &key_log, progress)?;
        let mut captured = Vec::new();
        let attacked = self.servers.iter().filter(|_| self.config.flights > 0);
        for whom in attacked.flat_map(|server| Transport::ALL.map(|over| (server, over))) {
            let attack =
                replay::attack(whom, &sampler, self.network, &key_log, self.config, progress);
            captured.extend(runtime.block_on(attack)?);
        }
        Ok(Measured { samples, link, costs, middleboxes, captured, album })
    }

    fn samples(
        &self,
        runtime: &Runtime,
        sampler: &Sampler<'_>,
        key_log: &KeyLogLines,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<(Vec<Weighed>, CaptureCollector<'a>), LabError> {
        self.network.tap().reset_lateness();
        let origin = monotonic_ns();
        let (done, total) = (AtomicUsize::new(0), self.plan.samples());
        let step = || {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Progress::Measuring { done, total });
        };
        let output = self.config.output.as_deref();
        let mut album = CaptureCollector::new(self.config.captures, output, self.plan);
        let mut samples = Vec::new();
        for Stretch(queues) in self.stretches()? {
            self.network.tap().take();
            key_log.take();
            let queues = queues.into_iter().map(|(pace, jobs)| sampler.take(jobs, pace, &step));
            let taken = runtime.block_on(futures_util::future::join_all(queues));
            let taken: Vec<ClientRecord> = taken.into_iter().flatten().collect();
            progress(Progress::Judging);
            self.judge(&taken, &key_log.take(), origin, &mut album, &mut samples)?;
        }
        samples.sort_by(|a, b| a.sample.at_ms.total_cmp(&b.sample.at_ms));
        Ok((samples, album))
    }

    fn judge(
        &self,
        taken: &[ClientRecord],
        key_log: &str,
        origin: u64,
        album: &mut CaptureCollector<'_>,
        samples: &mut Vec<Weighed>,
    ) -> Result<(), LabError> {
        let batch = self.network.tap().take();
        let flows = Flows::new(&batch, key_log, &album.traced(taken));
        let mut keys = KeyLog::new(taken.len() * 2);
        keys.add(key_log);
        for taken in taken {
            let sample = judge::sample(&flows, taken, self.plan, origin);
            album.add(&batch, &flows, &keys, taken, &sample)?;
            let bytes = flows.flow(taken).map_or(Bytes::default(), |flow| flow.bytes);
            samples.push(Weighed { sample, bytes });
        }
        Ok(())
    }

    /// Which paths are measured together, and how their samples follow each other. Long stretches
    /// are cut, so that the tap can hold them.
    fn stretches(&self) -> Result<Vec<Stretch>, LabError> {
        let (short, together): (Vec<usize>, Vec<usize>) = (0..self.plan.paths.len())
            .partition(|path| self.plan.paths[*path].family == Family::Short);
        let mut stretches = Vec::new();
        let mut queues = Vec::new();
        let long = together.iter().filter(|p| self.plan.paths[**p].family == Family::Long).count();
        for path in together {
            let (alone, paced) = self.jobs(path)?;
            match self.plan.paths[path].family {
                Family::Long => {
                    queues.push((Pace::Every(EVERY * long as u32), paced));
                    queues.extend(alone.into_iter().map(|jobs| (Pace::OneByOne, jobs)));
                }
                Family::Rated | Family::Short => {
                    let all = alone.into_iter().flatten().chain(paced);
                    queues.push((Pace::OneByOne, in_order(all.collect(), &self.plan.order(path))));
                }
            }
        }
        stretches.append(&mut cut(queues));
        for path in short {
            let (alone, paced) = self.jobs(path)?;
            let all = alone.into_iter().flatten().chain(paced).collect();
            let jobs = in_order(all, &self.plan.order(path));
            stretches.append(&mut cut(vec![(Pace::OneByOne, jobs)]));
        }
        Ok(stretches)
    }

    /// The samples of a path in their order: those at servers that serve one connection at a time
    /// and those of other makes' clients, a queue for each, and all others.
    fn jobs(&self, path: usize) -> Result<(Vec<Vec<Job>>, Vec<Job>), LabError> {
        let address = self.address(path)?;
        let mut alone: Vec<((Client, ServerKind), Vec<Job>)> = Vec::new();
        let mut others = Vec::new();
        for slot in self.plan.order(path) {
            let cell = &self.plan.cells[slot.cell];
            let job = Job {
                slot,
                client: cell.client,
                server: cell.server,
                asked: cell.asked,
                address,
                limit: self.plan.paths[path].limit(cell.asked.size.bytes(), SAMPLE_TIMEOUT),
            };
            let running = self.servers.iter().find(|running| running.kind == cell.server);
            let serves_one = running.is_some_and(|one| !one.abilities.can(Ability::SideBySide));
            // Another make's client has one place for what it keeps.
            if serves_one || cell.client != Client::Firstflight {
                let whose = (cell.client, cell.server);
                match alone.iter_mut().find(|(other, _)| *other == whose) {
                    Some((_, queue)) => queue.push(job),
                    None => alone.push((whose, vec![job])),
                }
            } else {
                others.push(job);
            }
        }
        Ok((alone.into_iter().map(|(_, queue)| queue).collect(), others))
    }

    /// Fetches the first tickets and, on every path, the TCP Fast Open cookie.
    async fn warm_up(&self, sampler: &Sampler<'_>) -> Result<(), LabError> {
        let shortest = self.shortest()?;
        let mut listeners = Vec::new();
        for cell in &self.plan.cells {
            let issuer = crate::tickets::Issuer::of(cell.server, &cell.asked);
            if !listeners.contains(&issuer) {
                listeners.push(issuer);
                sampler.warm_up(cell.server, &cell.asked, shortest).await?;
            }
        }
        for path in 0..self.plan.paths.len() {
            // One cookie serves all listeners of an address (RFC 7413 section 3).
            let gives_cookies = |cell: &&crate::PlannedCell| {
                let mut running = self.servers.iter().filter(|running| running.kind == cell.server);
                cell.path == path && running.any(|running| running.abilities.can(Ability::FastOpen))
            };
            if let Some(cell) = self.plan.cells.iter().find(gives_cookies) {
                sampler.warm_up(cell.server, &cell.asked, self.address(path)?).await?;
            }
        }
        Ok(())
    }

    fn calibrate(&self, before: bool) -> Result<Vec<Calibration>, LabError> {
        let paths = self.plan.paths.iter().enumerate();
        let paths = paths
            .map(|(index, path)| Ok((path.clone(), self.network.path(index)?.server)))
            .collect::<Result<Vec<(PlannedPath, Ipv4Addr)>, LabError>>()?;
        calibrate(&paths, before)
    }

    fn middleboxes(
        &self,
        runtime: &Runtime,
        sampler: &Sampler<'_>,
        key_log: &KeyLogLines,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Vec<MiddleboxOutcome>, LabError> {
        let Some(config) = &self.config.middleboxes else { return Ok(Vec::new()) };
        progress(Progress::Middleboxes);
        let trials = Trials {
            config,
            first_path: self.plan.paths.len(),
            network: self.network,
            servers: self.servers,
            sampler,
            key_log,
        };
        runtime.block_on(trials.run())
    }

    fn address(&self, path: usize) -> Result<IpAddr, LabError> {
        Ok(self.network.path(path)?.server.into())
    }

    /// The server's address on the shortest path, or on the middleboxes' plain one if there is no
    /// other.
    fn shortest(&self) -> Result<IpAddr, LabError> {
        self.address(self.plan.paths.len().saturating_sub(1))
    }
}

/// Jobs of several queues again in the plan's order.
fn in_order(mut jobs: Vec<Job>, order: &[Slot]) -> Vec<Job> {
    let place: std::collections::HashMap<(usize, usize), usize> =
        order.iter().enumerate().map(|(place, slot)| ((slot.cell, slot.block), place)).collect();
    jobs.sort_by_key(|job| place[&(job.slot.cell, job.slot.block)]);
    jobs
}

/// Cuts queues that run side by side into stretches of about as many bytes as the tap can hold.
fn cut(queues: Vec<(Pace, Vec<Job>)>) -> Vec<Stretch> {
    let weight = |job: &Job| job.asked.size.bytes() + HANDSHAKE;
    let bytes: usize = queues.iter().flat_map(|(_, jobs)| jobs).map(weight).sum();
    let parts = bytes.div_ceil(JUDGED_AT_ONCE).max(1);
    let part = |index: usize| {
        let of = |(pace, jobs): &(Pace, Vec<Job>)| {
            let (from, to) = (jobs.len() * index / parts, jobs.len() * (index + 1) / parts);
            (*pace, jobs[from..to].to_vec())
        };
        Stretch(queues.iter().map(of).filter(|(_, jobs)| !jobs.is_empty()).collect())
    };
    (0..parts).map(part).filter(|Stretch(queues)| !queues.is_empty()).collect()
}
