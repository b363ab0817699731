//! The properties hold with all rules, and each rule is needed.

use stateright::{Checker, HasDiscoveries};

use super::*;

fn setting() -> Setting {
    Setting {
        horizon: 8,
        exact_ticks: vec![2],
        max_connections: 3,
        restarts: 0,
        clock_steps: Vec::new(),
        reloads: 0,
        switches: 0,
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
    Setting { exact_ticks: vec![1, 4], horizon: 6, ..setting() }
}

fn reloaded() -> Setting {
    Setting { reloads: 2, ..setting() }
}

/// A client whose stated age is too large by more than TLS accepts.
fn shifted() -> Setting {
    Setting { exact_ticks: vec![6], horizon: 10, ..setting() }
}

fn switched() -> Setting {
    Setting { switches: 2, ..setting() }
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
fn rfc8446_8_a_stated_age_that_is_far_off() {
    holds(shifted());
    holds(Setting { restarts: 1, ..shifted() });
    holds(Setting { exact_ticks: vec![6, 3], max_connections: 2, ..shifted() });
}

#[test]
fn rfc8446_8_reloads_that_change_what_tls_accepts() {
    holds(switched());
    holds(Setting { restarts: 1, ..switched() });
}

#[test]
fn without_a_new_epoch_at_the_start() {
    breaks(Rule::EpochAtStart, AT_MOST_ONCE, restarted());
}

#[test]
fn without_watching_the_clock() {
    breaks(Rule::ClockIsWatched, AT_MOST_ONCE, set());
}

#[test]
fn with_records_no_longer_than_freshness() {
    breaks(Rule::RecordsOutliveFreshness, AT_MOST_ONCE, setting());
}

#[test]
fn with_refused_flights_that_leave_no_record() {
    breaks(Rule::RefusedFlightsAreRecorded, AT_MOST_ONCE, setting());
}

#[test]
fn with_flights_that_tls_refuses_left_unspent() {
    breaks(Rule::FlightsRefusedByTlsAreSpent, AT_MOST_ONCE, shifted());
    breaks(Rule::FlightsRefusedByTlsAreSpent, AT_MOST_ONCE, switched());
}

#[test]
fn with_records_whose_lives_do_not_follow_the_skew() {
    breaks(Rule::RecordsFollowTheSkew, AT_MOST_ONCE, shifted());
}

#[test]
fn with_an_epoch_that_goes_on_after_a_flight_without_a_record() {
    breaks(Rule::UnrecordedFlightsStartAnEpoch, AT_MOST_ONCE, crowded());
}

#[test]
fn with_claims_at_the_first_request_that_may_run_early() {
    breaks(Rule::ClaimsComeBeforeAcceptance, AT_MOST_ONCE, reloaded());
}

#[test]
fn with_requests_that_the_policy_holds_let_through_on_a_lost_flight() {
    breaks(Rule::LostWhateverThePolicy, AT_MOST_ONCE, reloaded());
}
