//! Load runs: a fixed number of connections (closed loop) or a fixed rate (open loop).

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use firstflight_bench::{
    Arrivals, Exchange, Latency, Limit, LoadConfig, LoadError, LoadHandshake, LoadProgress,
    LoadResult, Model, Transport,
};
use firstflight_client::Target;
use firstflight_report::{Load, LoadLatency};
use firstflight_tls::{CipherPolicy, Trust, Version};
use indicatif::ProgressBar;

/// Flags of load runs.
#[derive(Args)]
#[command(next_help_heading = "Load (instead of samples one after the other)")]
pub(crate) struct LoadArgs {
    /// Open loop: start this many connections per second, whatever happens to earlier ones; latency
    /// counts from the scheduled start.
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "connections", value_parser = rate)]
    rate: Option<f64>,

    /// Closed loop: keep this many connections open; each starts when another has ended, so a slow
    /// server gets less load and its queueing does not show.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: Option<u32>,

    /// Duration of the load for each kind of handshake, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    duration: Duration,

    /// Client threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: u16,

    /// Pin the threads to these processors, in turn
    #[arg(long, value_name = "CPU,...", value_delimiter = ',')]
    pin: Vec<usize>,

    /// With --rate: start connections at random times like independent users, not evenly.
    #[arg(long, requires = "rate")]
    poisson: bool,

    /// A server process on this machine whose CPU time is measured too.
    #[arg(long, value_name = "PID")]
    server_pid: Vec<u32>,
}

/// Settings of `bench` that load runs use.
pub(crate) struct LoadOptions<'a> {
    pub(crate) target: &'a Target,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) trust: Trust,
    pub(crate) version: Version,
    pub(crate) groups: Option<String>,
    pub(crate) tfo: bool,
    pub(crate) transport: Transport,
    pub(crate) seed: u64,
    pub(crate) timeout: Duration,
}

impl LoadArgs {
    /// Whether load was requested.
    pub(crate) fn is_requested(&self) -> bool {
        self.rate.is_some() || self.connections.is_some()
    }

    /// Runs the load for each kind of handshake, and leaves out kinds that the server lacks. SIGINT
    /// ends the current run, whose results so far count, and leaves out the others.
    ///
    /// # Errors
    /// The first error, if no run succeeds.
    pub(crate) fn run(
        &self,
        options: &LoadOptions<'_>,
        kinds: &[LoadHandshake],
    ) -> anyhow::Result<LoadRuns> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&interrupted);
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
            .context("cannot catch SIGINT")?;
        let (mut loads, mut left_out, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_error = None;
        for kind in kinds {
            if interrupted.load(Ordering::Relaxed) {
                break;
            }
            let config = self.config(options, *kind);
            let line = StatusLine::new(*kind, self.duration);
            let result = firstflight_bench::run(&config, |progress| {
                line.show(progress);
                match interrupted.load(Ordering::Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            line.finish();
            match result {
                Ok(result) => loads.push(record(options.target, &result)),
                // The runs of the other kinds count.
                Err(error) => {
                    let why = format!("{} under load: {error}", kind.name());
                    match error {
                        LoadError::NoTickets { .. } | LoadError::Usage(_) => left_out.push(why),
                        _ => failed.push(why),
                    }
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error.filter(|_| loads.is_empty()) {
            return Err(error.into());
        }
        let attempted = loads.len() + left_out.len() + failed.len();
        left_out.extend(not_attempted(kinds, attempted));
        let interrupted = interrupted.load(Ordering::Relaxed);
        Ok(LoadRuns { loads, left_out, failed, interrupted })
    }

    fn config(&self, options: &LoadOptions<'_>, kind: LoadHandshake) -> LoadConfig {
        let connections = self.connections.unwrap_or(1) as usize;
        LoadConfig {
            transport: options.transport,
            kind,
            version: options.version,
            ciphers: CipherPolicy { groups: options.groups.clone(), ..CipherPolicy::default() },
            trust: options.trust.clone(),
            fast_open: options.tfo,
            exchange: Exchange::get(&options.target.authority(), &options.target.path_and_query()),
            model: match self.rate {
                Some(rate) => self.open_model(rate, options.seed),
                None => Model::Closed { connections },
            },
            limit: Limit::Time(self.duration),
            timeout: options.timeout,
            threads: usize::from(self.threads),
            cores: self.pin.clone(),
            server_pids: self.server_pid.clone(),
            ..LoadConfig::new(options.addresses.clone(), options.target.host())
        }
    }

    fn open_model(&self, rate: f64, seed: u64) -> Model {
        match Model::open(rate) {
            Model::Open { rate, in_flight, backlog, .. } => Model::Open {
                rate,
                arrivals: if self.poisson { Arrivals::Poisson } else { Arrivals::Constant },
                seed,
                in_flight,
                backlog,
            },
            closed => closed,
        }
    }
}

/// The runs of all kinds of handshake.
pub(crate) struct LoadRuns {
    pub(crate) loads: Vec<Load>,
    /// A sentence for each kind that the server lacks, or that was not attempted.
    pub(crate) left_out: Vec<String>,
    /// A sentence for each kind whose run failed.
    pub(crate) failed: Vec<String>,
    pub(crate) interrupted: bool,
}

fn not_attempted(kinds: &[LoadHandshake], attempted: usize) -> Vec<String> {
    let remaining = kinds.iter().skip(attempted);
    remaining.map(|kind| format!("{} under load: the run was interrupted", kind.name())).collect()
}

/// Progress on stderr: a line that is updated on a terminal, else a line every few seconds.
struct StatusLine {
    bar: ProgressBar,
    terminal: bool,
    kind: LoadHandshake,
    duration: Duration,
    printed_at: std::cell::Cell<f64>,
}

impl StatusLine {
    fn new(kind: LoadHandshake, duration: Duration) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        Self { bar, terminal, kind, duration, printed_at: std::cell::Cell::new(0.0) }
    }

    fn show(&self, progress: &LoadProgress) {
        let Some(elapsed) = progress.elapsed else {
            return self.bar.set_message(format!("{}: fetching tickets", self.kind.name()));
        };
        let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"));
        let line = format!(
            "{}: {elapsed:.0}/{:.0} s, {} done, {:.0}/s, {} open, {} failed, p50 {} ms, p99 {} ms",
            self.kind.name(),
            self.duration.as_secs_f64(),
            progress.completed,
            progress.rate,
            progress.in_flight,
            progress.failed,
            ms(progress.p50_ms),
            ms(progress.p99_ms),
        );
        if self.terminal {
            self.bar.set_message(line);
            self.bar.tick();
        } else if elapsed >= self.printed_at.get() + PRINT_INTERVAL_SECONDS {
            self.printed_at.set(elapsed);
            errln!("{line}");
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Seconds between two lines if stderr is not a terminal.
const PRINT_INTERVAL_SECONDS: f64 = 5.0;

/// Converts a result for the record.
fn record(target: &Target, result: &LoadResult) -> Load {
    let handshakes = [
        ("full", result.handshakes.full),
        ("resumed", result.handshakes.resumed),
        ("early data accepted", result.handshakes.early_accepted),
        ("early data refused", result.handshakes.early_refused),
    ];
    let closed = result.rate_wanted.is_none();
    Load {
        server: target.authority(),
        model: result.model.clone(),
        http: match result.transport {
            Transport::Tcp => "1.1",
            Transport::Quic => "3",
        }
        .to_owned(),
        kind: result.kind.name().to_owned(),
        threads: result.threads,
        connections: closed.then_some(result.connections),
        rate_wanted: result.rate_wanted,
        rate: result.rate,
        seconds: result.seconds,
        completed: result.completed,
        as_requested: Some(result.as_requested),
        handshakes: handshakes
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.to_owned(), count))
            .collect(),
        errors: result
            .errors
            .iter()
            .map(|error| (format!("{}: {}", error.kind.name(), error.example), error.count))
            .collect(),
        not_begun: result.not_started,
        setup: result.setup.as_ref().map(latency),
        first_byte: result.first_byte.as_ref().map(latency),
        total: result.total.as_ref().map(latency),
        client_us: result.client_us.unwrap_or_default(),
        server_us: result.server_us,
        warnings: result.warnings.clone(),
    }
}

fn latency(latency: &Latency) -> LoadLatency {
    LoadLatency {
        min_ms: latency.min_ms,
        p50_ms: latency.p50_ms,
        p90_ms: latency.p90_ms,
        p95_ms: latency.p95_ms,
        p99_ms: latency.p99_ms,
        p999_ms: latency.p999_ms,
        max_ms: latency.max_ms,
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e6 => Ok(rate),
        _ => Err("give a rate above 0 and up to 1000000 connections per second".to_owned()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a duration from 0.1 to 86400 seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_were_not_attempted_are_named() {
        let kinds = [LoadHandshake::Full, LoadHandshake::Resumed, LoadHandshake::ZeroRtt];
        assert_eq!(
            not_attempted(&kinds, 1),
            [
                "resumed under load: the run was interrupted",
                "0-RTT under load: the run was interrupted"
            ]
        );
        assert!(not_attempted(&kinds, 3).is_empty());
    }
}
