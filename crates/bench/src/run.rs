use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_timerslack;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;

use crate::cpu::Watched;
use crate::latency::{ms, reported};
use crate::ledger::Driver;
use crate::quic::QuicWorker;
use crate::source::{ClosedLoop, OpenLoop, Source};
use crate::tally::Tally;
use crate::worker::Worker;
use crate::{Limit, LoadConfig, LoadError, LoadResult, Model, Schedule, SchedulePlan, Transport};

/// How a run stands, for a live line.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadProgress {
    /// Seconds since the first connection that counts; `None` during the warm-up.
    pub elapsed: Option<f64>,
    /// Connections completed so far.
    pub completed: u64,
    /// Connections a second completed since the last report.
    pub rate: f64,
    /// Connections started and neither completed nor failed.
    pub in_flight: u64,
    /// Connections that failed so far.
    pub failed: u64,
    /// Median of the total latency so far, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile so far, in milliseconds; from 299 samples on.
    pub p99_ms: Option<f64>,
}

/// Runs a load to its end. `progress` hears of it about four times a second; where it answers
/// `Break`, the run starts nothing more, and the result is of what has been.
///
/// # Errors
/// [`LoadError`] if it cannot start: a setting, a server that cannot be reached or gives no
/// tickets. What fails later is counted in the result.
pub fn run(
    config: &LoadConfig,
    mut progress: impl FnMut(&LoadProgress) -> ControlFlow<()>,
) -> Result<LoadResult, LoadError> {
    config.check()?;
    raise_file_limit(config.model.most_open() as u64);
    let stop = AtomicBool::new(false);
    let tallies: Vec<Mutex<Tally>> =
        (0..config.threads).map(|_| Mutex::new(Tally::new())).collect();
    let server = thread::scope(|scope| {
        let (said, says) = mpsc::channel();
        let mut starts = Vec::new();
        for (index, tally) in tallies.iter().enumerate() {
            let (start, started) = mpsc::channel();
            starts.push(start);
            let (said, stop) = (said.clone(), &stop);
            thread::Builder::new()
                .name(format!("load {index}"))
                .spawn_scoped(scope, move || {
                    let done = work(config, index, tally, stop, &said, &started);
                    let _ = said.send(Event::Done(done));
                })
                .map_err(LoadError::Resources)?;
        }
        drop(said);
        let mut watch =
            ProgressReporter { tallies: &tallies, stop: &stop, start: None, last: None };
        let outcome = conduct(config, &says, starts, &mut watch, &mut progress);
        if outcome.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        outcome
    })?;
    let mut all = Tally::new();
    for tally in &tallies {
        all.merge(&tally.lock().unwrap_or_else(PoisonError::into_inner))?;
    }
    Ok(LoadResult::new(config, &all, server, stop.load(Ordering::Relaxed)))
}

/// What a thread tells.
enum Event {
    /// It is warmed up.
    Ready,
    /// It has ended.
    Done(Result<(), LoadError>),
}

/// Waits for the warm-up, starts all threads at one instant, and reports until they have ended.
/// Returns the server's CPU time.
fn conduct(
    config: &LoadConfig,
    says: &Receiver<Event>,
    starts: Vec<Sender<Instant>>,
    watch: &mut ProgressReporter<'_>,
    progress: &mut impl FnMut(&LoadProgress) -> ControlFlow<()>,
) -> Result<Option<Duration>, LoadError> {
    for _ in &starts {
        match watch.next(says, progress) {
            Some(Event::Ready) => {}
            Some(Event::Done(ended)) => ended?,
            None => break,
        }
    }
    let server = Watched::begin(&config.server_pids)
        .map_err(|(pid, error)| LoadError::ServerProcess { pid, reason: error.to_string() })?;
    let start = Instant::now();
    watch.start = Some(start);
    for thread in &starts {
        // One that has ended already hears nothing, and has said why.
        let _ = thread.send(start);
    }
    while let Some(event) = watch.next(says, progress) {
        if let Event::Done(ended) = event {
            ended?;
        }
    }
    Ok(server.spent())
}

/// One thread, from its warm-up to its last connection.
fn work(
    config: &LoadConfig,
    index: usize,
    tally: &Mutex<Tally>,
    stop: &AtomicBool,
    said: &Sender<Event>,
    started: &Receiver<Instant>,
) -> Result<(), LoadError> {
    if let Some(&core) = config.cores.get(index % config.cores.len().max(1)) {
        pin(core)?;
    }
    // Timers of 50 us more, the default, would be seen. Where it is refused, they are.
    let _ = set_timerslack(1);
    let share = Share::of(config, index);
    let wanted = share.tickets(config);
    let most_tickets = (2 * wanted).max(MIN_KEPT);
    match config.transport {
        Transport::Tcp => {
            let worker = Worker::new(config, tally, stop, most_tickets)?;
            conclude(worker, config, share, said, started)
        }
        Transport::Quic => {
            let worker = QuicWorker::new(config, tally, stop, most_tickets)?;
            conclude(worker, config, share, said, started)
        }
    }
}

/// Warms up, waits for the start and runs.
fn conclude<'a>(
    mut worker: impl Driver<'a>,
    config: &LoadConfig,
    share: Share,
    said: &Sender<Event>,
    started: &Receiver<Instant>,
) -> Result<(), LoadError> {
    worker.warm_up(share.tickets(config))?;
    if said.send(Event::Ready).is_err() {
        return Ok(());
    }
    // Nobody starts it where another thread failed.
    let Ok(start) = started.recv() else { return Ok(()) };
    let end = match config.limit {
        Limit::Time(time) => Some(start + time),
        Limit::Connections(_) => None,
    };
    worker.run(share.source(config, start, end), start, end)
}

/// A thread's part of the work.
struct Share {
    index: usize,
    connections: usize,
    count: u64,
}

impl Share {
    fn of(config: &LoadConfig, index: usize) -> Self {
        let count = match config.limit {
            Limit::Time(_) => u64::MAX,
            Limit::Connections(all) => part(all, config.threads as u64, index as u64),
        };
        let open = config.model.most_open() as u64;
        let connections = part(open, config.threads as u64, index as u64) as usize;
        Self { index, connections, count }
    }

    /// How many tickets of each address to start with: enough until the first connections have
    /// brought new ones.
    fn tickets(&self, config: &LoadConfig) -> usize {
        let needed = match config.model {
            Model::Closed { .. } => self.connections as f64,
            Model::Open { rate, .. } => rate / config.threads as f64 * OPEN_SUPPLY.as_secs_f64(),
        };
        let each = (needed / config.addresses.len() as f64).ceil() as usize;
        (each + 2).min(MAX_TICKETS)
    }

    fn source(&self, config: &LoadConfig, start: Instant, end: Option<Instant>) -> Source {
        let Model::Open { rate, arrivals, seed, backlog, .. } = config.model else {
            return Source::Closed(ClosedLoop::new(self.connections, end, self.count));
        };
        let schedule = Schedule::new(SchedulePlan {
            rate: rate / config.threads as f64,
            arrivals,
            phase: self.index as f64 / config.threads as f64,
            seed: seed.wrapping_add(self.index as u64),
            until: end.map_or(Duration::MAX, |end| end - start),
            count: self.count,
            backlog: part(backlog as u64, config.threads as u64, self.index as u64) as usize,
        });
        Source::Open(Box::new(OpenLoop::new(schedule, start, self.connections, config.timeout)))
    }
}

/// An open loop starts with tickets for so long a time at its rate.
const OPEN_SUPPLY: Duration = Duration::from_millis(250);
const MAX_TICKETS: usize = 2048;
/// A thread keeps at least so many tickets of an address, if so many come.
const MIN_KEPT: usize = 64;

/// Thread `index` of `threads` gets this part of `all`; the first ones get what does not divide.
fn part(all: u64, threads: u64, index: u64) -> u64 {
    all / threads + u64::from(index < all % threads)
}

/// Looks at the threads' counts four times a second.
struct ProgressReporter<'a> {
    tallies: &'a [Mutex<Tally>],
    stop: &'a AtomicBool,
    start: Option<Instant>,
    last: Option<(Instant, u64)>,
}

const OFTEN: Duration = Duration::from_millis(250);

impl ProgressReporter<'_> {
    /// The next event, with reports until it comes. `None`: all threads have ended.
    fn next(
        &mut self,
        says: &Receiver<Event>,
        progress: &mut impl FnMut(&LoadProgress) -> ControlFlow<()>,
    ) -> Option<Event> {
        loop {
            match says.recv_timeout(OFTEN) {
                Ok(event) => return Some(event),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    if progress(&self.look()).is_break() {
                        self.stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    fn look(&mut self) -> LoadProgress {
        let mut total = crate::latency::histogram();
        let (mut completed, mut failed, mut begun) = (0, 0, 0);
        for tally in self.tallies {
            let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            completed += tally.completed;
            failed += tally.failed();
            begun += tally.begun;
            // They are of the same making.
            let _ = total.add(&tally.total);
        }
        let now = Instant::now();
        let since = self.last.or(self.start.map(|start| (start, 0)));
        let rate = since.map_or(0.0, |(then, before)| {
            (completed - before) as f64 / now.duration_since(then).as_secs_f64().max(1e-9)
        });
        self.last = self.start.map(|_| (now, completed));
        let samples = total.len();
        LoadProgress {
            elapsed: self.start.map(|start| now.duration_since(start).as_secs_f64()),
            completed,
            rate,
            in_flight: begun.saturating_sub(completed + failed),
            failed,
            p50_ms: (samples > 0).then(|| ms(total.value_at_quantile(0.5))),
            p99_ms: reported(&total, 0.99),
        }
    }
}

fn pin(core: usize) -> Result<(), LoadError> {
    let mut set = CpuSet::new();
    set.set(core)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| LoadError::Pin { core, reason: error.desc().to_owned() })
}

/// Asks for as many open files as the connections need; where less is allowed, what fails for it
/// is counted as such.
fn raise_file_limit(connections: u64) {
    let wanted = connections.saturating_add(256);
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole() {
        for (all, threads) in [(10, 3), (2, 4), (7, 1), (12, 4)] {
            let sum: u64 = (0..threads).map(|index| part(all, threads, index)).sum();
            assert_eq!(sum, all);
        }
        assert_eq!([0, 1, 2].map(|index| part(10, 3, index)), [4, 3, 3]);
    }
}
