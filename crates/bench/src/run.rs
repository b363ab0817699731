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

use crate::counts::{Counts, histogram, ms, reported_percentile};
use crate::process::CpuMeter;
use crate::quic::QuicWorker;
use crate::source::{ClosedLoop, OpenLoop, Source};
use crate::tcp::TcpWorker;
use crate::worker::Worker;
use crate::{Limit, LoadConfig, LoadError, LoadResult, Model, Schedule, SchedulePlan, Transport};

/// Progress of a run, for a status line.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadProgress {
    /// Seconds since the start of the measurement; `None` during the warm-up.
    pub elapsed: Option<f64>,
    /// Completed connections so far.
    pub completed: u64,
    /// Completed connections per second since the last report.
    pub rate: f64,
    /// Connections that have started and have not ended.
    pub in_flight: u64,
    /// Failed connections so far.
    pub failed: u64,
    /// Median of the total latency so far, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the total latency so far, in milliseconds; `None` with fewer than 299
    /// samples.
    pub p99_ms: Option<f64>,
}

/// Runs a load. Calls `progress` about four times a second. If it returns `Break`, no further
/// connection starts, and the result covers the run so far.
///
/// # Errors
/// [`LoadError`] if the run cannot start: a setting is invalid, or the server cannot be reached or
/// issues no tickets. Later failures are counted in the result.
pub fn run(
    config: &LoadConfig,
    mut progress: impl FnMut(&LoadProgress) -> ControlFlow<()>,
) -> Result<LoadResult, LoadError> {
    config.check()?;
    raise_file_limit(config.model.max_open() as u64);
    let stop = AtomicBool::new(false);
    let counts_by_thread: Vec<Mutex<Counts>> =
        (0..config.threads).map(|_| Mutex::new(Counts::new())).collect();
    let server_cpu = thread::scope(|scope| {
        let (event_sender, events) = mpsc::channel();
        let mut starts = Vec::new();
        for (index, counts) in counts_by_thread.iter().enumerate() {
            let (start, started) = mpsc::channel();
            starts.push(start);
            let (event_sender, stop) = (event_sender.clone(), &stop);
            thread::Builder::new()
                .name(format!("load {index}"))
                .spawn_scoped(scope, move || {
                    let _guard = PanicGuard { stop, event_sender: &event_sender };
                    let done = run_thread(config, index, counts, stop, &event_sender, &started);
                    let _ = event_sender.send(Event::Done(done));
                })
                .map_err(LoadError::Resources)?;
        }
        drop(event_sender);
        let mut reporter = ProgressReporter {
            counts_by_thread: &counts_by_thread,
            stop: &stop,
            start: None,
            last: None,
        };
        let outcome = coordinate(config, &events, starts, &mut reporter, &mut progress);
        if outcome.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        outcome
    })?;
    // The run gave up if all threads gave up.
    let mut all = Counts { gave_up: true, ..Counts::new() };
    for counts in &counts_by_thread {
        all.merge(&counts.lock().unwrap_or_else(PoisonError::into_inner))?;
    }
    Ok(LoadResult::new(config, &all, server_cpu, stop.load(Ordering::Relaxed)))
}

/// If its thread panics, stops the other threads and reports this one as done. The thread scope
/// propagates the panic.
struct PanicGuard<'a> {
    stop: &'a AtomicBool,
    event_sender: &'a Sender<Event>,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.stop.store(true, Ordering::Relaxed);
            let _ = self.event_sender.send(Event::Done(Ok(())));
        }
    }
}

/// A message of a thread.
enum Event {
    /// The warm-up is complete.
    Ready,
    /// The thread has ended.
    Done(Result<(), LoadError>),
}

/// Waits for the warm-up, starts all threads at the same time, and reports progress until they have
/// ended. Returns the server's CPU time.
fn coordinate(
    config: &LoadConfig,
    events: &Receiver<Event>,
    starts: Vec<Sender<Instant>>,
    reporter: &mut ProgressReporter<'_>,
    progress: &mut impl FnMut(&LoadProgress) -> ControlFlow<()>,
) -> Result<Option<Duration>, LoadError> {
    for _ in &starts {
        match reporter.next(events, progress) {
            Some(Event::Ready) => {}
            Some(Event::Done(result)) => result?,
            None => break,
        }
    }
    let server_cpu = CpuMeter::start(&config.server_pids)
        .map_err(|(pid, error)| LoadError::ServerProcess { pid, reason: error.to_string() })?;
    let start = Instant::now();
    reporter.start = Some(start);
    for thread in &starts {
        // Fails if the thread has ended; its `Done` event says why.
        let _ = thread.send(start);
    }
    while let Some(event) = reporter.next(events, progress) {
        if let Event::Done(result) = event {
            result?;
        }
    }
    Ok(server_cpu.used())
}

/// Runs one thread, from its warm-up to its last connection.
fn run_thread(
    config: &LoadConfig,
    index: usize,
    counts: &Mutex<Counts>,
    stop: &AtomicBool,
    event_sender: &Sender<Event>,
    started: &Receiver<Instant>,
) -> Result<(), LoadError> {
    if let Some(&core) = config.cores.get(index % config.cores.len().max(1)) {
        pin(core)?;
    }
    // The default slack of 50 us would show in the latencies. A failure is tolerated.
    let _ = set_timerslack(1);
    let share = ThreadShare::of(config, index);
    let needed = share.tickets(config);
    let max_tickets = (2 * needed).max(MIN_STORED_TICKETS);
    match config.transport {
        Transport::Tcp => {
            let worker = TcpWorker::new(config, counts, stop, max_tickets)?;
            run_worker(worker, config, share, event_sender, started)
        }
        Transport::Quic => {
            let worker = QuicWorker::new(config, counts, stop, max_tickets)?;
            run_worker(worker, config, share, event_sender, started)
        }
    }
}

/// Warms up, waits for the start and runs.
fn run_worker<'a>(
    mut worker: impl Worker<'a>,
    config: &LoadConfig,
    share: ThreadShare,
    event_sender: &Sender<Event>,
    started: &Receiver<Instant>,
) -> Result<(), LoadError> {
    worker.warm_up(share.tickets(config))?;
    if event_sender.send(Event::Ready).is_err() {
        return Ok(());
    }
    // Nobody sends a start time if another thread failed.
    let Ok(start) = started.recv() else { return Ok(()) };
    let end = match config.limit {
        Limit::Time(time) => Some(start + time),
        Limit::Connections(_) => None,
    };
    worker.run(share.source(config, start, end), start, end)
}

/// The share of one thread in the load.
struct ThreadShare {
    index: usize,
    connections: usize,
    count: u64,
}

impl ThreadShare {
    fn of(config: &LoadConfig, index: usize) -> Self {
        let count = match config.limit {
            Limit::Time(_) => u64::MAX,
            Limit::Connections(all) => divide(all, config.threads as u64, index as u64),
        };
        let open = config.model.max_open() as u64;
        let connections = divide(open, config.threads as u64, index as u64) as usize;
        Self { index, connections, count }
    }

    /// Number of tickets per address that the warm-up collects: enough until the first connections
    /// receive new ones.
    fn tickets(&self, config: &LoadConfig) -> usize {
        let needed = match config.model {
            Model::Closed { .. } => self.connections as f64,
            Model::Open { rate, .. } => rate / config.threads as f64 * TICKET_SUPPLY.as_secs_f64(),
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
            backlog: divide(backlog as u64, config.threads as u64, self.index as u64) as usize,
        });
        Source::Open(Box::new(OpenLoop::new(schedule, start, self.connections, config.timeout)))
    }
}

/// An open loop starts with enough tickets for this time at its rate.
const TICKET_SUPPLY: Duration = Duration::from_millis(250);
const MAX_TICKETS: usize = 2048;
/// A thread can store at least this many tickets of each address.
const MIN_STORED_TICKETS: usize = 64;

/// The share of thread `index` of `threads` in `all`. The first threads get the remainder.
fn divide(all: u64, threads: u64, index: u64) -> u64 {
    all / threads + u64::from(index < all % threads)
}

/// Reports the sum of the threads' counts every [`PROGRESS_INTERVAL`].
struct ProgressReporter<'a> {
    counts_by_thread: &'a [Mutex<Counts>],
    stop: &'a AtomicBool,
    start: Option<Instant>,
    last: Option<(Instant, u64)>,
}

const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

impl ProgressReporter<'_> {
    /// Waits for the next event, and reports progress meanwhile. Returns `None` if all threads have
    /// ended.
    fn next(
        &mut self,
        events: &Receiver<Event>,
        progress: &mut impl FnMut(&LoadProgress) -> ControlFlow<()>,
    ) -> Option<Event> {
        loop {
            match events.recv_timeout(PROGRESS_INTERVAL) {
                Ok(event) => return Some(event),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    if progress(&self.snapshot()).is_break() {
                        self.stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    fn snapshot(&mut self) -> LoadProgress {
        let mut total = histogram();
        let (mut completed, mut failed, mut started) = (0, 0, 0);
        for counts in self.counts_by_thread {
            let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            completed += counts.completed;
            failed += counts.failed();
            started += counts.started;
            // Cannot fail: all histograms have the same bounds.
            let _ = total.add(&counts.total);
        }
        let now = Instant::now();
        let previous = self.last.or(self.start.map(|start| (start, 0)));
        let rate = previous.map_or(0.0, |(time, before)| {
            (completed - before) as f64 / now.duration_since(time).as_secs_f64().max(1e-9)
        });
        self.last = self.start.map(|_| (now, completed));
        let samples = total.len();
        LoadProgress {
            elapsed: self.start.map(|start| now.duration_since(start).as_secs_f64()),
            completed,
            rate,
            in_flight: started.saturating_sub(completed + failed),
            failed,
            p50_ms: (samples > 0).then(|| ms(total.value_at_quantile(0.5))),
            p99_ms: reported_percentile(&total, 0.99),
        }
    }
}

fn pin(core: usize) -> Result<(), LoadError> {
    let mut set = CpuSet::new();
    set.set(core)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| LoadError::Pin { core, reason: error.desc().to_owned() })
}

/// Raises the limit of open files to what the connections need. If the hard limit is lower,
/// connections fail and are counted as [`ErrorKind::NoFile`](crate::ErrorKind::NoFile).
fn raise_file_limit(connections: u64) {
    let needed = connections.saturating_add(256);
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < needed
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_add_up_to_the_whole() {
        for (all, threads) in [(10, 3), (2, 4), (7, 1), (12, 4)] {
            let sum: u64 = (0..threads).map(|index| divide(all, threads, index)).sum();
            assert_eq!(sum, all);
        }
        assert_eq!([0, 1, 2].map(|index| divide(10, 3, index)), [4, 3, 3]);
    }
}
