use proptest::prelude::*;

use super::*;

const LIFETIME: i64 = 90 * DAY;

fn current(start: i64) -> Option<Window> {
    Some(Window { start, end: start + LIFETIME })
}

fn seeded(seed: u64) -> History {
    History { seed, ..History::default() }
}

/// How the authority responds to an order.
#[derive(Clone, Copy, Debug)]
enum AuthorityBehaviour {
    Issues,
    Refuses,
    Unreachable,
    Limits(i64),
}

/// A node, its clock, and an authority with its own clock.
struct Simulation {
    /// The true time.
    now: i64,
    /// The error of the node's clock.
    clock_error: i64,
    lifetime: i64,
    current: Option<Window>,
    history: History,
    /// When orders were attempted, and the number of failed validations of each.
    orders: Vec<(i64, usize)>,
    issued: Vec<i64>,
}

impl Simulation {
    fn new(seed: u64, lifetime: i64) -> Self {
        Self {
            now: 1_800_000_000,
            clock_error: 0,
            lifetime,
            current: None,
            history: seeded(seed),
            orders: Vec::new(),
            issued: Vec::new(),
        }
    }

    /// Lets time pass while the authority behaves like this.
    fn advance(&mut self, time: i64, behaviour: AuthorityBehaviour) {
        let end = self.now + time;
        loop {
            let clock = self.now + self.clock_error;
            self.history.correct_clock(clock);
            let next = next_attempt(clock, self.current, None, &self.history).max(clock);
            if next - self.clock_error >= end {
                break;
            }
            self.now = (next - self.clock_error).max(self.now + 1);
            self.order(behaviour);
        }
        self.now = end;
    }

    fn order(&mut self, behaviour: AuthorityBehaviour) {
        let clock = self.now + self.clock_error;
        let both = [ChallengeKind::TlsAlpn01, ChallengeKind::Http01];
        let validations = choose_challenges(&both, &self.history).max_validations;
        let reason = String::new();
        let failed = match behaviour {
            AuthorityBehaviour::Issues => {
                self.current = Some(Window { start: self.now, end: self.now + self.lifetime });
                self.history.success(clock);
                self.issued.push(self.now);
                0
            }
            AuthorityBehaviour::Refuses => {
                self.history.failure(clock, Severity::Refused, None, reason);
                validations
            }
            AuthorityBehaviour::Unreachable => {
                self.history.failure(clock, Severity::Unreachable, None, reason);
                0
            }
            AuthorityBehaviour::Limits(seconds) => {
                let until = Some(clock + seconds);
                self.history.failure(clock, Severity::Refused, until, reason);
                0
            }
        };
        self.orders.push((self.now, failed));
    }

    /// The maximum of a sum within any window of this length.
    fn max_within(&self, within: i64, what: impl Fn(&(i64, usize)) -> usize) -> usize {
        let count = |from: i64| {
            let inside = self.orders.iter().filter(|(at, _)| (from..from + within).contains(at));
            inside.map(&what).sum()
        };
        self.orders.iter().map(|(at, _)| count(*at)).max().unwrap_or(0)
    }
}

#[test]
fn a_missing_certificate_is_due_at_once() {
    assert!(next_attempt(0, None, None, &seeded(1)) < 0);
}

#[test]
fn renewal_is_due_between_two_thirds_and_three_quarters_of_the_lifetime() {
    for seed in 0..200 {
        let at = next_attempt(0, current(0), None, &seeded(seed));
        assert!((60 * DAY..=LIFETIME / 4 * 3).contains(&at), "{at}");
    }
}

#[test]
fn nodes_renew_at_different_times() {
    let mut times: Vec<_> =
        (0..1000).map(|s| next_attempt(0, current(0), None, &seeded(s))).collect();
    times.sort_unstable();
    let tenth = LIFETIME / 12 / 10;
    let crowds = times.windows(200).filter(|crowd| crowd[199] - crowd[0] < tenth).count();
    assert_eq!(crowds, 0, "200 of 1000 nodes renewed in a tenth of the window");
}

#[test]
fn rfc9773_4_2_the_suggested_window_is_followed() {
    let suggested = Some(Window { start: 10 * DAY, end: 11 * DAY });
    let at = next_attempt(0, current(0), suggested, &seeded(7));
    assert!((10 * DAY..=11 * DAY).contains(&at));
    // In the past: at once. But an authority that always suggests the past is not queried
    // continually.
    let past = Some(Window { start: -2, end: -1 });
    assert!(next_attempt(0, current(0), past, &seeded(7)) <= 0);
    let fresh = History { last_success: Some(0), ..seeded(7) };
    assert_eq!(next_attempt(0, current(0), past, &fresh), DAY);
    // No window, or one that has ended.
    let none = Some(Window { start: 5 * DAY, end: 5 * DAY });
    assert!(next_attempt(0, current(0), none, &seeded(7)) >= 60 * DAY);
    let late = Some(Window { start: 200 * DAY, end: 201 * DAY });
    assert!(next_attempt(0, current(0), late, &seeded(7)) < LIFETIME);
}

#[test]
fn rfc9110_10_2_3_retry_after_is_honored() {
    let mut history = seeded(1);
    history.failure(1000, Severity::Refused, Some(1000 + 3 * DAY), String::new());
    assert_eq!(next_attempt(1000, None, None, &history), 1000 + 3 * DAY);
    // A `Retry-After` is bounded; that of a failing server by a day.
    history.failure(1000, Severity::Refused, Some(i64::MAX), String::new());
    assert_eq!(next_attempt(1000, None, None, &history), 1000 + MAX_RETRY_AFTER);
    history.failure(1000, Severity::Unreachable, Some(1000 + 9 * DAY), String::new());
    assert_eq!(next_attempt(1000, None, None, &history), 1000 + DAY);
}

#[test]
fn an_unreachable_authority_is_retried_sooner_than_a_refusal() {
    let mut unreachable = seeded(3);
    unreachable.failure(0, Severity::Unreachable, None, String::new());
    assert!((5..=8).contains(&next_attempt(0, None, None, &unreachable)));
    let mut refused = seeded(3);
    refused.failure(0, Severity::Refused, None, String::new());
    assert!((600..=900).contains(&next_attempt(0, None, None, &refused)));
    // An unreachable authority in between does not bring the next attempt forward.
    refused.failure(1, Severity::Unreachable, None, String::new());
    assert!(next_attempt(1, None, None, &refused) >= 600);
}

#[test]
fn attempts_become_more_frequent_towards_expiry() {
    let mut history = seeded(1);
    history.refused = Some(Failures { count: 30, at: 0 });
    let pause = |left: i64| {
        next_attempt(0, Some(Window { start: left - LIFETIME, end: left }), None, &history)
    };
    assert!((DAY..=DAY / 2 * 3).contains(&pause(20 * DAY)));
    assert!(pause(4 * DAY) <= 18 * HOUR);
    for left in [HOUR, 0, -DAY] {
        assert!((HOUR..=HOUR / 2 * 3).contains(&pause(left)));
    }
}

#[test]
fn an_order_of_a_process_that_died_counts_as_a_failure() {
    let mut history = History { started: Some(100), ..seeded(1) };
    history.recover(101);
    assert_eq!(history.unreachable, Some(Failures { count: 1, at: 100 }));
    history.started = Some(110);
    history.recover(111);
    assert_eq!(history.unreachable.unwrap().count, 2);
    assert!(next_attempt(111, None, None, &history) >= 120);
}

/// The authority validates, gets no response, and counts that.
#[test]
fn an_order_aborted_during_validation_counts_as_a_refusal() {
    let started = History { started: Some(100), ..seeded(1) };
    let validating = History { validation_started: true, ..started.clone() };
    let mut killed = validating.clone();
    killed.recover(101);
    assert_eq!(
        (killed.refused, killed.validation_started),
        (Some(Failures { count: 1, at: 100 }), false)
    );
    assert!(next_attempt(101, None, None, &killed) >= 700);
    let mut aborted = validating;
    assert!(aborted.abort(101));
    assert_eq!((aborted.started, aborted.refused), (None, Some(Failures { count: 1, at: 101 })));
    let mut early = started;
    assert!(!early.abort(101));
    assert_eq!(early, seeded(1));
}

#[test]
fn certificates_with_short_lifetimes_are_not_ordered_continually() {
    for lifetime in 1..30 {
        let current = Some(Window { start: 0, end: lifetime });
        let fresh = History { last_success: Some(0), ..seeded(1) };
        assert!(next_attempt(0, current, None, &fresh) >= 5, "{lifetime}");
        assert!(
            next_attempt(0, current, Some(Window { start: -2, end: -1 }), &fresh) >= 5,
            "{lifetime}"
        );
    }
}

/// Otherwise two nodes with such clocks would take turns adopting and ordering.
#[test]
fn a_clock_ahead_does_not_make_an_adopted_certificate_due() {
    let (now, ahead) = (1_800_000_000, 400 * DAY);
    let mut history = seeded(1);
    history.success(now + ahead);
    history.adopt(now + HOUR, now + ahead + HOUR);
    let next = next_attempt(now + ahead + HOUR, current(now + HOUR), None, &history);
    assert_eq!(next, now + ahead + LIFETIME / 4);
}

#[test]
fn a_clock_that_goes_back_does_not_stop_attempts() {
    let mut history = seeded(1);
    history.failure(4_000_000_000, Severity::Refused, Some(4_000_100_000), String::new());
    history.correct_clock(1_800_000_000);
    assert!(next_attempt(1_800_000_000, None, None, &history) <= 1_800_000_000 + MAX_RETRY_AFTER);
    // Nothing is due before the certificate is valid.
    let start = 1_900_000_000;
    assert!(next_attempt(1_800_000_000, current(start), None, &seeded(1)) > start);
}

#[test]
fn only_the_first_attempt_falls_back_at_once() {
    let both = [ChallengeKind::TlsAlpn01, ChallengeKind::Http01];
    let mut history = seeded(1);
    assert_eq!(
        choose_challenges(&both, &history),
        ChallengePlan { kinds: both.to_vec(), max_validations: 2 }
    );
    for kind in [ChallengeKind::Http01, ChallengeKind::TlsAlpn01] {
        history.failure(0, Severity::Refused, None, String::new());
        let plan = choose_challenges(&both, &history);
        assert_eq!((plan.kinds[0], plan.max_validations), (kind, 1));
        let http_only = ChallengePlan { kinds: vec![ChallengeKind::Http01], max_validations: 1 };
        assert_eq!(choose_challenges(&[ChallengeKind::Http01], &history), http_only);
    }
}

fn behaviour() -> impl Strategy<Value = AuthorityBehaviour> {
    prop_oneof![
        Just(AuthorityBehaviour::Issues),
        Just(AuthorityBehaviour::Refuses),
        Just(AuthorityBehaviour::Unreachable),
        (0..10 * DAY).prop_map(AuthorityBehaviour::Limits),
    ]
}

proptest! {
    /// Let's Encrypt: five failed validations per name and hour.
    #[test]
    fn failed_validations_stay_below_the_limit(
        seed: u64,
        lifetime in prop::sample::select(vec![6 * DAY, 47 * DAY, LIFETIME]),
        days in prop::collection::vec((behaviour(), 60..3 * DAY), 1..40),
    ) {
        let mut sim = Simulation::new(seed, lifetime);
        for (behaviour, time) in days {
            sim.advance(time, behaviour);
        }
        prop_assert!(sim.max_within(HOUR, |(_, failed)| *failed) <= 5);
        // The number of orders is bounded too.
        prop_assert!(sim.max_within(HOUR, |_| 1) <= 20, "{}", sim.max_within(HOUR, |_| 1));
    }

    /// Let's Encrypt: five certificates for the same names per week.
    #[test]
    fn a_wrong_clock_does_not_exhaust_the_limits(
        seed: u64,
        clock_error in -400 * DAY..400 * DAY,
        jumps in prop::collection::vec((-400 * DAY..400 * DAY, HOUR..5 * DAY), 0..4),
    ) {
        let mut sim = Simulation::new(seed, LIFETIME);
        sim.clock_error = clock_error;
        for (clock_error, time) in jumps {
            sim.advance(time, AuthorityBehaviour::Issues);
            sim.clock_error = clock_error;
        }
        let settled = sim.now;
        sim.advance(90 * DAY, AuthorityBehaviour::Issues);
        let later = sim.issued.iter().filter(|at| **at > settled).count();
        prop_assert!(later <= 5, "{later}");
    }

    /// With an authority that is away for less than the last quarter, no certificate expires.
    #[test]
    fn no_certificate_expires_if_the_authority_recovers_in_time(
        seed: u64,
        lifetime in prop::sample::select(vec![6 * DAY, 47 * DAY, LIFETIME]),
        part in 0..200i64,
        start in 0..100i64,
        behaviour in prop_oneof![Just(AuthorityBehaviour::Unreachable), Just(AuthorityBehaviour::Refuses)],
    ) {
        let mut sim = Simulation::new(seed, lifetime);
        sim.advance(60, AuthorityBehaviour::Issues);
        sim.advance(lifetime * start / 100, AuthorityBehaviour::Issues);
        sim.advance(lifetime * part / 1000, behaviour);
        let mut end = sim.now + 3 * lifetime;
        while sim.now < end {
            prop_assert!(sim.current.is_some_and(|current| current.end > sim.now));
            sim.advance(HOUR, AuthorityBehaviour::Issues);
            end -= HOUR;
        }
    }

    /// A node without state that adopts a certificate of another node, however late, renews it in time.
    #[test]
    fn an_adopted_certificate_does_not_expire(
        seed: u64,
        lifetime in prop::sample::select(vec![6 * DAY, 47 * DAY, LIFETIME]),
        part in 0..1000i64,
    ) {
        let mut sim = Simulation::new(seed, lifetime);
        let adopted = Window { start: sim.now, end: sim.now + lifetime };
        sim.now += lifetime / 1000 * part;
        sim.current = Some(adopted);
        sim.history.adopt(adopted.start, sim.now);
        while sim.issued.is_empty() {
            prop_assert!(sim.now < adopted.end);
            sim.advance(HOUR, AuthorityBehaviour::Issues);
        }
        prop_assert!(sim.issued[0] < adopted.end);
    }

    #[test]
    fn with_any_history_the_next_attempt_is_within_eight_days(
        now in 0..4_000_000_000i64,
        count: u32,
        at: i64,
        retry_after: i64,
    ) {
        let failures = Some(Failures { count, at });
        let mut history = History {
            refused: failures,
            unreachable: failures,
            retry_after: Some(retry_after),
            ..seeded(at as u64)
        };
        history.correct_clock(now);
        prop_assert!(next_attempt(now, None, None, &history) <= now + 8 * DAY);
    }
}
