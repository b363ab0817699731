//! What holds, and what breaks without a rule.

use stateright::{Checker, HasDiscoveries};

use super::*;

fn setting() -> Setting {
    Setting {
        horizon: 8,
        zero_skews: vec![2],
        most_connections: 3,
        restarts: 0,
        clock_steps: Vec::new(),
        reloads: 0,
        without: None,
    }
}

fn holds(setting: Setting) {
    let checker = setting.checker().spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

fn breaks(rule: Rule, promise: &'static str, setting: Setting) {
    let setting = Setting { without: Some(rule), ..setting };
    let checker = setting.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = checker.discovery(promise).expect("a flight is executed twice");
    println!("without {rule:?}: {:?}", path.into_actions());
}

fn restarted() -> Setting {
    Setting { restarts: 1, ..setting() }
}

fn set() -> Setting {
    Setting { clock_steps: vec![-6, -3, -1, 1, 4], horizon: 12, ..setting() }
}

fn crowded() -> Setting {
    Setting { zero_skews: vec![1, 4], horizon: 6, ..setting() }
}

fn reloaded() -> Setting {
    Setting { reloads: 2, ..setting() }
}

#[test]
fn rfc8446_8_2_a_restart_with_the_same_keys() {
    holds(restarted());
}

#[test]
fn rfc8446_8_3_a_clock_that_is_set() {
    holds(set());
}

#[test]
fn rfc8446_8_2_two_flights_and_room_for_one() {
    holds(crowded());
}

#[test]
fn rfc8470_5_1_a_reload_that_changes_the_policy() {
    holds(reloaded());
}

#[test]
fn without_a_window_at_the_start() {
    breaks(Rule::WindowAtStart, ONCE, restarted());
}

#[test]
fn without_watching_the_clock() {
    breaks(Rule::ClockIsWatched, ONCE, set());
}

#[test]
fn with_records_no_longer_than_freshness() {
    breaks(Rule::RecordsOutliveFreshness, ONCE_IN_ALL, setting());
}

#[test]
fn with_refused_flights_that_leave_no_record() {
    breaks(Rule::RefusedFlightsAreRecorded, ONCE_IN_ALL, setting());
}

#[test]
fn with_a_gate_that_stays_open_after_a_flight_without_a_record() {
    breaks(Rule::UnrecordedFlightsCloseTheGate, ONCE_IN_ALL, crowded());
}

#[test]
fn with_claims_at_the_first_request_that_may_run_early() {
    breaks(Rule::ClaimsComeBeforeAcceptance, ONCE, reloaded());
}

#[test]
fn with_requests_that_the_policy_holds_let_through_on_a_lost_flight() {
    breaks(Rule::LostWhateverThePolicy, ONCE, reloaded());
}
