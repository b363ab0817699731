use super::*;
use crate::status::{Reason, Replay};

#[test]
fn where_it_is_used_it_says_how_much() {
    let recent = window(1_000, 640, 600, &[("age", 30), ("session_not_resumed", 10)]);
    let answers = ask(recent, open(), Replays::default());
    assert_eq!((answers.used.mood, answers.used.word.as_str()), (Mood::Good, "yes"));
    assert_eq!(
        answers.used.sentence,
        "60 % of 1,000 new connections in the last 5 min; accepted for 94 % of those that offered it."
    );
    assert_eq!((answers.why_not.mood, answers.why_not.word.as_str()), (Mood::Quiet, "ticket age"));
    assert!(answers.why_not.sentence.starts_with("40 refused in the last 5 min, 75 % of them"));
    assert_eq!((answers.replayed.mood, answers.replayed.word.as_str()), (Mood::Good, "no"));
}

#[test]
fn nobody_came_and_nobody_offered() {
    let quiet = ask(window(0, 0, 0, &[]), open(), Replays::default());
    assert_eq!(quiet.used.sentence, "No connections in the last 5 min.");
    let idle = ask(window(12, 0, 0, &[]), open(), Replays::default());
    assert_eq!((idle.used.mood, idle.used.word.as_str()), (Mood::Quiet, "not offered"));
    let all = ask(window(12, 5, 5, &[]), open(), Replays::default());
    assert_eq!(all.why_not.sentence, "All that was offered in the last 5 min was accepted.");
}

#[test]
fn switched_off_is_no_fault_and_a_store_that_is_away_is() {
    let off = EarlyDataState { enabled: false, closed_because: Some("disabled".to_owned()) };
    let off = ask(window(10, 4, 0, &[("disabled", 4)]), off, Replays::default());
    assert_eq!((off.used.mood, off.used.word.as_str()), (Mood::Quiet, "off"));
    let away = EarlyDataState { enabled: true, closed_because: Some("store_down".to_owned()) };
    let away = ask(window(10, 4, 0, &[("store_down", 4)]), away, Replays::default());
    assert_eq!((away.used.mood, away.used.word.as_str()), (Mood::Bad, "no"));
    assert_eq!((away.why_not.mood, away.why_not.word.as_str()), (Mood::Bad, "store away"));
    assert!(away.why_not.sentence.contains("there is no connection to the store"));
    // Also where it was accepted a minute ago, and where nobody has come since.
    let closed = EarlyDataState { enabled: true, closed_because: Some("store_down".to_owned()) };
    let lately = ask(window(10, 4, 3, &[("store_down", 1)]), closed.clone(), Replays::default());
    assert_eq!((lately.used.mood, lately.used.word.as_str()), (Mood::Bad, "not now"));
    let alone = ask(window(0, 0, 0, &[]), closed, Replays::default());
    assert_eq!((alone.used.mood, alone.used.word.as_str()), (Mood::Bad, "no"));
}

#[test]
fn many_refusals_want_a_look_and_copies_are_no_clients() {
    let many = ask(window(100, 100, 80, &[("zone", 20)]), open(), Replays::default());
    assert_eq!(many.why_not.mood, Mood::Look);
    let attacked = ask(window(100, 5_000, 100, &[("replayed", 4_900)]), open(), Replays::default());
    assert_eq!(attacked.why_not.word, "nothing refused");
    // What copies offer is no share of what clients wanted.
    assert!(attacked.used.sentence.contains("accepted for 100 %"), "{}", attacked.used.sentence);
}

#[test]
fn a_replay_is_said_for_as_long_as_the_process_lives() {
    let seen = |since_start, ago| {
        let recent = vec![Replay { last_at: Moment(NOW.0 - ago), ..Replay::default() }];
        ask(window(1, 1, 1, &[]), open(), Replays { since_start, recent }).replayed
    };
    let fresh = seen(1, 12);
    assert_eq!(fresh.mood, Mood::Bad);
    assert_eq!(
        fresh.sentence,
        "One copy of a flight was stopped since the start. The last came 12 s ago."
    );
    assert_eq!(seen(4_000, 7_200).mood, Mood::Look);
    assert!(seen(4_000, 7_200).sentence.starts_with("4,000 copies of flights were stopped"));
}

#[test]
fn a_young_process_says_how_young() {
    let mut young = window(10, 10, 9, &[]);
    young.covered_seconds = 42.4;
    let answers = ask(young, open(), Replays::default());
    assert!(answers.used.sentence.contains("in the 42 s since the start"));
}

fn ask(recent: Window, early_data: EarlyDataState, replays: Replays) -> Answers {
    answer(&[Window::default(), recent, Window::default()], &early_data, &replays, NOW)
}

fn open() -> EarlyDataState {
    EarlyDataState { enabled: true, closed_because: None }
}

fn window(connections: u64, offered: u64, accepted: u64, refused: &[(&str, u64)]) -> Window {
    let refused = refused.iter();
    Window {
        seconds: 300,
        covered_seconds: 300.0,
        connections,
        offered,
        accepted,
        refused: refused
            .map(|(reason, count)| Reason { reason: (*reason).to_owned(), count: *count })
            .collect(),
        ..Window::default()
    }
}

const NOW: Moment = Moment(1_800_000_000);
