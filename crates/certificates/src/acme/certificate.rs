//! A certificate of the manager, its state, and when it is due.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use firstflight_tls::{Identity, TlsError};
use tokio::time::Instant;
use tracing::warn;
use zeroize::Zeroizing;

use crate::acme::AcmeError;
use crate::acme::format_time;
use crate::acme::schedule::{History, Severity, Window, next_attempt};

/// A certificate that an authority issued, with its key.
pub struct IssuedCertificate {
    /// The names it covers: all of its site, or only some while a name that was added has no
    /// certificate yet.
    pub names: Vec<String>,
    /// The chain as PEM, leaf first.
    pub chain: String,
    /// The leaf's private key, PKCS #8 in PEM.
    pub key: Zeroizing<String>,
    /// Start of validity, in Unix seconds.
    pub not_before: i64,
    /// End of validity, in Unix seconds.
    pub not_after: i64,
}

/// The state of one certificate of a manager.
#[derive(Clone, Debug, Default)]
pub struct CertificateState {
    /// The names of the site.
    pub names: Vec<String>,
    /// The certificate to serve, or `None` if there is none yet.
    pub issued: Option<Arc<IssuedCertificate>>,
    /// What is being done.
    pub phase: Phase,
    /// When the next order is attempted, in Unix seconds; `None` during an order.
    pub next_attempt: Option<i64>,
    /// When a certificate was last issued, in Unix seconds; of one that was adopted from another
    /// node, the start of its validity.
    pub last_success: Option<i64>,
    /// The last failure, unless an order succeeded since.
    pub last_error: Option<IssuanceFailure>,
    /// Attempts since the process started.
    pub attempts: Attempts,
}

/// What is being done about a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing until the next attempt.
    #[default]
    Waiting,
    /// This process is ordering.
    Ordering,
    /// Another process or node is ordering.
    Elsewhere,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuanceFailure {
    /// When it failed, in Unix seconds.
    pub at: i64,
    /// What failed, and the fix, in one sentence.
    pub reason: String,
    /// The number of consecutive failures.
    pub consecutive: u32,
}

/// Attempts by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// A certificate was issued to this process.
    pub issued: u64,
    /// The order failed.
    pub failed: u64,
    /// A certificate of another process or node was adopted.
    pub adopted: u64,
}

impl IssuedCertificate {
    /// Checks that a chain matches this key and these names.
    pub(crate) fn accept(
        names: &[String],
        chain: &str,
        key: Zeroizing<String>,
    ) -> Result<Self, String> {
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes());
        let identity = identity.map_err(|error| error.to_string())?;
        if let Some(name) = names.iter().find(|name| !identity.covers(name)) {
            return Err(format!("the certificate is not for {name}"));
        }
        let times = identity.valid_from().zip(identity.expires()).filter(|(from, to)| from < to);
        let (not_before, not_after) = times.ok_or("the certificate has no validity period")?;
        Ok(Self { names: names.to_vec(), chain: chain.to_owned(), key, not_before, not_after })
    }

    /// Parses PEM text with the key before the chain.
    pub(crate) fn from_pem(names: &[String], text: &str) -> Result<Self, String> {
        let start = text.find(CERTIFICATE).ok_or("it has no certificate block")?;
        let (key, chain) = text.split_at(start);
        Self::accept(names, chain, Zeroizing::new(key.to_owned()))
    }

    /// Parses PEM text that was stored for other names, if it covers some of these.
    pub(crate) fn covering(names: &[String], text: &str) -> Option<Self> {
        let identity = Identity::from_pem(text.as_bytes(), text.as_bytes()).ok()?;
        let covered: Vec<_> = names.iter().filter(|name| identity.covers(name)).cloned().collect();
        if covered.is_empty() { None } else { Self::from_pem(&covered, text).ok() }
    }

    pub(crate) fn validity(&self) -> Window {
        Window { start: self.not_before, end: self.not_after }
    }

    /// Whether this certificate is preferred: it covers more names, or is newer. All nodes decide
    /// the same way.
    pub(crate) fn is_better_than(&self, other: &Self) -> bool {
        let rank = |it: &Self| (it.names.len(), it.not_before, it.not_after);
        (rank(self), &self.chain) > (rank(other), &other.chain)
    }

    /// Chain and key for the TLS library.
    ///
    /// # Errors
    /// [`TlsError`]; never for what a manager publishes, which was checked.
    pub fn identity(&self) -> Result<Identity, TlsError> {
        Identity::from_pem(self.chain.as_bytes(), self.key.as_bytes())
    }
}

impl fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedCertificate")
            .field("names", &self.names)
            .field("not_before", &self.not_before)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// A stored certificate and its history.
#[derive(Default)]
pub(crate) struct StoredCertificate {
    pub(crate) issued: Option<IssuedCertificate>,
    pub(crate) history: History,
}

/// A certificate that the manager renews.
pub(crate) struct ManagedCertificate {
    pub(crate) names: Vec<String>,
    pub(crate) issued: Option<Arc<IssuedCertificate>>,
    pub(crate) history: History,
    /// The authority has started to validate the names. A failure from then on may count against
    /// its limits.
    pub(crate) validation_started: AtomicBool,
    /// The renewal window that the authority suggests for the current certificate.
    pub(crate) suggested: Option<Window>,
    /// When to request the suggested window next.
    pub(crate) next_window_request: Instant,
    pub(crate) phase: Phase,
    /// No attempt before this time, because another process or node is ordering.
    pub(crate) paused_until: Option<Instant>,
    /// Since when another process or node has been ordering.
    pub(crate) elsewhere_since: Option<Instant>,
    pub(crate) attempts: Attempts,
    /// The result of the last order is not on disk yet.
    pub(crate) unsaved: bool,
}

impl ManagedCertificate {
    pub(crate) fn restored(
        names: Vec<String>,
        stored: StoredCertificate,
        now: i64,
        next_window_request: Instant,
    ) -> Self {
        let mut certificate = Self {
            names,
            issued: None,
            history: History::default(),
            validation_started: false.into(),
            suggested: None,
            next_window_request,
            phase: Phase::Waiting,
            paused_until: None,
            elsewhere_since: None,
            attempts: Attempts::default(),
            unsaved: false,
        };
        certificate.take_history(stored.history);
        if let Some(issued) = stored.issued {
            certificate.warn_of_clock(&issued, now);
            certificate.issued = Some(Arc::new(issued));
        }
        certificate
    }

    /// Takes over what another process may have written to disk. Returns whether there is a new
    /// certificate.
    pub(crate) fn reload(&mut self, stored: StoredCertificate) -> bool {
        // Memory is newer than the files if the disk could not be written.
        if stored.history.started.is_some() || stored.history.latest() >= self.history.latest() {
            self.take_history(stored.history);
        }
        stored.issued.is_some_and(|issued| self.adopt_if_better(issued))
    }

    fn take_history(&mut self, history: History) {
        let seed = [history.seed, self.history.seed].into_iter().find(|seed| *seed != 0);
        self.history = History { seed: seed.unwrap_or_else(rand::random), ..history };
    }

    /// Takes over a certificate of another process or node if it is better. Returns whether it was.
    pub(crate) fn adopt_if_better(&mut self, issued: IssuedCertificate) -> bool {
        let better = self.issued.as_ref().is_none_or(|current| issued.is_better_than(current));
        if better {
            self.issued = Some(Arc::new(issued));
            self.suggested = None;
            self.attempts.adopted += 1;
        }
        better
    }

    /// Returns the history after a failed attempt.
    pub(crate) fn history_after(&self, error: &AcmeError, now: i64) -> History {
        let validation_started = self.validation_started.load(Relaxed);
        let severity = if validation_started { Severity::Refused } else { error.severity() };
        let mut history = self.history.clone();
        history.failure(now, severity, error.retry_after(), error.to_string());
        history
    }

    /// Aborts an order that was started. Returns whether that counts as a failure.
    pub(crate) fn abort(&mut self, now: i64) -> bool {
        self.history.validation_started = self.validation_started.load(Relaxed);
        self.history.abort(now)
    }

    /// When to attempt the next order.
    pub(crate) fn next(&self, now: i64) -> i64 {
        next_attempt(now, self.validity(), self.suggested, &self.history).max(now)
    }

    pub(crate) fn is_due(&self, now: i64) -> bool {
        self.next(now) <= now
    }

    /// Whether waiting for an unreachable store could let the certificate expire.
    pub(crate) fn is_urgent(&self, now: i64) -> bool {
        self.validity()
            .is_some_and(|current| now > current.end - (current.end - current.start) / 12)
    }

    /// Whether the lease of another node has lasted longer than any order does. Its record may be
    /// broken, so this node orders without it if the site needs a certificate.
    pub(crate) fn lease_is_overdue(&self, now: i64) -> bool {
        let waited = self.elsewhere_since.is_some_and(|since| since.elapsed() > MAX_LEASE_WAIT);
        waited && (self.complete().is_none() || self.is_urgent(now))
    }

    /// The current certificate, if it covers all names.
    pub(crate) fn complete(&self) -> Option<&Arc<IssuedCertificate>> {
        self.issued.as_ref().filter(|issued| issued.names == self.names)
    }

    pub(crate) fn validity(&self) -> Option<Window> {
        self.complete().map(|issued| issued.validity())
    }

    pub(crate) fn state(&self, now: i64) -> CertificateState {
        let last_failure = self.history.last_failure();
        let last_error = last_failure.zip(self.history.reason.clone()).map(|(failures, reason)| {
            IssuanceFailure { at: failures.at, reason, consecutive: failures.count }
        });
        CertificateState {
            names: self.names.clone(),
            issued: self.issued.clone(),
            phase: self.phase,
            next_attempt: (self.phase == Phase::Waiting).then(|| self.next(now)),
            last_success: self.history.last_success,
            last_error,
            attempts: self.attempts,
        }
    }

    /// Warns about a certificate that is not valid now. Certificates are usually backdated by an
    /// hour, so a future one means that the local clock is behind.
    pub(crate) fn warn_of_clock(&self, issued: &IssuedCertificate, now: i64) {
        if issued.not_before > now + 3600 {
            let (from, now) = (format_time(issued.not_before), format_time(now));
            warn!(
                "{}: the certificate is valid from {from}, but the time is {now}; check this machine's clock",
                self.names[0]
            );
        } else if issued.not_after <= now {
            let until = format_time(issued.not_after);
            warn!(
                "{}: the certificate expired at {until}; it is served until there is a new one",
                self.names[0]
            );
        }
    }
}

/// Long enough for a few leases of other nodes in a row, one for each of their sites.
const MAX_LEASE_WAIT: Duration = Duration::from_secs(30 * 60);

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
