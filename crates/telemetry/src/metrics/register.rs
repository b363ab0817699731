//! The strike register: claims, room, and whether the gate is open.

use super::label::LabelInfo;
use super::{Description, Readings, Snapshot};

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
    pub barred: u64,
    /// Claims that found no room.
    pub full: u64,
}

pub(super) fn collect(readings: &Readings, snapshot: &mut Snapshot) {
    snapshot.number(&OPEN, f64::from(u8::from(readings.early_data_open)));
    let (local, filter) = (&readings.register, &readings.filter);
    let store = readings.store.clone().unwrap_or_default();
    let claims = [
        ("local", "won", local.won),
        ("local", "lost", local.lost),
        ("local", "barred", local.barred),
        ("local", "full", local.full),
        ("filter", "lost", filter.lost),
        ("store", "won", store.won),
        ("store", "lost", store.lost),
        ("store", "unknown", store.unknown.iter().map(|(_, count)| count).sum()),
    ];
    super::store::counts(&CLAIMS, [REGISTER, RESULT], claims, snapshot);
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
            "barred",
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
