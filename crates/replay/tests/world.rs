//! A model world: honest clients, an attacker who holds every flight and may deliver copies at
//! any time, before the original too, and a server that restarts, forgets and runs out of room.
//! Whatever happens, no request is executed twice from its flight's bytes, and every honest
//! request whose connection completes is answered.

use std::collections::HashMap;
use std::time::Duration;

use firstflight_replay::{
    Admission, Decision, Flight, Gate, GateConfig, HoldReason, Release, Startup,
};
use proptest::prelude::*;

/// A flight that an honest client sends once.
#[derive(Debug, Clone)]
struct HonestFlight {
    /// When the skew, rounded as TLS does, would be zero. In whole seconds of the server's time.
    zero_skew_second: i64,
    /// For each request whether the policy lets it run early.
    requests: Vec<bool>,
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
    /// The process ends and another begins, some milliseconds later, with the same ticket keys.
    Restart(u64),
    /// A store behind the register says that it lost its records.
    LoseClaims,
}

#[derive(Debug)]
struct Connection {
    flight: usize,
    honest: bool,
    admitted: bool,
    opened_at: u64,
    hello: Option<Hello>,
    next: usize,
    held: Vec<(usize, HoldReason)>,
    finished: bool,
}

#[derive(Debug)]
struct Hello {
    at: u64,
    /// None if early data was refused: the client resends after the handshake.
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
    lost_at: Option<u64>,
    connections: Vec<Connection>,
    sent: Vec<bool>,
    copy_ran: Vec<bool>,
    executions: HashMap<(usize, usize), usize>,
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
            lost_at: None,
            connections: Vec::new(),
            sent: vec![false; n],
            copy_ran: vec![false; n],
            executions: HashMap::new(),
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
            Step::Restart(downtime) => self.restart(downtime),
            Step::LoseClaims => {
                self.lost_at = Some(self.now);
                // What is lost: the records. What stays: the gate's word that they are.
                self.forget();
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
            admitted: self.gate.admission(self.time()) == Admission::Accept,
            opened_at: self.now,
            hello: None,
            next: 0,
            held: Vec::new(),
            finished: false,
        });
    }

    fn go_on(&mut self, c: usize) {
        let (now, time) = (self.now, self.time());
        // TLS's own bound on the ticket-age skew, which it counts in whole seconds.
        let tls_max_skew = self.config.max_skew.as_secs() as i64;
        let connection = &mut self.connections[c];
        let flight = &self.flights[connection.flight];
        let Some(hello) = &mut connection.hello else {
            let skew = flight.zero_skew_second - (now / 1000) as i64;
            let random = [connection.flight as u8; 32];
            let accepted = (connection.admitted && skew.abs() <= tls_max_skew)
                .then(|| Flight::new(&random, skew as i32, time));
            connection.hello = Some(Hello { at: now, accepted });
            return;
        };
        let Some(identity) = &mut hello.accepted else {
            return;
        };
        let Some(&may_run_early) = flight.requests.get(connection.next) else {
            return;
        };
        let request = connection.next;
        connection.next += 1;
        match self.gate.early_request(identity, may_run_early, time) {
            Decision::Execute => {
                assert!(may_run_early, "request {request} ran early against the policy");
                self.execute(c, request);
            }
            Decision::Hold(reason) => self.connections[c].held.push((request, reason)),
        }
        if self.connections[c].finished {
            self.release(c);
        }
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
        let time = self.time();
        for (request, reason) in std::mem::take(&mut self.connections[c].held) {
            let hello = self.connections[c].hello.as_mut().expect("it holds requests");
            let identity = hello.accepted.as_mut().expect("it holds requests");
            match self.gate.handshake_complete(identity, reason, time) {
                Release::Execute => self.execute(c, request),
                Release::TooEarly => self.too_early(c, request),
            }
        }
    }

    fn execute(&mut self, c: usize, request: usize) {
        let connection = &self.connections[c];
        let flight = connection.flight;
        let times = self.executions.entry((flight, request)).or_default();
        *times += 1;
        assert_eq!(*times, 1, "flight {flight} request {request} executed twice, {connection:?}");
        if connection.honest {
            self.answer(flight, request, Answer::Executed);
        } else {
            self.copy_ran[flight] = true;
        }
    }

    fn too_early(&mut self, c: usize, request: usize) {
        let connection = &self.connections[c];
        let flight = connection.flight;
        let hello = connection.hello.as_ref().expect("it sent requests");
        let in_flight_at_the_loss = self.lost_at.is_some_and(|at| connection.opened_at <= at);
        // The server closes such a connection; the gate does not rest on it.
        let endless = self.now - hello.at > self.config.max_handshake.as_millis() as u64;
        assert!(
            self.copy_ran[flight] || in_flight_at_the_loss || endless,
            "425 without need: {connection:?} at {}",
            self.now
        );
        self.answer(flight, request, Answer::TooEarly);
    }

    fn answer(&mut self, flight: usize, request: usize, answer: Answer) {
        let before = self.answers.insert((flight, request), answer);
        assert_eq!(before, None, "flight {flight} request {request} answered twice");
    }

    fn restart(&mut self, downtime: u64) {
        self.connections.clear();
        self.now += downtime;
        let config = GateConfig { startup: Startup::KeysMayPredateStart, ..self.config };
        self.gate = Gate::new(config, self.time());
    }

    /// Records lost while connections live: a new register behind a gate that was told.
    fn forget(&mut self) {
        let config = GateConfig { startup: Startup::KeysAreNew, ..self.config };
        self.gate = Gate::new(config, self.time());
        self.gate.claims_lost(self.time());
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
        Just((10, 5, 60, 30)),
        (1u64..11, prop_oneof![Just(0u64), Just(5)], 10u64..61, 0u64..31),
        (1u64..11, Just(0u64), 10u64..15, 0u64..3),
    ];
    let capacity = prop_oneof![2 => Just(1usize), 1 => 1usize..9];
    (times, capacity, any::<bool>()).prop_map(|(times, capacity, first_start)| {
        let (freshness, clock_margin, max_skew, max_handshake) = times;
        GateConfig {
            freshness: Duration::from_secs(freshness),
            clock_margin: Duration::from_secs(clock_margin),
            max_skew: Duration::from_secs(max_skew),
            max_handshake: Duration::from_secs(max_handshake),
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
    let requests = prop::collection::vec(prop::bool::weighted(0.8), 1..4);
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

    /// The same world where it is hardest to reach by chance: a flight comes to its handshake's
    /// end when the register is full, and copies of it come while the room is being freed.
    #[test]
    fn a_flight_that_found_no_room_is_not_executed_twice(
        config in config(),
        after in 0i64..40,
        steps in prop::collection::vec(overflow_step(), 1..40),
    ) {
        let flight = |zero_skew_second| HonestFlight { zero_skew_second, requests: vec![true] };
        let config = GateConfig { capacity: 1, startup: Startup::KeysAreNew, ..config };
        let mut world = World::new(vec![flight(20), flight(20 + after)], config);
        let filled = [Step::Wait(20_000), Step::Original(0), Step::Original(1), Step::GoOnToTheEnd(1)];
        for step in filled.iter().chain(&steps) {
            world.take(step);
            world.tidy();
        }
        world.end();
    }
}
