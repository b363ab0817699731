//! The store's master is replaced by a replica that has not seen the last claims.

use std::time::Duration;

use firstflight_testkit::{Sentinels, StoreProcess, until};

use super::{Plan, Row};
use crate::cluster::ALL;
use crate::link::Link;
use crate::stage::{EARLY_DATA_TIMEOUT, Stage, Store, tell_sentinels};

/// The master dies.
pub(super) fn lagging_replica(plan: &Plan) -> Vec<Row> {
    failover("failover_lagging", plan, |stage| stage.process().kill(), |_| {})
}

/// The master freezes, is replaced, and resumes as if it were still the master.
pub(super) fn old_master_returns(plan: &Plan) -> Vec<Row> {
    let freeze = |stage: &mut Stage| stage.process().freeze();
    failover("old_master_returns", plan, freeze, |stage| stage.process().thaw())
}

/// The same with claims that count only once a replica has them (`replicas = 1`): no claim counts
/// while the replica lags, nor after its promotion, until the old master has become its replica.
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
    load.until_accepted(20, EARLY_DATA_TIMEOUT);
    load.end();
    // The budget may end before the store stops waiting for the replica.
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
    assert!(behind > FLIGHTS as i64 * MIN_CLAIM_BYTES, "the replica lags by {behind} bytes");
    lose(&mut stage);
    promote(sentinels(&stage));
    drop(link);
    run.copies(0.3, &ALL);
    then(&mut stage);
    run.copies(0.2, &ALL);
    load.until_accepted(20, EARLY_DATA_TIMEOUT);
    load.end();
    vec![stage.end(&["store_window"])]
}

/// Proves that a replica behind a cut link lacks the last writes, also after its promotion.
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

/// A position in the replication stream, in bytes.
fn replicated(store: &StoreProcess, field: &str) -> i64 {
    let info = store.cli(&["info", "replication"]);
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).expect("a number")
}

/// Waits until the replica of a lost master has become the master.
fn promote(store: &Sentinels) {
    // Sentinels that did not agree retry after twice this time.
    tell_sentinels(store, "failover-timeout", 5_000);
    store.wait_for_master(1);
}

/// Cuts the replica off from the master's writes. Stopping the replica would not do: when resumed,
/// it would read what its kernel has received.
fn lag(store: &Sentinels) -> Link {
    // After this time, a sentinel redirects a replica that follows another address.
    tell_sentinels(store, "failover-timeout", 120_000);
    let (master, replica) = (&store.stores[0], &store.stores[1]);
    let link = Link::to(master.tcp().1);
    replica.cli(&["replicaof", "127.0.0.1", &link.port().to_string()]);
    let up = || {
        let info = replica.cli(&["info", "replication"]);
        info.contains(&format!("master_port:{}", link.port()))
            && info.contains("master_link_status:up")
    };
    assert!(until(up), "the replica follows over the link");
    link.cut();
    link
}

/// Flights that the replica does not know, few enough to be fresh when it is the master.
const FLIGHTS: usize = 20;

/// The least number of bytes of a replicated claim: name, key, token and times.
const MIN_CLAIM_BYTES: i64 = 60;
