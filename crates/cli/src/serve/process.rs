//! The serving process: signals, changed files, and its end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use firstflight_config::ServerConfig;
use firstflight_lifecycle::Files;
use firstflight_server::{Server, ServerHandle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{error, info};

use super::sentence;

/// Where the configuration comes from, at the start and again at each reload.
pub(super) struct Source {
    /// The configuration file, if there is one.
    pub(super) file: Option<PathBuf>,
    /// Reads it, and puts flags and environment above it.
    pub(super) read: Box<dyn Fn() -> anyhow::Result<ServerConfig> + Send + Sync>,
}

/// Serves until it is told to stop, inside a tokio runtime. `config`: as it was read from `source`
/// at the start, when `files` were taken up.
///
/// # Errors
/// Why it could not start.
pub(super) async fn serve(source: Source, first: First) -> anyhow::Result<ExitCode> {
    // Caught from before the ready line on, which is when others may send them.
    let signals = Signals::catch()?;
    let First { config, files } = first;
    let watching = config.process.watch;
    let server = Server::bind(config).await.map_err(sentence)?;
    let process = Process { server: server.handle(), source: Arc::new(source), files, watching };
    let following = tokio::spawn(process.follow(signals));
    server.run(std::future::pending()).await;
    following.abort();
    Ok(ExitCode::SUCCESS)
}

/// A configuration and the state of its files before they were read.
pub(super) struct First {
    pub(super) config: ServerConfig,
    files: Files,
}

impl Source {
    /// Reads the configuration for the first time.
    ///
    /// # Errors
    /// One sentence with the mend.
    pub(super) fn first(&self) -> anyhow::Result<First> {
        let mut files = Files::new(self.file.clone());
        let config = (self.read)()?;
        files.watch(self.file.iter().cloned().chain(config.files()));
        Ok(First { config, files })
    }
}

/// What acts on a server from outside.
struct Process {
    server: ServerHandle,
    source: Arc<Source>,
    files: Files,
    watching: bool,
}

impl Process {
    async fn follow(mut self, mut signals: Signals) {
        let mut stopping = false;
        loop {
            match signals.next().await {
                Event::Stop if stopping => self.server.stop_now(),
                Event::Stop => {
                    stopping = true;
                    self.server.stop();
                }
                Event::Reload => {
                    self.server.reopen_access_log();
                    self.reload("SIGHUP").await;
                }
                Event::ReopenLogs => {
                    self.server.reopen_access_log();
                    info!("access log opened again");
                }
                Event::Look => {
                    if self.watching && self.files.have_changed() {
                        self.reload("files have changed").await;
                    }
                }
            }
        }
    }

    /// Takes up the configuration as it is now, or says why not and stays.
    async fn reload(&mut self, why: &str) {
        self.files.take_up();
        match self.try_reload().await {
            Ok(()) => {
                let number = self.server.status().generation;
                info!("{why}: configuration {number} is in use");
            }
            Err(error) => error!("{why}: {error}; the configuration in use stays"),
        }
    }

    async fn try_reload(&mut self) -> anyhow::Result<()> {
        let source = self.source.clone();
        let read = tokio::task::spawn_blocking(move || (source.read)()).await;
        let config = match read.context("the configuration could not be read").and_then(|read| read)
        {
            Ok(config) => config,
            Err(error) => {
                self.server.reload_failed(&error.to_string());
                return Err(error);
            }
        };
        // Also those of a configuration that will be refused: that is mended in one of them.
        self.files.watch(self.source.file.iter().cloned().chain(config.files()));
        let watching = config.process.watch;
        self.server.reload(config).await.map_err(sentence)?;
        self.watching = watching;
        Ok(())
    }
}

/// What the process is told.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: Signal,
    ticks: Interval,
}

enum Event {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
    /// SIGUSR1.
    ReopenLogs,
    /// A second has passed.
    Look,
}

impl Signals {
    fn catch() -> anyhow::Result<Self> {
        let catch = |kind, name| signal(kind).with_context(|| format!("cannot catch {name}"));
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            terminate: catch(SignalKind::terminate(), "SIGTERM")?,
            interrupt: catch(SignalKind::interrupt(), "SIGINT")?,
            hangup: catch(SignalKind::hangup(), "SIGHUP")?,
            user: catch(SignalKind::user_defined1(), "SIGUSR1")?,
            ticks,
        })
    }

    async fn next(&mut self) -> Event {
        tokio::select! {
            _ = self.terminate.recv() => Event::Stop,
            _ = self.interrupt.recv() => Event::Stop,
            _ = self.hangup.recv() => Event::Reload,
            _ = self.user.recv() => Event::ReopenLogs,
            _ = self.ticks.tick() => Event::Look,
        }
    }
}
