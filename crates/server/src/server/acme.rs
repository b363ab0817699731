//! Certificates from an ACME authority: ordered and renewed in the background, and installed in the
//! newest snapshot.
//!
//! A manager of `firstflight-certificates` orders certificates and stores them on disk. A newly
//! issued certificate replaces the one in the snapshot, as a reload does with a changed certificate
//! file. Sessions and connections continue.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use firstflight_certificates::acme::{AcmeConfig, CertificateState, ChallengeResponses, Manager};
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
use crate::context::{ShutdownStage, wait_for_stage};
use crate::handler::acme_challenge::AcmeChallenges;

/// ACME certificates, for as long as the process lives.
pub(crate) struct AcmeCertificates {
    responses: ChallengeResponses,
    store: SharedCertificateStore,
    metrics: Arc<Metrics>,
    /// The certificates and the state of their orders.
    states: ArcSwap<Vec<CertificateState>>,
    managed: Mutex<Option<ManagedCertificates>>,
}

/// The ACME settings and certificate names of a configuration.
#[derive(Clone, PartialEq)]
struct WantedCertificates {
    config: AcmeConfig,
    names: Vec<Vec<String>>,
}

/// How a new configuration changes the ACME certificates.
pub(crate) enum CertificateChange {
    /// Nothing changes.
    None,
    /// Another manager takes over. `None`: there are no ACME certificates any more.
    Replace(Option<Box<OpenManager>>),
}

/// A manager that has restored certificates from disk and has not contacted the authority yet.
pub(crate) struct OpenManager {
    wanted: WantedCertificates,
    manager: Manager<SharedCertificateStore>,
    states: watch::Receiver<Vec<CertificateState>>,
}

impl AcmeCertificates {
    /// `store`: shared by the nodes of a cluster.
    ///
    /// # Errors
    /// [`ServerError::KeyEncryption`].
    pub(crate) fn new(
        config: &ServerConfig,
        store: Option<&Store>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ServerError> {
        Ok(Self {
            responses: ChallengeResponses::new(),
            store: SharedCertificateStore::new(&config.tickets.keys, store)?,
            metrics: metrics.clone(),
            states: ArcSwap::default(),
            managed: Mutex::default(),
        })
    }

    /// The state of the certificate for these names.
    pub(crate) fn state(&self, names: &[String]) -> Option<CertificateState> {
        self.states.load().iter().find(|state| state.names == names).cloned()
    }

    /// The responses to the authority's challenges.
    pub(crate) fn challenges(&self) -> AcmeChallenges {
        AcmeChallenges::new(self.responses.clone(), self.metrics.clone())
    }

    /// The states of all certificates.
    pub(crate) fn states(&self) -> Arc<Vec<CertificateState>> {
        self.states.load_full()
    }

    /// Opens a manager if the configuration needs a new one. Reads files as the user that the
    /// process runs as.
    ///
    /// # Errors
    /// [`ServerError::Acme`].
    pub(crate) async fn open(
        &self,
        config: &ServerConfig,
    ) -> Result<CertificateChange, ServerError> {
        let wanted = wanted_certificates(config);
        let current = self.managed.lock().await.as_ref().map(|managed| managed.wanted.clone());
        if wanted == current {
            return Ok(CertificateChange::None);
        }
        let Some(wanted) = wanted else { return Ok(CertificateChange::Replace(None)) };
        let WantedCertificates { config, names } = wanted.clone();
        let (responses, store) = (self.responses.clone(), self.store.clone());
        let open = move || Manager::new(config, names, responses, store);
        let manager = tokio::task::spawn_blocking(open).await;
        let manager = manager.map_err(|error| ServerError::Interrupted(error.to_string()))??;
        let states = manager.watch();
        Ok(CertificateChange::Replace(Some(Box::new(OpenManager { wanted, manager, states }))))
    }

    /// The states of all certificates after a change.
    pub(crate) fn states_after(&self, change: &CertificateChange) -> Arc<Vec<CertificateState>> {
        match change {
            CertificateChange::None => self.states(),
            CertificateChange::Replace(None) => Arc::default(),
            CertificateChange::Replace(Some(opened)) => Arc::new(opened.states.borrow().clone()),
        }
    }
}

/// The certificates that a configuration wants from an authority, if any.
fn wanted_certificates(config: &ServerConfig) -> Option<WantedCertificates> {
    let names = config.acme_names();
    let acme = config.acme.clone().filter(|_| !names.is_empty())?;
    Some(WantedCertificates { config: acme, names })
}

impl Server {
    /// Restores the certificates that were issued earlier and installs them.
    ///
    /// Call this as the user that the process runs as: that user renews them.
    ///
    /// # Errors
    /// [`ServerError::Acme`].
    pub async fn restore_certificates(&self) -> Result<(), ServerError> {
        let config = self.state.config.lock().await.clone();
        let change = self.state.acme.open(&config).await?;
        self.state.replace_manager(change).await;
        self.state.install_issued().await
    }
}

impl ServerState {
    /// Each site's installed certificate, with the state of its order.
    pub(crate) fn certificates(&self) -> Vec<SiteCertificate> {
        let mut certificates = self.shared.snapshot().certificates.clone();
        for certificate in &mut certificates {
            if let CertificateSource::Acme(state) = &mut certificate.source {
                **state = self.acme.state(&certificate.names).unwrap_or_default();
            }
        }
        certificates
    }

    /// Installs certificates that were issued since the snapshot was built. Nothing else changes.
    ///
    /// # Errors
    /// [`ServerError`]: an issued certificate is unusable. The previous ones stay installed.
    pub(crate) async fn install_issued(self: &Arc<Self>) -> Result<(), ServerError> {
        let config = self.config.lock().await;
        let (before, states) = (self.shared.snapshot(), self.acme.states());
        if before.certificates.iter().all(|installed| newer(&states, installed).is_none()) {
            return Ok(());
        }
        let (state, unchanged) = (self.clone(), config.clone());
        let renew = move || state.builder.with_issued(&before, &unchanged, &states);
        let renewed = tokio::task::spawn_blocking(renew).await;
        let snapshot = renewed.map_err(|error| ServerError::Interrupted(error.to_string()))??;
        self.quic_ports.apply_config(snapshot.quic.as_ref(), &config.http3);
        snapshot.start();
        self.shared.snapshot.store(Arc::new(snapshot));
        Ok(())
    }
}

/// A manager that is open or running.
struct ManagedCertificates {
    wanted: WantedCertificates,
    stage: ManagerState,
}

enum ManagerState {
    /// Has not contacted the authority yet: it validates over connections, which the server does
    /// not accept yet.
    Open(Box<OpenManager>),
    Running {
        /// Stops the manager when it is dropped.
        stop: oneshot::Sender<()>,
        manager: JoinHandle<()>,
        follower: JoinHandle<()>,
    },
}

impl ServerState {
    /// Replaces the manager. A reload first builds a snapshot with the certificates that the new
    /// manager has restored ([`AcmeCertificates::states_after`]).
    pub(crate) async fn replace_manager(self: &Arc<Self>, change: CertificateChange) {
        let CertificateChange::Replace(opened) = change else { return };
        let mut managed = self.acme.managed.lock().await;
        if let Some(before) = managed.take() {
            before.stop().await;
        }
        let states = opened.as_ref().map(|opened| opened.states.borrow().clone());
        self.acme.states.store(Arc::new(states.unwrap_or_default()));
        let Some(opened) = opened else { return };
        log_certificates(&opened);
        let wanted = opened.wanted.clone();
        let is_serving = *self.serving.borrow();
        let stage = match is_serving {
            true => self.start_manager(*opened),
            false => ManagerState::Open(opened),
        };
        *managed = Some(ManagedCertificates { wanted, stage });
    }

    /// Starts ordering. Call this once connections are accepted.
    pub(crate) async fn start_acme_orders(self: &Arc<Self>) {
        let mut managed = self.acme.managed.lock().await;
        if let Some(ManagedCertificates { wanted, stage }) = managed.take() {
            let stage = match stage {
                ManagerState::Open(opened) => self.start_manager(*opened),
                running => running,
            };
            *managed = Some(ManagedCertificates { wanted, stage });
        }
    }

    /// Stops ordering. An unfinished order is left to the next process.
    pub(crate) async fn stop_acme_orders(&self) {
        if let Some(managed) = self.acme.managed.lock().await.take() {
            managed.stop().await;
        }
    }

    fn start_manager(self: &Arc<Self>, opened: OpenManager) -> ManagerState {
        let OpenManager { manager, states, .. } = opened;
        let (stop, ended) = oneshot::channel::<()>();
        let mut stage = self.shared.shutdown.subscribe();
        let manager = tokio::spawn(manager.run(async move {
            tokio::select! {
                _ = ended => {}
                () = wait_for_stage(&mut stage, ShutdownStage::Announced) => {}
            }
        }));
        let follower = tokio::spawn(follow(self.clone(), states));
        ManagerState::Running { stop, manager, follower }
    }
}

impl ManagedCertificates {
    async fn stop(self) {
        let ManagerState::Running { stop, manager, follower } = self.stage else { return };
        // First, because the caller may hold the lock on the configuration, which the follower
        // waits for.
        follower.abort();
        drop(stop);
        if timeout(MANAGER_STOP_TIMEOUT, manager).await.is_err() {
            warn!("an ACME order did not stop in time; it is abandoned");
        }
    }
}

/// Installs the certificates that a manager publishes, until the manager ends.
async fn follow(state: Arc<ServerState>, mut states: watch::Receiver<Vec<CertificateState>>) {
    let mut stage = state.shared.shutdown.subscribe();
    let mut failure = None;
    loop {
        let current = states.borrow_and_update().clone();
        state.acme.states.store(Arc::new(current));
        let installed = state.install_issued().await;
        let error = installed.as_ref().err().map(ToString::to_string);
        if let (Some(error), true) = (&error, error != failure) {
            warn!("{error}; the previous certificates stay in use until that is fixed");
        }
        failure = error;
        let continues = async {
            match installed {
                Ok(()) => states.changed().await.is_ok(),
                Err(_) => !matches!(timeout(RETRY_INTERVAL, states.changed()).await, Ok(Err(_))),
            }
        };
        let continues = tokio::select! {
            continues = continues => continues,
            () = wait_for_stage(&mut stage, ShutdownStage::Abort) => false,
        };
        if !continues {
            return;
        }
    }
}

fn log_certificates(opened: &OpenManager) {
    for state in &*opened.states.borrow() {
        let names = state.names.join(", ");
        match &state.issued {
            Some(_) => info!("{names}: using the certificate on disk"),
            None => warn!(
                "{names}: there is no certificate yet; until {} has issued one, clients see a \
                 self-signed certificate that they do not trust",
                opened.wanted.config.directory
            ),
        }
    }
}

/// How long a manager has to stop; it needs three seconds at most.
const MANAGER_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between attempts to build a snapshot, for example while another file is unusable.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
