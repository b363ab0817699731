//! Certificates from an authority: kept valid beside the connections, and shown by the newest
//! snapshot.
//!
//! A manager of `firstflight-acme` asks for them and keeps them on disk. What it publishes is put in
//! the place of the snapshot, as a reload does with a certificate file that has changed: sessions
//! and connections go on. The answers to the authority's questions are looked up by `redirect`,
//! `service` and the TLS of all listeners.

use std::sync::Arc;

use arc_swap::ArcSwap;
use firstflight_certificates::acme::{AcmeConfig, Answers, CertificateState, Issued, Manager};
use firstflight_config::ServerConfig;
use firstflight_store::Store;
use firstflight_telemetry::metrics::Metrics;
use tokio::sync::{Mutex, watch};

use crate::ServerError;
use crate::certificates::store::SharedCertificateStore;
pub(crate) use crate::handler::acme_challenge::end_question;
use crate::server::certificates::ManagedCertificates;

/// Certificates from an authority, as long as the process lives.
pub(crate) struct Acme {
    pub(crate) answers: Answers,
    pub(crate) shelf: SharedCertificateStore,
    pub(crate) metrics: Arc<Metrics>,
    /// What there is, and what is done about it.
    pub(crate) states: ArcSwap<Vec<CertificateState>>,
    pub(crate) keeper: Mutex<Option<ManagedCertificates>>,
}

/// What a configuration wants of an authority.
#[derive(Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) config: AcmeConfig,
    pub(crate) names: Vec<Vec<String>>,
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
    pub(crate) wanted: Wanted,
    pub(crate) manager: Manager<SharedCertificateStore>,
    pub(crate) states: watch::Receiver<Vec<CertificateState>>,
}

impl Acme {
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
            answers: Answers::new(),
            shelf: SharedCertificateStore::new(&config.tickets.keys, store)?,
            metrics: metrics.clone(),
            states: ArcSwap::default(),
            keeper: Mutex::default(),
        })
    }

    /// What is known of the certificate for these names.
    pub(crate) fn state(&self, names: &[String]) -> Option<CertificateState> {
        self.states.load().iter().find(|state| state.names == names).cloned()
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
        let kept = self.keeper.lock().await.as_ref().map(|keeper| keeper.wanted.clone());
        if wanted == kept {
            return Ok(Change::None);
        }
        let Some(wanted) = wanted else { return Ok(Change::To(None)) };
        let Wanted { config, names } = wanted.clone();
        let (answers, shelf) = (self.answers.clone(), self.shelf.clone());
        let open = move || Manager::new(config, names, answers, shelf);
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

/// The certificate for these names, if it has been issued.
pub(crate) fn issued<'a>(
    states: &'a [CertificateState],
    names: &[String],
) -> Option<&'a Arc<Issued>> {
    states.iter().find(|state| state.names == names)?.issued.as_ref()
}
