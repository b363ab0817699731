//! Counts of the last hour, taken from the metrics, and the differences between two moments.
//!
//! Without I/O: time is an argument, on a monotonic clock. The console shows these counts and no
//! others, so it cannot disagree with the metrics.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use firstflight_telemetry::metrics::{
    HandshakeKind, HistogramValue, RefusedReason, SeriesValue, Snapshot, Transport,
};

use crate::reasons::REPLAYS;
use crate::status::Totals;

/// Counts of the last hour: of every second in the last five minutes, and of every tenth before.
#[derive(Debug)]
pub(crate) struct History {
    fine: VecDeque<Sample>,
    coarse: VecDeque<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    at: Duration,
    counts: Counts,
}

impl History {
    /// Starts a history at `at` with `counts`.
    pub(crate) fn start(at: Duration, counts: Counts) -> Self {
        let first = Sample { at, counts };
        Self { fine: VecDeque::from([first.clone()]), coarse: VecDeque::from([first]) }
    }

    /// Adds a sample. Called about once a second.
    pub(crate) fn push(&mut self, at: Duration, counts: Counts) {
        let sample = Sample { at, counts };
        if self.coarse.back().is_none_or(|last| at >= last.at + COARSE_STEP) {
            push_sample(&mut self.coarse, sample.clone(), HOUR);
        }
        push_sample(&mut self.fine, sample, FIVE_MINUTES + COARSE_STEP);
    }

    /// Returns what was counted in the last `length` before `at`, and the length covered, which is less
    /// if the history is younger.
    pub(crate) fn window(
        &self,
        length: Duration,
        at: Duration,
        now: &Counts,
    ) -> (Duration, Counts) {
        let from = at.saturating_sub(length);
        let samples = if length > FIVE_MINUTES { &self.coarse } else { &self.fine };
        // The last sample before the window, or the oldest one.
        let index = samples.partition_point(|sample| sample.at <= from).saturating_sub(1);
        match samples.get(index) {
            Some(start) => (at.saturating_sub(start.at), now.since(&start.counts)),
            None => (Duration::ZERO, Counts::default()),
        }
    }

    /// Returns `value` for the last `count` steps before the newest sample, oldest first. Steps before
    /// the start of the history have the default value. Steps end at multiples of `step`, so that bars
    /// of a chart move without changing.
    pub(crate) fn steps<T: Default>(
        &self,
        step: Duration,
        count: usize,
        value: impl Fn(&Counts) -> T,
    ) -> Vec<T> {
        let Some(newest) = self.fine.back() else { return Vec::new() };
        let whole = newest.at.as_secs() / step.as_secs().max(1);
        let end = |back: u64| step * u32::try_from(whole.saturating_sub(back)).unwrap_or(u32::MAX);
        let values = (0..count as u64).rev().map(|back| {
            if back >= whole {
                return T::default();
            }
            match (self.at_or_before(end(back + 1)), self.at_or_before(end(back))) {
                (Some(from), Some(to)) => value(&to.counts.since(&from.counts)),
                _ => T::default(),
            }
        });
        values.collect()
    }

    fn at_or_before(&self, at: Duration) -> Option<&Sample> {
        let index = self.fine.partition_point(|sample| sample.at <= at);
        self.fine.get(index.checked_sub(1)?)
    }
}

/// Adds a sample, and drops the samples that no window of `lifetime` needs.
fn push_sample(samples: &mut VecDeque<Sample>, sample: Sample, lifetime: Duration) {
    let oldest = sample.at.saturating_sub(lifetime);
    samples.push_back(sample);
    // The last sample before the start of the window stays, because the window starts with it.
    while samples.get(1).is_some_and(|second| second.at <= oldest) {
        samples.pop_front();
    }
}

pub(crate) const FIVE_MINUTES: Duration = Duration::from_secs(300);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
const COARSE_STEP: Duration = Duration::from_secs(10);

/// Counts since the start of the server, or between two moments.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Early data, by transport.
    pub(crate) early: [EarlyCounts; 2],
    /// From the start of a connection to the end of its handshake.
    pub(crate) handshakes: Times,
    /// From the start of a connection to the head of its first response.
    pub(crate) first_responses: Times,
    pub(crate) totals: Totals,
    /// Early requests that were held, by reason.
    pub(crate) held: BTreeMap<Cow<'static, str>, u64>,
    /// Duration of claims in the store.
    pub(crate) claims: Option<HistogramValue>,
}

/// Early data on one transport.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EarlyCounts {
    pub(crate) offered: u64,
    pub(crate) accepted: u64,
    /// Counts by reason, in the order of [`RefusedReason::ALL`].
    pub(crate) refused: Vec<u64>,
}

/// Durations by kind of handshake and transport.
pub(crate) type Times = BTreeMap<(usize, usize), HistogramValue>;

impl Counts {
    /// Reads the counts of a snapshot.
    pub(crate) fn from_snapshot(snapshot: &Snapshot) -> Self {
        let claims = snapshot.series("firstflight_claim_seconds").next();
        Self {
            early: [Transport::Tcp, Transport::Quic].map(|transport| early(snapshot, transport)),
            handshakes: times(snapshot, "firstflight_handshake_seconds"),
            first_responses: times(snapshot, "firstflight_first_response_seconds"),
            totals: Totals::from_snapshot(snapshot),
            held: by_reason(snapshot, "firstflight_early_requests_held_total"),
            claims: claims.and_then(|series| histogram(&series.value).cloned()),
        }
    }

    /// Returns the difference to an earlier snapshot.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let early = |at: usize| {
            let (now, then) = (&self.early[at], &earlier.early[at]);
            let then_refused = then.refused.iter().chain(std::iter::repeat(&0));
            EarlyCounts {
                offered: now.offered.saturating_sub(then.offered),
                accepted: now.accepted.saturating_sub(then.accepted),
                refused: now.refused.iter().zip(then_refused).map(increase).collect(),
            }
        };
        let claims = self.claims.as_ref().map(|now| difference(now, earlier.claims.as_ref()));
        let held = self.held.iter();
        Self {
            early: [early(0), early(1)],
            handshakes: times_since(&self.handshakes, &earlier.handshakes),
            first_responses: times_since(&self.first_responses, &earlier.first_responses),
            totals: self.totals.since(&earlier.totals),
            held: held
                .map(|(reason, now)| {
                    (reason.clone(), increase((now, earlier.held.get(reason).unwrap_or(&0))))
                })
                .collect(),
            claims,
        }
    }

    /// Connections of one kind on one transport that have a handshake or a response. An early
    /// connection may close with its response before the end of its handshake, and an idle one has no
    /// response yet.
    pub(crate) fn connections_of(&self, kind: HandshakeKind, transport: Transport) -> u64 {
        let key = (kind as usize, transport as usize);
        let count = |times: &Times| times.get(&key).map_or(0, HistogramValue::count);
        count(&self.handshakes).max(count(&self.first_responses))
    }

    /// Connections of one kind on all transports.
    pub(crate) fn of_kind(&self, kind: HandshakeKind) -> u64 {
        Transport::ALL.iter().map(|transport| self.connections_of(kind, *transport)).sum()
    }

    /// Connections of all kinds.
    pub(crate) fn connections(&self) -> u64 {
        HandshakeKind::ALL.iter().map(|kind| self.of_kind(*kind)).sum()
    }

    pub(crate) fn offered(&self) -> u64 {
        self.early.iter().map(|early| early.offered).sum()
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.early.iter().map(|early| early.accepted).sum()
    }

    /// Connections whose early data was refused, by reason. Leaves out reasons without connections.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (RefusedReason, u64)> {
        let all = RefusedReason::ALL.iter().enumerate();
        all.map(|(at, reason)| {
            let counts = self.early.iter().filter_map(|early| early.refused.get(at));
            (*reason, counts.sum::<u64>())
        })
        .filter(|(_, count)| *count > 0)
    }

    /// Copies of flights.
    pub(crate) fn replays(&self) -> u64 {
        let replayed = self.refused().filter(|(reason, _)| REPLAYS.contains(reason));
        replayed.map(|(_, count)| count).sum()
    }
}

fn early(snapshot: &Snapshot, transport: Transport) -> EarlyCounts {
    let on = ("transport", transport.name());
    let count = |name, labels: &[(&str, &str)]| snapshot.sum(name, labels) as u64;
    let refused = RefusedReason::ALL.iter().map(|reason| {
        count("firstflight_early_data_refused_total", &[on, ("reason", reason.name())])
    });
    EarlyCounts {
        offered: count("firstflight_early_data_offered_total", &[on]),
        accepted: count("firstflight_early_data_accepted_total", &[on]),
        refused: refused.collect(),
    }
}

fn times(snapshot: &Snapshot, name: &str) -> Times {
    let mut times = Times::new();
    for kind in HandshakeKind::ALL {
        for transport in Transport::ALL {
            let labels = [("kind", kind.name()), ("transport", transport.name())];
            let series = snapshot.series(name).filter(|series| series.has(&labels));
            let sum = series.filter_map(|series| histogram(&series.value)).cloned().reduce(sum);
            times.extend(sum.map(|sum| ((*kind as usize, *transport as usize), sum)));
        }
    }
    times
}

fn by_reason(snapshot: &Snapshot, name: &str) -> BTreeMap<Cow<'static, str>, u64> {
    let series = snapshot.series(name).filter_map(|series| {
        let (_, reason) = series.labels.iter().find(|(label, _)| *label == "reason")?;
        Some((reason.clone(), series.value.number() as u64))
    });
    series.collect()
}

fn histogram(value: &SeriesValue) -> Option<&HistogramValue> {
    match value {
        SeriesValue::Histogram(histogram) => Some(histogram),
        _ => None,
    }
}

fn sum(a: HistogramValue, b: HistogramValue) -> HistogramValue {
    let buckets = a.buckets.iter().zip(&b.buckets).map(|(a, b)| a + b).collect();
    HistogramValue { buckets, sum: a.sum + b.sum, ..a }
}

fn times_since(now: &Times, earlier: &Times) -> Times {
    now.iter().map(|(key, now)| (*key, difference(now, earlier.get(key)))).collect()
}

fn difference(now: &HistogramValue, earlier: Option<&HistogramValue>) -> HistogramValue {
    let Some(earlier) = earlier else { return now.clone() };
    let buckets = now.buckets.iter().zip(&earlier.buckets).map(increase).collect();
    HistogramValue { bounds: now.bounds.clone(), buckets, sum: now.sum - earlier.sum }
}

fn increase((now, then): (&u64, &u64)) -> u64 {
    now.saturating_sub(*then)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_start_at_the_right_sample() {
        // 7 requests each second, for two hours.
        let mut history = History::start(seconds(0), requests(0));
        for second in 1..=7200 {
            history.push(seconds(second), requests(7 * second));
        }
        let now = requests(7 * 7200);
        for length in [60, 300, 3600] {
            let (covered, counts) = history.window(seconds(length), seconds(7200), &now);
            assert_eq!((covered, counts.totals.requests), (seconds(length), 7 * length));
        }
        assert!(history.fine.len() <= 312 && history.coarse.len() <= 362);
    }

    #[test]
    fn a_young_history_states_its_length() {
        let mut history = History::start(seconds(100), requests(5));
        history.push(seconds(103), requests(8));
        let (covered, counts) = history.window(HOUR, seconds(103), &requests(9));
        assert_eq!((covered, counts.totals.requests), (seconds(3), 4));
    }

    #[test]
    fn steps_do_not_change_with_the_time() {
        let mut history = History::start(seconds(0), requests(0));
        for second in 1..=23 {
            history.push(seconds(second), requests(second));
        }
        let steps =
            |history: &History| history.steps(seconds(5), 6, |counts| counts.totals.requests);
        assert_eq!(steps(&history), [0, 0, 5, 5, 5, 5]);
        history.push(seconds(24), requests(1000));
        assert_eq!(steps(&history), [0, 0, 5, 5, 5, 5]);
        history.push(seconds(25), requests(1001));
        assert_eq!(steps(&history), [0, 5, 5, 5, 5, 981]);
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn requests(requests: u64) -> Counts {
        Counts { totals: Totals { requests, ..Totals::default() }, ..Counts::default() }
    }
}
