//! Metrics of the strike register and of the store that a cluster shares.

use std::borrow::Cow;

use super::labels::LabelInfo;
use super::{
    Description, Family, HistogramValue, Readings, RefusedReason, Series, SeriesValue, Snapshot,
};

/// The store's figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreReading {
    /// Why claims are not even tried now; `None`: they are.
    pub unavailable: Option<RefusedReason>,
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
    pub buckets: Vec<u64>,
    /// The sum in seconds.
    pub sum: f64,
}

/// `None`: there is no store, and the metrics are without series.
pub(super) fn collect_store(store: Option<&StoreReading>, snapshot: &mut Snapshot) {
    let one = |description, value: Option<f64>| Family {
        description,
        labels: Vec::new(),
        series: value.into_iter().map(|value| series(&[], SeriesValue::Number(value))).collect(),
    };
    let up = store.map(|store| f64::from(u8::from(store.unavailable.is_none())));
    snapshot.push(one(&UP, up));
    let unavailable = UNAVAILABLE_REASONS.iter().filter_map(|reason| {
        let now = store?.unavailable == Some(*reason);
        Some((Cow::Borrowed(reason.name()), f64::from(u8::from(now))))
    });
    snapshot.numbers(&UNAVAILABLE, REASON, unavailable);
    let unknown = store.into_iter().flat_map(|store| &store.unknown);
    let unknown = unknown.map(|(reason, count)| (reason.name(), *count));
    let family = Family {
        description: &UNKNOWN,
        labels: vec![REASON],
        series: unknown
            .map(|(reason, count)| series(&[(REASON.name, reason)], SeriesValue::Count(count)))
            .collect(),
    };
    snapshot.push(family);
    snapshot.push(one(&BATCHES, store.map(|store| store.batches as f64)));
    snapshot.push(one(&CONNECTIONS, store.map(|store| store.connections as f64)));
    let times = store.map(|store| HistogramValue {
        bounds: store.claim_times.bounds.clone().into(),
        buckets: store.claim_times.buckets.clone(),
        sum: store.claim_times.sum,
    });
    snapshot.push(Family {
        description: &CLAIM_SECONDS,
        labels: Vec::new(),
        series: times.into_iter().map(|times| series(&[], SeriesValue::Histogram(times))).collect(),
    });
}

/// A counter with two labels.
fn counts<const N: usize>(
    description: &'static Description,
    labels: [LabelInfo; 2],
    counts: [(&'static str, &'static str, u64); N],
    snapshot: &mut Snapshot,
) {
    let [first, second] = labels;
    let series = counts.map(|(one, other, count)| {
        series(&[(first.name, one), (second.name, other)], SeriesValue::Count(count))
    });
    snapshot.push(Family { description, labels: labels.to_vec(), series: series.into() });
}

fn series(labels: &[(&'static str, &'static str)], value: SeriesValue) -> Series {
    let labels = labels.iter().map(|(name, value)| (*name, Cow::Borrowed(*value)));
    Series::new(labels.collect(), value)
}

/// Why the store may not be usable.
const UNAVAILABLE_REASONS: [RefusedReason; 7] = [
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
    "At 0 no early data is accepted, and clients pay a round trip. See firstflight_store_unavailable.",
);
static UNAVAILABLE: Description = Description::gauge(
    "firstflight_store_unavailable",
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

/// A strike register's figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegisterReading {
    /// Records held now.
    pub records: u64,
    /// Records that fit.
    pub capacity: u64,
    /// Claims won.
    pub won: u64,
    /// Claims lost.
    pub lost: u64,
    /// Claims of flights that were refused, now or before.
    pub spent: u64,
    /// Claims that found no room.
    pub full: u64,
}

pub(super) fn collect_register(readings: &Readings, snapshot: &mut Snapshot) {
    snapshot.number(&OPEN, f64::from(u8::from(readings.early_data_open)));
    let (local, filter) = (&readings.register, &readings.filter);
    let store = readings.store.clone().unwrap_or_default();
    let claims = [
        ("local", "won", local.won),
        ("local", "lost", local.lost),
        ("local", "spent", local.spent),
        ("local", "full", local.full),
        ("filter", "lost", filter.lost),
        ("store", "won", store.won),
        ("store", "lost", store.lost),
        ("store", "unknown", store.unknown.iter().map(|(_, count)| count).sum()),
    ];
    counts(&CLAIMS, [REGISTER, RESULT], claims, snapshot);
    let both = [("local", local), ("filter", filter)];
    let size = |of: fn(&RegisterReading) -> u64| {
        both.map(|(name, register)| (name.into(), of(register) as f64))
    };
    snapshot.numbers(&RECORDS, REGISTER, size(|register| register.records));
    snapshot.numbers(&CAPACITY, REGISTER, size(|register| register.capacity));
}

const REGISTER: LabelInfo = LabelInfo {
    name: "register",
    values: &[
        ("local", "This process's own, without a store."),
        ("filter", "This process's memory in front of the store."),
        ("store", "The cluster's."),
    ],
    meaning: "",
};
const RESULT: LabelInfo = LabelInfo {
    name: "result",
    values: &[
        ("won", "The flight may run early."),
        ("lost", "Another connection has it: a replay, or an original that a copy overtook."),
        (
            "spent",
            "The flight is refused, so that no copy of it can run; or it was refused before.",
        ),
        ("full", "There was no room."),
        ("unknown", "The store did not say; firstflight_store_claims_unknown_total says why."),
    ],
    meaning: "",
};

static OPEN: Description = Description::gauge(
    "firstflight_early_data_open",
    "1 if a connection that begins now may have early data accepted.",
    "0 is expected with early_data off. Otherwise the register is full, or the store is away or was \
     emptied: the refusals name the reason.",
);
static CLAIMS: Description = Description::counter(
    "firstflight_claims_total",
    "Claims of first flights in the strike register.",
    "A claim that is lost was stopped: somebody sent a flight twice.",
);
static RECORDS: Description = Description::gauge(
    "firstflight_register_records",
    "Flights that the strike register remembers now, with expired ones that were not swept yet.",
    "Near the capacity early data is refused until records expire: raise \
     early_data.register_capacity.",
);
static CAPACITY: Description = Description::gauge(
    "firstflight_register_capacity",
    "Flights that the strike register can remember.",
    "Needed: early connections a second, times 96 s.",
);
