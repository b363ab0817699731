//! When to order: rules without a clock, as functions of the time, the certificate and the history.
//! Times are Unix seconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::acme::ChallengeKind;

/// A time window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: i64,
    pub(crate) end: i64,
}

/// The outcome of the orders for one certificate so far. It is stored on disk, so that a process
/// that restarts again and again orders no more often than one that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct History {
    /// Selects this node's time within a window. Random, and constant for as long as the file
    /// exists.
    pub(crate) seed: u64,
    /// When an order was started whose outcome is unknown.
    #[serde(rename = "begun")]
    pub(crate) started: Option<i64>,
    /// The authority was told to validate in that order, which counts against its limits.
    #[serde(rename = "looked")]
    pub(crate) validation_started: bool,
    /// When the last certificate was issued; of an adopted one, the start of its validity.
    #[serde(rename = "succeeded")]
    pub(crate) last_success: Option<i64>,
    /// Refusals by the authority since then.
    pub(crate) refused: Option<Failures>,
    /// Failures since the authority was last reached.
    pub(crate) unreachable: Option<Failures>,
    /// The authority's `Retry-After`.
    #[serde(rename = "not_until")]
    pub(crate) retry_after: Option<i64>,
    /// The reason of the last failure since the last success.
    pub(crate) reason: Option<String>,
    /// The last refusals of another node that were merged, by that node's clock.
    #[serde(rename = "joined")]
    pub(crate) merged: Option<Failures>,
}

/// The challenges that an attempt may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChallengePlan {
    /// In order of use.
    pub(crate) kinds: Vec<ChallengeKind>,
    /// The maximum number of validations. A challenge that the authority does not offer uses none.
    pub(crate) max_validations: usize,
}

/// Consecutive failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Failures {
    #[serde(rename = "times")]
    pub(crate) count: u32,
    /// When the last one happened.
    pub(crate) at: i64,
}

/// Whether a failure counts as a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// The authority cannot be reached, or decided nothing: retry soon.
    Unreachable,
    /// The authority refused. Authorities limit these.
    Refused,
}

/// When to attempt the next order; a time in the past means now.
///
/// - a certificate is renewed after two thirds of its lifetime, or in the window that the authority
///   suggests (RFC 9773 section 4.2), each node at its own time within the window;
/// - never within a quarter of a lifetime of the last success, even with a wrong clock;
/// - after failures with exponential backoff, and never before the authority's `Retry-After`.
pub(crate) fn next_attempt(
    now: i64,
    current: Option<Window>,
    suggested: Option<Window>,
    history: &History,
) -> i64 {
    let due = current.map_or(i64::MIN, |current| due(current, suggested, history));
    let max = max_pause(now, current);
    let refused =
        history.refused.map(|failures| failures.next(MIN_REFUSED_PAUSE, max, history.seed));
    let unreachable =
        history.unreachable.map(|failures| failures.next(MIN_PAUSE, max / 6, history.seed));
    [refused, unreachable, history.retry_after].into_iter().flatten().fold(due, i64::max)
}

/// Chooses the challenges of the next attempt.
///
/// A failed validation uses one of the five that Let's Encrypt allows per name and hour. So only
/// the first attempt falls back at once; later attempts alternate.
pub(crate) fn choose_challenges(configured: &[ChallengeKind], history: &History) -> ChallengePlan {
    let mut kinds = configured.to_vec();
    let count = history.refused.map_or(0, |failures| failures.count as usize);
    kinds.rotate_left(count % configured.len().max(1));
    ChallengePlan { max_validations: if count == 0 { kinds.len() } else { 1 }, kinds }
}

fn due(current: Window, suggested: Option<Window>, history: &History) -> i64 {
    let lifetime = (current.end - current.start).max(1);
    let default =
        Window { start: current.start + lifetime / 3 * 2, end: current.start + lifetime / 4 * 3 };
    // RFC 9773 section 4.2: a window that does not end after its start is invalid.
    let suggested = suggested.filter(|window| window.start < window.end);
    let window = suggested.unwrap_or(default);
    let position = fraction(history.seed, current.start as u64);
    let chosen =
        window.start.saturating_add((position * (window.end - window.start) as f64) as i64);
    let chosen = chosen.min(current.end - lifetime / 12);
    let min_interval = if suggested.is_some() { (lifetime / 4).min(DAY) } else { lifetime / 4 };
    let min_interval = min_interval.max(MIN_PAUSE);
    history.last_success.map_or(chosen, |at| chosen.max(at + min_interval))
}

/// Attempts become more frequent as expiry approaches; without a valid certificate they are hourly.
fn max_pause(now: i64, current: Option<Window>) -> i64 {
    let left = current.map_or(0, |current| current.end - now);
    (left / 8).clamp(HOUR, DAY)
}

impl Failures {
    fn next(self, first: i64, max: i64, seed: u64) -> i64 {
        let doublings = self.count.saturating_sub(1).min(16);
        let pause = (first << doublings).min(max);
        let jitter = fraction(seed, self.at as u64 ^ u64::from(self.count) << 48);
        self.at + pause + (pause as f64 / 2.0 * jitter) as i64
    }

    fn increment(failures: Option<Self>, now: i64) -> Self {
        Self { count: failures.map_or(0, |failures| failures.count).saturating_add(1), at: now }
    }
}

impl History {
    /// Corrects times in the future, and counts an order during which the process died as a
    /// failure.
    pub(crate) fn recover(&mut self, now: i64) {
        if let Some(at) = self.started {
            let severity =
                if self.validation_started { Severity::Refused } else { Severity::Unreachable };
            self.failure(at, severity, self.retry_after, INTERRUPTED.to_owned());
        }
        self.correct_clock(now);
    }

    /// Counts an order that was aborted because the process ends. It is a failure only if the
    /// authority was told to validate, since its challenge responses end. Returns whether it is.
    pub(crate) fn abort(&mut self, now: i64) -> bool {
        let failed = self.started.take().is_some() && self.validation_started;
        if failed {
            self.failure(now, Severity::Refused, None, INTERRUPTED.to_owned());
        }
        self.validation_started = false;
        failed
    }

    /// Corrects times in the future. A wrong clock may have recorded them, and they would block all
    /// attempts until then.
    pub(crate) fn correct_clock(&mut self, now: i64) {
        for failures in [&mut self.refused, &mut self.unreachable].into_iter().flatten() {
            failures.at = failures.at.min(now);
        }
        self.last_success = self.last_success.map(|at| at.min(now));
        self.retry_after = self.retry_after.map(|at| at.min(now + MAX_RETRY_AFTER));
    }

    pub(crate) fn success(&mut self, now: i64) {
        let (seed, merged) = (self.seed, self.merged);
        *self = Self { seed, merged, last_success: Some(now), ..Self::default() };
    }

    /// Takes over a certificate of another node, which is valid from `start`. That time counts as
    /// the last success, not the time of adoption: a node that adopts it late still renews it in
    /// time.
    pub(crate) fn adopt(&mut self, start: i64, now: i64) {
        let at = self.last_success.map_or(start, |at| at.max(start));
        self.success(at.min(now));
    }

    /// Records a failed attempt. `retry_after` is the authority's `Retry-After`, in Unix seconds.
    pub(crate) fn failure(
        &mut self,
        now: i64,
        severity: Severity,
        retry_after: Option<i64>,
        reason: String,
    ) {
        (self.started, self.validation_started) = (None, false);
        match severity {
            Severity::Unreachable => {
                self.unreachable = Some(Failures::increment(self.unreachable, now));
            }
            Severity::Refused => {
                self.unreachable = None;
                self.refused = Some(Failures::increment(self.refused, now));
            }
        }
        // The `Retry-After` of an error page is honored for up to a day, that of a refusal for up
        // to the longest known limit.
        let max = if severity == Severity::Refused { MAX_RETRY_AFTER } else { DAY };
        self.retry_after = retry_after.map(|at| at.clamp(now, now + max));
        self.reason = Some(reason);
    }

    /// When the last success or failure happened.
    pub(crate) fn latest(&self) -> Option<i64> {
        self.last_success.max(self.last_failure().map(|failures| failures.at))
    }

    /// When the last failure happened, and the number of consecutive failures.
    pub(crate) fn last_failure(&self) -> Option<Failures> {
        let kinds = [self.refused, self.unreachable];
        let at = kinds.iter().flatten().map(|failures| failures.at).max()?;
        let count = kinds.iter().flatten().map(|failures| failures.count).sum();
        Some(Failures { count, at })
    }
}

/// A pseudo-random number from 0 to 1 for each seed and `salt` (splitmix64).
fn fraction(seed: u64, salt: u64) -> f64 {
    let mut mixed = seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
}

const INTERRUPTED: &str = "the process ended during an order";

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The first pause after a refusal; it doubles. Within an hour there are at most four failed
/// validations: two of the first attempt, and two more attempts. Five are allowed
/// (<https://letsencrypt.org/docs/rate-limits/>).
const MIN_REFUSED_PAUSE: i64 = 600;

/// The first pause after an unreachable authority, and the minimum interval between two
/// certificates, however short their lifetimes are.
const MIN_PAUSE: i64 = 5;

/// Maximum accepted `Retry-After`: the longest limit of Let's Encrypt is a week.
const MAX_RETRY_AFTER: i64 = 7 * DAY;

/// Limits the whole order. A lease lasts longer.
pub(crate) const ORDER_TIMEOUT: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
