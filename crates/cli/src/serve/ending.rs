//! The process' end, which is heeded whatever else goes on.

use std::pin::pin;
use std::sync::Arc;

use firstflight::lifecycle::{Notice, Notifier};
use firstflight_server::ServerHandle;

use super::signals::Signals;

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
