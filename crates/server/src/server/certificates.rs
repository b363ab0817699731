//! A manager beside the server: begun, followed, ended.

use std::sync::Arc;
use std::time::Duration;

use firstflight_certificates::acme::CertificateState;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::certificates::acme::Change;
use crate::certificates::acme::Opened;
use crate::certificates::acme::Wanted;
use crate::http::connection::stopped;
use crate::server::{Shared, Stop};

/// A manager that is open, or runs.
pub(crate) struct ManagedCertificates {
    pub(crate) wanted: Wanted,
    stage: Stage,
}

enum Stage {
    /// Asks nobody yet: the server does not accept connections, by which the authority would come.
    Open(Box<Opened>),
    Runs {
        /// Dropped, the manager ends.
        end: oneshot::Sender<()>,
        manager: JoinHandle<()>,
        follower: JoinHandle<()>,
    },
}

impl Shared {
    /// Keeps certificates by a change from now on. The snapshot that shows what it has restored
    /// is made before, from [`crate::certificates::acme::Acme::after`].
    pub(crate) async fn keep_certificates(self: &Arc<Self>, change: Change) {
        let Change::To(opened) = change else { return };
        let mut keeper = self.acme.keeper.lock().await;
        if let Some(before) = keeper.take() {
            before.end().await;
        }
        let states = opened.as_ref().map(|opened| opened.states.borrow().clone());
        self.acme.states.store(Arc::new(states.unwrap_or_default()));
        let Some(opened) = opened else { return };
        say_what_is_missing(&opened);
        let wanted = opened.wanted.clone();
        let stage = match *self.serving.borrow() {
            true => self.run(*opened),
            false => Stage::Open(opened),
        };
        *keeper = Some(ManagedCertificates { wanted, stage });
    }

    /// Connections are accepted: what is missing or old is asked for from now on.
    pub(crate) async fn begin_to_ask(self: &Arc<Self>) {
        let mut keeper = self.acme.keeper.lock().await;
        if let Some(ManagedCertificates { wanted, stage }) = keeper.take() {
            let stage = match stage {
                Stage::Open(opened) => self.run(*opened),
                runs => runs,
            };
            *keeper = Some(ManagedCertificates { wanted, stage });
        }
    }

    /// Asks no more. An order that is under way is left to the next process.
    pub(crate) async fn end_asking(&self) {
        if let Some(keeper) = self.acme.keeper.lock().await.take() {
            keeper.end().await;
        }
    }

    fn run(self: &Arc<Self>, opened: Opened) -> Stage {
        let Opened { manager, states, .. } = opened;
        let (end, ended) = oneshot::channel::<()>();
        let mut stop = self.stopping();
        let manager = tokio::spawn(manager.run(async move {
            tokio::select! {
                _ = ended => {}
                () = stopped(&mut stop, Stop::Announced) => {}
            }
        }));
        let follower = tokio::spawn(follow(self.clone(), states));
        Stage::Runs { end, manager, follower }
    }
}

impl ManagedCertificates {
    async fn end(self) {
        let Stage::Runs { end, manager, follower } = self.stage else { return };
        // First, because a reload waits here and has what the follower may wait for.
        follower.abort();
        drop(end);
        if timeout(LAST_WORDS, manager).await.is_err() {
            warn!("an order at the authority does not end; it is left as it is");
        }
    }
}

/// Takes note of what a manager publishes, and has the newest certificates shown, until the manager
/// has ended.
async fn follow(shared: Arc<Shared>, mut states: watch::Receiver<Vec<CertificateState>>) {
    let mut stop = shared.stopping();
    let mut trouble = None;
    loop {
        let now = states.borrow_and_update().clone();
        shared.acme.states.store(Arc::new(now));
        let shown = shared.show_certificates().await;
        let error = shown.as_ref().err().map(ToString::to_string);
        if let (Some(error), true) = (&error, error != trouble) {
            warn!("{error}; the certificates of before are shown until that is mended");
        }
        trouble = error;
        let goes_on = async {
            match shown {
                Ok(()) => states.changed().await.is_ok(),
                Err(_) => !matches!(timeout(RETRY, states.changed()).await, Ok(Err(_))),
            }
        };
        let goes_on = tokio::select! {
            goes_on = goes_on => goes_on,
            () = stopped(&mut stop, Stop::Now) => false,
        };
        if !goes_on {
            return;
        }
    }
}

fn say_what_is_missing(opened: &Opened) {
    for state in &*opened.states.borrow() {
        let names = state.names.join(", ");
        match &state.issued {
            Some(_) => info!("{names}: the certificate on disk is shown"),
            None => warn!(
                "{names}: there is no certificate yet; until {} has issued one, clients are shown a \
                 self-signed one that none of them trusts",
                opened.wanted.config.directory
            ),
        }
    }
}

/// For a manager to leave its order, which takes it three seconds at most.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// After a snapshot could not be made, because some other file is of no use just now.
const RETRY: Duration = Duration::from_secs(10);
