//! The processes of this crate respond, freeze, restart empty, and have ended at the end of a test.

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
fn a_clock_can_be_off() {
    let store =
        StoreProcess::start(StoreOptions::new(StoreKind::Valkey, StoreListen::Tcp).clock("+1000s"));
    let output = store.cli(&["time"]);
    let seconds: u64 = output.lines().next().unwrap().parse().unwrap();
    let ours = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(seconds.abs_diff(ours + 1000) < 30, "{seconds} and {ours}");
}

#[test]
fn sentinels_put_the_replica_in_the_masters_place() {
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
