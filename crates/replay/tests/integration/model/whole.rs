//! With all rules: nothing that can go wrong executes a flight twice.

use std::time::{Duration, Instant};

use firstflight_replay::SharedConfig;
use stateright::{Checker, Model};

use crate::model::setting::{AtClose, Setting, TICK, Trouble};

/// Tries everything, and says how much that was.
fn holds(name: &str, setting: Setting) {
    let deep = std::env::var_os("FIRSTFLIGHT_MODEL").is_some_and(|value| value == "deep");
    let most_troubles = setting.most_troubles + u8::from(deep);
    let started = Instant::now();
    let checker = Setting { most_troubles, ..setting }.checker().spawn_bfs().join();
    println!(
        "{name}: {} states, {} steps, {} deep, at most {most_troubles} things go wrong, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64(),
    );
    checker.assert_properties();
}

/// Clocks of two nodes at either end of the margin, and between.
fn far_apart() -> Vec<Vec<i64>> {
    vec![vec![-TICK, 0], vec![TICK]]
}

#[test]
fn rfc8446_8_2_a_store_that_is_emptied_or_restarted() {
    use Trouble::{Flush, Kill, Restart, RestartFromSnapshot};
    let troubles = vec![Flush, Restart, RestartFromSnapshot, Kill];
    holds(
        "losses",
        Setting { troubles, nodes: far_apart(), most_troubles: 2, ..Setting::single() },
    );
}

#[test]
fn rfc8446_8_2_three_nodes() {
    use Trouble::{Kill, Restart};
    let nodes = vec![vec![0]; 3];
    holds("three nodes", Setting { troubles: vec![Restart, Kill], nodes, ..Setting::single() });
}

#[test]
fn rfc8446_8_2_late_messages_and_paused_processes() {
    use Trouble::{Disconnect, Flush, LateClaim, LateEpoch, Pause};
    let troubles = vec![Flush, Pause, LateClaim, LateEpoch, Disconnect];
    holds("late messages", Setting { troubles, most_troubles: 2, ..Setting::single() });
}

#[test]
fn rfc8446_8_3_clocks_of_nodes_that_are_set() {
    use Trouble::{NodeClock, Pause};
    let steps = [-2 * TICK, TICK, 6 * TICK].map(NodeClock);
    let troubles = steps.into_iter().chain([Pause]).collect();
    holds("nodes' clocks", Setting { troubles, most_troubles: 2, ..Setting::single() });
}

#[test]
fn rfc8446_8_2_clocks_of_stores_that_are_set() {
    use Trouble::{Kill, StoreClock};
    let steps = [-6, -3, -1, 1, 6].map(|ticks| StoreClock(ticks * TICK));
    let troubles = steps.into_iter().chain([Kill]).collect();
    holds("store's clock", Setting { troubles, most_troubles: 2, ..Setting::single() });
}

#[test]
fn rfc8446_8_2_a_store_that_evicts() {
    use Trouble::{Evict, Kill};
    let troubles = vec![Evict, Kill];
    holds("evictions", Setting { troubles, most_troubles: 2, ..Setting::single() });
}

#[test]
fn rfc8446_8_2_failover_to_a_replica_that_lags() {
    use Trouble::{Deaf, Failover};
    let troubles = vec![Failover, Deaf];
    let nodes = vec![vec![-TICK], vec![TICK]];
    holds("failover", Setting { troubles, nodes, most_troubles: 2, ..Setting::sentinels() });
}

#[test]
fn rfc8446_8_2_failover_between_clocks_that_disagree() {
    holds("clocks that disagree", Setting::worst_failover());
}

#[test]
fn honest_clients_are_told_no_more_than_they_must() {
    use Trouble::{Flush, Kill};
    // Late enough that a claim counts again after a loss at the start.
    let late =
        Setting { zero_skew: 8, horizon: 9, troubles: vec![Flush, Kill], ..Setting::single() };
    holds("honest clients", Setting { honest: true, outcomes: true, ..late });
}

#[test]
fn rfc8446_8_2_refused_requests_beside_lost_records() {
    use Trouble::{Flush, Kill, LateClaim, Restart};
    let troubles = vec![Flush, Restart, Kill, LateClaim];
    holds("refused requests", Setting { troubles, ..Setting::requests() });
}

#[test]
fn rfc8446_8_2_refused_requests_where_the_store_is_out_of_reach() {
    use Trouble::{CutOff, Pause};
    for at_close in [AtClose::Runs, AtClose::TooEarly] {
        let setting = Setting { troubles: vec![CutOff, Pause], at_close, ..Setting::requests() };
        holds("out of reach", setting);
    }
}

#[test]
fn rfc8446_8_3_refused_requests_at_nodes_whose_clocks_are_off() {
    use Trouble::NodeClock;
    // Far beyond the margin, either way: there nothing is accepted, but records are written.
    let nodes = vec![vec![-25 * TICK, 25 * TICK], vec![-TICK, TICK]];
    let troubles = vec![NodeClock(25 * TICK), NodeClock(-25 * TICK)];
    holds("clocks far off", Setting { nodes, troubles, ..Setting::requests() });
}

#[test]
fn rfc8446_8_3_refused_requests_far_from_fresh() {
    use Trouble::{CutOff, Flush, Kill};
    // Fresh nine ticks later: the first connection comes far too early.
    let far = Setting {
        zero_skew: 9,
        horizon: 13,
        nodes: vec![vec![-TICK], vec![TICK]],
        ..Setting::requests()
    };
    holds("far too early", Setting { troubles: vec![CutOff, Flush, Kill], ..far });
    // And far too late, up to the record's end.
    holds(
        "too late",
        Setting {
            zero_skew: 1,
            horizon: 6,
            troubles: vec![CutOff, Kill],
            most_troubles: 2,
            ..Setting::requests()
        },
    );
}

#[test]
fn rfc8446_8_2_refused_requests_across_a_failover() {
    use Trouble::{Deaf, Failover};
    // The window is as short as it can be, two ticks.
    let config = SharedConfig {
        freshness: Duration::ZERO,
        clock_margin: Duration::ZERO,
        ..Setting::sentinels().config
    };
    let setting = Setting { troubles: vec![Failover, Deaf], config, ..Setting::sentinels() };
    for zero_skew in [2, 5] {
        let horizon = zero_skew + 2;
        let setting = Setting { zero_skew, horizon, most_pending: 1, ..setting.clone() };
        holds("refused, failover", Setting { honest: true, ..setting });
    }
}
