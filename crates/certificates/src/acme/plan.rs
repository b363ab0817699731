//! When an authority is asked: rules without a clock. Times are seconds since 1970.

use serde::{Deserialize, Serialize};

use crate::acme::ChallengeKind;

/// From when until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: i64,
    pub(crate) end: i64,
}

/// What came of asking for one certificate so far; kept on disk, so that a process that is started
/// again and again asks no more often than one that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct History {
    /// Where in a window this node tries; random, and the same for as long as the file is there.
    pub(crate) seed: u64,
    /// An order that was started, and of which nothing is known since.
    pub(crate) begun: Option<i64>,
    /// In it the authority was told to come and look. It counts a look that finds nothing.
    pub(crate) looked: bool,
    /// The last certificate was issued or taken up.
    pub(crate) succeeded: Option<i64>,
    /// Failures since, that an authority judged.
    pub(crate) refused: Option<Row>,
    /// Failures since the authority was reached last.
    pub(crate) unreachable: Option<Row>,
    /// The authority's own word on when to come again (`Retry-After`).
    pub(crate) not_until: Option<i64>,
    /// What went wrong last, since the last success.
    pub(crate) reason: Option<String>,
    /// What another node met and was reckoned with last, as that node's clock has it.
    pub(crate) joined: Option<Row>,
}

/// Which challenges a try may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChallengeChoice {
    /// One after the other.
    pub(crate) kinds: Vec<ChallengeKind>,
    /// The most of them that the authority may be told to look by. One that it does not offer costs
    /// nothing.
    pub(crate) looks: usize,
}

/// Failures in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Row {
    pub(crate) times: u32,
    /// The last one.
    pub(crate) at: i64,
}

/// How bad a failure was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Nobody was there, or nothing was judged: soon again.
    Unreachable,
    /// Judged and refused. Authorities count these.
    Refused,
}

/// When to try next; a time that has gone by means now.
///
/// - a certificate is renewed from two thirds of its life on, or in the window that the authority
///   suggests (RFC 9773 section 4.2), each node at its own place in the window;
/// - not before a quarter of a life has gone by since the last one, whatever the clock says;
/// - after failures by back-off, and never before the authority's own word.
pub(crate) fn next_try(
    now: i64,
    held: Option<Window>,
    suggested: Option<Window>,
    history: &History,
) -> i64 {
    let due = held.map_or(i64::MIN, |held| due(held, suggested, history));
    let longest = longest_pause(now, held);
    let refused = history.refused.map(|row| row.next(REFUSED, longest, history.seed));
    let unreachable =
        history.unreachable.map(|row| row.next(UNREACHABLE, longest / 6, history.seed));
    [refused, unreachable, history.not_until].into_iter().flatten().fold(due, i64::max)
}

/// Which challenges the next try may use.
///
/// A failed one costs one of the five that Let's Encrypt allows for each name and hour. So only the
/// first try falls back at once; later ones take turns.
pub(crate) fn turns(configured: &[ChallengeKind], history: &History) -> ChallengeChoice {
    let mut kinds = configured.to_vec();
    let times = history.refused.map_or(0, |row| row.times as usize);
    kinds.rotate_left(times % configured.len().max(1));
    ChallengeChoice { looks: if times == 0 { kinds.len() } else { 1 }, kinds }
}

fn due(held: Window, suggested: Option<Window>, history: &History) -> i64 {
    let life = (held.end - held.start).max(1);
    let own = Window { start: held.start + life / 3 * 2, end: held.start + life / 4 * 3 };
    // RFC 9773 section 4.2: an end that is not after its start is no window.
    let suggested = suggested.filter(|window| window.start < window.end);
    let window = suggested.unwrap_or(own);
    let place = fraction(history.seed, held.start as u64);
    let chosen = window.start.saturating_add((place * (window.end - window.start) as f64) as i64);
    let chosen = chosen.min(held.end - life / 12);
    let apart = if suggested.is_some() { (life / 4).min(DAY) } else { life / 4 };
    let apart = apart.max(UNREACHABLE);
    history.succeeded.map_or(chosen, |at| chosen.max(at + apart))
}

/// The less time is left, the more often it is tried; without a valid certificate once an hour.
fn longest_pause(now: i64, held: Option<Window>) -> i64 {
    let left = held.map_or(0, |held| held.end - now);
    (left / 8).clamp(HOUR, DAY)
}

impl Row {
    fn next(self, first: i64, longest: i64, seed: u64) -> i64 {
        let doublings = self.times.saturating_sub(1).min(16);
        let pause = (first << doublings).min(longest);
        let jitter = fraction(seed, self.at as u64 ^ u64::from(self.times) << 48);
        self.at + pause + (pause as f64 / 2.0 * jitter) as i64
    }

    fn more(row: Option<Self>, now: i64) -> Self {
        Self { times: row.map_or(0, |row| row.times).saturating_add(1), at: now }
    }
}

impl History {
    /// Takes account of a clock that went back, and of a process that died while it ordered.
    pub(crate) fn mend(&mut self, now: i64) {
        if let Some(at) = self.begun {
            let severity = if self.looked { Severity::Refused } else { Severity::Unreachable };
            self.failure(at, severity, self.not_until, ENDED.to_owned());
        }
        self.turn_back(now);
    }

    /// Takes account of a process that ends while it orders. That is nobody's fault, and the next
    /// one may start at once, unless the authority was told to look: it finds nobody any more.
    /// Says whether it was.
    pub(crate) fn leave(&mut self, now: i64) -> bool {
        let failed = self.begun.take().is_some() && self.looked;
        if failed {
            self.failure(now, Severity::Refused, None, ENDED.to_owned());
        }
        self.looked = false;
        failed
    }

    /// What lies in the future is brought back to now: a clock that was wrong may have put it
    /// there, and nobody would try until it is that late.
    pub(crate) fn turn_back(&mut self, now: i64) {
        for row in [&mut self.refused, &mut self.unreachable].into_iter().flatten() {
            row.at = row.at.min(now);
        }
        self.succeeded = self.succeeded.map(|at| at.min(now));
        self.not_until = self.not_until.map(|at| at.min(now + MAX_WAIT));
    }

    pub(crate) fn success(&mut self, now: i64) {
        let (seed, joined) = (self.seed, self.joined);
        *self = Self { seed, joined, succeeded: Some(now), ..Self::default() };
    }

    /// `until`: what the authority said.
    pub(crate) fn failure(
        &mut self,
        now: i64,
        severity: Severity,
        until: Option<i64>,
        reason: String,
    ) {
        (self.begun, self.looked) = (None, false);
        match severity {
            Severity::Unreachable => self.unreachable = Some(Row::more(self.unreachable, now)),
            Severity::Refused => {
                self.unreachable = None;
                self.refused = Some(Row::more(self.refused, now));
            }
        }
        // An error page of a server in trouble is trusted for a day, a limit that is explained
        // for the week that the longest one takes.
        let longest = if severity == Severity::Refused { MAX_WAIT } else { DAY };
        self.not_until = until.map(|at| at.clamp(now, now + longest));
        self.reason = Some(reason);
    }

    /// When anything happened last.
    pub(crate) fn latest(&self) -> Option<i64> {
        self.succeeded.max(self.last_failure().map(|row| row.at))
    }

    /// When it failed last, and how many times in a row.
    pub(crate) fn last_failure(&self) -> Option<Row> {
        let rows = [self.refused, self.unreachable];
        let at = rows.iter().flatten().map(|row| row.at).max()?;
        let times = rows.iter().flatten().map(|row| row.times).sum();
        Some(Row { times, at })
    }
}

/// A number from 0 to 1, different for each of `salt` and each seed (splitmix64).
fn fraction(seed: u64, salt: u64) -> f64 {
    let mut mixed = seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
}

const ENDED: &str = "the process ended while the authority was asked";

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The first pause after a refusal, doubled from then on. Failed validations within an hour: two of
/// the first try, and two tries more; five are allowed
/// (<https://letsencrypt.org/docs/rate-limits/>).
const REFUSED: i64 = 600;

/// The first pause after nobody was there, and the shortest between two certificates, however short
/// their lives are.
const UNREACHABLE: i64 = 5;

/// The longest that an authority's word is trusted: the longest limit of Let's Encrypt is a week.
const MAX_WAIT: i64 = 7 * DAY;

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
