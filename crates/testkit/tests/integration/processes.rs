//! Store processes respond, restart empty, and end when dropped.

use firstflight_testkit::{Cluster, Sentinels, StoreKind, StoreListen, StoreOptions, StoreProcess};

#[test]
fn a_store_keeps_nothing_over_a_restart() {
    for kind in [StoreKind::Redis, StoreKind::Valkey] {
        let mut store = StoreProcess::start(StoreOptions::new(kind, StoreListen::Unix));
        assert_eq!(store.cli(&["set", "a", "1"]), "OK");
        store.restart();
        assert_eq!(store.cli(&["get", "a"]), "");
        let pid = store.pid();
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
        drop(store);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}

#[test]
fn the_clock_of_a_store_can_be_off() {
    let store =
        StoreProcess::start(StoreOptions::new(StoreKind::Valkey, StoreListen::Tcp).clock("+1000s"));
    let output = store.cli(&["time"]);
    let seconds: u64 = output.lines().next().unwrap().parse().unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(seconds.abs_diff(now + 1000) < 30, "{seconds} and {now}");
}

#[test]
fn sentinels_promote_the_replica_when_the_master_dies() {
    let mut all = Sentinels::start();
    all.stores[0].kill();
    all.wait_for_master(1);
}

#[test]
fn a_cluster_is_whole_and_moves_slots() {
    let cluster = Cluster::start(StoreKind::Redis);
    // CLUSTER KEYSLOT foo
    assert_eq!(cluster.masters[2].cli(&["set", "foo", "1"]), "OK");
    assert_eq!(cluster.masters[2].cli(&["del", "foo"]), "1");
    cluster.move_slot(12182, 2, 0);
    assert!(cluster.masters[2].cli(&["set", "foo", "1"]).contains("MOVED 12182"));
    assert_eq!(cluster.masters[0].cli(&["set", "foo", "1"]), "OK");
}
