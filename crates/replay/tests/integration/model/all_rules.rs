//! With all rules, no fault leads to a flight that is executed twice.

use std::time::{Duration, Instant};

use firstflight_replay::SharedConfig;
use stateright::{Checker, Model};

use crate::model::setting::{Fault, Setting, TICK, UnrecordedRequest};

/// Checks all states, and prints how many there are.
fn holds(name: &str, setting: Setting) {
    let deep = std::env::var_os("FIRSTFLIGHT_MODEL").is_some_and(|value| value == "deep");
    let max_faults = setting.max_faults + u8::from(deep);
    let started = Instant::now();
    let checker = Setting { max_faults, ..setting }.checker().spawn_bfs().join();
    println!(
        "{name}: {} states, {} steps, {} deep, at most {max_faults} faults, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64(),
    );
    checker.assert_properties();
}

/// Clocks of two nodes at both ends of the margin, and in between.
fn far_apart() -> Vec<Vec<i64>> {
    vec![vec![-TICK, 0], vec![TICK]]
}

#[test]
fn rfc8446_8_2_a_store_that_is_emptied_or_restarted() {
    use Fault::{Flush, Kill, Restart, RestartFromSnapshot};
    let faults = vec![Flush, Restart, RestartFromSnapshot, Kill];
    holds("losses", Setting { faults, nodes: far_apart(), max_faults: 2, ..Setting::single() });
}

#[test]
fn rfc8446_8_2_three_nodes() {
    use Fault::{Kill, Restart};
    let nodes = vec![vec![0]; 3];
    holds("three nodes", Setting { faults: vec![Restart, Kill], nodes, ..Setting::single() });
}

#[test]
fn rfc8446_8_2_late_messages_and_paused_processes() {
    use Fault::{Disconnect, Flush, LateClaim, LateEpoch, Pause};
    let faults = vec![Flush, Pause, LateClaim, LateEpoch, Disconnect];
    holds("late messages", Setting { faults, max_faults: 2, ..Setting::single() });
}

#[test]
fn rfc8446_8_3_clocks_of_nodes_that_are_set() {
    use Fault::{NodeClock, Pause};
    let steps = [-2 * TICK, TICK, 6 * TICK].map(NodeClock);
    let faults = steps.into_iter().chain([Pause]).collect();
    holds("nodes' clocks", Setting { faults, max_faults: 2, ..Setting::single() });
}

#[test]
fn rfc8446_8_2_clocks_of_stores_that_are_set() {
    use Fault::{Kill, StoreClock};
    let steps = [-6, -3, -1, 1, 6].map(|ticks| StoreClock(ticks * TICK));
    let faults = steps.into_iter().chain([Kill]).collect();
    holds("store's clock", Setting { faults, max_faults: 2, ..Setting::single() });
}

#[test]
fn rfc8446_8_2_a_store_that_evicts() {
    use Fault::{Evict, Kill};
    let faults = vec![Evict, Kill];
    holds("evictions", Setting { faults, max_faults: 2, ..Setting::single() });
}

#[test]
fn rfc8446_8_2_failover_to_a_replica_that_lags() {
    use Fault::{CutOffFromSentinels, Failover};
    let faults = vec![Failover, CutOffFromSentinels];
    let nodes = vec![vec![-TICK], vec![TICK]];
    holds("failover", Setting { faults, nodes, max_faults: 2, ..Setting::sentinels() });
}

#[test]
fn rfc8446_8_2_failover_between_clocks_that_disagree() {
    holds("clocks that disagree", Setting::worst_failover());
}

#[test]
fn honest_clients_get_a_425_only_if_necessary() {
    use Fault::{Flush, Kill};
    // Late enough that a claim counts again after a loss at the start.
    let late = Setting { zero_skew: 8, horizon: 9, faults: vec![Flush, Kill], ..Setting::single() };
    holds("honest clients", Setting { honest: true, outcomes: true, ..late });
}

#[test]
fn rfc8446_8_2_refused_requests_and_lost_records() {
    use Fault::{Flush, Kill, LateClaim, Restart};
    let faults = vec![Flush, Restart, Kill, LateClaim];
    holds("refused requests", Setting { faults, ..Setting::requests() });
}

#[test]
fn rfc8446_8_2_refused_requests_where_the_store_is_out_of_reach() {
    use Fault::{CutOffFromStores, Pause};
    for unrecorded_request in [UnrecordedRequest::Runs, UnrecordedRequest::TooEarly] {
        let setting = Setting {
            faults: vec![CutOffFromStores, Pause],
            unrecorded_request,
            ..Setting::requests()
        };
        holds("out of reach", setting);
    }
}

#[test]
fn rfc8446_8_3_refused_requests_at_nodes_whose_clocks_are_off() {
    use Fault::NodeClock;
    // Far beyond the margin in both directions: such nodes accept nothing, but write records.
    let nodes = vec![vec![-25 * TICK, 25 * TICK], vec![-TICK, TICK]];
    let faults = vec![NodeClock(25 * TICK), NodeClock(-25 * TICK)];
    holds("clocks far off", Setting { nodes, faults, ..Setting::requests() });
}

#[test]
fn rfc8446_8_3_refused_requests_far_from_fresh() {
    use Fault::{CutOffFromStores, Flush, Kill};
    // Fresh nine ticks later: the first connection comes far too early.
    let far = Setting {
        zero_skew: 9,
        horizon: 13,
        nodes: vec![vec![-TICK], vec![TICK]],
        ..Setting::requests()
    };
    holds("far too early", Setting { faults: vec![CutOffFromStores, Flush, Kill], ..far });
    // And far too late, up to the record's end.
    holds(
        "too late",
        Setting {
            zero_skew: 1,
            horizon: 6,
            faults: vec![CutOffFromStores, Kill],
            max_faults: 2,
            ..Setting::requests()
        },
    );
}

/// A record that is written while the store's clock is ahead, long before the flight is fresh.
#[test]
fn rfc8446_8_2_refused_requests_where_the_stores_clock_is_set() {
    use Fault::StoreClock;
    let faults = vec![StoreClock(20 * TICK), StoreClock(-20 * TICK)];
    let times = Setting { zero_skew: 12, horizon: 15, max_pending: 1, ..Setting::requests() };
    holds("refused, store's clock", Setting { faults, max_faults: 2, ..times });
}

#[test]
fn rfc8446_8_2_refused_requests_across_a_failover() {
    use Fault::{CutOffFromSentinels, Failover};
    // The window is as short as it can be, two ticks.
    let config = SharedConfig {
        freshness: Duration::ZERO,
        clock_margin: Duration::ZERO,
        ..Setting::sentinels().config
    };
    let setting =
        Setting { faults: vec![Failover, CutOffFromSentinels], config, ..Setting::sentinels() };
    for zero_skew in [2, 5] {
        let horizon = zero_skew + 2;
        let setting = Setting { zero_skew, horizon, max_pending: 1, ..setting.clone() };
        holds("refused, failover", Setting { honest: true, ..setting });
    }
}
