//! The gate's rules one by one, named after the sections that ask for them.

use std::time::Duration;

use firstflight_replay::{
    Admission, Decision, Flight, Gate, GateConfig, HoldReason, Refusal, Release, Startup,
};

const ONE: [u8; 32] = [1; 32];
const TWO: [u8; 32] = [2; 32];
const THREE: [u8; 32] = [3; 32];

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn gate(capacity: usize) -> Gate {
    let config = GateConfig { startup: Startup::KeysAreNew, capacity, ..GateConfig::default() };
    Gate::new(config, s(0))
}

fn shared_keys() -> Gate {
    Gate::new(GateConfig::default(), s(1000))
}

#[test]
fn rfc8446_8_2_executes_the_first_copy_only() {
    let gate = gate(10);
    let mut first = Flight::new(&ONE, 0, s(1));
    let mut copy = Flight::new(&ONE, -1, s(2));
    assert_eq!(gate.early_request(&mut first, true, s(1)), Decision::Execute);
    assert_eq!(gate.early_request(&mut copy, true, s(2)), Decision::Hold(HoldReason::Replayed));
    // The other requests of the flight share its claim.
    assert_eq!(gate.early_request(&mut first, true, s(3)), Decision::Execute);
    assert_eq!((first.claim_won(), copy.claim_won()), (Some(true), Some(false)));
}

#[test]
fn rfc8446_8_2_refuses_0rtt_during_recording_window_after_start() {
    let gate = shared_keys();
    assert_eq!(gate.config().recording_window(), s(76));
    for at in [1000, 1075] {
        assert_eq!(gate.admission(s(at)), Admission::Refuse(Refusal::StartupWindow));
    }
    assert_eq!(gate.admission(s(1076)), Admission::Accept);
    let mut flight = Flight::new(&ONE, 0, s(1076));
    assert_eq!(gate.early_request(&mut flight, true, s(1076)), Decision::Execute);
}

#[test]
fn rfc8446_8_2_needs_no_window_when_no_ticket_predates_the_start() {
    assert_eq!(gate(10).admission(s(0)), Admission::Accept);
}

#[test]
fn rfc8446_8_2_window_starts_again_when_claims_are_lost() {
    let gate = gate(10);
    let mut copy = Flight::new(&ONE, 0, s(100));
    assert_eq!(gate.early_request(&mut copy, true, s(100)), Decision::Execute);
    let mut original = Flight::new(&ONE, -1, s(101));
    gate.claims_lost(s(102));
    let held = HoldReason::StartupWindow;
    assert_eq!(gate.early_request(&mut original, true, s(103)), Decision::Hold(held));
    // Whether the copy ran is not known any more.
    assert_eq!(gate.handshake_complete(&mut original, held, s(103)), Release::TooEarly);
    assert_eq!(gate.admission(s(177)), Admission::Refuse(Refusal::StartupWindow));
    assert_eq!(gate.admission(s(178)), Admission::Accept);
}

#[test]
fn rfc8446_8_2_a_full_register_falls_back_to_the_handshake() {
    let gate = gate(1);
    let mut first = Flight::new(&ONE, 0, s(0));
    let mut second = Flight::new(&TWO, 0, s(0));
    assert_eq!(gate.early_request(&mut first, true, s(0)), Decision::Execute);
    assert_eq!(gate.admission(s(0)), Admission::Refuse(Refusal::RegisterFull));
    let full = HoldReason::RegisterFull;
    assert_eq!(gate.early_request(&mut second, true, s(0)), Decision::Hold(full));
    assert_eq!(gate.handshake_complete(&mut second, full, s(1)), Release::Execute);
    // Unrecorded, so its copies must wait until they are stale, and so must all others.
    let mut copy = Flight::new(&TWO, -2, s(2));
    assert_eq!(gate.early_request(&mut copy, true, s(2)), Decision::Hold(full));
    // The records are gone after 96 s, long after the unrecorded flight went stale.
    assert_eq!(gate.admission(s(95)), Admission::Refuse(Refusal::RegisterFull));
    assert_eq!(gate.admission(s(96)), Admission::Accept);
}

#[test]
fn rfc8446_8_2_a_flight_that_could_not_be_recorded_closes_the_gate() {
    let gate = gate(1);
    let full = HoldReason::RegisterFull;
    let mut old = Flight::new(&ONE, -10, s(0));
    assert_eq!(gate.early_request(&mut old, true, s(0)), Decision::Execute);
    // Fresh until 140 s, and executed when the record of `old` (until 86 s) still is in the way.
    let mut ahead = Flight::new(&TWO, 55, s(75));
    let aged = HoldReason::TicketAge;
    assert_eq!(gate.early_request(&mut ahead, true, s(75)), Decision::Hold(aged));
    assert_eq!(gate.handshake_complete(&mut ahead, aged, s(75)), Release::Execute);
    assert_eq!(gate.admission(s(145)), Admission::Refuse(Refusal::RegisterFull));
    let mut copy = Flight::new(&TWO, 0, s(130));
    assert_eq!(gate.early_request(&mut copy, true, s(130)), Decision::Hold(full));
    assert_eq!(gate.admission(s(146)), Admission::Accept);
}

#[test]
fn rfc8446_8_2_a_delayed_original_finds_the_record_of_its_copy() {
    let gate = gate(10);
    let mut copy = Flight::new(&ONE, 0, s(100));
    assert_eq!(gate.early_request(&mut copy, true, s(100)), Decision::Execute);
    // Held up for a minute, and slow to finish: TLS still takes it.
    let mut original = Flight::new(&ONE, -60, s(160));
    let aged = HoldReason::TicketAge;
    assert_eq!(gate.early_request(&mut original, true, s(160)), Decision::Hold(aged));
    assert_eq!(gate.handshake_complete(&mut original, aged, s(189)), Release::TooEarly);
}

#[test]
fn rfc8446_8_3_holds_what_is_not_fresh() {
    let gate = gate(10);
    let aged = Decision::Hold(HoldReason::TicketAge);
    for (n, skew, expected) in [
        (1, -11, aged),
        (2, -10, Decision::Execute),
        (3, 10, Decision::Execute),
        (4, 11, aged),
        (5, i32::MIN, aged),
        (6, i32::MAX, aged),
    ] {
        let mut flight = Flight::new(&[n; 32], skew, s(100));
        assert_eq!(gate.early_request(&mut flight, true, s(100)), expected, "skew {skew}");
    }
}

#[test]
fn rfc8446_8_3_a_ticket_ages_while_its_request_is_awaited() {
    let gate = gate(10);
    let mut slow = Flight::new(&ONE, 0, s(100));
    let aged = HoldReason::TicketAge;
    assert_eq!(gate.early_request(&mut slow, true, s(111)), Decision::Hold(aged));
}

#[test]
fn rfc8446_8_3_a_stale_flight_runs_after_its_handshake() {
    let gate = gate(10);
    for (random, skew) in [(ONE, -40), (TWO, 40)] {
        let mut flight = Flight::new(&random, skew, s(100));
        let aged = HoldReason::TicketAge;
        assert_eq!(gate.early_request(&mut flight, true, s(100)), Decision::Hold(aged));
        assert_eq!(gate.handshake_complete(&mut flight, aged, s(101)), Release::Execute);
    }
    // No copy of the first can run early; the second's can at 130 s, and find the record.
    assert_eq!(gate.statistics().entries, 1);
    let mut copy = Flight::new(&TWO, 5, s(135));
    assert_eq!(gate.early_request(&mut copy, true, s(135)), Decision::Hold(HoldReason::Replayed));
}

#[test]
fn rfc8446_8_3_extreme_skews_and_times_do_not_panic() {
    let gate = gate(3);
    for skew in [i32::MIN, -61, 0, 61, i32::MAX] {
        for seen in [s(0), Duration::MAX] {
            for now in [s(0), Duration::MAX] {
                let mut flight = Flight::new(&ONE, skew, seen);
                gate.early_request(&mut flight, true, now);
                gate.handshake_complete(&mut flight, HoldReason::TicketAge, now);
            }
        }
    }
    // TLS lets no such skew through: nothing speaks for the flight.
    let mut flight = Flight::new(&TWO, 61, s(100));
    let aged = HoldReason::TicketAge;
    assert_eq!(gate.handshake_complete(&mut flight, aged, s(100)), Release::TooEarly);
}

#[test]
fn rfc8470_5_2_an_original_that_a_copy_overtook_is_answered_425() {
    let gate = gate(10);
    let mut copy = Flight::new(&ONE, 1, s(99));
    let mut original = Flight::new(&ONE, 0, s(100));
    assert_eq!(gate.early_request(&mut copy, true, s(99)), Decision::Execute);
    let replayed = HoldReason::Replayed;
    assert_eq!(gate.early_request(&mut original, true, s(100)), Decision::Hold(replayed));
    assert_eq!(gate.handshake_complete(&mut original, replayed, s(101)), Release::TooEarly);
}

#[test]
fn rfc8470_5_2_a_held_original_that_a_copy_overtook_is_answered_425() {
    let gate = gate(1);
    let mut other = Flight::new(&THREE, -10, s(10));
    assert_eq!(gate.early_request(&mut other, true, s(10)), Decision::Execute);
    let mut original = Flight::new(&ONE, 10, s(90));
    let full = HoldReason::RegisterFull;
    assert_eq!(gate.early_request(&mut original, true, s(90)), Decision::Hold(full));
    // Meanwhile the other's record expires, and a copy finds room.
    let mut copy = Flight::new(&ONE, 3, s(97));
    assert_eq!(gate.early_request(&mut copy, true, s(97)), Decision::Execute);
    assert_eq!(gate.handshake_complete(&mut original, full, s(98)), Release::TooEarly);
}

#[test]
fn rfc8470_5_1_a_request_held_by_policy_runs_after_the_handshake_without_a_claim() {
    let gate = gate(10);
    let mut flight = Flight::new(&ONE, 0, s(1));
    let policy = HoldReason::Policy;
    assert_eq!(gate.early_request(&mut flight, false, s(1)), Decision::Hold(policy));
    assert_eq!(flight.claim_won(), None);
    assert_eq!(gate.early_request(&mut flight, true, s(1)), Decision::Execute);
    assert_eq!(gate.handshake_complete(&mut flight, policy, s(2)), Release::Execute);
}

#[test]
fn a_wall_clock_set_back_begins_a_window_longer_by_the_step() {
    let gate = gate(10);
    let wall = |at: u64, step: i64| s((1_700_000_000 + at).saturating_add_signed(step));
    assert!(!gate.observe_wall_clock(wall(10, 0), s(10)));
    assert!(!gate.observe_wall_clock(wall(11, -5), s(11)));
    assert_eq!(gate.admission(s(12)), Admission::Accept);
    assert!(gate.observe_wall_clock(wall(13, -20), s(13)));
    assert!(!gate.observe_wall_clock(wall(14, -20), s(14)));
    assert_eq!(gate.admission(s(13 + 76 + 19)), Admission::Refuse(Refusal::StartupWindow));
    assert_eq!(gate.admission(s(13 + 76 + 20)), Admission::Accept);
}

#[test]
fn a_wall_clock_set_forward_begins_a_window() {
    // A copy that TLS took while it was fresh, and has not sent its request yet.
    let gate = gate(10);
    let wall = |at: u64, step: u64| s(1_700_000_000 + at + step);
    assert!(!gate.observe_wall_clock(wall(10, 0), s(10)));
    let mut copy = Flight::new(&ONE, 0, s(10));
    assert!(gate.observe_wall_clock(wall(11, 30), s(11)));
    // The original is stale by the clock as it is now, and nothing speaks for it.
    let mut original = Flight::new(&ONE, -31, s(11));
    let held = HoldReason::StartupWindow;
    assert_eq!(gate.early_request(&mut original, true, s(11)), Decision::Hold(held));
    assert_eq!(gate.handshake_complete(&mut original, held, s(12)), Release::TooEarly);
    assert_eq!(gate.early_request(&mut copy, true, s(12)), Decision::Hold(held));
    assert_eq!(gate.admission(s(11 + 75)), Admission::Refuse(Refusal::StartupWindow));
    assert_eq!(gate.admission(s(11 + 76)), Admission::Accept);
}

#[test]
fn rfc9001_9_2_a_flight_over_quic_is_claimed_before_it_is_accepted() {
    let gate = gate(10);
    let mut first = Flight::new(&ONE, 0, s(1));
    let mut copy = Flight::new(&ONE, -1, s(2));
    assert_eq!(gate.claim_ahead(&mut first, s(1)), Ok(()));
    assert_eq!(gate.claim_ahead(&mut copy, s(2)), Ok(()));
    assert_eq!((first.claim_won(), copy.claim_won()), (Some(true), Some(false)));
    assert_eq!(gate.early_request(&mut first, true, s(2)), Decision::Execute);
    assert_eq!(gate.early_request(&mut copy, true, s(2)), Decision::Hold(HoldReason::Replayed));
    assert_eq!(gate.handshake_complete(&mut copy, HoldReason::Replayed, s(3)), Release::TooEarly);
    // A policy holds it on every connection, so no copy can have run.
    let held = gate.early_request(&mut copy, false, s(3));
    assert_eq!(held, Decision::Hold(HoldReason::Policy));
    assert_eq!(gate.handshake_complete(&mut copy, HoldReason::Policy, s(3)), Release::Execute);
}

#[test]
fn rfc9001_9_2_what_cannot_be_recorded_or_is_not_fresh_is_refused_beforehand() {
    let mut flight = Flight::new(&ONE, 0, s(1));
    assert_eq!(gate(0).claim_ahead(&mut flight, s(1)), Err(HoldReason::RegisterFull));
    let gate = gate(10);
    for (random, skew) in [(ONE, 11), (TWO, -11)] {
        let mut stale = Flight::new(&random, skew, s(1));
        assert_eq!(gate.claim_ahead(&mut stale, s(1)), Err(HoldReason::TicketAge));
        assert_eq!(stale.claim_won(), None);
        // Its client sends again, so no copy of it may run when it is fresh.
        let mut copy = Flight::new(&random, 0, s(12));
        assert_eq!(gate.claim_ahead(&mut copy, s(12)), Ok(()));
        assert_eq!(copy.claim_won(), Some(false));
    }
}

#[test]
fn rfc8446_8_2_over_quic_too_nothing_is_accepted_in_a_recording_window() {
    let gate = shared_keys();
    let mut early = Flight::new(&ONE, 0, s(1075));
    assert_eq!(gate.claim_ahead(&mut early, s(1075)), Err(HoldReason::StartupWindow));
    let mut copy = Flight::new(&ONE, -2, s(1077));
    assert_eq!(gate.claim_ahead(&mut copy, s(1077)), Ok(()));
    assert_eq!(copy.claim_won(), Some(false), "the refused one has left a record");
    let mut later = Flight::new(&TWO, 0, s(1077));
    assert_eq!(gate.claim_ahead(&mut later, s(1077)), Ok(()));
    assert_eq!(later.claim_won(), Some(true));
}
