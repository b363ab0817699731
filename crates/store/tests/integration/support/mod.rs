//! What the store's tests have in common.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use firstflight_replay::{ClaimKey, SharedConfig, StoreReply, Unknown};
use firstflight_store::{Address, Claimant, Store, StoreConfig, Topology};
use firstflight_testkit::StoreProcess;

/// Short, so that a window passes in a test: 3.6 s of life, 4 s of window (6 s with confirmation).
pub(crate) fn short(confirmation: Duration) -> SharedConfig {
    SharedConfig {
        freshness: Duration::from_millis(100),
        clock_margin: Duration::from_millis(200),
        confirmation,
    }
}

/// A budget that a busy machine keeps, and short windows.
pub(crate) fn config(topology: Topology) -> StoreConfig {
    let single = matches!(topology, Topology::Single(_));
    let confirmation = if single { Duration::ZERO } else { Duration::from_secs(2) };
    StoreConfig {
        budget: Duration::from_millis(500),
        shared: short(confirmation),
        ..StoreConfig::new(topology)
    }
}

pub(crate) fn at_socket(process: &StoreProcess) -> Address {
    Address::Unix(process.socket())
}

pub(crate) fn at_port(process: &StoreProcess) -> Address {
    let (host, port) = process.tcp();
    Address::Tcp(host, port)
}

pub(crate) fn open(config: StoreConfig) -> Store {
    Store::open(config, unix_micros).expect("a good configuration")
}

pub(crate) fn unix_micros() -> i64 {
    i64::try_from(UNIX_EPOCH.elapsed().expect("after 1970").as_micros()).expect("before 294247")
}

/// This machine's clock, since 1970.
pub(crate) fn unix_time() -> Duration {
    UNIX_EPOCH.elapsed().expect("after 1970")
}

/// When the record of a flight ends that is exact at `exact_at`.
pub(crate) fn end_of(exact_at: Duration) -> Duration {
    short(Duration::ZERO).record_end(exact_at)
}

/// A connection of its own.
pub(crate) fn claimant() -> Claimant {
    static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
    Claimant::new(NEXT.fetch_sub(1, Ordering::Relaxed))
}

/// Claims a flight that is exact now, for a connection of its own.
pub(crate) async fn claim(store: &Store, flight: ClaimKey) -> StoreReply {
    store.claim(flight, claimant(), end_of(unix_time())).await
}

/// Ten seconds ahead.
pub(crate) fn fast_clock() -> i64 {
    unix_micros() + 10_000_000
}

/// A flight that nobody has seen yet.
pub(crate) fn fresh() -> ClaimKey {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut random = [0; 32];
    random[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    random[8..12].copy_from_slice(&std::process::id().to_be_bytes());
    ClaimKey::of_flight(&random)
}

/// Claims fresh flights until one gets this reply.
pub(crate) async fn until(store: &Store, wanted: StoreReply) {
    until_within(store, wanted, Duration::from_secs(20)).await;
}

pub(crate) async fn until_within(store: &Store, wanted: StoreReply, timeout: Duration) {
    let end = Instant::now() + timeout;
    loop {
        let reply = claim(store, fresh()).await;
        if reply == wanted {
            return;
        }
        assert!(Instant::now() < end, "{timeout:?} passed: {reply:?}, not yet {wanted:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn unknown(why: Unknown) -> StoreReply {
    StoreReply::Unknown(why)
}

/// Until the store can be asked at all.
pub(crate) async fn reached(store: &Store) {
    let end = Instant::now() + Duration::from_secs(20);
    while store.unavailable_reason().is_some() {
        assert!(Instant::now() < end, "20 s passed, and the store is not reached");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
