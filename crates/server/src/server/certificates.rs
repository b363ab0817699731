//! Certificates from an authority: kept valid beside the connections, and shown by the newest
//! snapshot.
//!
//! A manager of `firstflight-certificates` orders them and keeps them on disk. What it publishes takes the
//! place of the certificates in the snapshot, as a reload does with a certificate file that has
//! changed: sessions and connections go on.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use firstflight_certificates::acme::{AcmeConfig, Answers, CertificateState, Manager};
use firstflight_config::ServerConfig;
use firstflight_store::Store;
use firstflight_telemetry::metrics::Metrics;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{info, warn};

use super::{Server, ServerState};
use crate::ServerError;
use crate::certificates::store::SharedCertificateStore;
use crate::certificates::{CertificateSource, SiteCertificate, newer};
use crate::context::{Stop, stopped};
use crate::handler::acme_challenge::AcmeChallenges;

/// Certificates from an authority, as long as the process lives.
pub(crate) struct AcmeCertificates {
    responses: Answers,
    shelf: SharedCertificateStore,
    metrics: Arc<Metrics>,
    /// What there is, and what is done about it.
    states: ArcSwap<Vec<CertificateState>>,
    managed: Mutex<Option<ManagedCertificates>>,
}

/// What a configuration wants of an authority.
#[derive(Clone, PartialEq)]
struct Wanted {
    config: AcmeConfig,
    names: Vec<Vec<String>>,
}

/// What another configuration means for the certificates.
pub(crate) enum Change {
    /// They are kept as before.
    None,
    /// By these from now on, or no longer by any.
    To(Option<Box<Opened>>),
}

/// A manager that has restored what it could, and asks nobody yet.
pub(crate) struct Opened {
    wanted: Wanted,
    manager: Manager<SharedCertificateStore>,
    states: watch::Receiver<Vec<CertificateState>>,
}

impl AcmeCertificates {
    /// `store`: what nodes share, where the configuration has it.
    ///
    /// # Errors
    /// [`ServerError::KeyEncryption`].
    pub(crate) fn new(
        config: &ServerConfig,
        store: Option<&Store>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ServerError> {
        Ok(Self {
            responses: Answers::new(),
            shelf: SharedCertificateStore::new(&config.tickets.keys, store)?,
            metrics: metrics.clone(),
            states: ArcSwap::default(),
            managed: Mutex::default(),
        })
    }

    /// What is known of the certificate for these names.
    pub(crate) fn state(&self, names: &[String]) -> Option<CertificateState> {
        self.states.load().iter().find(|state| state.names == names).cloned()
    }

    /// Responses to the authority's challenges.
    pub(crate) fn challenges(&self) -> AcmeChallenges {
        AcmeChallenges::new(self.responses.clone(), self.metrics.clone())
    }

    /// All that is known.
    pub(crate) fn states(&self) -> Arc<Vec<CertificateState>> {
        self.states.load_full()
    }

    /// Opens what a configuration needs and what is not open yet. Reads files, as the user that the
    /// process has become.
    ///
    /// # Errors
    /// [`ServerError::Acme`].
    pub(crate) async fn open(&self, config: &ServerConfig) -> Result<Change, ServerError> {
        let wanted = wanted(config);
        let kept = self.managed.lock().await.as_ref().map(|managed| managed.wanted.clone());
        if wanted == kept {
            return Ok(Change::None);
        }
        let Some(wanted) = wanted else { return Ok(Change::To(None)) };
        let Wanted { config, names } = wanted.clone();
        let (responses, shelf) = (self.responses.clone(), self.shelf.clone());
        let open = move || Manager::new(config, names, responses, shelf);
        let manager = tokio::task::spawn_blocking(open).await;
        let manager = manager.map_err(|error| ServerError::Interrupted(error.to_string()))??;
        let states = manager.watch();
        Ok(Change::To(Some(Box::new(Opened { wanted, manager, states }))))
    }

    /// The certificates that there are once a change is made.
    pub(crate) fn after(&self, change: &Change) -> Arc<Vec<CertificateState>> {
        match change {
            Change::None => self.states(),
            Change::To(None) => Arc::default(),
            Change::To(Some(opened)) => Arc::new(opened.states.borrow().clone()),
        }
    }
}

/// What a configuration wants of an authority; `None`: nothing.
fn wanted(config: &ServerConfig) -> Option<Wanted> {
    let names = config.acme_names();
    let acme = config.acme.clone().filter(|_| !names.is_empty())?;
    Some(Wanted { config: acme, names })
}

impl Server {
    /// Reads the certificates that an authority has issued before, and has them shown. To be called
    /// as the user that the process runs as, once it is that: they are renewed by that user.
    ///
    /// # Errors
    /// [`ServerError::Acme`].
    pub async fn restore_certificates(&self) -> Result<(), ServerError> {
        let config = self.state.config.lock().await.clone();
        let change = self.state.acme.open(&config).await?;
        self.state.keep_certificates(change).await;
        self.state.show_certificates().await
    }
}

impl ServerState {
    /// The certificates that are shown, with what is done about them now.
    pub(crate) fn certificates(&self) -> Vec<SiteCertificate> {
        let mut certificates = self.shared.snapshot().certificates.clone();
        for one in &mut certificates {
            if let CertificateSource::Acme(state) = &mut one.source {
                **state = self.acme.state(&one.names).unwrap_or_default();
            }
        }
        certificates
    }

    /// Shows what an authority has issued by now, if it is not shown yet. All else stays as it is.
    ///
    /// # Errors
    /// [`ServerError`]: what was issued is of no use. What was shown before is shown on.
    pub(crate) async fn show_certificates(self: &Arc<Self>) -> Result<(), ServerError> {
        let config = self.config.lock().await;
        let (before, states) = (self.shared.snapshot(), self.acme.states());
        if before.certificates.iter().all(|one| newer(&states, one).is_none()) {
            return Ok(());
        }
        let (state, same) = (self.clone(), config.clone());
        let renew = move || state.builder.with_issued(&before, &same, &states);
        let renewed = tokio::task::spawn_blocking(renew).await;
        let snapshot = renewed.map_err(|error| ServerError::Interrupted(error.to_string()))??;
        self.quic_ports.take_up(snapshot.quic.as_ref(), &config.http3);
        snapshot.begin();
        self.shared.snapshot.store(Arc::new(snapshot));
        Ok(())
    }
}

/// A manager that is open, or runs.
struct ManagedCertificates {
    wanted: Wanted,
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

impl ServerState {
    /// Keeps certificates by a change from now on. The snapshot that shows what it has restored
    /// is made before, from [`AcmeCertificates::after`].
    pub(crate) async fn keep_certificates(self: &Arc<Self>, change: Change) {
        let Change::To(opened) = change else { return };
        let mut managed = self.acme.managed.lock().await;
        if let Some(before) = managed.take() {
            before.end().await;
        }
        let states = opened.as_ref().map(|opened| opened.states.borrow().clone());
        self.acme.states.store(Arc::new(states.unwrap_or_default()));
        let Some(opened) = opened else { return };
        log_certificates(&opened);
        let wanted = opened.wanted.clone();
        let stage = match *self.serving.borrow() {
            true => self.run(*opened),
            false => Stage::Open(opened),
        };
        *managed = Some(ManagedCertificates { wanted, stage });
    }

    /// Connections are accepted: what is missing or old is requested from now on.
    pub(crate) async fn start_orders(self: &Arc<Self>) {
        let mut managed = self.acme.managed.lock().await;
        if let Some(ManagedCertificates { wanted, stage }) = managed.take() {
            let stage = match stage {
                Stage::Open(opened) => self.run(*opened),
                runs => runs,
            };
            *managed = Some(ManagedCertificates { wanted, stage });
        }
    }

    /// Asks no more. An order that is under way is left to the next process.
    pub(crate) async fn stop_orders(&self) {
        if let Some(managed) = self.acme.managed.lock().await.take() {
            managed.end().await;
        }
    }

    fn run(self: &Arc<Self>, opened: Opened) -> Stage {
        let Opened { manager, states, .. } = opened;
        let (end, ended) = oneshot::channel::<()>();
        let mut stop = self.shared.shutdown.subscribe();
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
        if timeout(ORDER_END_TIMEOUT, manager).await.is_err() {
            warn!("an order at the authority does not end; it is left as it is");
        }
    }
}

/// Takes note of what a manager publishes, and has the newest certificates shown, until the manager
/// has ended.
async fn follow(state: Arc<ServerState>, mut states: watch::Receiver<Vec<CertificateState>>) {
    let mut stop = state.shared.shutdown.subscribe();
    let mut failure = None;
    loop {
        let now = states.borrow_and_update().clone();
        state.acme.states.store(Arc::new(now));
        let shown = state.show_certificates().await;
        let error = shown.as_ref().err().map(ToString::to_string);
        if let (Some(error), true) = (&error, error != failure) {
            warn!("{error}; the certificates of before are shown until that is fixed");
        }
        failure = error;
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

fn log_certificates(opened: &Opened) {
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
const ORDER_END_TIMEOUT: Duration = Duration::from_secs(5);

/// After a snapshot could not be made, because some other file is of no use just now.
const RETRY: Duration = Duration::from_secs(10);
