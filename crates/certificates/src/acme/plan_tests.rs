use proptest::prelude::*;

use super::*;

const LIFE: i64 = 90 * DAY;

fn held(start: i64) -> Option<Window> {
    Some(Window { start, end: start + LIFE })
}

fn seeded(seed: u64) -> History {
    History { seed, ..History::default() }
}

/// What an authority does when it is asked.
#[derive(Clone, Copy, Debug)]
enum AuthorityBehaviour {
    Issues,
    Refuses,
    Gone,
    Limits(i64),
}

/// A node, its clock, and an authority with a clock of its own.
struct Simulation {
    /// The world's time.
    now: i64,
    /// How far the node's clock is off.
    off: i64,
    life: i64,
    held: Option<Window>,
    history: History,
    /// When the authority was asked, and how many validations failed at that.
    asked: Vec<(i64, usize)>,
    issued: Vec<i64>,
}

impl Simulation {
    fn new(seed: u64, life: i64) -> Self {
        Self {
            now: 1_800_000_000,
            off: 0,
            life,
            held: None,
            history: seeded(seed),
            asked: Vec::new(),
            issued: Vec::new(),
        }
    }

    /// Lets time go by, in which the authority is in this mood.
    fn pass(&mut self, time: i64, mood: AuthorityBehaviour) {
        let end = self.now + time;
        loop {
            let clock = self.now + self.off;
            self.history.turn_back(clock);
            let next = next_try(clock, self.held, None, &self.history).max(clock);
            if next - self.off >= end {
                break;
            }
            self.now = (next - self.off).max(self.now + 1);
            self.ask(mood);
        }
        self.now = end;
    }

    fn ask(&mut self, mood: AuthorityBehaviour) {
        let clock = self.now + self.off;
        let both = [ChallengeKind::TlsAlpn01, ChallengeKind::Http01];
        let validations = turns(&both, &self.history).looks;
        let said = String::new();
        let failed = match mood {
            AuthorityBehaviour::Issues => {
                self.held = Some(Window { start: self.now, end: self.now + self.life });
                self.history.success(clock);
                self.issued.push(self.now);
                0
            }
            AuthorityBehaviour::Refuses => {
                self.history.failure(clock, Severity::Refused, None, said);
                validations
            }
            AuthorityBehaviour::Gone => {
                self.history.failure(clock, Severity::Unreachable, None, said);
                0
            }
            AuthorityBehaviour::Limits(seconds) => {
                let until = Some(clock + seconds);
                self.history.failure(clock, Severity::Refused, until, said);
                0
            }
        };
        self.asked.push((self.now, failed));
    }

    /// The most of something within any such time.
    fn most(&self, within: i64, what: impl Fn(&(i64, usize)) -> usize) -> usize {
        let count = |from: i64| {
            let inside = self.asked.iter().filter(|(at, _)| (from..from + within).contains(at));
            inside.map(&what).sum()
        };
        self.asked.iter().map(|(at, _)| count(*at)).max().unwrap_or(0)
    }
}

#[test]
fn nothing_held_is_asked_for_at_once() {
    assert!(next_try(0, None, None, &seeded(1)) < 0);
}

#[test]
fn renewal_comes_between_two_thirds_and_three_quarters() {
    for seed in 0..200 {
        let at = next_try(0, held(0), None, &seeded(seed));
        assert!((60 * DAY..=LIFE / 4 * 3).contains(&at), "{at}");
    }
}

#[test]
fn a_fleet_does_not_come_at_once() {
    let mut times: Vec<_> = (0..1000).map(|s| next_try(0, held(0), None, &seeded(s))).collect();
    times.sort_unstable();
    let tenth = LIFE / 12 / 10;
    let crowd = times.windows(200).filter(|crowd| crowd[199] - crowd[0] < tenth).count();
    assert_eq!(crowd, 0, "200 of 1000 nodes came in a tenth of the window");
}

#[test]
fn rfc9773_4_2_the_suggested_window_counts() {
    let suggested = Some(Window { start: 10 * DAY, end: 11 * DAY });
    let at = next_try(0, held(0), suggested, &seeded(7));
    assert!((10 * DAY..=11 * DAY).contains(&at));
    // In the past: at once. But an authority that always says so is not asked all the time.
    let past = Some(Window { start: -2, end: -1 });
    assert!(next_try(0, held(0), past, &seeded(7)) <= 0);
    let fresh = History { succeeded: Some(0), ..seeded(7) };
    assert_eq!(next_try(0, held(0), past, &fresh), DAY);
    // No window, or one after the end.
    let none = Some(Window { start: 5 * DAY, end: 5 * DAY });
    assert!(next_try(0, held(0), none, &seeded(7)) >= 60 * DAY);
    let late = Some(Window { start: 200 * DAY, end: 201 * DAY });
    assert!(next_try(0, held(0), late, &seeded(7)) < LIFE);
}

#[test]
fn rfc9110_10_2_3_retry_after_is_waited_for() {
    let mut history = seeded(1);
    history.failure(1000, Severity::Refused, Some(1000 + 3 * DAY), String::new());
    assert_eq!(next_try(1000, None, None, &history), 1000 + 3 * DAY);
    // For ever is not trusted; a server in trouble for a day.
    history.failure(1000, Severity::Refused, Some(i64::MAX), String::new());
    assert_eq!(next_try(1000, None, None, &history), 1000 + MAX_WAIT);
    history.failure(1000, Severity::Unreachable, Some(1000 + 9 * DAY), String::new());
    assert_eq!(next_try(1000, None, None, &history), 1000 + DAY);
}

#[test]
fn nobody_there_is_tried_soon_and_refusals_later() {
    let mut gone = seeded(3);
    gone.failure(0, Severity::Unreachable, None, String::new());
    assert!((5..=8).contains(&next_try(0, None, None, &gone)));
    let mut refused = seeded(3);
    refused.failure(0, Severity::Refused, None, String::new());
    assert!((600..=900).contains(&next_try(0, None, None, &refused)));
    // Nobody there in between does not bring the next try forward.
    refused.failure(1, Severity::Unreachable, None, String::new());
    assert!(next_try(1, None, None, &refused) >= 600);
}

#[test]
fn the_nearer_the_end_the_more_often() {
    let mut history = seeded(1);
    history.refused = Some(Row { times: 30, at: 0 });
    let pause =
        |left: i64| next_try(0, Some(Window { start: left - LIFE, end: left }), None, &history);
    assert!((DAY..=DAY / 2 * 3).contains(&pause(20 * DAY)));
    assert!(pause(4 * DAY) <= 18 * HOUR);
    for left in [HOUR, 0, -DAY] {
        assert!((HOUR..=HOUR / 2 * 3).contains(&pause(left)));
    }
}

#[test]
fn a_process_that_dies_while_it_orders_has_failed() {
    let mut history = History { begun: Some(100), ..seeded(1) };
    history.mend(101);
    assert_eq!(history.unreachable, Some(Row { times: 1, at: 100 }));
    history.begun = Some(110);
    history.mend(111);
    assert_eq!(history.unreachable.unwrap().times, 2);
    assert!(next_try(111, None, None, &history) >= 120);
}

/// The authority looks, finds nobody any more, and counts that.
#[test]
fn who_ends_while_the_authority_looks_was_refused() {
    let begun = History { begun: Some(100), ..seeded(1) };
    let looked = History { looked: true, ..begun.clone() };
    let mut killed = looked.clone();
    killed.mend(101);
    assert_eq!((killed.refused, killed.looked), (Some(Row { times: 1, at: 100 }), false));
    assert!(next_try(101, None, None, &killed) >= 700);
    let mut left = looked;
    assert!(left.leave(101));
    assert_eq!((left.begun, left.refused), (None, Some(Row { times: 1, at: 101 })));
    let mut early = begun;
    assert!(!early.leave(101));
    assert_eq!(early, seeded(1));
}

#[test]
fn however_short_its_life_a_certificate_is_not_asked_for_all_the_time() {
    for life in 1..30 {
        let held = Some(Window { start: 0, end: life });
        let fresh = History { succeeded: Some(0), ..seeded(1) };
        assert!(next_try(0, held, None, &fresh) >= 5, "{life}");
        assert!(next_try(0, held, Some(Window { start: -2, end: -1 }), &fresh) >= 5, "{life}");
    }
}

#[test]
fn a_clock_that_went_back_does_not_stop_tries() {
    let mut history = seeded(1);
    history.failure(4_000_000_000, Severity::Refused, Some(4_000_100_000), String::new());
    history.turn_back(1_800_000_000);
    assert!(next_try(1_800_000_000, None, None, &history) <= 1_800_000_000 + MAX_WAIT);
    // Before the certificate is valid, nothing is due.
    let start = 1_900_000_000;
    assert!(next_try(1_800_000_000, held(start), None, &seeded(1)) > start);
}

#[test]
fn only_the_first_try_falls_back_at_once() {
    let both = [ChallengeKind::TlsAlpn01, ChallengeKind::Http01];
    let mut history = seeded(1);
    assert_eq!(turns(&both, &history), ChallengeChoice { kinds: both.to_vec(), looks: 2 });
    for kind in [ChallengeKind::Http01, ChallengeKind::TlsAlpn01] {
        history.failure(0, Severity::Refused, None, String::new());
        let turns = |configured| turns(configured, &history);
        assert_eq!((turns(&both).kinds[0], turns(&both).looks), (kind, 1));
        let one = ChallengeChoice { kinds: vec![ChallengeKind::Http01], looks: 1 };
        assert_eq!(turns(&[ChallengeKind::Http01]), one);
    }
}

fn mood() -> impl Strategy<Value = AuthorityBehaviour> {
    prop_oneof![
        Just(AuthorityBehaviour::Issues),
        Just(AuthorityBehaviour::Refuses),
        Just(AuthorityBehaviour::Gone),
        (0..10 * DAY).prop_map(AuthorityBehaviour::Limits),
    ]
}

proptest! {
    /// Let's Encrypt: five failed validations for each name and hour.
    #[test]
    fn failed_validations_stay_below_the_limit(
        seed: u64,
        life in prop::sample::select(vec![6 * DAY, 47 * DAY, LIFE]),
        days in prop::collection::vec((mood(), 60..3 * DAY), 1..40),
    ) {
        let mut it = Simulation::new(seed, life);
        for (mood, time) in days {
            it.pass(time, mood);
        }
        prop_assert!(it.most(HOUR, |(_, failed)| *failed) <= 5);
        // And nobody is asked more often than a human would understand.
        prop_assert!(it.most(HOUR, |_| 1) <= 20, "{}", it.most(HOUR, |_| 1));
    }

    /// Let's Encrypt: five certificates for the same names in a week.
    #[test]
    fn a_wrong_clock_does_not_use_up_the_limits(
        seed: u64,
        off in -400 * DAY..400 * DAY,
        jumps in prop::collection::vec((-400 * DAY..400 * DAY, HOUR..5 * DAY), 0..4),
    ) {
        let mut it = Simulation::new(seed, LIFE);
        it.off = off;
        for (off, time) in jumps {
            it.pass(time, AuthorityBehaviour::Issues);
            it.off = off;
        }
        let settled = it.now;
        it.pass(90 * DAY, AuthorityBehaviour::Issues);
        let later = it.issued.iter().filter(|at| **at > settled).count();
        prop_assert!(later <= 5, "{later}");
    }

    /// With an authority that is away for less than the last quarter, no certificate expires.
    #[test]
    fn no_certificate_expires_while_the_authority_comes_back_in_time(
        seed: u64,
        life in prop::sample::select(vec![6 * DAY, 47 * DAY, LIFE]),
        part in 0..200i64,
        start in 0..100i64,
        mood in prop_oneof![Just(AuthorityBehaviour::Gone), Just(AuthorityBehaviour::Refuses)],
    ) {
        let mut it = Simulation::new(seed, life);
        it.pass(60, AuthorityBehaviour::Issues);
        it.pass(life * start / 100, AuthorityBehaviour::Issues);
        it.pass(life * part / 1000, mood);
        let mut end = it.now + 3 * life;
        while it.now < end {
            prop_assert!(it.held.is_some_and(|held| held.end > it.now));
            it.pass(HOUR, AuthorityBehaviour::Issues);
            end -= HOUR;
        }
    }

    #[test]
    fn whatever_is_on_disk_a_try_comes_within_eight_days(
        now in 0..4_000_000_000i64,
        times: u32,
        at: i64,
        until: i64,
    ) {
        let row = Some(Row { times, at });
        let mut history =
            History { refused: row, unreachable: row, not_until: Some(until), ..seeded(at as u64) };
        history.turn_back(now);
        prop_assert!(next_try(now, None, None, &history) <= now + 8 * DAY);
    }
}
