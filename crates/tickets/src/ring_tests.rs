use std::time::Duration;

use proptest::prelude::*;

use super::*;

const START: UnixTime = UnixTime(1_000_000);

fn hours(n: u64) -> Duration {
    Duration::from_secs(n * 3600)
}

fn at(n: u64) -> UnixTime {
    START.after(hours(n))
}

fn schedule(rotation: u64, lifetime: u64) -> Schedule {
    Schedule::new(hours(rotation), hours(lifetime)).expect("a schedule within its bounds")
}

fn opens(ring: &Ring, ticket: &[u8], now: UnixTime) -> bool {
    ring.open(ticket, now)
        == Opened::Ticket { content: b"session".to_vec(), origin: Zone::NONE.into() }
}

#[test]
fn the_next_key_exists_before_it_is_used() {
    let mut ring = Ring::generate(Schedule::default(), START);
    let next = ring.next(START).expect("a next key").key.clone();
    // Sealed by a process whose clock is ahead.
    assert!(opens(&ring, &next.seal(b"session", Zone::NONE), START));
    assert_eq!(ring.due(), at(12));
    ring.advance(at(12));
    assert_eq!(ring.current(at(12)).key, next);
    assert_eq!(ring.next(at(12)).map(|key| key.not_before), Some(at(24)));
}

#[test]
fn a_previous_key_is_dropped_with_its_last_ticket() {
    let mut ring = Ring::generate(Schedule::default(), START);
    let last_second = UnixTime(at(12).0 - 1);
    let ticket = ring.seal(b"session", Zone::NONE, last_second);
    ring.advance(at(12));
    assert_eq!(ring.previous(at(12)).len(), 1);
    assert!(opens(&ring, &ticket, UnixTime(at(24).0 - 1)));
    // Dead by the clock, even before it is dropped.
    assert_eq!(ring.open(&ticket, at(24)), Opened::UnknownKey);
    assert_eq!(ring.keys().len(), 3);
    ring.advance(at(24));
    assert_eq!(ring.previous(at(24)).len(), 1);
    assert_eq!(ring.keys().len(), 3);
}

#[test]
fn a_lifetime_of_many_periods_keeps_many_keys() {
    let mut ring = Ring::generate(schedule(1, 10), START);
    for hour in 1..50 {
        ring.advance(at(hour));
    }
    assert_eq!(ring.previous(at(49)).len(), 10);
    assert_eq!(ring.keys().len(), 12);
}

#[test]
fn after_a_long_sleep_all_old_keys_are_replaced() {
    let mut ring = Ring::generate(Schedule::default(), START);
    let ticket = ring.seal(b"session", Zone::NONE, START);
    let old: Vec<_> = ring.keys().iter().map(|key| *key.key.name()).collect();
    ring.advance(at(1000));
    assert_eq!(ring.current(at(1000)).not_before, at(1000));
    assert_eq!(ring.open(&ticket, at(1000)), Opened::UnknownKey);
    // The over-age key was current until now, so its tickets still live.
    assert_eq!(ring.previous(at(1000)).len(), 1);
    assert_eq!(*ring.previous(at(1000))[0].key.name(), old[1]);
}

/// Keys from a clock that was a year ahead, with and without an earlier key.
#[test]
fn keys_of_a_clock_that_was_ahead_rotate_once_it_is_right() {
    let year = 365 * 24;
    let mut generated = Ring::generate(Schedule::default(), at(year));
    assert_eq!(generated.warnings(START), [Warning::Ahead(year * 3600)]);
    let mut rotated = Ring::generate(Schedule::default(), START);
    rotated.advance(at(year));
    rotated.advance(at(year + 12));
    for ring in [&mut generated, &mut rotated] {
        let keys: Vec<_> = ring.keys().iter().map(|key| key.key.clone()).collect();
        let sealed_by = keys[keys.len() - 2].clone();
        assert!(ring.is_due(at(1)));
        ring.advance(at(1));
        assert_eq!((&ring.current(at(1)).key, ring.warnings(at(1))), (&sealed_by, vec![]));
        let remaining: Vec<_> = ring.keys().iter().map(|key| key.key.clone()).collect();
        assert!(keys.ends_with(&remaining) && remaining.len() >= 2);
        assert!(!ring.is_due(at(1)) && ring.is_due(at(13)));
        ring.advance(at(13));
        assert_ne!(ring.current(at(13)).key, sealed_by);
    }
    let mut ring = Ring::generate(Schedule::default(), at(year));
    let (stolen, next) = (ring.keys()[0].key.clone(), ring.keys()[1].key.clone());
    ring.rotate(START);
    let next_second = UnixTime(START.0 + 1);
    assert_eq!(ring.current(next_second).key, next);
    assert_eq!(ring.previous(next_second)[0].key, stolen);
    // Small differences between the clocks of processes are tolerated.
    assert!(!Ring::generate(Schedule::default(), UnixTime(START.0 + 200)).is_due(START));
}

#[test]
fn a_clock_before_the_first_key_uses_the_first_key() {
    let ring = Ring::generate(Schedule::default(), START);
    let ticket = ring.seal(b"session", Zone::NONE, UnixTime(0));
    assert_eq!(ring.current(UnixTime(0)).not_before, START);
    assert!(opens(&ring, &ticket, START));
}

#[test]
fn rotate_turns_the_ring_by_one() {
    let mut ring = Ring::generate(Schedule::default(), START);
    let [current, next] = [0, 1].map(|i| ring.keys()[i].key.clone());
    ring.rotate(at(5));
    assert_eq!(ring.previous(at(5))[0].key, current);
    assert_eq!(ring.current(at(5)).key, next);
    assert_eq!(ring.next(at(5)).map(|key| key.not_before), Some(at(17)));
    assert_eq!(ring.keys().len(), 3);
}

#[test]
fn every_key_has_a_state() {
    let mut ring = Ring::generate(schedule(1, 1), START);
    ring.advance(at(1));
    let states = |ring: &Ring, now| (0..3).map(|i| ring.state(i, now)).collect::<Vec<_>>();
    assert_eq!(states(&ring, at(1)), [KeyState::Previous, KeyState::Current, KeyState::Next],);
    assert_eq!(states(&ring, at(2)), [KeyState::Dead, KeyState::Previous, KeyState::Current]);
}

#[test]
fn rotate_replaces_a_key_over_age_and_its_warning() {
    let mut ring = Ring::generate(Schedule::default(), START);
    assert_eq!(ring.warnings(at(11)), []);
    assert_eq!(ring.warnings(at(13)), [Warning::NoNext(11 * 3600)]);
    assert_eq!(ring.warnings(at(25)), [Warning::OverAge(3600)]);
    let over_age = ring.current(at(25)).key.clone();
    ring.rotate(at(25));
    assert_eq!(ring.warnings(at(25)), []);
    assert_eq!(ring.previous(at(25))[0].key, over_age);
    assert_eq!(ring.current(at(25)).not_before, at(25));
}

#[test]
fn keys_that_do_not_form_a_ring_are_refused() {
    let key = |name: u8, second| DatedKey {
        key: TicketKey::new([name; 16], [name; 32]),
        not_before: UnixTime(second),
    };
    let ring = |keys| Ring::new(keys, Schedule::default()).map(|ring| ring.keys().len());
    assert_eq!(ring(vec![]), Err(RingError::Empty));
    assert_eq!(ring(vec![key(1, 5), key(2, 5)]), Err(RingError::Order(1)));
    assert_eq!(ring(vec![key(1, 5), key(1, 6)]), Err(RingError::Name(1)));
    assert_eq!(ring(vec![key(1, 5), key(2, 6)]), Ok(2));
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Advance,
    Rotate,
    Issue,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..4000).prop_map(Step::Wait),
        1 => (0u64..400_000).prop_map(Step::Wait),
        3 => Just(Step::Advance),
        2 => Just(Step::Rotate),
        4 => Just(Step::Issue),
    ]
}

proptest! {
    /// After any sequence of rotations, a ticket opens until it expires, and no key is kept longer
    /// than its tickets live.
    #[test]
    fn tickets_open_for_their_whole_life(
        rotation in 60u64..5000,
        lifetime in 1u64..20_000,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let seconds = Duration::from_secs;
        let schedule = Schedule::new(seconds(rotation), seconds(lifetime)).expect("in bounds");
        let mut ring = Ring::generate(schedule, START);
        let mut now = START;
        let mut issued = Vec::new();
        for step in steps {
            match step {
                Step::Wait(passed) => now = now.after(seconds(passed)),
                Step::Advance => {
                    ring.advance(now);
                    prop_assert!(ring.next(now).is_some() && ring.due() > now);
                }
                Step::Rotate => ring.rotate(now),
                Step::Issue => issued.push((now, ring.seal(b"session", Zone::NONE, now))),
            }
            for (issued_at, ticket) in &issued {
                if now < issued_at.after(seconds(lifetime)) {
                    prop_assert!(opens(&ring, ticket, now), "issued at {issued_at:?}, now {now:?}");
                }
            }
            prop_assert!(Ring::new(ring.keys().to_vec(), schedule).is_ok());
            for old in ring.previous(now) {
                let oldest = now.0.saturating_sub(lifetime);
                let successor = ring.keys().iter().find(|key| key.not_before > old.not_before);
                prop_assert!(successor.is_some_and(|key| key.not_before.0 > oldest));
            }
        }
    }
}
