//! What the process is told from outside.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use firstflight::lifecycle::{Notice, Notifier};
use firstflight_server::ServerHandle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Signals, and the passing of time.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    ticks: Interval,
}

/// What to do.
pub(super) enum Event {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
    /// SIGUSR1.
    ReopenLogs,
    /// SIGUSR2.
    Upgrade,
    /// A second has passed.
    Look,
}

impl Signals {
    /// From now on none of them ends the process.
    ///
    /// # Errors
    /// The system's.
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

    /// The next one.
    pub(super) async fn next(&mut self) -> Event {
        tokio::select! {
            _ = self.terminate.recv() => Event::Stop,
            _ = self.interrupt.recv() => Event::Stop,
            _ = self.hangup.recv() => Event::Reload,
            _ = self.user1.recv() => Event::ReopenLogs,
            _ = self.user2.recv() => Event::Upgrade,
            _ = self.ticks.tick() => Event::Look,
        }
    }
    /// The next that says to stop. The others wait.
    pub(super) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }
}

/// How the process is told to stop, whatever else it does.
pub(super) struct Termination {
    server: ServerHandle,
    notifier: Arc<Notifier>,
    begun: bool,
}

impl Termination {
    pub(super) fn new(server: ServerHandle, notifier: Arc<Notifier>) -> Self {
        Self { server, notifier, begun: false }
    }

    /// The first time with patience, the second at once.
    pub(super) fn stop(&mut self) {
        if self.begun {
            return self.server.stop_now();
        }
        self.begun = true;
        self.notifier.say(&[Notice::Stopping, Notice::Status("stopping")]);
        self.server.stop();
    }

    /// Does some work to its end, and hears meanwhile if the process is to stop. `told`: what the
    /// work has to know of it.
    pub(super) async fn heed<T>(
        &mut self,
        signals: &mut Signals,
        work: impl Future<Output = T>,
        told: impl Fn(),
    ) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                outcome = &mut work => return outcome,
                () = signals.stop() => {
                    told();
                    self.stop();
                }
            }
        }
    }
}
