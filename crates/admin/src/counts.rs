//! What the console follows, out of the metrics: the same figures, and no others.

use std::borrow::Cow;
use std::collections::BTreeMap;

use firstflight_telemetry::metrics::{
    HandshakeKind, HistogramValue, RefusedReason, SeriesValue, Snapshot, Transport,
};

use crate::reasons::REPLAYS;

/// Counts since the start, at one moment; or those of a time between two moments.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Early data, by transport.
    pub(crate) early: [EarlyCounts; 2],
    /// From a connection's start to its handshake's end.
    pub(crate) handshakes: Times,
    /// From a connection's start to its first response's head.
    pub(crate) first_responses: Times,
    pub(crate) requests: u64,
    /// Requests that came early and ran at once.
    pub(crate) ran_early: u64,
    /// Requests that came early and did not run at once, by reason.
    pub(crate) held: BTreeMap<Cow<'static, str>, u64>,
    /// Answers 425.
    pub(crate) too_early: u64,
    /// Claims in the store.
    pub(crate) claims: Option<HistogramValue>,
}

/// Early data on one transport.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EarlyCounts {
    pub(crate) offered: u64,
    pub(crate) accepted: u64,
    /// Counts by [`RefusedReason`], in the order of all reasons.
    pub(crate) refused: Vec<u64>,
}

/// Times by kind and transport.
pub(crate) type Times = BTreeMap<(usize, usize), HistogramValue>;

impl Counts {
    /// Those of a snapshot.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let count = |name, labels: &[(&str, &str)]| snapshot.sum(name, labels) as u64;
        let claims = snapshot.series("firstflight_claim_seconds").next();
        Self {
            early: [Transport::Tcp, Transport::Quic].map(|transport| early(snapshot, transport)),
            handshakes: times(snapshot, "firstflight_handshake_seconds"),
            first_responses: times(snapshot, "firstflight_first_response_seconds"),
            requests: count("firstflight_requests_total", &[]),
            ran_early: count("firstflight_requests_total", &[("early", "ran")]),
            held: by_reason(snapshot, "firstflight_early_requests_held_total"),
            too_early: count("firstflight_too_early_total", &[]),
            claims: claims.and_then(|series| histogram(&series.value).cloned()),
        }
    }

    /// What was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let early = |at: usize| {
            let (now, then) = (&self.early[at], &earlier.early[at]);
            let then_refused = then.refused.iter().chain(std::iter::repeat(&0));
            EarlyCounts {
                offered: now.offered.saturating_sub(then.offered),
                accepted: now.accepted.saturating_sub(then.accepted),
                refused: now.refused.iter().zip(then_refused).map(rise).collect(),
            }
        };
        let claims = self.claims.as_ref().map(|now| difference(now, earlier.claims.as_ref()));
        let held = self.held.iter();
        Self {
            early: [early(0), early(1)],
            handshakes: times_since(&self.handshakes, &earlier.handshakes),
            first_responses: times_since(&self.first_responses, &earlier.first_responses),
            requests: self.requests.saturating_sub(earlier.requests),
            ran_early: self.ran_early.saturating_sub(earlier.ran_early),
            held: held
                .map(|(reason, now)| {
                    (reason.clone(), rise((now, earlier.held.get(reason).unwrap_or(&0))))
                })
                .collect(),
            too_early: self.too_early.saturating_sub(earlier.too_early),
            claims,
        }
    }

    /// Connections of one kind on one transport that came to something. An early one may be
    /// answered and gone before its handshake's end, and one that is kept ready has no response
    /// yet.
    pub(crate) fn connections_of(&self, kind: HandshakeKind, transport: Transport) -> u64 {
        let key = (kind as usize, transport as usize);
        let count = |times: &Times| times.get(&key).map_or(0, HistogramValue::count);
        count(&self.handshakes).max(count(&self.first_responses))
    }

    /// The same over both transports.
    pub(crate) fn of_kind(&self, kind: HandshakeKind) -> u64 {
        Transport::ALL.iter().map(|transport| self.connections_of(kind, *transport)).sum()
    }

    /// The same of all kinds.
    pub(crate) fn connections(&self) -> u64 {
        HandshakeKind::ALL.iter().map(|kind| self.of_kind(*kind)).sum()
    }

    pub(crate) fn offered(&self) -> u64 {
        self.early.iter().map(|early| early.offered).sum()
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.early.iter().map(|early| early.accepted).sum()
    }

    /// Connections whose early data was refused, by reason; those alone that were met.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (RefusedReason, u64)> {
        let all = RefusedReason::ALL.iter().enumerate();
        all.map(|(at, reason)| {
            let counts = self.early.iter().filter_map(|early| early.refused.get(at));
            (*reason, counts.sum::<u64>())
        })
        .filter(|(_, count)| *count > 0)
    }

    /// Flights that came again.
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

fn sum(one: HistogramValue, other: HistogramValue) -> HistogramValue {
    let buckets = one.buckets.iter().zip(&other.buckets).map(|(one, other)| one + other).collect();
    HistogramValue { buckets, sum: one.sum + other.sum, ..one }
}

fn times_since(now: &Times, earlier: &Times) -> Times {
    now.iter().map(|(key, now)| (*key, difference(now, earlier.get(key)))).collect()
}

fn difference(now: &HistogramValue, earlier: Option<&HistogramValue>) -> HistogramValue {
    let Some(earlier) = earlier else { return now.clone() };
    let buckets = now.buckets.iter().zip(&earlier.buckets).map(rise).collect();
    HistogramValue { bounds: now.bounds.clone(), buckets, sum: now.sum - earlier.sum }
}

fn rise((now, then): (&u64, &u64)) -> u64 {
    now.saturating_sub(*then)
}
