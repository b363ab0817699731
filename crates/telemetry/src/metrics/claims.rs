//! Metrics of the strike register and of the store that a cluster shares.

use std::borrow::Cow;

use super::labels::LabelInfo;
use super::{
    Description, Family, HistogramValue, Readings, RefusedReason, Series, SeriesValue, Snapshot,
};

/// Counters of the store.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreReading {
    /// Why claims do not count now; `None` if they do.
    pub unavailable: Option<RefusedReason>,
    /// Claims won.
    pub won: u64,
    /// Claims lost.
    pub lost: u64,
    /// Claims with an unknown outcome, by reason.
    pub unknown: Vec<(RefusedReason, u64)>,
    /// Exchanges with the store.
    pub batches: u64,
    /// Connections opened, including the first ones.
    pub connections: u64,
    /// How long claims took.
    pub claim_times: ClaimTimes,
}

/// How long claims took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimTimes {
    /// Upper bounds of the buckets in seconds, ascending.
    pub bounds: Vec<f64>,
    /// Claims in each bucket; the last one is for longer claims.
    pub buckets: Vec<u64>,
    /// The sum in seconds.
    pub sum: f64,
}

/// Adds the metrics of the store. Without a store they have no series.
pub(super) fn collect_store(store: Option<&StoreReading>, snapshot: &mut Snapshot) {
    let optional = |description, value: Option<f64>| Family {
        description,
        labels: Vec::new(),
        series: value.into_iter().map(|value| series(&[], SeriesValue::Number(value))).collect(),
    };
    let up = store.map(|store| f64::from(u8::from(store.unavailable.is_none())));
    snapshot.push(optional(&UP, up));
    let unavailable = UNAVAILABLE_REASONS.iter().filter_map(|reason| {
        let applies = store?.unavailable == Some(*reason);
        Some((Cow::Borrowed(reason.name()), f64::from(u8::from(applies))))
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
    snapshot.push(optional(&BATCHES, store.map(|store| store.batches as f64)));
    snapshot.push(optional(&CONNECTIONS, store.map(|store| store.connections as f64)));
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

/// Adds a counter with two labels.
fn counts<const N: usize>(
    description: &'static Description,
    labels: [LabelInfo; 2],
    counts: [(&'static str, &'static str, u64); N],
    snapshot: &mut Snapshot,
) {
    let [first, second] = labels;
    let series = counts.map(|(first_value, second_value, count)| {
        series(&[(first.name, first_value), (second.name, second_value)], SeriesValue::Count(count))
    });
    snapshot.push(Family { description, labels: labels.to_vec(), series: series.into() });
}

fn series(labels: &[(&'static str, &'static str)], value: SeriesValue) -> Series {
    let labels = labels.iter().map(|(name, value)| (*name, Cow::Borrowed(*value)));
    Series::new(labels.collect(), value)
}

/// The reasons for which the store can be unavailable.
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
    "1 if claims of flights in the store count, 0 if not.",
    "At 0 no early data is accepted, which costs clients a round trip. See \
     `firstflight_store_unavailable`.",
);
static UNAVAILABLE: Description = Description::gauge(
    "firstflight_store_unavailable",
    "1 for the reason why claims do not count now, else 0.",
    "`store_down`, `store_timeout`: check the store and the network to it. `store_window`: it was \
     emptied, restarted or promoted; claims start again after a recording window. Others: \
     docs/operate/cluster.md.",
);
static UNKNOWN: Description = Description::counter(
    "firstflight_store_claims_unknown_total",
    "Claims with an unknown outcome; their flights are refused early data.",
    "`store_timeout`: claims that exceeded `store.budget`; see `firstflight_claim_seconds`.",
);
static BATCHES: Description = Description::counter(
    "firstflight_store_exchanges_total",
    "Exchanges with the store; each carries all waiting claims.",
    "Claims divided by exchanges: the mean size of a batch.",
);
static CONNECTIONS: Description = Description::counter(
    "firstflight_store_connections_total",
    "Connections to the store, including the first ones.",
    "Each further one is a reconnect: the store restarts, or the network fails.",
);
static CLAIM_SECONDS: Description = Description::histogram(
    "firstflight_claim_seconds",
    "Duration of claims in the store, until the reply or the end of the budget.",
    "Adds to the first response of each early connection. Above a few milliseconds: the store is \
     far away or busy.",
);

/// Counters of a strike register.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegisterReading {
    /// Records in the register.
    pub records: u64,
    /// Maximum number of records.
    pub capacity: u64,
    /// Claims won.
    pub won: u64,
    /// Claims lost.
    pub lost: u64,
    /// Flights recorded as spent, because their early data was refused.
    pub spent: u64,
    /// Claims that failed because the register was full.
    pub full: u64,
}

pub(super) fn collect_open(readings: &Readings, snapshot: &mut Snapshot) {
    snapshot.number(&OPEN, f64::from(u8::from(readings.early_data_open)));
}

pub(super) fn collect_register(readings: &Readings, snapshot: &mut Snapshot) {
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
    let registers = [("local", local), ("filter", filter)];
    let size = |of: fn(&RegisterReading) -> u64| {
        registers.map(|(name, register)| (name.into(), of(register) as f64))
    };
    snapshot.numbers(&RECORDS, REGISTER, size(|register| register.records));
    snapshot.numbers(&CAPACITY, REGISTER, size(|register| register.capacity));
}

const REGISTER: LabelInfo = LabelInfo {
    name: "register",
    values: &[
        ("local", "The register of this process, without a store."),
        ("filter", "The filter of this process in front of the store."),
        ("store", "The store of the cluster."),
    ],
    meaning: "",
};
const RESULT: LabelInfo = LabelInfo {
    name: "result",
    values: &[
        ("won", "The flight may be executed early."),
        (
            "lost",
            "Another connection has claimed it: a replay, or an original that a copy overtook.",
        ),
        (
            "spent",
            "Early data was refused and the flight recorded, so that no copy is accepted later.",
        ),
        ("full", "The register was full."),
        (
            "unknown",
            "The outcome in the store is unknown; see firstflight_store_claims_unknown_total.",
        ),
    ],
    meaning: "",
};

static OPEN: Description = Description::gauge(
    "firstflight_early_data_open",
    "1 if early data of new connections can be accepted.",
    "0 is normal if early data is disabled. Otherwise the register is full, or the store is \
     unavailable or was emptied: see the refusals.",
);
static CLAIMS: Description = Description::counter(
    "firstflight_claims_total",
    "Claims of first flights.",
    "`lost`: somebody sent a flight twice, and the copy was stopped.",
);
static RECORDS: Description = Description::gauge(
    "firstflight_register_records",
    "Records in the strike register, including expired ones that are not removed yet.",
    "Near the capacity, early data is refused until records expire: raise \
     `early_data.register_capacity`.",
);
static CAPACITY: Description = Description::gauge(
    "firstflight_register_capacity",
    "Maximum number of records in the strike register.",
    "Size it for early connections per second times 66 s.",
);
