//! The loop around the rules: what is due is requested, what others have is taken up.

mod nodes;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::acme::blocking::blocking;
use crate::acme::certificate::Certificate;
use crate::acme::clock::{now, when};
use crate::acme::order::{self, Ordering};
use crate::acme::plan::turns;
use crate::acme::sharing::NodeSharing;
use crate::acme::state::{Lock, State};
use crate::acme::{
    AcmeConfig, AcmeError, Answers, CertificateState, Issued, Phase, SharedRecords, renewal,
};

pub(crate) struct RenewalTask<S> {
    config: AcmeConfig,
    state: State,
    answers: Answers,
    /// `None`: there are no other nodes.
    sharing: Option<Arc<NodeSharing<S>>>,
    certificates: Vec<Certificate>,
    published: watch::Sender<Vec<CertificateState>>,
    /// Held while the authority is asked, and until what came of it is on disk.
    lock: Option<Lock>,
    /// When the shelf is looked at for certificates of others.
    look: Instant,
    /// Another node has ended an order.
    news: Arc<Notify>,
}

impl<S: SharedRecords> RenewalTask<S> {
    pub(crate) fn restore(
        config: AcmeConfig,
        state: State,
        answers: Answers,
        sharing: Option<Arc<NodeSharing<S>>>,
        names: Vec<Vec<String>>,
        now: i64,
    ) -> Result<Self, AcmeError> {
        // Not at the start, when more urgent things are to be done, and not all nodes at once.
        let ask_window = |index: u64| {
            Instant::now() + Duration::from_secs(60 + 10 * index + rand::random_range(0..600))
        };
        let certificates: Vec<_> = (0..)
            .zip(names)
            .map(|(index, names)| {
                let kept = state.certificate(&names, now)?;
                Ok(Certificate::restored(names, kept, now, ask_window(index)))
            })
            .collect::<Result<_, AcmeError>>()?;
        let states = certificates.iter().map(|it| it.state(now)).collect();
        let (published, _) = watch::channel(states);
        let (look, news) = (Instant::now(), Arc::default());
        let lock = None;
        Ok(Self { config, state, answers, sharing, certificates, published, lock, look, news })
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Vec<CertificateState>> {
        self.published.subscribe()
    }

    /// Never ends.
    pub(crate) async fn keep(&mut self) {
        let follow = nodes::follow(self.sharing.clone(), self.answers.clone(), self.news.clone());
        tokio::join!(follow, async {
            loop {
                self.step().await;
            }
        });
    }

    /// What was started is taken back, so that the next process may start at once. Where the
    /// authority looks already, that is too late: it has failed.
    pub(crate) async fn leave(&mut self) {
        let now = now();
        let mut failed = None;
        for (index, certificate) in self.certificates.iter_mut().enumerate() {
            if certificate.phase == Phase::Ordering {
                failed = certificate.leave(now).then_some(index);
                certificate.unsaved = true;
            }
        }
        if let Some(sharing) = &self.sharing {
            let released = timeout(LEAVE, self.give_back(sharing, failed)).await;
            debug!("the lease was given back: {released:?}");
        }
        self.save_unsaved().await;
        self.lock = None;
        let _ = self.answers.stand_in(&[]);
    }

    /// One certificate that is due, or a pause.
    async fn step(&mut self) {
        if self.sharing.is_some() && self.look <= Instant::now() {
            self.look = Instant::now() + LOOK_AT_SHELF;
            for index in 0..self.certificates.len() {
                if let Err(error) = self.exchange(index).await {
                    debug!("certificates of other nodes cannot be looked at: {error}");
                }
            }
        }
        self.ask_windows().await;
        let (now, ready) = (now(), Instant::now());
        for certificate in &mut self.certificates {
            certificate.history.turn_back(now);
        }
        let due = self
            .certificates
            .iter()
            .position(|it| it.is_due(now) && it.hold.is_none_or(|until| until <= ready));
        match due {
            Some(index) => self.attempt(index).await,
            None => {
                self.save_unsaved().await;
                self.publish();
                let news = self.news.clone();
                tokio::select! {
                    () = sleep(self.pause(now, ready)) => {}
                    () = news.notified() => self.look = Instant::now(),
                }
            }
        }
    }

    fn pause(&self, now: i64, ready: Instant) -> Duration {
        let of = |it: &Certificate| {
            let due = Duration::from_secs(u64::try_from(it.next(now) - now).unwrap_or(0));
            due.max(it.hold.map_or(Duration::ZERO, |until| until - ready))
        };
        // The clock may jump, and whoever sleeps does not see it.
        self.certificates.iter().map(of).min().unwrap_or(MAX_SLEEP).min(MAX_SLEEP)
    }

    /// Asks the authority for a certificate, unless somebody else does or did.
    async fn attempt(&mut self, index: usize) {
        let held = match self.state.lock() {
            Ok(Some(lock)) => {
                self.lock = Some(lock);
                self.order(index).await
            }
            Ok(None) => {
                self.elsewhere(index);
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = held {
            self.failed(index, &error).await;
        }
        self.lock = None;
        self.publish();
    }

    async fn order(&mut self, index: usize) -> Result<(), AcmeError> {
        self.read_again(index).await?;
        let now = now();
        let certificate = &mut self.certificates[index];
        if certificate.history.begun.is_some() {
            certificate.history.mend(now);
            self.save_history(index).await?;
        }
        if !self.certificates[index].is_due(now) {
            return Ok(());
        }
        let Some(sharing) = self.sharing.clone() else {
            return self.ask(index, None).await;
        };
        match sharing.lease().await {
            Ok(true) => {
                self.certificates[index].elsewhere = None;
                let asked = self.order_for_all(index, &sharing).await;
                if let Err(error) = sharing.release().await {
                    debug!("the lease ends by itself: {error}");
                }
                asked
            }
            Ok(false) if self.certificates[index].waited_enough(now) => {
                warn!("{}: asked for without the other nodes: one never ends", self.name(index));
                self.ask(index, None).await
            }
            Ok(false) => {
                self.elsewhere(index);
                Ok(())
            }
            Err(error) if self.certificates[index].is_urgent(now) => {
                warn!("{}: asked for without the other nodes: {error}", self.name(index));
                self.ask(index, None).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the authority, and keeps what it gives.
    async fn ask(
        &mut self,
        index: usize,
        sharing: Option<&Arc<NodeSharing<S>>>,
    ) -> Result<(), AcmeError> {
        let certificate = &mut self.certificates[index];
        certificate.history.begun = Some(now());
        certificate.looked = false.into();
        certificate.phase = Phase::Ordering;
        (certificate.hold, certificate.elsewhere) = (None, None);
        // An order that cannot be kept on disk would be made again and again.
        self.save_history(index).await?;
        self.publish();
        let certificate = &self.certificates[index];
        debug!("{}: asking {}", certificate.names[0], self.config.directory);
        let known = certificate.whole().filter(|_| certificate.suggested.is_some());
        let ordering = Ordering {
            config: &self.config,
            state: &self.state,
            answers: &self.answers,
            sharing: sharing.map(AsRef::as_ref),
            names: &certificate.names,
            replaces: known.and_then(|issued| renewal::identifier(issued)),
            turns: turns(&self.config.challenges, &certificate.history),
            history: &certificate.history,
            looked: &certificate.looked,
        };
        let issued = timeout(order::ORDER_TIMEOUT, ordering.certificate()).await;
        let issued = issued.unwrap_or_else(|_| {
            Err(AcmeError::InTrouble {
                host: self.config.directory.to_string(),
                said: format!("the order took longer than {:?}", order::ORDER_TIMEOUT),
                until: None,
            })
        })?;
        self.issued(index, issued).await;
        Ok(())
    }

    async fn issued(&mut self, index: usize, issued: Issued) {
        let (now, issued) = (now(), Arc::new(issued));
        let certificate = &mut self.certificates[index];
        certificate.warn_of_clock(&issued, now);
        certificate.issued = Some(issued.clone());
        certificate.suggested = None;
        certificate.ask_window = Instant::now() + LOOK_AT_SHELF;
        certificate.history.success(now);
        certificate.phase = Phase::Waiting;
        certificate.tries.issued += 1;
        certificate.unsaved = true;
        let (until, next) = (when(issued.not_after), when(certificate.next(now)));
        info!("{}: certificate issued, valid until {until}, renewed at {next}", issued.names[0]);
        self.save_unsaved().await;
        self.publish();
    }

    async fn failed(&mut self, index: usize, error: &AcmeError) {
        let now = now();
        let certificate = &mut self.certificates[index];
        certificate.history = certificate.after(error, now);
        certificate.looked = false.into();
        certificate.phase = Phase::Waiting;
        certificate.tries.failed += 1;
        let next = when(certificate.next(now));
        warn!("{}: no new certificate: {error}; next try at {next}", certificate.names[0]);
        if let Err(error) = self.save_history(index).await {
            warn!("what came of asking for a certificate is forgotten at the end: {error}");
        }
    }

    /// Somebody else asks; to be looked at again soon.
    fn elsewhere(&mut self, index: usize) {
        let certificate = &mut self.certificates[index];
        certificate.phase = Phase::Elsewhere;
        certificate.hold = Some(Instant::now() + LOOK);
        certificate.elsewhere.get_or_insert_with(Instant::now);
    }

    async fn read_again(&mut self, index: usize) -> Result<(), AcmeError> {
        let (state, names) = (self.state.clone(), self.certificates[index].names.clone());
        let kept = blocking(move || state.certificate(&names, now())).await?;
        self.certificates[index].phase = Phase::Waiting;
        if self.certificates[index].read_again(kept) {
            info!("{}: another process had a certificate issued", self.name(index));
        }
        Ok(())
    }

    /// When the authority itself would renew.
    async fn ask_windows(&mut self) {
        let now = Instant::now();
        for certificate in &mut self.certificates {
            let Some(issued) = &certificate.issued else { continue };
            if certificate.ask_window <= now {
                let (window, again) = renewal::suggested(&self.config, &self.state, issued).await;
                debug!("{}: the authority suggests {window:?}", certificate.names[0]);
                certificate.suggested = window;
                certificate.ask_window = Instant::now() + again;
                break;
            }
        }
    }

    /// Certificates that are not on disk yet, and what came of asking for them. They are served all
    /// the same, and tried to be kept until they are.
    async fn save_unsaved(&mut self) {
        for index in 0..self.certificates.len() {
            if !self.certificates[index].unsaved {
                continue;
            }
            match self.save(index).await {
                Ok(()) => self.certificates[index].unsaved = false,
                Err(error) => warn!("{}: not kept on disk: {error}", self.name(index)),
            }
        }
    }

    async fn save(&self, index: usize) -> Result<(), AcmeError> {
        let (state, issued) = (self.state.clone(), self.certificates[index].whole().cloned());
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
        self.published.send_replace(states);
    }

    fn name(&self, index: usize) -> &str {
        &self.certificates[index].names[0]
    }
}

/// How often a node looks whether another asks or has something to be answered.
const LOOK: Duration = Duration::from_secs(2);

/// How often it looks for certificates that it has not heard of.
const LOOK_AT_SHELF: Duration = Duration::from_secs(60);

const MAX_SLEEP: Duration = Duration::from_secs(30);

/// For a store that is away when the process ends.
const LEAVE: Duration = Duration::from_secs(2);
