//! `keys watch`: writes another server's key files whenever the ring changes.

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use firstflight_tickets::Ring;
use firstflight_tickets::export::Target;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::now;
use super::source::RingSource;
use crate::print::with_causes;

/// Writes the ring at the start and whenever it changes, until SIGTERM or SIGINT.
///
/// # Errors
/// If the keys cannot be read or written at the start. Later both are retried each second.
pub(super) async fn run(
    source: &RingSource,
    target: &Target,
    exec: Option<String>,
) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
        error = export_until_error(source, target, exec) => Err(error),
    }
}

/// Exports keys. Returns only if it cannot start.
async fn export_until_error(
    source: &RingSource,
    target: &Target,
    exec: Option<String>,
) -> anyhow::Error {
    let mut exporter = match KeyExporter::start(source, target, exec).await {
        Ok(exporter) => exporter,
        Err(error) => return error,
    };
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        exporter.tick().await;
    }
}

struct KeyExporter<'a> {
    source: &'a RingSource,
    target: &'a Target,
    /// The last ring that could be read. Its keys change state with time, also without the source.
    ring: Ring,
    change_command: Option<ChangeCommand>,
    /// The last logged problem, so that each is logged once.
    last_problem: String,
}

impl<'a> KeyExporter<'a> {
    /// Requests a first run of the command, as the other server may have read outdated keys.
    async fn start(
        source: &'a RingSource,
        target: &'a Target,
        exec: Option<String>,
    ) -> anyhow::Result<Self> {
        let ring = source.read_for_use().await?;
        target.write(&ring, now())?;
        info!("{} has the keys of {source}", target.path().display());
        let change_command = exec.map(ChangeCommand::new);
        Ok(Self { source, target, ring, change_command, last_problem: String::new() })
    }

    async fn tick(&mut self) {
        let mut problems = Vec::new();
        match self.source.refresh().await {
            Ok(ring) => self.ring = ring,
            Err(error) => problems.push(with_causes(&error)),
        }
        match self.target.write(&self.ring, now()) {
            Ok(false) => {}
            Ok(true) => {
                info!("the keys have changed; wrote {}", self.target.path().display());
                if let Some(change_command) = &mut self.change_command {
                    change_command.request_run();
                }
            }
            Err(error) => problems.push(error.to_string()),
        }
        if let Some(change_command) = &mut self.change_command {
            change_command.poll(Instant::now());
        }
        problems.extend(self.ring.warnings(now()).first().map(ToString::to_string));
        self.log_problem(&problems.join("; "));
        for problem in self.source.problems() {
            warn!("{problem}");
        }
    }

    /// Logs a problem unless it was logged last. Numbers in it, such as times, are ignored.
    fn log_problem(&mut self, text: &str) {
        let text_without_numbers = text.replace(|c: char| c.is_ascii_digit(), "");
        if !text_without_numbers.is_empty() && self.last_problem != text_without_numbers {
            warn!("{text}");
        }
        self.last_problem = text_without_numbers;
    }
}

/// Runs a shell command after changes: once for each, again if it fails, and never concurrently.
struct ChangeCommand {
    command: String,
    run_requested: bool,
    /// The running process, its start, and whether a warning about its duration was logged.
    running: Option<(Child, Instant, bool)>,
    failures: u32,
    /// The earliest time of the next run, after a failure.
    not_before: Option<Instant>,
}

impl ChangeCommand {
    /// A command that runs at the first [`poll`](Self::poll).
    fn new(command: String) -> Self {
        Self { command, run_requested: true, running: None, failures: 0, not_before: None }
    }

    /// Requests a run after a change, which a current run may have missed.
    fn request_run(&mut self) {
        self.run_requested = true;
        self.failures = 0;
        self.not_before = None;
    }

    /// Checks the current run, and starts a requested one. Call this once a second.
    fn poll(&mut self, now: Instant) {
        if let Some((child, since, warned)) = &mut self.running {
            match child.try_wait() {
                Ok(None) => {
                    if !*warned && now - *since > MAX_RETRY_DELAY {
                        warn!("`{}` is still running; the next run waits for it", self.command);
                        *warned = true;
                    }
                    return;
                }
                Ok(Some(status)) if status.success() => self.succeeded(),
                Ok(Some(status)) => self.failed(now, &status.to_string()),
                Err(error) => self.failed(now, &error.to_string()),
            }
            self.running = None;
        }
        if self.run_requested && self.not_before.is_none_or(|time| time <= now) {
            self.start(now);
        }
    }

    fn start(&mut self, now: Instant) {
        self.run_requested = false;
        let mut command = Command::new("sh");
        match command.arg("-c").arg(&self.command).stdin(Stdio::null()).spawn() {
            Ok(child) => self.running = Some((child, now, false)),
            Err(error) => self.failed(now, &error.to_string()),
        }
    }

    fn succeeded(&mut self) {
        info!("`{}` succeeded", self.command);
        self.failures = 0;
    }

    fn failed(&mut self, now: Instant, cause: &str) {
        let wait = retry_delay(self.failures);
        self.failures = self.failures.saturating_add(1);
        if self.run_requested {
            warn!("`{}` failed: {cause}; running it again, as the keys have changed", self.command);
            return;
        }
        self.run_requested = true;
        self.not_before = Some(now + wait);
        warn!("`{}` failed: {cause}; retrying in {} s", self.command, wait.as_secs());
    }
}

/// 1 s, doubled at each failure, up to [`MAX_RETRY_DELAY`].
fn retry_delay(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.min(6)).min(MAX_RETRY_DELAY)
}

const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Polls until the current run has ended. Returns how often the command has run so far.
    fn run_to_end(command: &mut ChangeCommand, now: Instant, log: &std::path::Path) -> usize {
        command.poll(now);
        while command.running.is_some() {
            thread::sleep(Duration::from_millis(2));
            let run_requested = std::mem::take(&mut command.run_requested);
            command.poll(now);
            command.run_requested |= run_requested;
        }
        std::fs::read_to_string(log).unwrap_or_default().lines().count()
    }

    #[test]
    fn the_command_runs_once_per_change_and_again_after_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let (log, ok) = (dir.path().join("log"), dir.path().join("ok"));
        let shell_command = format!("echo >> {}; test -e {}", log.display(), ok.display());
        let (mut command, started) = (ChangeCommand::new(shell_command), Instant::now());
        assert_eq!(run_to_end(&mut command, started, &log), 1);
        assert_eq!(run_to_end(&mut command, started, &log), 1, "it failed, and waits a second");
        std::fs::write(&ok, "").unwrap();
        let later = started + Duration::from_secs(1);
        assert_eq!(run_to_end(&mut command, later, &log), 2);
        assert_eq!(
            run_to_end(&mut command, later + MAX_RETRY_DELAY, &log),
            2,
            "nothing has changed"
        );
        command.request_run();
        assert_eq!(run_to_end(&mut command, later + MAX_RETRY_DELAY, &log), 3);
    }

    #[test]
    fn a_change_during_a_run_causes_another_run() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = ChangeCommand::new(format!("echo >> {}", log.display()));
        let now = Instant::now();
        command.poll(now);
        command.request_run();
        assert!(command.running.is_some());
        run_to_end(&mut command, now, &log);
        assert_eq!(run_to_end(&mut command, now, &log), 2);
    }

    #[test]
    fn retry_delays_grow_to_a_minute() {
        let seconds: Vec<_> = (0..9).map(|failures| retry_delay(failures).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
