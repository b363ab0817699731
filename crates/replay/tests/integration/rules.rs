//! The gate's rules one by one, named after the sections that require them.

use std::time::Duration;

use std::sync::Arc;

use firstflight_replay::{
    ClaimKey, EpochScope, FlightOffer, Gate, GateConfig, Refusal, SpendOutcome, TicketEpochs,
};

const ONE: [u8; 32] = [1; 32];
const TWO: [u8; 32] = [2; 32];

/// The claim is won.
const WON: Result<bool, Refusal> = Ok(true);
/// Another connection has claimed it.
const LOST: Result<bool, Refusal> = Ok(false);

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A gate and its ticket epochs.
struct GateFixture {
    gate: Gate,
    epochs: Arc<TicketEpochs>,
}

fn gate_fixture(capacity: usize) -> GateFixture {
    let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
    let config = GateConfig { capacity, ..GateConfig::default() };
    GateFixture { gate: Gate::new(config, epochs.clone()), epochs }
}

impl GateFixture {
    fn offer(&self, digest: [u8; 32], skew: i32, at: u64) -> FlightOffer {
        FlightOffer::new(ClaimKey::of_flight(&digest), skew, s(at), self.epochs.current())
    }

    /// Returns whether a flight received at `at` wins its claim, if it is accepted.
    fn claim(&self, digest: [u8; 32], skew: i32, at: u64) -> Result<bool, Refusal> {
        self.gate.claim(&self.offer(digest, skew, at), s(at)).map(|flight| flight.won())
    }

    fn has_record(&self, digest: [u8; 32], at: u64) -> bool {
        self.gate.has_record(&self.offer(digest, 0, at), s(at))
    }

    /// Spends a flight that TLS refuses and whose client completes its handshake.
    fn spend(&self, digest: [u8; 32], skew: i32, at: u64) -> SpendOutcome {
        self.gate.spend(&self.offer(digest, skew, at), s(at))
    }
}

#[test]
fn rfc8446_8_2_one_connection_wins_a_flight() {
    let fixture = gate_fixture(10);
    assert_eq!(fixture.claim(ONE, 0, 1), WON);
    assert_eq!(fixture.claim(ONE, -1, 2), LOST);
    assert_eq!(fixture.claim(TWO, 0, 2), WON);
}

#[test]
fn rfc8446_8_a_spent_flight_is_refused_to_its_copies_whatever_its_skew() {
    const START: i64 = 10_000;
    // The longest lifetime of tickets may be reached while the process runs, by a changed key file.
    for skew in [-60_i64, -10, 0, 11, 30, 50, 61, 70, 130, 3600, 86_400, 7 * 86_400] {
        for copy_skew in -60..=60 {
            let at = START + skew - copy_skew;
            if at < START {
                continue;
            }
            // A new gate for each copy, because a claim leaves a record too.
            let fixture = gate_fixture(10);
            assert_eq!(fixture.spend(ONE, skew as i32, START as u64), SpendOutcome::Recorded);
            let claimed = fixture.claim(ONE, copy_skew as i32, at as u64);
            let expected = match copy_skew.abs() <= 10 {
                true => claimed == Err(Refusal::RefusedBefore),
                // Its record may have ended.
                false => claimed.is_err(),
            };
            assert!(expected, "skew {skew}, copy at {copy_skew}: {claimed:?}");
        }
    }
}

#[test]
fn rfc8446_8_the_record_of_a_spent_flight_ends() {
    let fixture = gate_fixture(1);
    assert_eq!(fixture.spend(ONE, 100, 1000), SpendOutcome::Recorded);
    // Fresh until 1110 s; 6 s more allow for rounding and clocks.
    assert!(fixture.has_record(ONE, 1115));
    assert!(!fixture.has_record(ONE, 1117));
}

#[test]
fn rfc8446_4_6_1_a_record_lives_no_longer_than_any_ticket() {
    let fixture = gate_fixture(1);
    assert_eq!(fixture.spend(ONE, i32::MAX, 1000), SpendOutcome::Recorded);
    assert!(fixture.has_record(ONE, 1000 + 7 * 86_400));
    assert!(!fixture.has_record(ONE, 1017 + 7 * 86_400));
}

/// Clients that state far too large ages cannot keep the register full.
#[test]
fn rfc8446_8_2_records_of_refused_flights_make_room_when_their_epoch_ends() {
    let fixture = gate_fixture(1);
    let copy = fixture.offer(ONE, 0, 40_100);
    assert_eq!(fixture.spend(ONE, 40_000, 100), SpendOutcome::Recorded);
    assert_eq!(fixture.claim(TWO, 0, 100), Err(Refusal::RegisterFull));
    assert_eq!(fixture.gate.statistics().entries, 0);
    // A flight on a ticket of the new epoch.
    assert_eq!(fixture.claim([3; 32], 0, 101), WON);
    assert_eq!(fixture.claim([3; 32], 0, 101), LOST);
    // A copy of the refused one, when it is fresh.
    assert_eq!(fixture.gate.claim(&copy, s(40_100)), Err(Refusal::TicketEpoch));
    // Records of accepted flights make no room.
    let fixture = gate_fixture(2);
    assert_eq!(fixture.claim(ONE, 0, 100), WON);
    assert_eq!(fixture.spend(TWO, 40_000, 100), SpendOutcome::Recorded);
    assert_eq!(fixture.spend([3; 32], 40_000, 100), SpendOutcome::Recorded);
    assert_eq!(fixture.gate.statistics().entries, 1);
    assert_eq!(fixture.spend(ONE, -1, 101), SpendOutcome::Executed);
}

#[test]
fn rfc8470_5_2_an_original_whose_copy_was_accepted_is_too_early() {
    let fixture = gate_fixture(10);
    assert_eq!(fixture.claim(ONE, 0, 100), WON);
    // TLS refuses the original, for any reason.
    assert_eq!(fixture.spend(ONE, -5, 105), SpendOutcome::Executed);
    assert_eq!(fixture.spend(ONE, -65, 165), SpendOutcome::Executed);
    assert_eq!(fixture.spend(TWO, 0, 105), SpendOutcome::Recorded);
    assert_eq!(fixture.spend(TWO, 0, 105), SpendOutcome::Recorded);
}

#[test]
fn rfc8446_8_2_refuses_tickets_of_another_epoch() {
    let fixture = gate_fixture(10);
    let (first, earlier) = (fixture.epochs.current(), fixture.offer(ONE, 0, 100));
    fixture.gate.start_epoch();
    assert!(!fixture.epochs.accepts(first));
    assert_eq!(fixture.gate.claim(&earlier, s(100)), Err(Refusal::TicketEpoch));
    assert_eq!(fixture.claim(TWO, 0, 100), WON);
}

#[test]
fn rfc8446_8_2_a_refused_flight_is_refused_to_its_copies_too() {
    // Its client sends again, so no copy may be executed.
    let fixture = gate_fixture(10);
    assert_eq!(fixture.claim(TWO, 11, 1077), Err(Refusal::TicketAge));
    assert_eq!(fixture.claim(TWO, 0, 1088), Err(Refusal::RefusedBefore));
}

#[test]
fn rfc8446_8_2_a_flight_that_finds_no_room_starts_a_new_epoch() {
    let fixture = gate_fixture(1);
    assert_eq!(fixture.claim(ONE, -10, 100), WON);
    let first = fixture.epochs.current();
    let copy = fixture.offer(TWO, 55, 100);
    assert_eq!(fixture.claim(TWO, 55, 100), Err(Refusal::RegisterFull));
    assert!(!fixture.epochs.accepts(first));
    // The copy of the recorded flight is still detected.
    assert_eq!(fixture.claim(ONE, -20, 110), LOST);
    // There is room again, but the copy's ticket belongs to a finished epoch.
    assert_eq!(fixture.gate.claim(&copy, s(160)), Err(Refusal::TicketEpoch));
    let second = fixture.epochs.current();
    assert_eq!(fixture.spend([3; 32], 3600, 161), SpendOutcome::Recorded);
    assert!(!fixture.epochs.accepts(second), "there was no room for a spent flight");
    // A stale flight needs no record.
    let third = fixture.epochs.current();
    assert_eq!(fixture.spend([4; 32], -30, 161), SpendOutcome::Recorded);
    assert!(fixture.epochs.accepts(third));
}

#[test]
fn rfc8446_8_2_a_register_without_capacity_refuses_every_flight() {
    assert_eq!(gate_fixture(0).claim(ONE, 0, 1), Err(Refusal::RegisterFull));
    assert_eq!(gate_fixture(0).spend(ONE, 0, 1), SpendOutcome::Recorded);
}

#[test]
fn rfc8446_8_2_a_delayed_original_finds_the_record_of_its_copy() {
    let fixture = gate_fixture(10);
    assert_eq!(fixture.claim(ONE, 0, 100), WON);
    // Delayed for a minute: TLS still accepts it.
    assert_eq!(fixture.claim(ONE, -60, 160), LOST);
}

#[test]
fn rfc8446_8_3_refuses_flights_that_are_not_fresh() {
    let fixture = gate_fixture(10);
    let aged = Err(Refusal::TicketAge);
    for (n, skew, expected) in
        [(1, -11, aged), (2, -10, WON), (3, 10, WON), (4, 11, aged), (5, i32::MIN, aged)]
    {
        assert_eq!(fixture.claim([n; 32], skew, 100), expected, "skew {skew}");
    }
}

#[test]
fn rfc8446_8_3_a_flight_ages_until_its_claim_is_settled() {
    // The process was paused between TLS's check of the age and the claim.
    let fixture = gate_fixture(10);
    for (digest, at, expected) in [(ONE, 110, WON), (TWO, 111, Err(Refusal::TicketAge))] {
        let offer = fixture.offer(digest, 0, 100);
        assert_eq!(fixture.gate.claim(&offer, s(at)).map(|flight| flight.won()), expected);
    }
}

#[test]
fn rfc8446_8_3_extreme_skews_and_times_do_not_panic() {
    let fixture = gate_fixture(3);
    for skew in [i32::MIN, -61, 0, 61, i32::MAX] {
        for received_at in [s(0), Duration::MAX] {
            for now in [s(0), Duration::MAX] {
                let offer = FlightOffer::new(ClaimKey::of_flight(&ONE), skew, received_at, 1);
                let _ = fixture.gate.claim(&offer, now);
                let _ = fixture.gate.spend(&offer, now);
            }
        }
    }
}
