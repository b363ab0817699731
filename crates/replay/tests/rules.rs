//! The gate's rules one by one, named after the sections that ask for them.

use std::time::Duration;

use firstflight_replay::{Gate, GateConfig, Offer, Refusal, Startup};

const ONE: [u8; 32] = [1; 32];
const TWO: [u8; 32] = [2; 32];

/// The claim is won.
const WON: Result<bool, Refusal> = Ok(true);
/// Another connection has it.
const LOST: Result<bool, Refusal> = Ok(false);

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

/// Whether a flight that comes at `at` wins its claim, if it is accepted.
fn claim(gate: &Gate, random: [u8; 32], skew: i32, at: u64) -> Result<bool, Refusal> {
    gate.claim(&Offer::new(&random, skew, s(at)), s(at)).map(|flight| flight.won())
}

#[test]
fn rfc8446_8_2_one_connection_wins_a_flight() {
    let gate = gate(10);
    assert_eq!(claim(&gate, ONE, 0, 1), WON);
    assert_eq!(claim(&gate, ONE, -1, 2), LOST);
    assert_eq!(claim(&gate, TWO, 0, 2), WON);
}

#[test]
fn rfc8446_8_2_refuses_0rtt_during_recording_window_after_start() {
    let gate = shared_keys();
    assert_eq!(gate.config().recording_window(), s(76));
    for (at, random) in [(1000, ONE), (1075, TWO)] {
        assert_eq!(claim(&gate, random, 0, at), Err(Refusal::StartupWindow));
        assert_eq!(gate.closed(s(at)), Some(Refusal::StartupWindow));
    }
    assert_eq!(gate.closed(s(1076)), None);
    assert_eq!(claim(&gate, [3; 32], 0, 1076), WON);
}

#[test]
fn rfc8446_8_2_needs_no_window_when_no_ticket_predates_the_start() {
    assert_eq!(gate(10).closed(s(0)), None);
}

#[test]
fn rfc8446_8_2_window_starts_again_when_claims_are_lost() {
    let gate = gate(10);
    gate.claims_lost(s(102));
    assert_eq!(claim(&gate, ONE, -1, 177), Err(Refusal::StartupWindow));
    assert_eq!(claim(&gate, TWO, -1, 178), WON);
}

#[test]
fn rfc8446_8_2_a_refused_flight_is_refused_to_its_copies_too() {
    // Its client sends again, so no copy may run beside that.
    let gate = shared_keys();
    assert_eq!(claim(&gate, ONE, 0, 1075), Err(Refusal::StartupWindow));
    assert_eq!(claim(&gate, ONE, -2, 1077), Err(Refusal::RefusedBefore));
    assert_eq!(claim(&gate, TWO, 11, 1077), Err(Refusal::TicketAge));
    assert_eq!(claim(&gate, TWO, 0, 1088), Err(Refusal::RefusedBefore));
}

#[test]
fn rfc8446_8_2_a_full_register_accepts_nothing_until_what_it_missed_is_stale() {
    let gate = gate(1);
    assert_eq!(claim(&gate, ONE, -10, 10), WON);
    let full = Err(Refusal::RegisterFull);
    assert_eq!(claim(&gate, TWO, 55, 10), full);
    // The copy of the recorded one is known all the same.
    assert_eq!(claim(&gate, ONE, -20, 20), LOST);
    // Its record goes at 66 s. The flight that found no room is fresh until 75 s, and 81 s with
    // the margins.
    assert_eq!(claim(&gate, [3; 32], 0, 65), full);
    assert_eq!(claim(&gate, [4; 32], 0, 67), full);
    assert_eq!(gate.closed(s(80)), Some(Refusal::RegisterFull));
    assert_eq!(gate.closed(s(81)), None);
    assert_eq!(claim(&gate, [4; 32], 0, 81), Err(Refusal::RefusedBefore), "it has had the room");
}

#[test]
fn rfc8446_8_2_a_register_without_room_at_all() {
    assert_eq!(claim(&gate(0), ONE, 0, 1), Err(Refusal::RegisterFull));
}

#[test]
fn rfc8446_8_2_a_delayed_original_finds_the_record_of_its_copy() {
    let gate = gate(10);
    assert_eq!(claim(&gate, ONE, 0, 100), WON);
    // Held up for a minute: TLS still takes it.
    assert_eq!(claim(&gate, ONE, -60, 160), LOST);
}

#[test]
fn rfc8446_8_3_refuses_what_is_not_fresh() {
    let gate = gate(10);
    let aged = Err(Refusal::TicketAge);
    for (n, skew, expected) in
        [(1, -11, aged), (2, -10, WON), (3, 10, WON), (4, 11, aged), (5, i32::MIN, aged)]
    {
        assert_eq!(claim(&gate, [n; 32], skew, 100), expected, "skew {skew}");
    }
}

#[test]
fn rfc8446_8_3_a_flight_ages_until_its_claim_is_settled() {
    // Between TLS's look at its age and the claim the process stood still.
    let gate = gate(10);
    for (random, at, expected) in [(ONE, 110, WON), (TWO, 111, Err(Refusal::TicketAge))] {
        let offer = Offer::new(&random, 0, s(100));
        assert_eq!(gate.claim(&offer, s(at)).map(|flight| flight.won()), expected);
    }
}

#[test]
fn rfc8446_8_3_extreme_skews_and_times_do_not_panic() {
    let gate = gate(3);
    for skew in [i32::MIN, -61, 0, 61, i32::MAX] {
        for seen in [s(0), Duration::MAX] {
            for now in [s(0), Duration::MAX] {
                let _ = gate.claim(&Offer::new(&ONE, skew, seen), now);
            }
        }
    }
}

#[test]
fn a_clock_set_back_begins_a_window_longer_by_the_step() {
    let gate = gate(10);
    gate.clock_set_back(s(20), s(13));
    assert_eq!(gate.closed(s(13 + 76 + 19)), Some(Refusal::StartupWindow));
    assert_eq!(gate.closed(s(13 + 76 + 20)), None);
    gate.clock_set_back(Duration::MAX, s(200));
    assert_eq!(gate.closed(s(1 << 40)), Some(Refusal::StartupWindow));
}
