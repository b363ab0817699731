//! A store that is down, frozen, empty, full, slow or unreachable.

use std::time::Duration;

use firstflight_testkit::until;

use super::{Plan, Row};
use crate::cluster::ALL;
use crate::stage::{EARLY_DATA_TIMEOUT, Setup, Stage};

/// Killed, and started again after a while.
pub(super) fn stopped(plan: &Plan) -> Vec<Row> {
    fault("store_stopped", plan, &["store_down"], |stage| stage.process().kill(), restart)
}

/// SIGSTOP: connections stay open, but the store does not respond.
pub(super) fn frozen(plan: &Plan) -> Vec<Row> {
    let reasons = ["store_timeout", "store_down"];
    fault(
        "store_frozen",
        plan,
        &reasons,
        |stage| stage.process().freeze(),
        |stage| {
            stage.process().thaw();
        },
    )
}

/// Killed and started at once, without a record.
pub(super) fn restarted_empty(plan: &Plan) -> Vec<Row> {
    fault("store_restarted_empty", plan, &["store_window"], restart, |_| {})
}

/// `FLUSHALL` by somebody who thought it was a cache.
pub(super) fn flushed(plan: &Plan) -> Vec<Row> {
    let flush = |stage: &mut Stage| store_cli(stage, &["flushall"]);
    fault("store_flushed", plan, &["store_window"], flush, |_| {})
}

/// No room for another record.
pub(super) fn out_of_memory(plan: &Plan) -> Vec<Row> {
    let full = |stage: &mut Stage| store_cli(stage, &["config", "set", "maxmemory", "1"]);
    let room = |stage: &mut Stage| store_cli(stage, &["config", "set", "maxmemory", "0"]);
    fault("store_out_of_memory", plan, &["store_refused"], full, room)
}

/// A full store that drops records.
pub(super) fn evicting(plan: &Plan) -> Vec<Row> {
    let evict = |stage: &mut Stage| {
        store_cli(stage, &["config", "set", "maxmemory-policy", "allkeys-random"]);
        store_cli(stage, &["config", "set", "maxmemory", "1"]);
    };
    let keep = |stage: &mut Stage| {
        store_cli(stage, &["config", "set", "maxmemory", "0"]);
        store_cli(stage, &["config", "set", "maxmemory-policy", "noeviction"]);
    };
    fault("store_evicting", plan, &["store_evicting", "store_window"], evict, keep)
}

/// Slower than the budget.
pub(super) fn slow(plan: &Plan) -> Vec<Row> {
    let each_way = 4 * plan.budget;
    let slow = move |stage: &mut Stage| stage.links.iter().for_each(|link| link.slow(each_way));
    fault("store_slow", plan, &["store_timeout"], slow, open)
}

/// Unreachable for one node, which the others do not notice.
pub(super) fn partitioned(plan: &Plan) -> Vec<Row> {
    let cut = |stage: &mut Stage| stage.links[0].cut();
    fault("store_partitioned", plan, &["store_timeout", "store_down"], cut, open)
}

/// One of three masters of a cluster is killed and started at once, without a record.
pub(super) fn shard_restarted_empty(plan: &Plan) -> Vec<Row> {
    let stage = Stage::sharded("shard_restarted_empty", plan);
    fault_on(stage, &["store_window", "store_refused", "store_down"], restart, |_| {})
}

/// Tickets that are used once: the store has their only copies, and forgets them.
pub(super) fn single_use(plan: &Plan) -> Vec<Row> {
    let setup = Setup { tickets: "single_use = true\n", ..Setup::of(plan) };
    let stage = Stage::single("single_use_tickets", plan, &setup);
    fault_on(stage, &["session_not_resumed", "store_window"], restart, |_| {})
}

/// Sends honest requests and copies before, during and after a fault, until early data is accepted
/// again.
fn fault(
    name: &'static str,
    plan: &Plan,
    reasons: &[&str],
    inject: impl FnOnce(&mut Stage),
    end: impl FnOnce(&mut Stage),
) -> Vec<Row> {
    fault_on(Stage::single(name, plan, &Setup::of(plan)), reasons, inject, end)
}

fn fault_on(
    mut stage: Stage,
    reasons: &[&str],
    inject: impl FnOnce(&mut Stage),
    end: impl FnOnce(&mut Stage),
) -> Vec<Row> {
    let run = stage.run.clone();
    run.flights(run.size(), &ALL);
    let load = run.background_load();
    load.run_for(Duration::from_secs(1));
    inject(&mut stage);
    run.copies(0.2, &ALL);
    load.run_for(Duration::from_secs(6));
    // On a busy machine the fault shows later. `Stage::end` reports it if it never does.
    until(|| stage.cluster.has_logged(reasons));
    end(&mut stage);
    run.copies(0.2, &ALL);
    load.until_accepted(20, EARLY_DATA_TIMEOUT);
    load.end();
    vec![stage.end(reasons)]
}

fn restart(stage: &mut Stage) {
    stage.process().restart();
}

fn open(stage: &mut Stage) {
    stage.links.iter().for_each(crate::link::Link::open);
}

fn store_cli(stage: &mut Stage, words: &[&str]) {
    assert_eq!(stage.process().cli(words), "OK", "{words:?}");
}
