//! The life of certificates: restored, renewed, published.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use crate::acme::clock::now;
use crate::acme::keeper::RenewalTask;
use crate::acme::names::certificate_names;
use crate::acme::sharing::NodeSharing;
use crate::acme::state::State;
use crate::acme::{AcmeConfig, AcmeError, Answers, CertificateState, SharedRecords};

/// Keeps certificates valid: one for each list of names.
pub struct Manager<S: SharedRecords> {
    keeper: RenewalTask<S>,
}

impl<S: SharedRecords> Manager<S> {
    /// Opens the state on disk, making its directory if there is none, and restores what is there:
    /// [`Manager::watch`] has it at once. Blocks for the files. To be called as the user that the
    /// process will run as.
    ///
    /// # Errors
    /// As [`AcmeConfig::check`], [`AcmeError::Names`] for names that cannot be had,
    /// [`AcmeError::State`] for a directory that cannot be used, or a file in it that cannot be
    /// read. A damaged file is no error: it is set aside with a warning, and asked for again.
    pub fn new(
        config: AcmeConfig,
        certificates: Vec<Vec<String>>,
        answers: Answers,
        shelf: S,
    ) -> Result<Self, AcmeError> {
        config.check()?;
        let names = certificates.iter().map(|names| certificate_names(names));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let state = State::open(&config.state, &config.directory)?;
        let sharing =
            shelf.is_shared().then(|| Arc::new(NodeSharing::new(shelf, &config.directory)));
        let keeper = RenewalTask::restore(config, state, answers, sharing, names, now())?;
        Ok(Self { keeper })
    }

    /// The certificates in the order in which they were given to [`Manager::new`]: what there is,
    /// and what is done about it. Names are in lower case, each once.
    pub fn watch(&self) -> watch::Receiver<Vec<CertificateState>> {
        self.keeper.watch()
    }

    /// Keeps them valid until `stop`. An order under way is then left, its responses are taken
    /// away, and the next process may order at once, unless the authority looks already: that has
    /// failed. Ends within three seconds of `stop`.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) {
        tokio::select! {
            () = stop => {}
            () = self.keeper.keep() => {}
        }
        self.keeper.leave().await;
    }
}
