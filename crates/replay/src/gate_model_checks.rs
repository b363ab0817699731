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
        without: None,
    }
}

fn holds(setting: Setting) {
    let checker = setting.checker().spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

fn breaks(rule: Rule, setting: Setting) {
    let setting = Setting { without: Some(rule), ..setting };
    let checker = setting.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = checker.discovery(ONCE).expect("a flight is executed twice");
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

#[test]
fn rfc8446_8_2_a_restart_with_the_same_keys() {
    holds(restarted());
}

#[test]
fn rfc8446_8_3_a_wall_clock_that_is_set() {
    holds(set());
}

#[test]
fn rfc8446_8_2_two_flights_and_room_for_one() {
    holds(crowded());
}

#[test]
fn without_a_window_at_the_start() {
    breaks(Rule::WindowAtStart, restarted());
}

#[test]
fn without_watching_the_wall_clock() {
    breaks(Rule::WallClockIsWatched, set());
}

#[test]
fn with_records_no_longer_than_freshness() {
    breaks(Rule::RecordsOutliveFreshness, setting());
}

#[test]
fn with_a_gate_that_stays_open_after_a_flight_without_a_record() {
    breaks(Rule::UnrecordedFlightsCloseTheGate, crowded());
}
