//! The measurement, on one thread in the client's namespace: calibration, samples, costs,
//! middleboxes, and the replay attack.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use firstflight_emulator::{Network, monotonic_ns};
use firstflight_packets::KeyLog;
use firstflight_report::{Calibration, Cost, LinkFacts, MiddleboxOutcome, Sample};
use firstflight_samples::{ClientRecord, Flows, Slot};
use firstflight_tls::KeyLogLines;
use tokio::runtime::Runtime;

use crate::captures::CaptureCollector;
use crate::config::{LabConfig, Progress};
use crate::error::FailedStages;
use crate::link::{self, EchoServer, MachineTimes, calibrate};
use crate::middlebox::MiddleboxRun;
use crate::paths::{PathClass, PlannedPath};
use crate::plan::Plan;
use crate::results;
use crate::sampler::{Pace, SAMPLE_TIMEOUT, SampleJob, Sampler};
use crate::servers::{Capability, RunningServer, Site};
use crate::third_party::ThirdPartyClients;
use crate::{ClientKind, LabError, ServerKind, Transport, costs, replay};

/// A run in progress.
pub(crate) struct Run<'a> {
    pub config: &'a LabConfig,
    pub plan: &'a Plan,
    pub network: &'a Network,
    pub servers: &'a [RunningServer],
    pub site: &'a Site,
    pub keep_awake: bool,
}

/// The measurements of a run.
pub(crate) struct Measurements<'a> {
    pub samples: Vec<Sample>,
    pub link: LinkFacts,
    pub costs: Vec<Cost>,
    pub middleboxes: Vec<MiddleboxOutcome>,
    pub flights: Vec<replay::CapturedFlight>,
    pub captures: CaptureCollector<'a>,
    pub failed: FailedStages,
}

/// The pace of a path with `paced` of `starts` connections: all paths end together, so that a
/// connection starts every [`START_INTERVAL`] until the end.
fn pace(starts: usize, paced: usize) -> Pace {
    Pace::Every(START_INTERVAL.mul_f64(starts as f64 / paced.max(1) as f64))
}

/// How often a connection starts while long paths are measured, over all of these paths. A
/// connection takes about a millisecond of processor time, so two processors are busy for an eighth
/// of the time and connections rarely wait for each other.
const START_INTERVAL: Duration = Duration::from_micros(4500);

/// The bytes that a batch of samples may leave in the tap.
const MAX_BATCH_BYTES: usize = 128 << 20;
/// The bytes of a connection in the tap, without its response.
const HANDSHAKE_BYTES: usize = 12 << 10;

/// Samples of one or more paths that are taken together, as concurrent queues.
struct SampleBatch(Vec<(Pace, Vec<SampleJob>)>);

impl<'a> Run<'a> {
    pub(crate) fn measure(
        &self,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Measurements<'a>, LabError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| LabError::System { what: "start the client", source })?;
        let key_log = Arc::new(KeyLogLines::default());
        let shortest = self.shortest()?;
        let third_party = ThirdPartyClients {
            namespace: self.network.client(),
            trust: self.site.trust.clone(),
            directory: self.site.directory.join("clients"),
            key_log: &key_log,
            connections: Default::default(),
        };
        let sampler = Sampler::new(&self.site.trust, &key_log, shortest, third_party);
        runtime.block_on(self.warm_up(&sampler))?;
        progress(Progress::Calibrating);
        let echo = EchoServer::start(self.network)?;
        let mut calibrations = self.calibrate(true)?;
        let before = MachineTimes::now(self.network);
        let (samples, captures) = self.samples(&runtime, &sampler, &key_log, progress)?;
        // Read before the second calibration, so that it covers the samples only.
        let mut link = link::link_facts(self.network, self.keep_awake, before);
        progress(Progress::Calibrating);
        let mut failed = FailedStages::default();
        let after = self.calibrate(false);
        calibrations.append(&mut failed.attempt("the calibration after the samples", after));
        drop(echo);
        link.calibrations = calibrations;
        if self.config.costs {
            progress(Progress::MeasuringCosts);
        }
        let measuring = costs::measure_costs(self.plan, self.servers, &sampler, shortest);
        let costs = match self.config.costs {
            true => failed.attempt("processor time", runtime.block_on(measuring)),
            false => Vec::new(),
        };
        let middleboxes = self.middleboxes(&runtime, &sampler, &key_log, progress);
        let middleboxes = failed.attempt("middleboxes", middleboxes);
        let mut flights = Vec::new();
        let attacked = self.servers.iter().filter(|_| self.config.flights > 0);
        for listener in attacked.flat_map(|server| Transport::ALL.map(|over| (server, over))) {
            let attack =
                replay::attack(listener, &sampler, self.network, &key_log, self.config, progress);
            let stage = replay::attack_name(listener.0.kind, listener.1);
            flights.extend(failed.attempt(&stage, runtime.block_on(attack)));
        }
        Ok(Measurements { samples, link, costs, middleboxes, flights, captures, failed })
    }

    fn samples(
        &self,
        runtime: &Runtime,
        sampler: &Sampler<'_>,
        key_log: &KeyLogLines,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<(Vec<Sample>, CaptureCollector<'a>), LabError> {
        self.network.tap().reset_lateness();
        let origin = monotonic_ns();
        let (done, total) = (AtomicUsize::new(0), self.plan.samples());
        let step = || {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Progress::Measuring { done, total });
        };
        let output = self.config.output.as_deref();
        let mut captures = CaptureCollector::new(self.config.captures, output, self.plan);
        let mut samples = Vec::new();
        for SampleBatch(queues) in self.batches()? {
            self.network.tap().take();
            key_log.take();
            let queues =
                queues.into_iter().map(|(pace, jobs)| sampler.take_samples(jobs, pace, &step));
            let records = runtime.block_on(futures_util::future::join_all(queues));
            let records: Vec<ClientRecord> = records.into_iter().flatten().collect();
            progress(Progress::Classifying);
            self.evaluate(&records, &key_log.take(), origin, &mut captures, &mut samples);
        }
        samples.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
        Ok((samples, captures))
    }

    /// Turns the packets of a batch into samples.
    fn evaluate(
        &self,
        records: &[ClientRecord],
        key_log: &str,
        origin: u64,
        captures: &mut CaptureCollector<'_>,
        samples: &mut Vec<Sample>,
    ) {
        let batch = self.network.tap().take();
        let flows = Flows::new(&batch, key_log, &captures.traced(records));
        let mut keys = KeyLog::new(records.len() * 2);
        keys.add(key_log);
        for record in records {
            let sample = results::sample(&flows, record, self.plan, origin);
            captures.add(&batch, &flows, &keys, record, &sample);
            samples.push(sample);
        }
    }

    /// Decides which paths are measured together, and how their samples follow each other.
    ///
    /// On long paths (10 ms and more) most of the time is waiting, so their samples overlap: one
    /// starts every [`START_INTERVAL`], whether or not earlier ones have ended. A fixed number of
    /// concurrent connections would make their processing coincide, and measure the queue for the
    /// processor. On short paths samples are taken one by one.
    fn batches(&self) -> Result<Vec<SampleBatch>, LabError> {
        let (short, concurrent): (Vec<usize>, Vec<usize>) = (0..self.plan.paths.len())
            .partition(|path| self.plan.paths[*path].class == PathClass::Short);
        let mut batches = Vec::new();
        let mut queues = Vec::new();
        let concurrent = concurrent
            .into_iter()
            .map(|path| Ok((path, self.jobs(path)?)))
            .collect::<Result<Vec<_>, LabError>>()?;
        let is_long = |path: usize| self.plan.paths[path].class == PathClass::Long;
        let starts: usize = concurrent
            .iter()
            .filter(|(path, _)| is_long(*path))
            .map(|(_, (_, paced))| paced.len())
            .sum();
        for (path, (alone, paced)) in concurrent {
            match self.plan.paths[path].class {
                PathClass::Long => {
                    queues.push((pace(starts, paced.len()), paced));
                    queues.extend(alone.into_iter().map(|jobs| (Pace::OneByOne, jobs)));
                }
                PathClass::RateLimited | PathClass::Short => {
                    let all = alone.into_iter().flatten().chain(paced);
                    queues.push((Pace::OneByOne, in_order(all.collect(), &self.plan.order(path))));
                }
            }
        }
        batches.append(&mut split(queues));
        for path in short {
            let (alone, paced) = self.jobs(path)?;
            let all = alone.into_iter().flatten().chain(paced).collect();
            let jobs = in_order(all, &self.plan.order(path));
            batches.append(&mut split(vec![(Pace::OneByOne, jobs)]));
        }
        Ok(batches)
    }

    /// The samples of a path in their order: a queue for each server that serves one connection at
    /// a time and for each third-party client, and a queue of all other samples.
    fn jobs(&self, path: usize) -> Result<(Vec<Vec<SampleJob>>, Vec<SampleJob>), LabError> {
        let address = self.address(path)?;
        let mut alone: Vec<((ClientKind, ServerKind), Vec<SampleJob>)> = Vec::new();
        let mut others = Vec::new();
        for slot in self.plan.order(path) {
            let cell = &self.plan.cells[slot.cell];
            let job = SampleJob {
                slot,
                client: cell.client,
                server: cell.server,
                requested: cell.requested,
                address,
                limit: self.plan.paths[path]
                    .sample_timeout(cell.requested.size.bytes(), SAMPLE_TIMEOUT),
            };
            let running = self.servers.iter().find(|running| running.kind == cell.server);
            let sequential = running.is_some_and(|running| {
                !running.capabilities.supports(Capability::ConcurrentConnections)
            });
            // A third-party client keeps its tickets in one directory, so it runs once at a time.
            if sequential || cell.client != ClientKind::Firstflight {
                let pair = (cell.client, cell.server);
                match alone.iter_mut().find(|(other, _)| *other == pair) {
                    Some((_, queue)) => queue.push(job),
                    None => alone.push((pair, vec![job])),
                }
            } else {
                others.push(job);
            }
        }
        Ok((alone.into_iter().map(|(_, queue)| queue).collect(), others))
    }

    /// Fetches the first tickets and, on every path, the TCP Fast Open cookie.
    async fn warm_up(&self, sampler: &Sampler<'_>) -> Result<(), LabError> {
        let mut issuers = Vec::new();
        for cell in &self.plan.cells {
            let address = self.address(cell.path)?;
            let issuer = sampler.issuer(cell.server, &cell.requested, address);
            if !issuers.contains(&issuer) {
                issuers.push(issuer);
                sampler.warm_up(cell.server, &cell.requested, issuer.address).await?;
            }
        }
        for path in 0..self.plan.paths.len() {
            // One cookie serves all listeners of an address (RFC 7413 section 3).
            let gives_cookies = |cell: &&crate::PlannedCell| {
                let mut running = self.servers.iter().filter(|running| running.kind == cell.server);
                cell.path == path
                    && running.any(|running| running.capabilities.supports(Capability::FastOpen))
            };
            if let Some(cell) = self.plan.cells.iter().find(gives_cookies) {
                sampler.warm_up(cell.server, &cell.requested, self.address(path)?).await?;
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
        let run = MiddleboxRun {
            config,
            first_path: self.plan.paths.len(),
            network: self.network,
            servers: self.servers,
            sampler,
            key_log,
        };
        runtime.block_on(run.run())
    }

    fn address(&self, path: usize) -> Result<IpAddr, LabError> {
        Ok(self.network.path(path)?.server.into())
    }

    /// The server's address on the shortest path, or on the one without a middlebox if no other
    /// path is measured.
    fn shortest(&self) -> Result<IpAddr, LabError> {
        self.address(self.plan.paths.len().saturating_sub(1))
    }
}

/// Merges jobs of several queues into the order of the plan.
fn in_order(mut jobs: Vec<SampleJob>, order: &[Slot]) -> Vec<SampleJob> {
    let position: HashMap<(usize, usize), usize> =
        order.iter().enumerate().map(|(index, slot)| ((slot.cell, slot.block), index)).collect();
    jobs.sort_by_key(|job| position[&(job.slot.cell, job.slot.block)]);
    jobs
}

/// Splits concurrent queues into batches that the tap can hold.
fn split(queues: Vec<(Pace, Vec<SampleJob>)>) -> Vec<SampleBatch> {
    let bytes = |job: &SampleJob| job.requested.size.bytes() + HANDSHAKE_BYTES;
    let total: usize = queues.iter().flat_map(|(_, jobs)| jobs).map(bytes).sum();
    let parts = total.div_ceil(MAX_BATCH_BYTES).max(1);
    let part = |index: usize| {
        let of = |(pace, jobs): &(Pace, Vec<SampleJob>)| {
            let (from, to) = (jobs.len() * index / parts, jobs.len() * (index + 1) / parts);
            (*pace, jobs[from..to].to_vec())
        };
        SampleBatch(queues.iter().map(of).filter(|(_, jobs)| !jobs.is_empty()).collect())
    };
    (0..parts).map(part).filter(|SampleBatch(queues)| !queues.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_different_numbers_of_samples_end_together() {
        let jobs = [4_600, 4_400, 900, 800];
        let starts: usize = jobs.iter().sum();
        for paced in jobs {
            let Pace::Every(interval) = pace(starts, paced) else { panic!("no interval") };
            let (ends, all) = (interval * paced as u32, START_INTERVAL * starts as u32);
            assert!(ends.abs_diff(all) < START_INTERVAL, "{ends:?} of {all:?}");
        }
    }
}
