//! Without one of the rules: the explorer has to find what the rule is there for.

use std::time::Duration;

use firstflight_replay::SharedConfig;
use stateright::{Checker, HasDiscoveries, Model};

use crate::setting::{Rule, Setting, TICK, Trouble};
use crate::{NEEDED, ONCE};

/// The explorer finds `property` violated when `rule` is left out.
#[track_caller]
fn breaks(property: &'static str, rule: Rule, setting: Setting) {
    let setting = Setting { without: Some(rule), ..setting };
    let checker = setting.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("without {rule:?} all is well in {} states", checker.unique_state_count());
    };
    let steps: Vec<_> = path.into_actions().iter().map(|step| format!("  {step:?}")).collect();
    println!("without {rule:?}:\n{}", steps.join("\n"));
}

fn with(troubles: &[Trouble]) -> Setting {
    let most_troubles = troubles.len() as u8;
    Setting { troubles: troubles.to_vec(), most_troubles, ..Setting::single() }
}

fn sentinels_with(troubles: &[Trouble]) -> Setting {
    Setting { stores: vec![0, 0], config: Setting::sentinels().config, ..with(troubles) }
}

/// Flights are fresh for a moment alone, and the window is as short as it can be: two ticks.
fn sentinels_at_once(troubles: &[Trouble]) -> Setting {
    let config = SharedConfig {
        freshness: Duration::ZERO,
        clock_margin: Duration::ZERO,
        ..Setting::sentinels().config
    };
    Setting { config, zero_skew: 3, horizon: 3, ..sentinels_with(troubles) }
}

#[test]
fn without_a_window_after_a_loss() {
    breaks(ONCE, Rule::Window, with(&[Trouble::Flush]));
}

#[test]
fn with_a_window_as_long_as_records_live() {
    breaks(ONCE, Rule::WholeWindow, Setting::worst_failover());
}

#[test]
fn with_an_epoch_of_any_life() {
    breaks(ONCE, Rule::EpochOfThisLife, with(&[Trouble::RestartFromSnapshot]));
}

#[test]
fn with_an_epoch_dated_by_its_writer() {
    // One is written late, after the store was emptied once more.
    let troubles = [Trouble::Flush, Trouble::LateEpoch, Trouble::Flush];
    let setting = Setting { zero_skew: 8, horizon: 9, ..with(&troubles) };
    breaks(ONCE, Rule::EpochDatedByStore, setting);
}

#[test]
fn with_an_epoch_from_before_the_majority() {
    let troubles = [Trouble::Failover, Trouble::Disconnect];
    breaks(ONCE, Rule::EpochAfterMajority, sentinels_at_once(&troubles));
}

#[test]
fn with_a_master_that_nobody_confirms() {
    let troubles = [Trouble::Failover, Trouble::Deaf];
    breaks(ONCE, Rule::Confirmation, sentinels_at_once(&troubles));
}

#[test]
fn with_an_epoch_written_by_who_does_not_agree_with_the_clock() {
    // A new node writes it on a new master whose clock is wrong, and is set right afterwards.
    let troubles = [Trouble::Failover, Trouble::Kill, Trouble::StoreClock(8 * TICK)];
    let setting =
        Setting { nodes: vec![vec![0]], stores: vec![0, -8 * TICK], ..sentinels_with(&troubles) };
    breaks(ONCE, Rule::EpochWithinMargin, setting);
}

#[test]
fn with_records_that_go_too_soon() {
    // As long as the flight is fresh somewhere: twice freshness, twice margin.
    let life = Duration::from_millis(4 * TICK as u64);
    let setting = Setting { nodes: vec![vec![-TICK], vec![TICK]], ..with(&[]) };
    breaks(ONCE, Rule::RecordLife(life), setting);
}

#[test]
fn with_clocks_that_disagree() {
    let setting = Setting { nodes: vec![vec![-3 * TICK], vec![3 * TICK]], ..with(&[]) };
    breaks(ONCE, Rule::ClockMargin, setting);
}

#[test]
fn with_what_is_unknown_executed() {
    breaks(ONCE, Rule::RefuseUnknown, with(&[]));
}

#[test]
fn with_stale_flights() {
    breaks(ONCE, Rule::Freshness, with(&[]));
}

#[test]
fn with_a_flight_timed_after_its_hello() {
    breaks(ONCE, Rule::TimeBeforeHello, with(&[Trouble::Pause]));
}

#[test]
fn without_what_heartbeats_remember() {
    let there_and_back = [Trouble::StoreClock(6 * TICK), Trouble::StoreClock(-6 * TICK)];
    breaks(ONCE, Rule::Memory, with(&there_and_back));
}

#[test]
fn with_a_store_that_evicts() {
    breaks(ONCE, Rule::Evictions, with(&[Trouble::Evict]));
}

#[test]
fn with_a_filter_of_claims_under_way() {
    breaks(NEEDED, Rule::FilterOfOutcomes, Setting { honest: true, ..with(&[]) });
}
