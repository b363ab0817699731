//! Helpers of the store's tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use firstflight_replay::{ClaimKey, SharedConfig, StoreReply, Unknown};
use firstflight_store::{Address, Claimant, Store, StoreConfig, Topology};
use firstflight_testkit::StoreProcess;

/// Short times, so that a test can wait for a recording window: records live for 3.6 s, the window
/// is 4 s (6 s with confirmation).
pub(crate) fn short_config(confirmation: Duration) -> SharedConfig {
    SharedConfig {
        freshness: Duration::from_millis(100),
        clock_margin: Duration::from_millis(200),
        confirmation,
    }
}

/// The maximum budget, which a busy machine keeps, and short windows.
pub(crate) fn config(topology: Topology) -> StoreConfig {
    let single = matches!(topology, Topology::Single(_));
    let confirmation = if single { Duration::ZERO } else { Duration::from_secs(2) };
    StoreConfig {
        budget: Duration::from_secs(1),
        shared: short_config(confirmation),
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

/// When the record of a flight whose ticket age is exact at `exact_at` expires.
pub(crate) fn end_of(exact_at: Duration) -> Duration {
    short_config(Duration::ZERO).record_end(exact_at)
}

/// A new client connection.
pub(crate) fn claimant() -> Claimant {
    static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
    Claimant::new(NEXT.fetch_sub(1, Ordering::Relaxed))
}

/// Claims a flight whose ticket age is exact now, for a new client connection.
pub(crate) async fn claim(store: &Store, flight: ClaimKey) -> StoreReply {
    store.claim(flight, claimant(), end_of(unix_time())).await
}

/// A clock that is ten seconds ahead.
pub(crate) fn fast_clock() -> i64 {
    unix_micros() + 10_000_000
}

/// A flight that was not claimed before.
pub(crate) fn fresh() -> ClaimKey {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut random = [0; 32];
    random[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    random[8..12].copy_from_slice(&std::process::id().to_be_bytes());
    ClaimKey::of_flight(&random)
}

/// Claims fresh flights until one gets this reply.
pub(crate) async fn until(store: &Store, expected: StoreReply) {
    until_within(store, expected, Duration::from_secs(20)).await;
}

pub(crate) async fn until_within(store: &Store, expected: StoreReply, timeout: Duration) {
    let end = Instant::now() + timeout;
    loop {
        let reply = claim(store, fresh()).await;
        if reply == expected {
            return;
        }
        assert!(Instant::now() < end, "{timeout:?} passed: {reply:?}, not yet {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Claims one flight after the other until one gets this reply, and returns it. Its record lives for
/// more than a minute.
pub(crate) async fn claim_until(
    store: &Store,
    flights: impl IntoIterator<Item = ClaimKey>,
    expected: StoreReply,
) -> ClaimKey {
    let end = Instant::now() + Duration::from_secs(20);
    for flight in flights {
        let reply = store.claim(flight, claimant(), distant_record_end()).await;
        if reply == expected {
            return flight;
        }
        assert!(Instant::now() < end, "20 s passed: {reply:?}, not yet {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no flight gets {expected:?}")
}

/// Claims a fresh flight on two nodes at once. Returns whether both replies are known; then exactly
/// one of the nodes has won.
pub(crate) async fn race(node: &Store, other: &Store) -> bool {
    use StoreReply::{Lost, Unknown, Won};
    let (flight, end) = (fresh(), distant_record_end());
    let replies =
        tokio::join!(node.claim(flight, claimant(), end), other.claim(flight, claimant(), end));
    match replies {
        (Won, Lost) | (Lost, Won) => true,
        (Unknown(_), _) | (_, Unknown(_)) => {
            tokio::time::sleep(Duration::from_millis(20)).await;
            false
        }
        (Won, Won) | (Lost, Lost) => panic!("{replies:?}"),
    }
}

/// When the record of a flight whose ticket age is exact in a minute expires.
fn distant_record_end() -> Duration {
    end_of(unix_time() + Duration::from_secs(60))
}

pub(crate) fn unknown(why: Unknown) -> StoreReply {
    StoreReply::Unknown(why)
}

/// Waits until claims can be sent to the store.
pub(crate) async fn wait_until_reachable(store: &Store) {
    let end = Instant::now() + Duration::from_secs(20);
    while store.unavailable_reason().is_some() {
        assert!(Instant::now() < end, "20 s passed, and the store is not reachable");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
