//! Nodes whose clocks are off.

use std::thread::sleep;
use std::time::Duration;

use firstflight_testkit::until;

use super::{Plan, Row};
use crate::cluster::ALL;
use crate::stage::{Setup, Stage};

/// One node is 5 s ahead and one 5 s behind: within the margin, so all accept early data, and a
/// flight that is stale at one node is fresh at another.
pub(super) fn within_the_margin(plan: &Plan) -> Vec<Row> {
    let clocks = [None, Some("+5s"), Some("-5s")];
    let stage = Stage::single("clocks_5_s_off", plan, &Setup { clocks, ..Setup::DEFAULT });
    let run = stage.run.clone();
    for _ in 0..8 {
        run.flights(3, &ALL);
        run.copies(0.1, &ALL);
        sleep(Duration::from_secs(2));
    }
    vec![stage.end(&["replayed"])]
}

/// One node is off by more than the margin, so it accepts no early data.
pub(super) fn beyond_the_margin(plan: &Plan) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, clock) in [("clock_ahead_too_far", "+5s"), ("clock_behind_too_far", "-5s")] {
        let clocks = [None, None, Some(clock)];
        let setup = Setup { clocks, early_data_nodes: &[0, 1], ..Setup::TIGHT };
        let stage = Stage::single(name, plan, &setup);
        let run = stage.run.clone();
        run.flights(10, &[0, 1]);
        run.requests(10, &[2]);
        run.copies(0.5, &ALL);
        rows.push(stage.end(&["store_clock"]));
    }
    rows
}

/// One node's clock is set back by so much that earlier flights are fresh again, and corrected
/// after a while.
pub(super) fn set_back(plan: &Plan) -> Vec<Row> {
    let clocks = [None, Some("+0s"), None];
    let stage = Stage::single("clock_set_back", plan, &Setup { clocks, ..Setup::of(plan) });
    let run = stage.run.clone();
    run.flights(20, &ALL);
    let load = run.background_load();
    load.run_for(Duration::from_secs(8));
    stage.cluster.set_clock(1, "-15s");
    run.copies(0.3, &[1]);
    load.run_for(Duration::from_secs(6));
    // On a busy machine the node may have got no honest request yet.
    until(|| stage.cluster.has_logged(&["store_clock"]));
    stage.cluster.set_clock(1, "+0s");
    run.copies(0.3, &[1]);
    load.run_for(Duration::from_secs(4));
    load.end();
    vec![stage.end(&["store_clock", "age", "session_not_resumed"])]
}
