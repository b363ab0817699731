//! `keys watch`: keeps another server's files as the ring is.

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use firstflight_tickets::Ring;
use firstflight_tickets::export::Target;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::now;
use super::source::Source;

/// Writes the ring at once and whenever it changes, until SIGTERM or SIGINT.
///
/// # Errors
/// If the keys cannot be had or written at the start. Later both are tried again each second.
pub(super) async fn run(
    source: &Source,
    target: &Target,
    exec: Option<String>,
) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
        error = keep_up(source, target, exec) => Err(error),
    }
}

/// Ends only where it could not start.
async fn keep_up(source: &Source, target: &Target, exec: Option<String>) -> anyhow::Error {
    let mut watch = match KeyExporter::start(source, target, exec).await {
        Ok(watch) => watch,
        Err(error) => return error,
    };
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        watch.tick().await;
    }
}

struct KeyExporter<'a> {
    source: &'a Source,
    target: &'a Target,
    /// The last ring that could be had: time goes on without its source.
    ring: Ring,
    runner: Option<Runner>,
    /// What was last complained of, so that each complaint is logged once.
    complaint: String,
}

impl<'a> KeyExporter<'a> {
    /// The server may have read anything before, so the command is due at the start.
    async fn start(
        source: &'a Source,
        target: &'a Target,
        exec: Option<String>,
    ) -> anyhow::Result<Self> {
        let ring = source.take().await?;
        target.write(&ring, now())?;
        info!("{} holds the keys as they are in {source}", target.path().display());
        let runner = exec.map(Runner::due);
        Ok(Self { source, target, ring, runner, complaint: String::new() })
    }

    async fn tick(&mut self) {
        let mut complaints = Vec::new();
        match self.source.look_again().await {
            Ok(ring) => self.ring = ring,
            Err(error) => complaints.push(format!("{error:#}")),
        }
        match self.target.write(&self.ring, now()) {
            Ok(false) => {}
            Ok(true) => {
                info!("{} is written, as the keys have changed", self.target.path().display());
                if let Some(runner) = &mut self.runner {
                    runner.want();
                }
            }
            Err(error) => complaints.push(error.to_string()),
        }
        if let Some(runner) = &mut self.runner {
            runner.step(Instant::now());
        }
        complaints.extend(self.ring.warnings(now()).first().map(ToString::to_string));
        self.complain(&complaints.join("; "));
        for complaint in self.source.complaints() {
            warn!("{complaint}");
        }
    }

    /// Logs what is news. Numbers in it change with the time and make no news.
    fn complain(&mut self, text: &str) {
        let news = text.replace(|c: char| c.is_ascii_digit(), "");
        if !news.is_empty() && self.complaint != news {
            warn!("{text}");
        }
        self.complaint = news;
    }
}

/// Runs a command when it is wanted.
struct Runner {
    command: String,
    wanted: bool,
    /// The run that goes on, since when, and whether it was said that it takes long.
    running: Option<(Child, Instant, bool)>,
    failures: u32,
    /// Not before, after a failure.
    not_before: Option<Instant>,
}

impl Runner {
    /// A command that is wanted at once.
    fn due(command: String) -> Self {
        Self { command, wanted: true, running: None, failures: 0, not_before: None }
    }

    /// Something has changed: a run that goes on may have missed it.
    fn want(&mut self) {
        self.wanted = true;
        self.failures = 0;
        self.not_before = None;
    }

    /// Looks after the run that goes on, and starts one that is wanted. Call it once a second.
    fn step(&mut self, now: Instant) {
        if let Some((child, since, said)) = &mut self.running {
            match child.try_wait() {
                Ok(None) => {
                    if !*said && now - *since > LONG {
                        warn!("`{}` has not ended yet; the next run waits for it", self.command);
                        *said = true;
                    }
                    return;
                }
                Ok(Some(status)) if status.success() => self.succeeded(),
                Ok(Some(status)) => self.failed(now, &status.to_string()),
                Err(error) => self.failed(now, &error.to_string()),
            }
            self.running = None;
        }
        if self.wanted && self.not_before.is_none_or(|time| time <= now) {
            self.start(now);
        }
    }

    fn start(&mut self, now: Instant) {
        self.wanted = false;
        let mut command = Command::new("sh");
        match command.arg("-c").arg(&self.command).stdin(Stdio::null()).spawn() {
            Ok(child) => self.running = Some((child, now, false)),
            Err(error) => self.failed(now, &error.to_string()),
        }
    }

    fn succeeded(&mut self) {
        info!("`{}` has run", self.command);
        self.failures = 0;
    }

    fn failed(&mut self, now: Instant, how: &str) {
        let wait = pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        if self.wanted {
            warn!("`{}` failed: {how}; it runs again, as the keys have changed", self.command);
            return;
        }
        self.wanted = true;
        self.not_before = Some(now + wait);
        warn!("`{}` failed: {how}; it is tried again in {} s", self.command, wait.as_secs());
    }
}

/// 1 s, then twice as long each time, up to a minute.
fn pause(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.min(6)).min(LONG)
}

const LONG: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Steps through one run; when it was looked at last, and how often the command has run.
    fn one_run(runner: &mut Runner, now: Instant, log: &std::path::Path) -> usize {
        runner.step(now);
        while runner.running.is_some() {
            thread::sleep(Duration::from_millis(2));
            let wanted = std::mem::take(&mut runner.wanted);
            runner.step(now);
            runner.wanted |= wanted;
        }
        std::fs::read_to_string(log).unwrap_or_default().lines().count()
    }

    #[test]
    fn once_a_change_and_again_after_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let (log, ok) = (dir.path().join("log"), dir.path().join("ok"));
        let command = format!("echo >> {}; test -e {}", log.display(), ok.display());
        let (mut runner, began) = (Runner::due(command), Instant::now());
        assert_eq!(one_run(&mut runner, began, &log), 1);
        assert_eq!(one_run(&mut runner, began, &log), 1, "it failed, and waits a second");
        std::fs::write(&ok, "").unwrap();
        let later = began + Duration::from_secs(1);
        assert_eq!(one_run(&mut runner, later, &log), 2);
        assert_eq!(one_run(&mut runner, later + LONG, &log), 2, "nothing has changed");
        runner.want();
        assert_eq!(one_run(&mut runner, later + LONG, &log), 3);
    }

    #[test]
    fn a_change_while_it_runs_is_not_missed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut runner = Runner::due(format!("echo >> {}", log.display()));
        let now = Instant::now();
        runner.step(now);
        runner.want();
        assert!(runner.running.is_some());
        one_run(&mut runner, now, &log);
        assert_eq!(one_run(&mut runner, now, &log), 2);
    }

    #[test]
    fn pauses_grow_to_a_minute() {
        let seconds: Vec<_> = (0..9).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
