//! Leaves out one rule at a time: the explorer has to find the attack that the rule prevents.

use std::time::Duration;

use firstflight_replay::SharedConfig;
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::model::setting::{Fault, Rule, Setting, TICK};
use crate::model::world::{Step, World};
use crate::model::{AT_MOST_ONCE, NO_NEEDLESS_425};

/// Checks that the explorer finds a violation of `property` without `rule`.
#[track_caller]
fn breaks(property: &'static str, rule: Rule, setting: Setting) {
    let setting = Setting { without: Some(rule), ..setting };
    let checker = setting.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("no violation without {rule:?} in {} states", checker.unique_state_count());
    };
    let steps: Vec<_> = path.into_actions().iter().map(|step| format!("  {step:?}")).collect();
    println!("without {rule:?}:\n{}", steps.join("\n"));
}

fn single_with(faults: &[Fault]) -> Setting {
    let max_faults = faults.len() as u8;
    Setting { faults: faults.to_vec(), max_faults, ..Setting::single() }
}

fn sentinels_with(faults: &[Fault]) -> Setting {
    Setting { stores: vec![0, 0], config: Setting::sentinels().config, ..single_with(faults) }
}

/// Flights are fresh for a moment only, and the window has its minimum of two ticks.
fn sentinels_with_minimal_times(faults: &[Fault]) -> Setting {
    let config = SharedConfig {
        freshness: Duration::ZERO,
        clock_margin: Duration::ZERO,
        ..Setting::sentinels().config
    };
    Setting { config, zero_skew: 3, horizon: 3, ..sentinels_with(faults) }
}

#[test]
fn fails_without_a_window_after_a_loss() {
    breaks(AT_MOST_ONCE, Rule::Window, single_with(&[Fault::Flush]));
}

#[test]
fn fails_with_a_window_no_longer_than_record_lifetimes() {
    breaks(AT_MOST_ONCE, Rule::WholeWindow, Setting::worst_failover());
}

#[test]
fn fails_with_an_epoch_of_another_process() {
    breaks(AT_MOST_ONCE, Rule::EpochOfThisProcess, single_with(&[Fault::RestartFromSnapshot]));
}

#[test]
fn fails_with_an_epoch_dated_by_its_writer() {
    // A node's write arrives late, after the store was emptied once more.
    let faults = [Fault::Flush, Fault::LateEpoch, Fault::Flush];
    let setting = Setting { zero_skew: 8, horizon: 9, ..single_with(&faults) };
    breaks(AT_MOST_ONCE, Rule::EpochDatedByStore, setting);
}

#[test]
fn fails_with_an_epoch_written_before_a_majority_names_the_master() {
    let faults = [Fault::Failover, Fault::Disconnect];
    breaks(AT_MOST_ONCE, Rule::EpochAfterMajority, sentinels_with_minimal_times(&faults));
}

#[test]
fn fails_with_an_unconfirmed_master() {
    let faults = [Fault::Failover, Fault::CutOffFromSentinels];
    breaks(AT_MOST_ONCE, Rule::Confirmation, sentinels_with_minimal_times(&faults));
}

#[test]
fn fails_with_an_epoch_written_by_a_node_whose_clock_disagrees() {
    // A new node writes it on a new master whose clock is wrong and is corrected afterwards.
    let faults = [Fault::Failover, Fault::Kill, Fault::StoreClock(8 * TICK)];
    let setting =
        Setting { nodes: vec![vec![0]], stores: vec![0, -8 * TICK], ..sentinels_with(&faults) };
    breaks(AT_MOST_ONCE, Rule::EpochWithinMargin, setting);
}

#[test]
fn fails_with_records_that_end_too_early() {
    // As long as the flight is fresh with correct clocks: freshness and margin, once each.
    let lifetime = Duration::from_millis(2 * TICK as u64);
    let setting = Setting { nodes: vec![vec![-TICK], vec![TICK]], ..single_with(&[]) };
    breaks(AT_MOST_ONCE, Rule::RecordLifetime(lifetime), setting);
}

#[test]
fn fails_with_clocks_that_disagree() {
    let setting = Setting { nodes: vec![vec![-4 * TICK], vec![0]], ..single_with(&[]) };
    breaks(AT_MOST_ONCE, Rule::ClockMargin, setting);
}

#[test]
fn fails_if_flights_with_unknown_claims_are_executed() {
    breaks(AT_MOST_ONCE, Rule::RefuseUnknown, single_with(&[]));
}

#[test]
fn fails_if_stale_flights_are_accepted() {
    breaks(AT_MOST_ONCE, Rule::Freshness, single_with(&[]));
}

#[test]
fn fails_with_a_flight_timed_after_its_client_hello() {
    breaks(AT_MOST_ONCE, Rule::TimeBeforeHello, single_with(&[Fault::Pause]));
}

#[test]
fn fails_without_comparing_heartbeats() {
    let steps = [Fault::StoreClock(6 * TICK), Fault::StoreClock(-6 * TICK)];
    breaks(AT_MOST_ONCE, Rule::HeartbeatComparison, single_with(&steps));
}

#[test]
fn fails_if_claims_count_in_a_store_that_evicts() {
    breaks(AT_MOST_ONCE, Rule::Evictions, single_with(&[Fault::Evict]));
}

#[test]
fn fails_with_claims_in_progress_in_the_filter() {
    breaks(
        NO_NEEDLESS_425,
        Rule::FilterOfSettledClaims,
        Setting { outcomes: true, honest: true, ..single_with(&[]) },
    );
}

fn requests_with(faults: &[Fault]) -> Setting {
    Setting { honest: true, horizon: 9, ..single_with(faults) }
}

/// The flight is fresh only long after the first connection may arrive.
fn far_from_fresh(faults: &[Fault]) -> Setting {
    Setting { zero_skew: 9, horizon: 12, ..requests_with(faults) }
}

#[test]
fn fails_with_records_whose_end_does_not_follow_the_skew() {
    breaks(AT_MOST_ONCE, Rule::EndFollowsSkew, far_from_fresh(&[]));
}

#[test]
fn fails_with_records_whose_end_is_relative_to_the_writers_clock() {
    // The writer's clock is far ahead; it accepts nothing, but writes records.
    let nodes = vec![vec![25 * TICK], vec![0]];
    breaks(AT_MOST_ONCE, Rule::AbsoluteEnd, Setting { nodes, ..requests_with(&[]) });
}

#[test]
fn fails_without_spends() {
    breaks(AT_MOST_ONCE, Rule::SpendBeforeExecution, requests_with(&[Fault::Disconnect]));
}

#[test]
fn fails_if_unrecorded_requests_do_not_wait() {
    breaks(AT_MOST_ONCE, Rule::WaitUntilRecorded, requests_with(&[Fault::CutOffFromStores]));
}

#[test]
fn fails_with_records_in_an_unconfirmed_master() {
    let faults = [Fault::Failover, Fault::CutOffFromSentinels];
    let setting =
        Setting { honest: true, zero_skew: 6, horizon: 7, ..sentinels_with_minimal_times(&faults) };
    breaks(AT_MOST_ONCE, Rule::ConfirmedRecord, setting);
}

#[test]
fn fails_with_records_that_a_store_with_a_fast_clock_has_dropped() {
    let steps = [Fault::StoreClock(20 * TICK), Fault::StoreClock(-20 * TICK)];
    let setting = Setting { max_pending: 1, ..far_from_fresh(&steps) };
    breaks(AT_MOST_ONCE, Rule::RecordNotExpired, Setting { zero_skew: 12, horizon: 15, ..setting });
}

/// Checks that the explorer finds an excused state in which a request is executed twice.
#[track_caller]
fn is_reachable(setting: Setting) {
    let checker = Excused(setting).checker().finish_when(HasDiscoveries::All).spawn_bfs().join();
    let path = checker.discovery(EXCUSED).expect("the exception occurs");
    let steps: Vec<_> = path.into_actions().iter().map(|step| format!("  {step:?}")).collect();
    println!("executed twice:\n{}", steps.join("\n"));
}

const EXCUSED: &str = "executed twice";

/// The same model, searched for its exceptions.
struct Excused(Setting);

impl Model for Excused {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        self.0.init_states()
    }

    fn actions(&self, state: &World, actions: &mut Vec<Step>) {
        self.0.actions(state, actions);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        self.0.next_state(last, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::sometimes(EXCUSED, |_, world: &World| world.runs > 1)]
    }
}

#[test]
fn excused_an_original_after_the_record_of_a_copy_has_ended() {
    is_reachable(Setting { horizon: 8, ..requests_with(&[Fault::Pause]) });
}

#[test]
fn excused_a_copys_record_lost_before_its_original_is_recorded() {
    is_reachable(requests_with(&[Fault::Flush]));
}

#[test]
fn excused_records_lost_before_the_flight_is_fresh() {
    is_reachable(far_from_fresh(&[Fault::Flush]));
}

#[test]
fn excused_a_copy_that_ran_before_its_originals_node_was_cut_off() {
    is_reachable(requests_with(&[Fault::CutOffFromStores]));
}
