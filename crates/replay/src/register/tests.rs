use std::collections::HashMap;

use proptest::prelude::*;

use super::shard::{Record, WHEEL_BUCKETS};
use super::*;

fn key(n: u64) -> ClaimKey {
    let mut random = [0; 32];
    random[..8].copy_from_slice(&n.to_be_bytes());
    ClaimKey::of_flight(&random)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn a_record_is_32_bytes() {
    assert_eq!(size_of::<Record>(), 32);
}

#[test]
fn rfc8446_8_2_second_claim_of_the_same_hello_loses() {
    let register = StrikeRegister::new(10);
    assert_eq!(register.claim(key(1), ms(5000), ms(0)), ClaimOutcome::Won);
    assert_eq!(register.claim(key(1), ms(5000), ms(1)), ClaimOutcome::Lost);
    assert_eq!(register.claim(key(2), ms(5000), ms(1)), ClaimOutcome::Won);
    let statistics = register.statistics();
    assert_eq!((statistics.won, statistics.lost, statistics.entries), (2, 1, 2));
}

#[test]
fn nobody_can_win_a_barred_key() {
    let register = StrikeRegister::new(10);
    assert_eq!(register.claim_if(key(1), ms(5000), ms(0), || false), ClaimOutcome::Barred);
    assert_eq!(register.claim(key(1), ms(9000), ms(1)), ClaimOutcome::Barred);
    assert_eq!(register.claim(key(2), ms(5000), ms(1)), ClaimOutcome::Won);
    assert_eq!(register.claim_if(key(2), ms(5000), ms(1), || false), ClaimOutcome::Lost);
    assert_eq!(
        register.claim(key(1), ms(9000), ms(5000)),
        ClaimOutcome::Won,
        "the first record's end"
    );
    let statistics = register.statistics();
    assert_eq!((statistics.won, statistics.lost, statistics.barred), (2, 1, 2));
}

#[test]
fn a_released_key_can_be_won_again_for_longer() {
    let register = StrikeRegister::new(1);
    assert_eq!(register.claim(key(1), ms(5000), ms(0)), ClaimOutcome::Won);
    assert!(register.release(key(1), ms(1)));
    assert!(!register.release(key(1), ms(1)) && !register.contains(key(1), ms(1)));
    assert_eq!(register.claim(key(2), ms(9000), ms(1)), ClaimOutcome::Full, "its place is taken");
    assert_eq!(register.claim(key(1), ms(9000), ms(1)), ClaimOutcome::Won);
    assert_eq!(register.claim(key(1), ms(9000), ms(8999)), ClaimOutcome::Lost);
    assert!(!register.contains(key(1), ms(9000)));
    assert!(!register.release(key(1), ms(9000)));
    assert_eq!(register.statistics().entries, 0);
}

#[test]
fn records_expire_up_to_one_unit_late_never_early() {
    let register = StrikeRegister::with_unit(4, 16);
    let day = 24 * 3600 * 1000;
    assert_eq!(register.claim(key(1), ms(7 * day), ms(0)), ClaimOutcome::Won);
    assert_eq!(register.claim(key(2), ms(17_000), ms(1000)), ClaimOutcome::Won);
    assert!(register.contains(key(2), ms(31_999)) && !register.contains(key(2), ms(32_000)));
    for hour in 0..7 * 24 {
        assert!(register.contains(key(1), ms(hour * 3600 * 1000)));
    }
    assert!(register.contains(key(1), ms(7 * day - 1)));
    assert!(!register.contains(key(1), ms(7 * day)));
}

#[test]
fn a_closed_register_keeps_its_records_and_accepts_no_new_ones() {
    let register = StrikeRegister::new(10);
    assert_eq!(register.claim(key(1), ms(5000), ms(0)), ClaimOutcome::Won);
    assert_eq!(register.claim_if(key(2), ms(9000), ms(0), || false), ClaimOutcome::Barred);
    assert_eq!(register.claim(key(3), ms(9000), ms(0)), ClaimOutcome::Won);
    register.release(key(3), ms(0));
    let mut snapshot = register.close(ms(1000));
    snapshot.sort_by_key(|record| record.lifetime_seconds);
    let record =
        |n, barred, lifetime_seconds| SnapshotRecord { key: key(n), barred, lifetime_seconds };
    assert_eq!(snapshot, [record(1, false, 4), record(2, true, 8)]);
    assert_eq!(register.claim(key(1), ms(5000), ms(1000)), ClaimOutcome::Lost);
    assert_eq!(register.claim(key(3), ms(5000), ms(1000)), ClaimOutcome::Closed);
    assert_eq!(register.claim(key(4), ms(5000), ms(1000)), ClaimOutcome::Closed);
    register.reopen();
    assert_eq!(register.claim(key(4), ms(5000), ms(1000)), ClaimOutcome::Won);
}

/// Rounding a lifetime up to the register's unit must not overflow into the state bit above it.
#[test]
fn the_longest_lifetime_fits_a_snapshot() {
    let register = StrikeRegister::with_unit(10, 17);
    let longest = SnapshotRecord {
        key: key(1),
        barred: true,
        lifetime_seconds: SnapshotRecord::MAX_LIFETIME_SECONDS,
    };
    for clock in 0..40 {
        assert!(register.restore(&longest, ms(clock * 1000)));
        assert_eq!(register.close(ms(clock * 1000)), [longest]);
        register.reopen();
    }
}

#[test]
fn a_restored_key_is_won_if_either_process_won_it() {
    let register = StrikeRegister::new(3);
    assert_eq!(register.claim(key(1), ms(2000), ms(0)), ClaimOutcome::Won);
    assert_eq!(register.claim_if(key(2), ms(2000), ms(0), || false), ClaimOutcome::Barred);
    let record = |n, barred| SnapshotRecord { key: key(n), barred, lifetime_seconds: 9 };
    assert!(
        register.restore(&record(1, true), ms(0)) && register.restore(&record(2, false), ms(0))
    );
    assert!(
        register.restore(&record(3, true), ms(0)) && !register.restore(&record(4, true), ms(0))
    );
    let claim = |n| register.claim(key(n), ms(9000), ms(8999));
    assert_eq!(
        (claim(1), claim(2), claim(3)),
        (ClaimOutcome::Lost, ClaimOutcome::Lost, ClaimOutcome::Barred)
    );
}

#[test]
fn a_full_register_refuses_new_keys_and_keeps_its_records() {
    let register = StrikeRegister::new(2);
    assert_eq!(register.claim(key(1), ms(5000), ms(0)), ClaimOutcome::Won);
    assert_eq!(register.claim(key(2), ms(9000), ms(0)), ClaimOutcome::Won);
    assert_eq!(register.claim(key(3), ms(5000), ms(0)), ClaimOutcome::Full);
    assert_eq!(register.claim(key(1), ms(5000), ms(4999)), ClaimOutcome::Lost);
    assert_eq!(register.claim(key(3), ms(9000), ms(5000)), ClaimOutcome::Won);
    assert_eq!(register.claim(key(2), ms(9000), ms(8999)), ClaimOutcome::Lost);
    assert_eq!(register.statistics().entries, 2);
}

#[test]
fn barred_records_are_dropped_to_make_room() {
    let register = StrikeRegister::new(4);
    let far = ms(3_600_000);
    assert_eq!(register.claim(key(1), far, ms(0)), ClaimOutcome::Won);
    for n in 2..5 {
        assert_eq!(register.claim_if(key(n), far, ms(0), || false), ClaimOutcome::Barred);
    }
    let drop_for = |n| {
        let mut ended = false;
        (register.drop_barred(key(n), ms(0), || ended = true), ended)
    };
    // A key that was won meanwhile needs no room.
    assert_eq!(drop_for(1), (ClaimOutcome::Lost, false));
    // The records of a closed register belong to another process.
    register.close(ms(0));
    assert_eq!(drop_for(5), (ClaimOutcome::Closed, false));
    register.reopen();
    assert_eq!(drop_for(5), (ClaimOutcome::Full, true));
    assert_eq!(register.statistics().entries, 1);
    assert!(register.contains(key(1), ms(0)) && !register.contains(key(2), ms(0)));
    // Their slots are reused, and all records expire when they should.
    for n in 5..8 {
        assert_eq!(register.claim(key(n), ms(5000), ms(0)), ClaimOutcome::Won);
    }
    assert_eq!(register.claim(key(8), ms(5000), ms(0)), ClaimOutcome::Full);
    assert_eq!(drop_for(8), (ClaimOutcome::Full, true));
    assert_eq!(register.statistics().entries, 4, "none is barred");
    assert!(register.contains(key(7), ms(4999)) && !register.contains(key(7), ms(5000)));
    assert!(register.contains(key(1), ms(3_599_999)) && !register.contains(key(1), far));
    assert_eq!(register.statistics().entries, 0);
}

#[test]
fn a_recorded_key_counts_as_a_lost_claim() {
    let register = StrikeRegister::new(4);
    assert_eq!(register.claim(key(1), ms(5000), ms(0)), ClaimOutcome::Won);
    assert!(register.is_lost(key(1), ms(0)) && !register.is_lost(key(2), ms(0)));
    assert_eq!(register.statistics().lost, 1);
}

#[test]
fn a_register_without_capacity_is_always_full() {
    let register = StrikeRegister::new(0);
    assert_eq!(register.claim(key(1), ms(1), ms(0)), ClaimOutcome::Full);
    assert_eq!(register.claim(key(1), Duration::MAX, Duration::MAX), ClaimOutcome::Full);
}

#[test]
fn a_record_outlives_many_turns_of_the_wheel() {
    let register = StrikeRegister::new(4);
    let end = WHEEL_BUCKETS as u64 * 5 * 1000 + 3000;
    assert_eq!(register.claim(key(1), ms(end), ms(0)), ClaimOutcome::Won);
    for second in (0..end / 1000).step_by(97) {
        assert!(register.contains(key(1), ms(second * 1000)));
    }
    assert!(register.contains(key(1), ms(end - 1)));
    assert!(!register.contains(key(1), ms(end)));
}

#[test]
fn a_clock_read_late_neither_revives_nor_drops_records() {
    let register = StrikeRegister::new(4);
    assert_eq!(register.claim(key(1), ms(10_000), ms(9_000)), ClaimOutcome::Won);
    assert!(!register.contains(key(1), ms(10_000)));
    // This caller read its clock before the one above, and its own expiry has passed.
    assert_eq!(register.claim(key(2), ms(8_000), ms(7_000)), ClaimOutcome::Won);
    assert_eq!(register.claim(key(2), ms(8_000), ms(7_000)), ClaimOutcome::Lost);
}

#[test]
fn extremes_of_time_do_not_panic() {
    let register = StrikeRegister::new(4);
    assert_eq!(register.claim(key(1), Duration::MAX, ms(0)), ClaimOutcome::Won);
    assert_eq!(register.claim(key(1), ms(0), ms(0)), ClaimOutcome::Lost);
    register.claim(key(2), ms(0), Duration::MAX);
    register.contains(key(2), ms(0));
}

#[test]
fn shards_fill_evenly_and_sum_up_to_the_capacity() {
    let capacity = 100_000;
    let register = StrikeRegister::new(capacity);
    assert!(register.shards.len() > 1);
    let mut won = 0;
    for n in 0..2 * capacity as u64 {
        won += usize::from(register.claim(key(n), ms(1000), ms(0)) == ClaimOutcome::Won);
    }
    assert_eq!(won, capacity);
    assert_eq!(register.statistics().full, capacity as u64);
    for n in 0..capacity as u64 {
        assert!(!register.contains(key(n), ms(1000)));
    }
    assert_eq!(register.statistics().entries, 0);
}

#[test]
fn one_of_many_concurrent_claims_wins() {
    let register = StrikeRegister::new(10_000);
    let won = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..5_000 {
                    if register.claim(key(n), ms(1000), ms(0)) == ClaimOutcome::Won {
                        won.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(won.into_inner(), 5_000);
}

proptest! {
    /// The register against the plainest one possible: a map from key to expiry.
    #[test]
    fn agrees_with_a_plain_map(
        capacity in 0usize..12,
        steps in prop::collection::vec((0u64..16, 0u64..700, 0u64..40, 0..3), 1..300),
    ) {
        let register = StrikeRegister::new(capacity);
        let mut map: HashMap<u64, (State, u64)> = HashMap::new();
        let mut second = 0;
        for (n, lifetime, passed, action) in steps {
            second += if passed > 35 { passed * 30 } else { passed / 8 };
            map.retain(|_, (_, expires)| *expires > second);
            let now = ms(second * 1000);
            let state = map.get(&n).map(|(state, _)| *state);
            let is_known = matches!(state, Some(State::Claimed | State::Barred));
            prop_assert_eq!(register.contains(key(n), now), is_known);
            if action == 2 {
                prop_assert_eq!(register.release(key(n), now), state == Some(State::Claimed));
                if let Some((state @ State::Claimed, _)) = map.get_mut(&n) {
                    *state = State::Released;
                }
                continue;
            }
            let (new, outcome) = match action {
                0 => (State::Barred, ClaimOutcome::Barred),
                _ => (State::Claimed, ClaimOutcome::Won),
            };
            let expires = second + lifetime.max(1);
            let expected = match map.get(&n).copied() {
                Some((State::Claimed, _)) => ClaimOutcome::Lost,
                Some((State::Barred, _)) => ClaimOutcome::Barred,
                None if map.len() >= capacity => ClaimOutcome::Full,
                before => {
                    let expires = expires.max(before.map_or(0, |(_, expires)| expires));
                    map.insert(n, (new, expires));
                    outcome
                }
            };
            let expires_at = ms((second + lifetime) * 1000);
            let claim = register.claim_if(key(n), expires_at, now, || action == 1);
            prop_assert_eq!(claim, expected);
            prop_assert_eq!(register.statistics().entries, map.len());
        }
    }
}
