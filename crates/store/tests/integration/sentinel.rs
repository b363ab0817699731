//! Sentinels that report the master: failovers, and a master that is no longer confirmed.

use std::iter::repeat_with;
use std::time::{Duration, Instant};

use crate::support::*;
use firstflight_replay::{StoreReply::*, Unknown};
use firstflight_store::{Address, Store, StoreConfig, Topology};
use firstflight_testkit::{MASTER_NAME, Sentinels};
use libtest_mimic::Trial;

/// All tests of this module.
pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_failover_to_a_lagging_replica_lets_no_flight_win_twice,
        a_master_that_no_majority_confirms_stops_counting
    ]
}

/// Deletes the claims but not the epoch, as on a replica that lags behind.
const FORGET: &str = "for _, key in ipairs(redis.call('keys', 'firstflight:c:*')) do \
                      redis.call('del', key) end";

fn sentinel_config(all: &Sentinels) -> StoreConfig {
    let sentinels = all.addresses().into_iter().map(|(host, port)| Address::Tcp(host, port));
    config(Topology::Sentinel { sentinels: sentinels.collect(), master: MASTER_NAME.to_owned() })
}

async fn started() -> (Sentinels, Store) {
    let all = Sentinels::start_with(&[("replica-read-only", "no")]);
    let store = open(sentinel_config(&all));
    until(&store, Won).await;
    (all, store)
}

/// RFC 8446 section 8.2: claims that a lagging replica has not received are not won again.
async fn a_failover_to_a_lagging_replica_lets_no_flight_win_twice() {
    let (mut all, store) = started().await;
    let window = store_window();
    let mut flights = Vec::new();
    for _ in 0..20 {
        flights.push(claim_until(&store, repeat_with(fresh), Won).await);
    }
    all.stores[1].cli(&["eval", FORGET, "0"]);
    let killed = Instant::now();
    all.stores[0].kill();
    loop {
        for flight in &flights {
            // Within a window of the failover a copy may get any reply but a win.
            let reply = claim(&store, *flight).await;
            assert!(reply != Won || killed.elapsed() >= window, "{:?}", killed.elapsed());
        }
        if claim(&store, fresh()).await == Won {
            break;
        }
        assert!(killed.elapsed() < Duration::from_secs(90), "it never counts again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(killed.elapsed() >= window);
    assert_eq!(all.master_port(), Some(all.stores[1].tcp().1));
}

async fn a_master_that_no_majority_confirms_stops_counting() {
    let (all, store) = started().await;
    all.freeze_sentinels();
    until(&store, unknown(Unknown::Absent)).await;
    let spent = store.spend(fresh(), claimant(), end_of(unix_time())).await;
    assert_eq!(spent, Err(Unknown::Absent));
    let before = store.statistics().unknown_by(Unknown::Window);
    all.thaw_sentinels();
    until(&store, Won).await;
    // The same process without a restart, so no window has started.
    assert_eq!(store.statistics().unknown_by(Unknown::Window), before);
}

fn store_window() -> Duration {
    short_config(Duration::from_secs(2)).recording_window()
}
