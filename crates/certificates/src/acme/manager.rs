//! The loop that renews certificates: it orders those that are due and adopts those of other nodes.

mod nodes;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::acme::account::MIN_RENEWAL_INTERVAL;
use crate::acme::certificate::ManagedCertificate;
use crate::acme::names::certificate_names;
use crate::acme::order::OrderRequest;
use crate::acme::schedule::{ORDER_TIMEOUT, choose_challenges};
use crate::acme::sharing::NodeSharing;
use crate::acme::storage::blocking;
use crate::acme::storage::{Lock, StateDirectory};
use crate::acme::{
    AcmeConfig, AcmeError, CertificateState, ChallengeResponses, IssuedCertificate, Phase,
    SharedRecords, account,
};
use crate::acme::{format_time, now};

/// Obtains and renews certificates, one for each list of names.
pub struct Manager<S: SharedRecords> {
    task: RenewalTask<S>,
}

impl<S: SharedRecords> Manager<S> {
    /// Opens the state directory, creating it if necessary, and restores the stored certificates:
    /// [`Manager::watch`] has them at once. Blocks on files. Call it as the user that the process
    /// will run as.
    ///
    /// # Errors
    /// As [`AcmeConfig::check`]; [`AcmeError::Names`] for names that no certificate can be issued
    /// for; [`AcmeError::StateDirectory`] for a directory or a file in it that cannot be used. A damaged
    /// file is not an error: it is renamed with a warning, and a new certificate is ordered.
    pub fn new(
        config: AcmeConfig,
        certificates: Vec<Vec<String>>,
        responses: ChallengeResponses,
        records: S,
    ) -> Result<Self, AcmeError> {
        config.check()?;
        let names = certificates.iter().map(|names| certificate_names(names));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let state = StateDirectory::open(&config.state, &config.directory)?;
        let sharing =
            records.is_shared().then(|| Arc::new(NodeSharing::new(records, &config.directory)));
        let task = RenewalTask::restore(config, state, responses, sharing, names, now())?;
        Ok(Self { task })
    }

    /// The certificates and their states, in the order in which they were passed to
    /// [`Manager::new`]. Names are in lower case, each once.
    pub fn watch(&self) -> watch::Receiver<Vec<CertificateState>> {
        self.task.watch()
    }

    /// Renews certificates until `stop` completes. An order under way is then aborted and its
    /// responses are withdrawn. The next process may order at once, unless the authority has
    /// started to validate: that counts as a failure. Returns within three seconds of `stop`.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) {
        tokio::select! {
            () = stop => {}
            () = self.task.run() => {}
        }
        self.task.abort().await;
    }
}

pub(crate) struct RenewalTask<S> {
    config: AcmeConfig,
    state: StateDirectory,
    responses: ChallengeResponses,
    /// `None` for a single node.
    sharing: Option<Arc<NodeSharing<S>>>,
    certificates: Vec<ManagedCertificate>,
    states: watch::Sender<Vec<CertificateState>>,
    /// Held while an order is under way, and until its result is on disk.
    lock: Option<Lock>,
    /// When to read the certificates of other nodes next.
    next_exchange: Instant,
    /// Another node has completed an order.
    order_completed: Arc<Notify>,
}

impl<S: SharedRecords> RenewalTask<S> {
    pub(crate) fn restore(
        config: AcmeConfig,
        state: StateDirectory,
        responses: ChallengeResponses,
        sharing: Option<Arc<NodeSharing<S>>>,
        names: Vec<Vec<String>>,
        now: i64,
    ) -> Result<Self, AcmeError> {
        // After startup, and spread over the nodes.
        let next_window_request = |index: u64| {
            Instant::now() + Duration::from_secs(60 + 10 * index + rand::random_range(0..600))
        };
        let certificates: Vec<_> = (0..)
            .zip(names)
            .map(|(index, names)| {
                let stored = state.certificate(&names, now)?;
                Ok(ManagedCertificate::restored(names, stored, now, next_window_request(index)))
            })
            .collect::<Result<_, AcmeError>>()?;
        let states = certificates.iter().map(|it| it.state(now)).collect();
        let (states, _) = watch::channel(states);
        let (next_exchange, order_completed) = (Instant::now(), Arc::default());
        let lock = None;
        Ok(Self {
            config,
            state,
            responses,
            sharing,
            certificates,
            states,
            lock,
            next_exchange,
            order_completed,
        })
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Vec<CertificateState>> {
        self.states.subscribe()
    }

    /// Runs forever.
    pub(crate) async fn run(&mut self) {
        let follow = nodes::follow(
            self.sharing.clone(),
            self.responses.clone(),
            self.order_completed.clone(),
        );
        tokio::join!(follow, async {
            loop {
                self.step().await;
            }
        });
    }

    /// Aborts the order under way, so that the next process may start at once. If the authority has
    /// started to validate, it is too late: the order counts as failed.
    pub(crate) async fn abort(&mut self) {
        let now = now();
        let mut failed = None;
        for (index, certificate) in self.certificates.iter_mut().enumerate() {
            if certificate.phase == Phase::Ordering {
                failed = certificate.abort(now).then_some(index);
                certificate.unsaved = true;
            }
        }
        if let Some(sharing) = &self.sharing {
            let released = timeout(RELEASE_TIMEOUT, self.release_lease(sharing, failed)).await;
            debug!("released the lease: {released:?}");
        }
        self.save_unsaved().await;
        self.lock = None;
        let _ = self.responses.serve_for_others(&[]);
    }

    /// Orders one certificate that is due, or pauses.
    async fn step(&mut self) {
        if self.sharing.is_some() && self.next_exchange <= Instant::now() {
            self.next_exchange = Instant::now() + EXCHANGE_INTERVAL;
            for index in 0..self.certificates.len() {
                if let Err(error) = self.exchange(index).await {
                    debug!("cannot read the certificates of other nodes: {error}");
                }
            }
        }
        self.request_windows().await;
        let (now, instant) = (now(), Instant::now());
        for certificate in &mut self.certificates {
            certificate.history.correct_clock(now);
        }
        let due = self
            .certificates
            .iter()
            .position(|it| it.is_due(now) && it.paused_until.is_none_or(|until| until <= instant));
        match due {
            Some(index) => self.attempt(index).await,
            None => {
                self.save_unsaved().await;
                self.publish();
                let order_completed = self.order_completed.clone();
                tokio::select! {
                    () = sleep(self.pause(now, instant)) => {}
                    () = order_completed.notified() => self.next_exchange = Instant::now(),
                }
            }
        }
    }

    fn pause(&self, now: i64, instant: Instant) -> Duration {
        let until_next = |it: &ManagedCertificate| {
            let due = Duration::from_secs(u64::try_from(it.next(now) - now).unwrap_or(0));
            due.max(it.paused_until.map_or(Duration::ZERO, |until| until - instant))
        };
        // The wall clock may jump, which a sleep does not notice.
        self.certificates.iter().map(until_next).min().unwrap_or(MAX_SLEEP).min(MAX_SLEEP)
    }

    /// Orders a certificate, unless another process or node does or did.
    async fn attempt(&mut self, index: usize) {
        let result = match self.state.lock() {
            Ok(Some(lock)) => {
                self.lock = Some(lock);
                self.order(index).await
            }
            Ok(None) => {
                self.defer(index);
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            self.record_failure(index, &error).await;
        }
        self.lock = None;
        self.publish();
    }

    async fn order(&mut self, index: usize) -> Result<(), AcmeError> {
        self.reload(index).await?;
        let now = now();
        let certificate = &mut self.certificates[index];
        if certificate.history.started.is_some() {
            certificate.history.recover(now);
            self.save_history(index).await?;
        }
        if !self.certificates[index].is_due(now) {
            return Ok(());
        }
        let Some(sharing) = self.sharing.clone() else {
            return self.place_order(index, None).await;
        };
        match sharing.lease().await {
            Ok(true) => {
                self.certificates[index].elsewhere_since = None;
                let result = self.order_for_all(index, &sharing).await;
                if let Err(error) = sharing.release().await {
                    debug!("cannot release the lease, it will expire: {error}");
                }

                result
            }
            Ok(false) if self.certificates[index].lease_is_overdue(now) => {
                warn!(
                    "{}: ordering without the lease: another node has held it for too long",
                    self.name(index)
                );
                self.place_order(index, None).await
            }
            Ok(false) => {
                self.defer(index);
                Ok(())
            }
            Err(error) if self.certificates[index].is_urgent(now) => {
                warn!("{}: ordering without the lease: {error}", self.name(index));
                self.place_order(index, None).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Orders a certificate, and stores it.
    async fn place_order(
        &mut self,
        index: usize,
        sharing: Option<&Arc<NodeSharing<S>>>,
    ) -> Result<(), AcmeError> {
        let certificate = &mut self.certificates[index];
        certificate.history.started = Some(now());
        certificate.validation_started = false.into();
        certificate.phase = Phase::Ordering;
        (certificate.paused_until, certificate.elsewhere_since) = (None, None);
        // Without a record on disk a process that crashes here would order again and again.
        self.save_history(index).await?;
        self.publish();
        let certificate = &self.certificates[index];
        debug!("{}: ordering from {}", certificate.names[0], self.config.directory);
        let replaced = certificate.complete().filter(|_| certificate.suggested.is_some());
        let ordering = OrderRequest {
            config: &self.config,
            state: &self.state,
            responses: &self.responses,
            sharing: sharing.map(AsRef::as_ref),
            names: &certificate.names,
            replaces: replaced.and_then(|issued| account::certificate_id(issued)),
            challenge_plan: choose_challenges(&self.config.challenges, &certificate.history),
            history: &certificate.history,
            validation_started: &certificate.validation_started,
        };
        let issued = timeout(ORDER_TIMEOUT, ordering.certificate()).await;
        let issued = issued.unwrap_or_else(|_| {
            Err(AcmeError::AuthorityFailure {
                host: self.config.directory.to_string(),
                detail: format!("the order took longer than {:?}", ORDER_TIMEOUT),
                retry_after: None,
            })
        })?;
        self.record_issued(index, issued).await;
        Ok(())
    }

    async fn record_issued(&mut self, index: usize, issued: IssuedCertificate) {
        let (now, issued) = (now(), Arc::new(issued));
        let certificate = &mut self.certificates[index];
        certificate.warn_of_clock(&issued, now);
        certificate.issued = Some(issued.clone());
        certificate.suggested = None;
        certificate.next_window_request = Instant::now() + EXCHANGE_INTERVAL;
        certificate.history.success(now);
        certificate.phase = Phase::Waiting;
        certificate.attempts.issued += 1;
        certificate.unsaved = true;
        let (until, next) = (format_time(issued.not_after), format_time(certificate.next(now)));
        info!(
            "{}: certificate issued, valid until {until}, to be renewed at {next}",
            issued.names[0]
        );
        self.save_unsaved().await;
        self.publish();
    }

    async fn record_failure(&mut self, index: usize, error: &AcmeError) {
        let now = now();
        let certificate = &mut self.certificates[index];
        certificate.history = certificate.history_after(error, now);
        certificate.validation_started = false.into();
        certificate.phase = Phase::Waiting;
        certificate.attempts.failed += 1;
        let next = format_time(certificate.next(now));
        warn!("{}: no new certificate: {error}; next attempt at {next}", certificate.names[0]);
        if let Err(error) = self.save_history(index).await {
            warn!("cannot save the result of the order, it is lost at restart: {error}");
        }
    }

    /// Another process or node is ordering; checks again soon.
    fn defer(&mut self, index: usize) {
        let certificate = &mut self.certificates[index];
        certificate.phase = Phase::Elsewhere;
        certificate.paused_until = Some(Instant::now() + POLL_INTERVAL);
        certificate.elsewhere_since.get_or_insert_with(Instant::now);
    }

    async fn reload(&mut self, index: usize) -> Result<(), AcmeError> {
        let (state, names) = (self.state.clone(), self.certificates[index].names.clone());
        let stored = blocking(move || state.certificate(&names, now())).await?;
        self.certificates[index].phase = Phase::Waiting;
        if self.certificates[index].reload(stored) {
            info!("{}: adopted the certificate of another process", self.name(index));
        }
        Ok(())
    }

    /// Requests the renewal window that the authority suggests.
    async fn request_windows(&mut self) {
        let now = Instant::now();
        for certificate in &mut self.certificates {
            let Some(issued) = &certificate.issued else { continue };
            if certificate.next_window_request <= now {
                let requested = account::suggested_window(&self.config, &self.state, issued).await;
                debug!("{}: the authority suggests {requested:?}", certificate.names[0]);
                let next_request = match requested {
                    Ok((window, next_request)) => {
                        certificate.suggested = window;
                        next_request
                    }
                    // The earlier suggestion stays in effect until the authority can be reached.
                    Err(_) => MIN_RENEWAL_INTERVAL,
                };
                certificate.next_window_request = Instant::now() + next_request;
                break;
            }
        }
    }

    /// Saves certificates and histories that are not on disk yet. They are served meanwhile, and
    /// saving is retried.
    async fn save_unsaved(&mut self) {
        for index in 0..self.certificates.len() {
            if !self.certificates[index].unsaved {
                continue;
            }
            match self.save(index).await {
                Ok(()) => self.certificates[index].unsaved = false,
                Err(error) => warn!("{}: cannot save the certificate: {error}", self.name(index)),
            }
        }
    }

    async fn save(&self, index: usize) -> Result<(), AcmeError> {
        let (state, issued) = (self.state.clone(), self.certificates[index].complete().cloned());
        blocking(move || issued.map_or(Ok(()), |it| state.save_certificate(&it))).await?;
        self.save_history(index).await
    }

    async fn save_history(&self, index: usize) -> Result<(), AcmeError> {
        let certificate = &self.certificates[index];
        let (state, names) = (self.state.clone(), certificate.names.clone());
        let history = certificate.history.clone();
        blocking(move || state.save_history(&names, &history)).await
    }

    fn publish(&self) {
        let now = now();
        let states = self.certificates.iter().map(|it| it.state(now)).collect();
        self.states.send_replace(states);
    }

    fn name(&self, index: usize) -> &str {
        &self.certificates[index].names[0]
    }
}

/// How often a node reads the lease and the challenge responses of the others.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// How often a node reads the certificates of the others.
const EXCHANGE_INTERVAL: Duration = Duration::from_secs(60);

const MAX_SLEEP: Duration = Duration::from_secs(30);

/// Bounds the shutdown if the store cannot be reached.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
