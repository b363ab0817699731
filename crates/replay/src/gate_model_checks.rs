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
        early_data_toggles: 0,
        without: None,
    }
}

fn holds(setting: Setting) {
    let checker = setting.checker().spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

fn breaks(rule: Rule, property: &'static str, setting: Setting) {
    let setting = Setting { without: Some(rule), ..setting };
    let checker = setting.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = checker.discovery(property).expect("the property is violated");
    println!("without {rule:?}: {:?}", path.into_actions());
}

fn with_a_restart() -> Setting {
    Setting { restarts: 1, ..setting() }
}

fn clock_set() -> Setting {
    Setting { clock_steps: vec![-6, -3, -1, 1, 4], horizon: 12, ..setting() }
}

fn two_flights() -> Setting {
    Setting { exact_ticks: vec![1, 4], horizon: 6, ..setting() }
}

fn policy_reloads() -> Setting {
    Setting { reloads: 2, ..setting() }
}

/// A client whose stated age is too large by more than TLS accepts.
fn stated_age_far_off() -> Setting {
    Setting { exact_ticks: vec![6], horizon: 10, ..setting() }
}

fn early_data_switched() -> Setting {
    Setting { early_data_toggles: 2, ..setting() }
}

#[test]
fn rfc8446_8_2_holds_across_a_restart_with_the_same_keys() {
    holds(with_a_restart());
}

#[test]
fn rfc8446_8_3_holds_when_the_clock_is_set() {
    holds(clock_set());
}

#[test]
fn rfc8446_8_2_holds_for_two_flights_with_room_for_one() {
    holds(two_flights());
}

#[test]
fn rfc8470_5_1_holds_when_a_reload_changes_the_policy() {
    holds(policy_reloads());
}

#[test]
fn rfc8446_8_holds_when_the_stated_age_is_far_off() {
    holds(stated_age_far_off());
    holds(Setting { restarts: 1, ..stated_age_far_off() });
    holds(Setting { exact_ticks: vec![6, 3], max_connections: 2, ..stated_age_far_off() });
}

#[test]
fn rfc8446_8_holds_when_a_reload_changes_whether_tls_accepts_early_data() {
    holds(early_data_switched());
    holds(Setting { restarts: 1, ..early_data_switched() });
}

#[test]
fn fails_without_a_new_epoch_at_a_restart() {
    breaks(Rule::RestartStartsAnEpoch, AT_MOST_ONCE, with_a_restart());
}

#[test]
fn fails_without_a_new_epoch_after_a_clock_step() {
    breaks(Rule::ClockStepsStartAnEpoch, AT_MOST_ONCE, clock_set());
}

#[test]
fn fails_if_records_live_no_longer_than_freshness() {
    breaks(Rule::RecordsOutliveFreshness, AT_MOST_ONCE, setting());
}

#[test]
fn fails_if_refused_flights_leave_no_record() {
    breaks(Rule::RefusedFlightsAreRecorded, AT_MOST_ONCE, setting());
}

#[test]
fn fails_if_flights_that_tls_refuses_are_not_spent() {
    breaks(Rule::FlightsRefusedByTlsAreSpent, AT_MOST_ONCE, stated_age_far_off());
    breaks(Rule::FlightsRefusedByTlsAreSpent, AT_MOST_ONCE, early_data_switched());
}

#[test]
fn fails_if_record_lifetimes_do_not_follow_the_skew() {
    breaks(Rule::RecordsFollowTheSkew, AT_MOST_ONCE, stated_age_far_off());
}

#[test]
fn fails_if_the_epoch_continues_after_a_flight_without_a_record() {
    breaks(Rule::UnrecordedFlightsStartAnEpoch, AT_MOST_ONCE, two_flights());
}

#[test]
fn fails_if_claims_are_made_at_the_first_request_that_may_run_early() {
    breaks(Rule::ClaimsComeBeforeAcceptance, AT_MOST_ONCE, policy_reloads());
}

#[test]
fn fails_if_a_lost_flights_requests_run_because_the_policy_held_them() {
    breaks(Rule::LostFlightsGet425UnderAnyPolicy, AT_MOST_ONCE, policy_reloads());
}
