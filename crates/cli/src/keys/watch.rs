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
