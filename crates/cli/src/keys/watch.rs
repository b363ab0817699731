//! `keys watch`: keeps another server's files as the ring is.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use firstflight_tickets::Ring;
use firstflight_tickets::export::Target;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::now;
use super::runner::Runner;
use super::source::Source;

/// Writes the ring at once and whenever it changes, until SIGTERM or SIGINT.
///
/// # Errors
/// If the keys cannot be had or written at the start. Later both are tried again each second.
pub(super) fn run(
    source: &Source,
    target: &Target,
    exec: Option<String>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a worker")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
        let mut watch = Watch::start(source, target, exec)?;
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
                _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
                _ = ticks.tick() => watch.tick(),
            }
        }
    })
}

struct Watch<'a> {
    source: &'a Source,
    target: &'a Target,
    /// The last ring that could be had: time goes on without its source.
    ring: Ring,
    runner: Option<Runner>,
    /// What was last complained of, so that each complaint is logged once.
    complaint: Option<String>,
}

impl<'a> Watch<'a> {
    /// The server may have read anything before, so the command is due at the start.
    fn start(source: &'a Source, target: &'a Target, exec: Option<String>) -> anyhow::Result<Self> {
        let ring = source.read(now())?;
        target.write(&ring, now())?;
        info!("{} holds the keys as they are in {source}", target.path().display());
        Ok(Self { source, target, ring, runner: exec.map(Runner::due), complaint: None })
    }

    fn tick(&mut self) {
        let mut complaints = Vec::new();
        match self.source.read(now()) {
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
        self.complain(complaints);
    }

    /// Logs what is news. Numbers in it change with the time and make no news.
    fn complain(&mut self, complaints: Vec<String>) {
        let text = complaints.join("; ");
        let news = text.replace(|c: char| c.is_ascii_digit(), "");
        if !news.is_empty() && self.complaint.as_ref() != Some(&news) {
            warn!("{text}");
        }
        self.complaint = Some(news);
    }
}
