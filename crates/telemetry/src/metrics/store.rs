//! The store that a cluster's nodes share.

use std::borrow::Cow;

use super::label::LabelInfo;
use super::{Description, Family, HistogramValue, RefusedReason, Series, Snapshot, Value};

/// The store's figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreReading {
    /// Why claims are not even tried now; `None`: they are.
    pub resting: Option<RefusedReason>,
    /// Claims won.
    pub won: u64,
    /// Claims lost.
    pub lost: u64,
    /// Claims whose outcome is not known, by reason.
    pub unknown: Vec<(RefusedReason, u64)>,
    /// Exchanges with the store.
    pub batches: u64,
    /// Connections made, the first ones too.
    pub connections: u64,
    /// How long claims took.
    pub claim_times: ClaimTimes,
}

/// How long claims took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimTimes {
    /// The classes' upper bounds in seconds, rising.
    pub bounds: Vec<f64>,
    /// Claims in each class; the last is for what took longer.
    pub classes: Vec<u64>,
    /// The sum in seconds.
    pub sum: f64,
}

/// `None`: there is no store, and the metrics are without series.
pub(super) fn collect(store: Option<&StoreReading>, snapshot: &mut Snapshot) {
    let one = |description, value: Option<f64>| Family {
        description,
        labels: Vec::new(),
        series: value.into_iter().map(|value| series(&[], Value::Number(value))).collect(),
    };
    let up = store.map(|store| f64::from(u8::from(store.resting.is_none())));
    snapshot.push(one(&UP, up));
    let resting = RESTING_REASONS.iter().filter_map(|reason| {
        let now = store?.resting == Some(*reason);
        Some((Cow::Borrowed(reason.name()), f64::from(u8::from(now))))
    });
    snapshot.numbers(&RESTING, REASON, resting);
    let unknown = store.into_iter().flat_map(|store| &store.unknown);
    let unknown = unknown.map(|(reason, count)| (reason.name(), *count));
    let family = Family {
        description: &UNKNOWN,
        labels: vec![REASON],
        series: unknown
            .map(|(reason, count)| series(&[(REASON.name, reason)], Value::Count(count)))
            .collect(),
    };
    snapshot.push(family);
    snapshot.push(one(&BATCHES, store.map(|store| store.batches as f64)));
    snapshot.push(one(&CONNECTIONS, store.map(|store| store.connections as f64)));
    let times = store.map(|store| HistogramValue {
        bounds: store.claim_times.bounds.clone().into(),
        classes: store.claim_times.classes.clone(),
        sum: store.claim_times.sum,
    });
    snapshot.push(Family {
        description: &CLAIM_SECONDS,
        labels: Vec::new(),
        series: times.into_iter().map(|times| series(&[], Value::Histogram(times))).collect(),
    });
}

/// A counter with two labels.
pub(super) fn counts<const N: usize>(
    description: &'static Description,
    labels: [LabelInfo; 2],
    counts: [(&'static str, &'static str, u64); N],
    snapshot: &mut Snapshot,
) {
    let [first, second] = labels;
    let series = counts.map(|(one, other, count)| {
        series(&[(first.name, one), (second.name, other)], Value::Count(count))
    });
    snapshot.push(Family { description, labels: labels.to_vec(), series: series.into() });
}

fn series(labels: &[(&'static str, &'static str)], value: Value) -> Series {
    let labels = labels.iter().map(|(name, value)| (*name, Cow::Borrowed(*value)));
    Series::new(labels.collect(), value)
}

/// Why the store may not be usable.
const RESTING_REASONS: [RefusedReason; 7] = [
    RefusedReason::StoreDown,
    RefusedReason::StoreTimeout,
    RefusedReason::StoreRefused,
    RefusedReason::StoreUnreplicated,
    RefusedReason::StoreWindow,
    RefusedReason::StoreClock,
    RefusedReason::StoreEvicting,
];

const REASON: LabelInfo =
    LabelInfo::configured("reason", "store_*, as in firstflight_early_data_refused_total");

static UP: Description = Description::gauge(
    "firstflight_store_up",
    "1 if flights are claimed in the store now, 0 if that is not even tried. Without a store: no series.",
    "At 0 no early data is accepted, and clients pay a round trip. See firstflight_store_resting.",
);
static RESTING: Description = Description::gauge(
    "firstflight_store_resting",
    "1 for the reason for which claims are not tried now.",
    "store_down and store_timeout: the store or the path to it. store_window: it was emptied, \
     restarted or promoted, and is used again when the window has passed. docs/cluster.md has the \
     others.",
);
static UNKNOWN: Description = Description::counter(
    "firstflight_store_claims_unknown_total",
    "Claims whose outcome is not known; their flights are refused early data.",
    "store_timeout counts what missed the budget: see firstflight_claim_seconds and store.budget.",
);
static BATCHES: Description = Description::counter(
    "firstflight_store_exchanges_total",
    "Exchanges with the store; each carries all claims that were waiting.",
    "Claims divided by exchanges: how many share one.",
);
static CONNECTIONS: Description = Description::counter(
    "firstflight_store_connections_total",
    "Connections to the store, the first ones too.",
    "Each one more is a reconnect: a store that restarts, or a path that breaks.",
);
static CLAIM_SECONDS: Description = Description::histogram(
    "firstflight_claim_seconds",
    "How long claims in the store took, from the call to the answer or the end of the budget.",
    "It comes on top of each early connection's first response. Above a millisecond or two the store \
     is far away or busy.",
);
