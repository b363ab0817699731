//! Copies while nothing is wrong with the store: everywhere, at once, after restart and rotation.

use std::thread::sleep;
use std::time::Duration;

use super::{Cluster, Kind, Plan, Row, Run, evaluate};
use crate::cluster::ALL;
use crate::kind::Settings;
use crate::stage::{Setup, Stage};

/// A scenario that needs no store: its name, and what happens.
type Step = (&'static str, fn(&mut Cluster, &Run));

const STEPS: [Step; 6] = [
    ("same_node", same_node),
    ("other_node", other_node),
    ("at_once_on_all", at_once_on_all),
    ("after_a_restart", after_a_restart),
    ("after_rotation", after_rotation),
    ("after_the_window", after_the_window),
];

fn same_node(_: &mut Cluster, run: &Run) {
    run.flights(run.size(), &[0]);
    run.copies(1.0, &[0]);
}

fn other_node(_: &mut Cluster, run: &Run) {
    run.flights(run.size(), &[0]);
    run.copies(1.0, &[1, 2]);
}

fn at_once_on_all(_: &mut Cluster, run: &Run) {
    for _ in 0..4 {
        run.flights(run.size() / 4, &ALL);
        run.copies(0.25, &ALL);
    }
}

fn after_a_restart(cluster: &mut Cluster, run: &Run) {
    run.flights(run.size(), &ALL);
    cluster.kill(1);
    run.copies(0.2, &ALL);
    cluster.start_node(1);
    run.copies(0.6, &[1, 0, 2]);
    run.requests(run.size(), &ALL);
    run.remaining_copies();
}

fn after_rotation(cluster: &mut Cluster, run: &Run) {
    run.flights(run.size() / 2, &ALL);
    cluster.rotate();
    run.copies(0.3, &ALL);
    run.flights(run.size() / 4, &ALL);
    sleep(run.clients().kind.propagation_time());
    // With tickets from before and after the rotation.
    run.requests(2 * run.size(), &ALL);
    run.remaining_copies();
}

fn after_the_window(_: &mut Cluster, run: &Run) {
    run.flights(run.size(), &ALL);
    sleep(Duration::from_secs(15));
    run.copies(1.0, &ALL);
}

fn over_http2(_: &mut Cluster, run: &Run) {
    run.use_http2();
    run.flights(run.size(), &ALL);
    run.copies(1.0, &ALL);
}

/// All steps, also over HTTP/2, on one cluster with a store.
pub(super) fn shared(plan: &Plan) -> Vec<Row> {
    let mut stage = Stage::single("shared", plan, &Setup::of(plan));
    let steps = [&STEPS[..], &[("over_http2", over_http2)]].concat();
    let runs = play(&mut stage.cluster, plan, &steps);
    let (log, complete_logs) = stage.cluster.stop();
    runs.iter().map(|run| evaluate(run, &log, complete_logs)).collect()
}

/// A register for each process: each accepts early data only on its own tickets.
pub(super) fn without_a_store(plan: &Plan) -> Vec<Row> {
    let rows = one_after_the_other(Kind::Local, plan, &STEPS[..2]);
    let executed: u64 = rows.iter().map(|row| row.copies_executed).sum();
    assert_eq!(executed, 0, "copies are executed: {rows:#?}");
    rows
}

/// Proves that the harness detects executed copies, because nginx executes them.
pub(super) fn nginx(plan: &Plan) -> Vec<Row> {
    let steps = if plan.extended { &STEPS[..] } else { &STEPS[..2] };
    let rows = one_after_the_other(Kind::Nginx, plan, steps);
    let executed: u64 = rows.iter().map(|row| row.copies_executed).sum();
    assert!(executed > 0, "nginx executes copies: {rows:#?}");
    rows
}

pub(super) fn haproxy(plan: &Plan) -> Vec<Row> {
    one_after_the_other(Kind::Haproxy, plan, &STEPS)
}

/// Runs all steps on one cluster without a store.
fn one_after_the_other(kind: Kind, plan: &Plan, steps: &[Step]) -> Vec<Row> {
    let settings = Settings {
        freshness: Duration::from_secs(10),
        clock_margin: Duration::from_secs(1),
        budget: plan.budget,
        store: String::new(),
        tickets: "",
        early_data: true,
    };
    let mut cluster = Cluster::start(kind, [None; 3], |_| settings.clone());
    cluster.warm_up(START_TIMEOUT, if kind == Kind::Local { &[0] } else { &ALL });
    let runs = play(&mut cluster, plan, steps);
    let (log, complete_logs) = cluster.stop();
    runs.iter().map(|run| evaluate(run, &log, complete_logs)).collect()
}

fn play(cluster: &mut Cluster, plan: &Plan, steps: &[Step]) -> Vec<Run> {
    let step = |(name, step): &Step| {
        let run = Run::new(&cluster.clients, name, plan.copies);
        step(cluster, &run);
        run
    };
    steps.iter().map(step).collect()
}

/// Longer than any time without early data after a start, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(150);
