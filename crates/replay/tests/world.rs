//! A model world: honest clients, an attacker who holds every flight and may deliver copies at
//! any time, before the original too, and a server that is reloaded, restarts, forgets and runs out
//! of room. Whatever happens, no request is executed twice from its flight's bytes; where no records
//! were lost, not with what a refused client sends again either; and every honest request whose
//! connection completes is answered.

use std::collections::HashMap;
use std::time::Duration;

use firstflight_replay::{Decision, Flight, Gate, GateConfig, Offer, Release, Startup};
use proptest::prelude::*;

/// A flight that an honest client sends once.
#[derive(Debug, Clone)]
struct HonestFlight {
    /// When the skew, rounded as TLS does, would be zero. In whole seconds of the server's time.
    zero_skew_second: i64,
    /// For each request whether the policy lets it run early: each policy that there may be.
    requests: Vec<[bool; 2]>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Time passes, in milliseconds.
    Wait(u64),
    /// The honest client connects (once).
    Original(usize),
    /// The attacker connects with a copy.
    Copy(usize),
    /// A connection goes on: ClientHello first, then one early request after the other.
    GoOn(usize),
    /// All that a connection has still to send arrives.
    GoOnToTheEnd(usize),
    /// Finished arrives, if the connection is an honest one.
    Finish(usize),
    /// The connection breaks.
    Break(usize),
    /// The other policy.
    Reload,
    /// The process ends and another begins, some milliseconds later, with the same ticket keys.
    Restart(u64),
    /// The register loses its records.
    LoseClaims,
}

#[derive(Debug)]
struct Connection {
    flight: usize,
    honest: bool,
    hello: Option<Hello>,
    next: usize,
    held: Vec<usize>,
    finished: bool,
}

#[derive(Debug)]
struct Hello {
    /// The policy then.
    policy: usize,
    /// None if early data was refused: the client sends again after the handshake.
    accepted: Option<Flight>,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Executed,
    TooEarly,
}

struct World {
    now: u64,
    flights: Vec<HonestFlight>,
    config: GateConfig,
    gate: Gate,
    policy: usize,
    /// Whether records were lost.
    forgot: bool,
    connections: Vec<Connection>,
    sent: Vec<bool>,
    copy_won: Vec<bool>,
    executions: HashMap<(usize, usize), usize>,
    sent_again: HashMap<(usize, usize), usize>,
    answers: HashMap<(usize, usize), Answer>,
}

impl World {
    fn new(flights: Vec<HonestFlight>, config: GateConfig) -> Self {
        let n = flights.len();
        Self {
            now: 0,
            flights,
            config,
            gate: Gate::new(config, Duration::ZERO),
            policy: 0,
            forgot: false,
            connections: Vec::new(),
            sent: vec![false; n],
            copy_won: vec![false; n],
            executions: HashMap::new(),
            sent_again: HashMap::new(),
            answers: HashMap::new(),
        }
    }

    fn time(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Wait(ms) => self.now += ms,
            Step::Original(i) => {
                let flight = i % self.flights.len();
                if !std::mem::replace(&mut self.sent[flight], true) {
                    self.connect(flight, true);
                }
            }
            Step::Copy(i) => self.connect(i % self.flights.len(), false),
            Step::GoOn(i) => self.with_connection(i, Self::go_on),
            Step::GoOnToTheEnd(i) => self.with_connection(i, Self::go_on_to_the_end),
            Step::Finish(i) => self.with_connection(i, Self::finish),
            Step::Break(i) => self.with_connection(i, |world, c| {
                world.connections.remove(c);
            }),
            Step::Reload => self.policy = 1 - self.policy,
            Step::Restart(downtime) => {
                self.connections.clear();
                self.now += downtime;
                self.forget(Startup::KeysMayPredateStart);
            }
            // Connections live on, and so does the gate's word that records were lost.
            Step::LoseClaims => {
                self.forget(Startup::KeysAreNew);
                self.gate.claims_lost(self.time());
            }
        }
    }

    fn with_connection(&mut self, i: usize, act: impl FnOnce(&mut Self, usize)) {
        if !self.connections.is_empty() {
            // Counted from the newest, which a shrunk example refers to most often.
            let c = self.connections.len() - 1 - i % self.connections.len();
            act(self, c);
        }
    }

    fn connect(&mut self, flight: usize, honest: bool) {
        self.connections.push(Connection {
            flight,
            honest,
            hello: None,
            next: 0,
            held: Vec::new(),
            finished: false,
        });
    }

    fn go_on(&mut self, c: usize) {
        let connection = &mut self.connections[c];
        let Some(hello) = &connection.hello else {
            return self.hello(c);
        };
        let Some(flight) = hello.accepted else { return };
        let request = connection.next;
        let Some(policies) = self.flights[connection.flight].requests.get(request) else {
            return;
        };
        let may_run_early = policies[hello.policy];
        connection.next += 1;
        match flight.early_request(may_run_early) {
            Decision::Execute => {
                assert!(may_run_early, "request {request} ran early against the policy");
                self.execute(c, request);
            }
            Decision::Hold(_) => self.connections[c].held.push(request),
        }
        if self.connections[c].finished {
            self.release(c);
        }
    }

    /// TLS looks at a ClientHello. It has its own bound on the skew, which it counts in whole
    /// seconds; what it refuses by itself never comes to the gate.
    fn hello(&mut self, c: usize) {
        let (time, policy) = (self.time(), self.policy);
        let connection = &mut self.connections[c];
        let i = connection.flight;
        let skew = self.flights[i].zero_skew_second - (self.now / 1000) as i64;
        let mut accepted = None;
        if skew.abs() <= self.config.max_skew.as_secs() as i64 {
            let offer = Offer::new(&[i as u8; 32], skew as i32, time);
            accepted = self.gate.claim(&offer, time).ok();
            self.copy_won[i] |= !connection.honest && accepted.is_some_and(|flight| flight.won());
            if accepted.is_none() && connection.honest {
                self.send_again(i);
            }
        }
        self.connections[c].hello = Some(Hello { policy, accepted });
    }

    fn go_on_to_the_end(&mut self, c: usize) {
        let requests = self.flights[self.connections[c].flight].requests.len();
        for _ in 0..=requests {
            self.go_on(c);
        }
    }

    fn finish(&mut self, c: usize) {
        if !self.connections[c].honest || self.connections[c].hello.is_none() {
            return;
        }
        self.connections[c].finished = true;
        self.release(c);
    }

    fn release(&mut self, c: usize) {
        for request in std::mem::take(&mut self.connections[c].held) {
            let hello = self.connections[c].hello.as_ref().expect("it holds requests");
            match hello.accepted.expect("it holds requests").handshake_complete() {
                Release::Execute => self.execute(c, request),
                Release::TooEarly => self.too_early(c, request),
            }
        }
    }

    fn execute(&mut self, c: usize, request: usize) {
        let connection = &self.connections[c];
        let (flight, honest) = (connection.flight, connection.honest);
        *self.executions.entry((flight, request)).or_default() += 1;
        self.check(flight, request);
        if honest {
            self.answer(flight, request, Answer::Executed);
        }
    }

    fn send_again(&mut self, flight: usize) {
        for request in 0..self.flights[flight].requests.len() {
            *self.sent_again.entry((flight, request)).or_default() += 1;
            self.check(flight, request);
        }
    }

    fn check(&self, flight: usize, request: usize) {
        let times = |of: &HashMap<_, usize>| of.get(&(flight, request)).copied().unwrap_or(0);
        let (executed, again) = (times(&self.executions), times(&self.sent_again));
        assert!(executed <= 1, "flight {flight} request {request} executed twice");
        assert!(
            self.forgot || executed + again <= 1,
            "flight {flight} request {request} executed, and sent again by its client"
        );
    }

    fn too_early(&mut self, c: usize, request: usize) {
        let connection = &self.connections[c];
        let flight = connection.flight;
        assert!(self.copy_won[flight], "425 without need: {connection:?} at {}", self.now);
        self.answer(flight, request, Answer::TooEarly);
    }

    fn answer(&mut self, flight: usize, request: usize, answer: Answer) {
        let before = self.answers.insert((flight, request), answer);
        assert_eq!(before, None, "flight {flight} request {request} answered twice");
    }

    fn forget(&mut self, startup: Startup) {
        self.forgot = true;
        self.gate = Gate::new(GateConfig { startup, ..self.config }, self.time());
    }

    /// Forgets connections that can do nothing more, once an honest one has all its answers.
    fn tidy(&mut self) {
        let Self { connections, flights, answers, .. } = self;
        connections.retain(|connection| {
            let Some(hello) = &connection.hello else { return true };
            let requests = flights[connection.flight].requests.len();
            let delivered = hello.accepted.is_none() || connection.next == requests;
            if connection.finished && delivered && hello.accepted.is_some() {
                for request in 0..requests {
                    let answer = answers.get(&(connection.flight, request));
                    assert!(answer.is_some(), "request {request} of {connection:?} is lost");
                }
            }
            !delivered || (connection.honest && !connection.finished)
        });
    }

    /// Every honest connection still there completes.
    fn end(&mut self) {
        for c in 0..self.connections.len() {
            self.go_on_to_the_end(c);
            self.finish(c);
        }
        self.tidy();
        assert!(self.connections.is_empty(), "all is done");
    }
}

/// The defaults, and shorter times, which bring their ends closer together. A margin of zero
/// shows that the rules hold to the millisecond when the clocks do.
fn config() -> impl Strategy<Value = GateConfig> {
    let times = prop_oneof![
        Just((10, 5, 60)),
        (1u64..11, prop_oneof![Just(0u64), Just(5)], 10u64..61),
        (1u64..11, Just(0u64), 10u64..15),
    ];
    let capacity = prop_oneof![2 => Just(1usize), 1 => 1usize..9];
    (times, capacity, any::<bool>()).prop_map(|(times, capacity, first_start)| {
        let (freshness, clock_margin, max_skew) = times;
        GateConfig {
            freshness: Duration::from_secs(freshness),
            clock_margin: Duration::from_secs(clock_margin),
            max_skew: Duration::from_secs(max_skew),
            capacity,
            startup: match first_start {
                true => Startup::KeysAreNew,
                false => Startup::KeysMayPredateStart,
            },
        }
    })
}

fn flight() -> impl Strategy<Value = HonestFlight> {
    // Around the middle of a run that lasts some minutes.
    let zero = prop_oneof![3 => 60i64..80, 2 => 0i64..250];
    let request = [prop::bool::weighted(0.8), prop::bool::weighted(0.5)];
    let requests = prop::collection::vec(request, 1..4);
    (zero, requests)
        .prop_map(|(zero_skew_second, requests)| HonestFlight { zero_skew_second, requests })
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![4 => 0u64..3_000, 3 => 3_000u64..25_000, 1 => 50_000u64..100_000];
    let downtime = prop_oneof![3 => 0u64..2_000, 1 => 2_000u64..90_000];
    prop_oneof![
        24 => wait.prop_map(Step::Wait),
        10 => (0usize..5).prop_map(Step::Original),
        18 => (0usize..5).prop_map(Step::Copy),
        9 => (0usize..6).prop_map(Step::GoOn),
        30 => (0usize..6).prop_map(Step::GoOnToTheEnd),
        20 => (0usize..6).prop_map(Step::Finish),
        1 => (0usize..6).prop_map(Step::Break),
        3 => Just(Step::Reload),
        1 => downtime.prop_map(Step::Restart),
        1 => Just(Step::LoseClaims),
    ]
}

fn overflow_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..6_000).prop_map(Step::Wait),
        2 => Just(Step::Copy(1)),
        3 => (0usize..3).prop_map(Step::GoOnToTheEnd),
        2 => (0usize..3).prop_map(Step::Finish),
    ]
}

/// A few seconds' worth, unless PROPTEST_CASES asks for more.
fn cases() -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    ProptestConfig { cases: if asked { default.cases } else { 5_000 }, ..default }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_flight_is_executed_twice_and_no_honest_request_is_lost(
        flights in prop::collection::vec(flight(), 1..6),
        config in config(),
        steps in prop::collection::vec(step(), 1..80),
        // Slow time down: the shorter the steps, the more happens around each flight's prime.
        slower in prop_oneof![Just(1u64), Just(3), Just(8)],
        // Let them all in while the register still has room, so that it overflows.
        originals_first in any::<bool>(),
    ) {
        let mut world = World::new(flights, config);
        for flight in &mut world.flights {
            flight.zero_skew_second /= slower as i64;
        }
        if originals_first {
            (0..world.flights.len()).for_each(|flight| world.take(&Step::Original(flight)));
        }
        for step in steps {
            world.take(&match step {
                Step::Wait(ms) => Step::Wait(ms / slower),
                other => other,
            });
            world.tidy();
        }
        world.end();
    }

    /// The same world where it is hardest to reach by chance: a flight comes when the register is
    /// full, and copies of it come while the room is being freed.
    #[test]
    fn a_flight_that_found_no_room_is_not_executed_twice(
        config in config(),
        after in 0i64..40,
        steps in prop::collection::vec(overflow_step(), 1..40),
    ) {
        let flight =
            |zero_skew_second| HonestFlight { zero_skew_second, requests: vec![[true, true]] };
        let config = GateConfig { capacity: 1, startup: Startup::KeysAreNew, ..config };
        let mut world = World::new(vec![flight(20), flight(20 + after)], config);
        let filled = [Step::Wait(20_000), Step::Original(0), Step::GoOnToTheEnd(0)];
        let filled = filled.iter().chain(&[Step::Original(1), Step::GoOnToTheEnd(0)]);
        for step in filled.chain(&steps) {
            world.take(step);
            world.tidy();
        }
        world.end();
    }
}
