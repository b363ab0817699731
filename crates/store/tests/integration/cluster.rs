//! A cluster of three masters: claims and records find their slot's owner, and slots move.

use std::iter::repeat_with;
use std::time::{Duration, Instant};

use crate::support::*;
use firstflight_replay::{ClaimKey, StoreReply::*, Unknown};
use firstflight_store::{Address, Spent, Store, StoreConfig, Topology};
use firstflight_testkit::{Cluster, StoreKind, StoreProcess};
use libtest_mimic::Trial;

/// All tests of this module.
pub(crate) fn trials() -> Vec<Trial> {
    trials![
        claims_and_records_find_their_master,
        a_slot_that_moves_waits_a_window,
        a_node_started_after_a_slot_moved_waits_a_window,
        a_cluster_without_one_of_its_masters_lets_no_flight_win_twice,
        a_promoted_replica_waits_a_window,
        replicas_that_take_over_from_most_masters_count_after_a_window,
    ]
}

fn cluster_config(cluster: &Cluster) -> StoreConfig {
    let (host, port) = cluster.addresses().remove(1);
    config(Topology::Cluster { seeds: vec![Address::Tcp(host, port)] })
}

/// Waits until forty flights in a row are won: then all three masters almost certainly count.
async fn wait_until_all_masters_count(store: &Store) {
    let end = Instant::now() + Duration::from_secs(20);
    let mut wins_in_a_row = 0;
    while wins_in_a_row < 40 {
        wins_in_a_row = if claim(store, fresh()).await == Won { wins_in_a_row + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(Instant::now() < end, "not all masters count: {:?}", store.statistics());
    }
}

/// The slot that the cluster computes for a claim.
fn slot(cluster: &Cluster, flight: ClaimKey) -> u16 {
    let key = [b"firstflight:c:", flight.as_bytes().as_slice()].concat();
    // redis-cli reads escapes in double quotes, but not as arguments.
    let script = "return redis.call('cluster', 'keyslot', (string.gsub(ARGV[1], '..', function(x) \
                  return string.char(tonumber(x, 16)) end)))";
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    cluster.masters[0].cli(&["eval", script, "0", &hex]).parse().expect("a slot")
}

async fn claims_and_records_find_their_master() {
    for kind in [StoreKind::Redis, StoreKind::Valkey] {
        let cluster = Cluster::start(kind);
        let (node, other) = (open(cluster_config(&cluster)), open(cluster_config(&cluster)));
        wait_until_all_masters_count(&node).await;
        wait_until_all_masters_count(&other).await;
        let (mut decided, started) = (0, Instant::now());
        while decided < 100 {
            assert!(started.elapsed() < Duration::from_secs(60), "only {decided} are decided");
            decided += u32::from(race(&node, &other).await);
        }
        for number in 0..50 {
            let key = format!("record:{number}");
            node.put(&key, key.as_bytes(), Duration::from_secs(60)).await.unwrap();
            assert_eq!(other.take(&key).await.unwrap().value.as_deref(), Some(key.as_bytes()));
        }
        for master in &cluster.masters {
            assert_ne!(master.cli(&["dbsize"]), "0", "a master without a claim");
        }
    }
}

async fn a_slot_that_moves_waits_a_window() {
    let cluster = Cluster::start(StoreKind::Redis);
    let store = open(cluster_config(&cluster));
    wait_until_all_masters_count(&store).await;
    // From the last master to the first, whose lowest slot, and so its epoch, stays the same.
    let flights = repeat_with(fresh).filter(|flight| slot(&cluster, *flight) > 11_000);
    let flight = claim_until(&store, flights, Won).await;
    let slot = slot(&cluster, flight);
    // The claim is not moved: the new owner does not know it. (A master does not
    // give up a slot that contains keys.)
    let moved = Instant::now();
    cluster.masters[2].cli(&["flushall"]);
    cluster.move_slot(slot, 2, 0);
    let window = short_config(Duration::from_secs(2)).recording_window();
    let mut waited = 0;
    let (mine, end) = (claimant(), end_of(unix_time()));
    loop {
        let reply = store.claim(flight, mine, end_of(unix_time())).await;
        if reply == unknown(Unknown::Window) {
            // The new owner has the record from now on.
            assert_eq!(store.spend(flight, mine, end).await, Ok(Spent::Recorded));
            waited += 1;
        }
        if reply == Won {
            break;
        }
        assert!(moved.elapsed() < Duration::from_secs(30), "it never counts again: {reply:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(moved.elapsed() >= window, "{:?}", moved.elapsed());
    assert!(waited > 0);
}

/// No node saw the slot move, and its new master's epoch is old.
async fn a_node_started_after_a_slot_moved_waits_a_window() {
    let cluster = Cluster::start(StoreKind::Redis);
    let store = open(cluster_config(&cluster));
    wait_until_all_masters_count(&store).await;
    let flights = repeat_with(fresh).filter(|flight| slot(&cluster, *flight) > 11_000);
    let flight = claim_until(&store, flights, Won).await;
    let slot = slot(&cluster, flight);
    drop(store);
    let moved = Instant::now();
    cluster.masters[2].cli(&["flushall"]);
    cluster.move_slot(slot, 2, 0);
    let window = short_config(Duration::from_secs(2)).recording_window();
    let (late, later) = (open(cluster_config(&cluster)), open(cluster_config(&cluster)));
    for node in [&late, &later] {
        loop {
            // The record expires at once: the test needs only the reply.
            let reply = node.claim(flight, claimant(), Duration::ZERO).await;
            if reply == Won {
                break;
            }
            assert!(moved.elapsed() < Duration::from_secs(30), "it never counts: {reply:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(moved.elapsed() >= window, "{:?}", moved.elapsed());
    }
    // The two do not replace each other's epoch, so both count.
    wait_until_all_masters_count(&late).await;
    wait_until_all_masters_count(&later).await;
}

async fn a_cluster_without_one_of_its_masters_lets_no_flight_win_twice() {
    let mut cluster = Cluster::start(StoreKind::Redis);
    let store = open(cluster_config(&cluster));
    wait_until_all_masters_count(&store).await;
    let mut flights = Vec::new();
    for _ in 0..30 {
        flights.push(claim_until(&store, repeat_with(fresh), Won).await);
    }
    let killed = Instant::now();
    cluster.masters[2].kill();
    while killed.elapsed() < Duration::from_secs(1) {
        for flight in &flights {
            assert_ne!(claim(&store, *flight).await, Won);
        }
    }
}

/// RFC 8446 section 8.2: a replica may lack the last claims.
async fn a_promoted_replica_waits_a_window() {
    let mut cluster = Cluster::start(StoreKind::Redis);
    cluster.add_replica(StoreKind::Redis, 0);
    let store = open(cluster_config(&cluster));
    wait_until_all_masters_count(&store).await;
    let mut flights_of_first_master =
        repeat_with(fresh).filter(|flight| slot(&cluster, *flight) < 5000);
    let later: Vec<_> = flights_of_first_master.by_ref().take(100).collect();
    let mut flights = Vec::new();
    for _ in 0..5 {
        flights.push(claim_until(&store, flights_of_first_master.by_ref(), Won).await);
    }
    let killed = Instant::now();
    cluster.masters[0].kill();
    let window = short_config(Duration::from_secs(2)).recording_window();
    let mut later = later.into_iter();
    loop {
        let reply = claim(&store, later.next().expect("it counts again at last")).await;
        if reply == Won {
            break;
        }
        for flight in &flights {
            let reply = claim(&store, *flight).await;
            assert!(reply != Won || killed.elapsed() >= window, "{:?}", killed.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(killed.elapsed() >= window, "{:?}", killed.elapsed());
}

/// Without most of the masters, an operator makes replicas take over.
async fn replicas_that_take_over_from_most_masters_count_after_a_window() {
    let mut cluster = Cluster::start(StoreKind::Redis);
    cluster.add_replica(StoreKind::Redis, 0);
    cluster.add_replica(StoreKind::Redis, 1);
    let seeds = cluster.addresses().into_iter().map(|(host, port)| Address::Tcp(host, port));
    let store = open(config(Topology::Cluster { seeds: seeds.collect() }));
    wait_until_all_masters_count(&store).await;
    let killed = Instant::now();
    cluster.masters[..2].iter_mut().for_each(StoreProcess::kill);
    for replica in &cluster.replicas {
        assert_eq!(replica.cli(&["cluster", "failover", "takeover"]), "OK");
    }
    // Until the last confirmation is too old, the old replies still count.
    tokio::time::sleep(short_config(Duration::from_secs(2)).confirmation).await;
    until_within(&store, Won, Duration::from_secs(60)).await;
    let window = short_config(Duration::from_secs(2)).recording_window();
    assert!(killed.elapsed() >= window, "{:?}", killed.elapsed());
    wait_until_all_masters_count(&store).await;
}
