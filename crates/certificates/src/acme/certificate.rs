//! One certificate of a manager, and what is known of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::acme::clock::when;
use crate::acme::plan::{History, Severity, Window, next_try};
use crate::acme::state::StoredCertificate;
use crate::acme::{AcmeError, Attempts, CertificateState, IssuanceFailure, Issued, Phase};

pub(crate) struct Certificate {
    pub(crate) names: Vec<String>,
    pub(crate) issued: Option<Arc<Issued>>,
    pub(crate) history: History,
    /// The authority looks whether the names lead here. What fails from then on, it may count.
    pub(crate) looked: AtomicBool,
    /// What the authority suggests for the one that is held.
    pub(crate) suggested: Option<Window>,
    /// When it is requested that.
    pub(crate) ask_window: Instant,
    pub(crate) phase: Phase,
    /// Not to be looked at before, as another process or node is at it.
    pub(crate) hold: Option<Instant>,
    /// Since when it is at it.
    pub(crate) elsewhere: Option<Instant>,
    pub(crate) tries: Attempts,
    /// What came of the last order is not on disk yet.
    pub(crate) unsaved: bool,
}

impl Certificate {
    pub(crate) fn restored(
        names: Vec<String>,
        kept: StoredCertificate,
        now: i64,
        ask_window: Instant,
    ) -> Self {
        let mut it = Self {
            names,
            issued: None,
            history: History::default(),
            looked: false.into(),
            suggested: None,
            ask_window,
            phase: Phase::Waiting,
            hold: None,
            elsewhere: None,
            tries: Attempts::default(),
            unsaved: false,
        };
        it.take_history(kept.history);
        if let Some(issued) = kept.issued {
            it.warn_of_clock(&issued, now);
            it.issued = Some(Arc::new(issued));
        }
        it
    }

    /// What the files have by now: another process may have asked. Says whether there is another
    /// certificate.
    pub(crate) fn read_again(&mut self, kept: StoredCertificate) -> bool {
        // Unless a disk that cannot be written has an older one.
        if kept.history.begun.is_some() || kept.history.latest() >= self.history.latest() {
            self.take_history(kept.history);
        }
        kept.issued.is_some_and(|issued| self.take_better(issued))
    }

    fn take_history(&mut self, history: History) {
        let seed = [history.seed, self.history.seed].into_iter().find(|seed| *seed != 0);
        self.history = History { seed: seed.unwrap_or_else(rand::random), ..history };
    }

    /// Takes a certificate of somebody else if it is better; says whether it was.
    pub(crate) fn take_better(&mut self, issued: Issued) -> bool {
        let better = self.issued.as_ref().is_none_or(|held| issued.is_better_than(held));
        if better {
            self.issued = Some(Arc::new(issued));
            self.suggested = None;
            self.tries.taken_up += 1;
        }
        better
    }

    /// What is known of tries when one failed by this.
    pub(crate) fn after(&self, error: &AcmeError, now: i64) -> History {
        let looked = self.looked.load(Relaxed);
        let severity = if looked { Severity::Refused } else { error.severity() };
        let mut history = self.history.clone();
        history.failure(now, severity, error.until(), error.to_string());
        history
    }

    /// Leaves an order that was started; says whether it failed by that.
    pub(crate) fn leave(&mut self, now: i64) -> bool {
        self.history.looked = self.looked.load(Relaxed);
        self.history.leave(now)
    }

    /// When it is to be requested.
    pub(crate) fn next(&self, now: i64) -> i64 {
        next_try(now, self.validity(), self.suggested, &self.history).max(now)
    }

    pub(crate) fn is_due(&self, now: i64) -> bool {
        self.next(now) <= now
    }

    /// Whether waiting for a store that is away would cost the site its certificate.
    pub(crate) fn is_urgent(&self, now: i64) -> bool {
        self.validity().is_some_and(|held| now > held.end - (held.end - held.start) / 12)
    }

    /// Whether a lease of others has lasted longer than any order does, and no more can be waited
    /// for: somebody may have spoiled it.
    pub(crate) fn waited_enough(&self, now: i64) -> bool {
        let waited = self.elsewhere.is_some_and(|since| since.elapsed() > MAX_LEASES);
        waited && (self.whole().is_none() || self.is_urgent(now))
    }

    /// What is held, if it is for all names.
    pub(crate) fn whole(&self) -> Option<&Arc<Issued>> {
        self.issued.as_ref().filter(|issued| issued.names == self.names)
    }

    pub(crate) fn validity(&self) -> Option<Window> {
        self.whole().map(|issued| issued.validity())
    }

    pub(crate) fn state(&self, now: i64) -> CertificateState {
        let failed = self.history.last_failure();
        let trouble = |(row, reason): (crate::acme::plan::Row, String)| IssuanceFailure {
            at: row.at,
            reason,
            in_a_row: row.times,
        };
        CertificateState {
            names: self.names.clone(),
            issued: self.issued.clone(),
            phase: self.phase,
            next_try: (self.phase == Phase::Waiting).then(|| self.next(now)),
            last_success: self.history.succeeded,
            last_error: failed.zip(self.history.reason.clone()).map(trouble),
            tries: self.tries,
        }
    }

    /// Certificates are usually dated back an hour, so one of the future is a clock that is behind.
    pub(crate) fn warn_of_clock(&self, issued: &Issued, now: i64) {
        if issued.not_before > now + 3600 {
            let (from, now) = (when(issued.not_before), when(now));
            warn!(
                "{}: valid from {from} on, but it is {now}: look at this machine's clock",
                self.names[0]
            );
        } else if issued.not_after <= now {
            let until = when(issued.not_after);
            warn!(
                "{}: the certificate expired at {until}, and is served until there is another",
                self.names[0]
            );
        }
    }
}

/// Some leases of other nodes in a row, each for a site of theirs.
const MAX_LEASES: Duration = Duration::from_secs(30 * 60);
