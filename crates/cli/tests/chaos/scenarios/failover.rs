//! The store's master is replaced by a replica that has not seen the last claims.

use std::time::Duration;

use firstflight_testkit::{Sentinels, StoreProcess, until};

use super::{Plan, Row};
use crate::cluster::ALL;
use crate::link::Link;
use crate::stage::{Stage, Store, WINDOW, tell_sentinels};

/// The master dies.
pub(super) fn lagging_replica(plan: &Plan) -> Vec<Row> {
    failover("failover_lagging", plan, |stage| stage.process().kill(), |_| {})
}

/// The master stands still, is replaced, and comes back in the belief that it is the master.
pub(super) fn old_master_returns(plan: &Plan) -> Vec<Row> {
    let freeze = |stage: &mut Stage| stage.process().freeze();
    failover("old_master_returns", plan, freeze, |stage| stage.process().thaw())
}

/// The same replica, and claims that count only when it has them (`replicas = 1`): none does while
/// it lags, nor as a master without a replica of its own, until the old one has become that.
pub(super) fn acknowledged(plan: &Plan) -> Vec<Row> {
    let mut stage = Stage::sentinels("failover_with_wait", plan, "replicas = 1\n");
    let run = stage.run.clone();
    run.flights(run.size(), &ALL);
    let load = run.background_load();
    let link = lag(sentinels(&stage));
    run.copies(0.2, &ALL);
    load.run_for(Duration::from_secs(3));
    stage.process().kill();
    promote(sentinels(&stage));
    drop(link);
    run.copies(0.2, &ALL);
    stage.process().restart();
    run.copies(0.2, &ALL);
    load.until_accepted(20, WINDOW);
    load.end();
    // The budget may be over before the store gives the replica up.
    vec![stage.end(&["store_unreplicated", "store_timeout"])]
}

fn failover(
    name: &'static str,
    plan: &Plan,
    lose: impl FnOnce(&mut Stage),
    then: impl FnOnce(&mut Stage),
) -> Vec<Row> {
    let mut stage = Stage::sentinels(name, plan, "");
    let run = stage.run.clone();
    let link = lag(sentinels(&stage));
    run.flights(FLIGHTS, &ALL);
    let load = run.background_load();
    let stores = &sentinels(&stage).stores;
    let behind =
        replicated(&stores[0], "master_repl_offset") - replicated(&stores[1], "slave_repl_offset");
    assert!(behind > FLIGHTS as i64 * CLAIM, "the replica lags by {behind} bytes");
    lose(&mut stage);
    promote(sentinels(&stage));
    drop(link);
    run.copies(0.3, &ALL);
    then(&mut stage);
    run.copies(0.2, &ALL);
    load.until_accepted(20, WINDOW);
    load.end();
    vec![stage.end(&["store_window"])]
}

/// The proof that a replica behind a cut pipe lacks what came last, also as a master.
pub(super) fn lag_is_real(_: &Plan) -> Vec<Row> {
    let mut store = Sentinels::start();
    store.stores[0].cli(&["set", "before", "1"]);
    let link = lag(&store);
    assert_eq!(store.stores[0].cli(&["set", "after", "1"]), "OK");
    store.stores[0].kill();
    promote(&store);
    drop(link);
    let has = |key| store.stores[1].cli(&["exists", key]);
    assert_eq!((has("before"), has("after")), ("1".to_owned(), "0".to_owned()));
    Vec::new()
}

fn sentinels(stage: &Stage) -> &Sentinels {
    match &stage.store {
        Store::Sentinels(sentinels) => sentinels,
        _ => unreachable!("a stage with sentinels"),
    }
}

/// Bytes of the stream of what was recorded.
fn replicated(store: &StoreProcess, field: &str) -> i64 {
    let stderr = store.cli(&["info", "replication"]);
    let value = stderr.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).expect("a number")
}

/// Waits until the replica of a master that is gone has become the master.
fn promote(store: &Sentinels) {
    // Sentinels that did not agree try again after twice this time.
    tell_sentinels(store, "failover-timeout", 5_000);
    store.wait_for_master(1);
}

/// From now on nothing that the master records reaches the replica. A replica that is stopped would
/// not do: what its kernel has received for it, it reads when it goes on.
fn lag(store: &Sentinels) -> Link {
    // A sentinel leads a replica that follows by another address back, after this time.
    tell_sentinels(store, "failover-timeout", 120_000);
    let (master, replica) = (&store.stores[0], &store.stores[1]);
    let link = Link::to(master.tcp().1);
    replica.cli(&["replicaof", "127.0.0.1", &link.port().to_string()]);
    let up = || {
        let stderr = replica.cli(&["info", "replication"]);
        stderr.contains(&format!("master_port:{}", link.port()))
            && stderr.contains("master_link_status:up")
    };
    assert!(until(up), "the replica follows by the pipe");
    link.cut();
    link
}

/// Flights that the replica does not know, few enough to be fresh when it is the master.
const FLIGHTS: usize = 20;

/// Bytes that a claim takes at least where it is passed on: name, key, token and times.
const CLAIM: i64 = 60;
