//! Signals: what they request, and the shutdown that SIGTERM and SIGINT start.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use firstflight::lifecycle::{Notice, Notifier};
use firstflight_server::ServerHandle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Receives signals, and ticks once a second.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    ticks: Interval,
}

/// What the process has to do.
pub(super) enum Event {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
    /// SIGUSR1.
    ReopenLogs,
    /// SIGUSR2.
    Upgrade,
    /// Once a second.
    Tick,
}

impl Signals {
    /// Catches the signals, so that they no longer end the process.
    ///
    /// # Errors
    /// If a handler cannot be installed.
    pub(super) fn catch() -> anyhow::Result<Self> {
        let catch = |kind, name| signal(kind).with_context(|| format!("cannot catch {name}"));
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            terminate: catch(SignalKind::terminate(), "SIGTERM")?,
            interrupt: catch(SignalKind::interrupt(), "SIGINT")?,
            hangup: catch(SignalKind::hangup(), "SIGHUP")?,
            user1: catch(SignalKind::user_defined1(), "SIGUSR1")?,
            user2: catch(SignalKind::user_defined2(), "SIGUSR2")?,
            ticks,
        })
    }

    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> Event {
        tokio::select! {
            _ = self.terminate.recv() => Event::Stop,
            _ = self.interrupt.recv() => Event::Stop,
            _ = self.hangup.recv() => Event::Reload,
            _ = self.user1.recv() => Event::ReopenLogs,
            _ = self.user2.recv() => Event::Upgrade,
            _ = self.ticks.tick() => Event::Tick,
        }
    }

    /// Waits for a signal that stops the process. Other signals stay queued.
    pub(super) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }
}

/// Stops the server: gracefully at the first signal, immediately at the second.
pub(super) struct Shutdown {
    server: ServerHandle,
    notifier: Arc<Notifier>,
    started: bool,
}

impl Shutdown {
    pub(super) fn new(server: ServerHandle, notifier: Arc<Notifier>) -> Self {
        Self { server, notifier, started: false }
    }

    /// Starts draining, or stops immediately if draining has already started.
    pub(super) fn stop(&mut self) {
        if self.started {
            return self.server.stop_now();
        }
        self.started = true;
        self.notifier.notify(&[Notice::Stopping, Notice::Status("stopping")]);
        self.server.stop();
    }

    /// Completes `work`, and handles stop signals meanwhile. `on_stop` tells the work about them.
    pub(super) async fn complete<T>(
        &mut self,
        signals: &mut Signals,
        work: impl Future<Output = T>,
        on_stop: impl Fn(),
    ) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                outcome = &mut work => return outcome,
                () = signals.stop() => {
                    on_stop();
                    self.stop();
                }
            }
        }
    }
}
