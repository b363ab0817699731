//! A randomised model: honest clients whose clocks are right or off by up to an hour, an attacker
//! who holds every flight and may deliver copies at any time, even before the original, and a
//! server that is reconfigured, restarts, loses records and exhausts its memory. A client whose
//! early data is refused sends its requests again on the same connection, which counts as an
//! execution. In every case no request is executed twice, and every honest request whose connection
//! completes gets a response.
//!
//! Two executions are excused, both by an attacker who has a copy executed and holds the original
//! back: until the copy's record has ended, or until the server has lost its records.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use firstflight_replay::{
    ClaimKey, Decision, EpochScope, Flight, FlightOffer, Gate, GateConfig, Release, SpendOutcome,
    TicketEpochs,
};
use proptest::prelude::*;

/// A flight that an honest client sends once.
#[derive(Debug, Clone)]
struct HonestFlight {
    /// When the stated ticket age is exact, rounded as TLS does. In whole seconds of the server's
    /// time.
    exact_second: i64,
    /// For each request, whether each policy allows it early.
    requests: Vec<[bool; 2]>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Time passes, in milliseconds.
    Wait(u64),
    /// Time passes until a flight is about to be fresh.
    WaitFor(usize),
    /// The honest client connects, once.
    Original(usize),
    /// The attacker connects with a copy.
    Copy(usize),
    /// A connection continues: the ClientHello first, then one early request after the other.
    Continue(usize),
    /// Everything that a connection still sends arrives.
    ContinueToTheEnd(usize),
    /// Finished arrives, if the connection is an honest client's.
    Finish(usize),
    /// A connection breaks.
    Disconnect(usize),
    /// The policy changes to the other one.
    Reload,
    /// TLS starts or stops refusing all early data: because it is disabled, or because protocols,
    /// groups, limits or site names differ from the tickets'.
    ToggleEarlyData,
    /// The process ends and another starts, some milliseconds later, with the same ticket keys.
    Restart(u64),
    /// The register loses its records.
    LoseRecords,
}

#[derive(Debug)]
struct Connection {
    flight: usize,
    honest: bool,
    hello: Option<Hello>,
    next_request: usize,
    held: Vec<usize>,
    finished: bool,
}

#[derive(Debug)]
struct Hello {
    /// The policy at that time.
    policy: usize,
    outcome: Outcome,
}

/// What became of a connection's early data.
#[derive(Debug)]
enum Outcome {
    Accepted(Flight),
    /// Refused: the client sends its requests again after the handshake. Contains the flight to be
    /// recorded, if the gate has not seen it.
    Refused(Option<FlightOffer>),
}

#[derive(Debug, PartialEq)]
enum Response {
    Executed,
    TooEarly,
}

struct World {
    now: u64,
    flights: Vec<HonestFlight>,
    config: GateConfig,
    gate: Gate,
    epochs: Arc<TicketEpochs>,
    policy: usize,
    tls_refuses: bool,
    connections: Vec<Connection>,
    /// The epoch of each flight's ticket, once issued.
    tickets: Vec<Option<u32>>,
    sent: Vec<bool>,
    copy_won: Vec<bool>,
    /// Whether a copy won and its record was lost afterwards.
    copy_forgotten: Vec<bool>,
    executions: HashMap<(usize, usize), usize>,
    responses: HashMap<(usize, usize), Response>,
}

impl World {
    fn new(flights: Vec<HonestFlight>, config: GateConfig) -> Self {
        let n = flights.len();
        let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
        Self {
            // An hour after the start, so that stated ages may be an hour too small.
            now: START_SECOND as u64 * 1000,
            flights,
            config,
            gate: Gate::new(config, epochs.clone()),
            epochs,
            policy: 0,
            tls_refuses: false,
            connections: Vec::new(),
            tickets: vec![None; n],
            sent: vec![false; n],
            copy_won: vec![false; n],
            copy_forgotten: vec![false; n],
            executions: HashMap::new(),
            responses: HashMap::new(),
        }
    }

    fn time(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Wait(ms) => self.now += ms,
            Step::WaitFor(i) => {
                let exact = self.flights[i % self.flights.len()].exact_second;
                let freshness = self.config.freshness.as_secs() as i64;
                self.now = self.now.max((exact - freshness).max(0) as u64 * 1000);
            }
            Step::Original(i) => {
                let flight = i % self.flights.len();
                if !std::mem::replace(&mut self.sent[flight], true) {
                    self.connect(flight, true);
                }
            }
            Step::Copy(i) => self.connect(i % self.flights.len(), false),
            Step::Continue(i) => self.with_connection(i, Self::advance),
            Step::ContinueToTheEnd(i) => self.with_connection(i, Self::advance_to_the_end),
            Step::Finish(i) => self.with_connection(i, Self::finish),
            Step::Disconnect(i) => self.with_connection(i, |world, c| {
                world.connections.remove(c);
            }),
            Step::Reload => self.policy = 1 - self.policy,
            Step::ToggleEarlyData => self.tls_refuses = !self.tls_refuses,
            Step::Restart(downtime) => {
                self.connections.clear();
                self.now += downtime;
                self.epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
                self.lose_records();
            }
            // Connections continue.
            Step::LoseRecords => {
                self.epochs.start_next();
                self.lose_records();
            }
        }
    }

    fn with_connection(&mut self, i: usize, act: impl FnOnce(&mut Self, usize)) {
        if !self.connections.is_empty() {
            // Counted from the newest, to which a shrunk example mostly refers.
            let c = self.connections.len() - 1 - i % self.connections.len();
            act(self, c);
        }
    }

    fn connect(&mut self, flight: usize, honest: bool) {
        self.tickets[flight].get_or_insert(self.epochs.current());
        self.connections.push(Connection {
            flight,
            honest,
            hello: None,
            next_request: 0,
            held: Vec::new(),
            finished: false,
        });
    }

    fn advance(&mut self, c: usize) {
        let connection = &mut self.connections[c];
        let Some(hello) = &connection.hello else {
            return self.hello(c);
        };
        let Outcome::Accepted(flight) = hello.outcome else { return };
        let request = connection.next_request;
        let Some(policies) = self.flights[connection.flight].requests.get(request) else {
            return;
        };
        let may_run_early = policies[hello.policy];
        connection.next_request += 1;
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

    /// TLS checks a ClientHello: the ticket's epoch, and the skew, which it counts in whole seconds
    /// and limits itself.
    fn hello(&mut self, c: usize) {
        let (time, policy) = (self.time(), self.policy);
        let connection = &mut self.connections[c];
        let i = connection.flight;
        let skew = self.flights[i].exact_second - (self.now / 1000) as i64;
        let key = ClaimKey::of_flight(&[i as u8; 32]);
        let offer = FlightOffer::new(key, skew as i32, time, self.epochs.current());
        let refused = self.tls_refuses
            || !self.tickets[i].is_some_and(|epoch| self.epochs.accepts(epoch))
            || skew.abs() > self.config.max_skew.as_secs() as i64;
        let outcome = match refused {
            true => Outcome::Refused(Some(offer)),
            false => match self.gate.claim(&offer, time) {
                Ok(flight) => {
                    self.copy_won[i] |= !connection.honest && flight.won();
                    Outcome::Accepted(flight)
                }
                Err(_) => Outcome::Refused(None),
            },
        };
        self.connections[c].hello = Some(Hello { policy, outcome });
    }

    fn advance_to_the_end(&mut self, c: usize) {
        let requests = self.flights[self.connections[c].flight].requests.len();
        for _ in 0..=requests {
            self.advance(c);
        }
    }

    fn finish(&mut self, c: usize) {
        let (time, connection) = (self.time(), &mut self.connections[c]);
        let Some(hello) = &mut connection.hello else { return };
        if !connection.honest || std::mem::replace(&mut connection.finished, true) {
            return;
        }
        let Outcome::Refused(offer) = &mut hello.outcome else { return self.release(c) };
        let spent =
            offer.take().map_or(SpendOutcome::Recorded, |offer| self.gate.spend(&offer, time));
        for request in 0..self.flights[self.connections[c].flight].requests.len() {
            match spent {
                SpendOutcome::Recorded => self.execute(c, request),
                SpendOutcome::Executed => self.too_early(c, request),
                SpendOutcome::HandedOver => unreachable!("there is one process"),
            }
        }
    }

    fn release(&mut self, c: usize) {
        for request in std::mem::take(&mut self.connections[c].held) {
            let hello = self.connections[c].hello.as_ref().expect("it holds requests");
            let Outcome::Accepted(flight) = hello.outcome else {
                unreachable!("it holds requests")
            };
            match flight.handshake_complete() {
                Release::Execute => self.execute(c, request),
                Release::TooEarly => self.too_early(c, request),
            }
        }
    }

    fn execute(&mut self, c: usize, request: usize) {
        let connection = &self.connections[c];
        let (flight, honest) = (connection.flight, connection.honest);
        let executions = self.executions.entry((flight, request)).or_default();
        *executions += 1;
        let late = self.now / 1000
            > (self.flights[flight].exact_second.max(0) as u64) + self.config.max_skew.as_secs();
        let excused = self.copy_forgotten[flight] || self.copy_won[flight] && late;
        assert!(
            *executions <= 1 || excused,
            "flight {flight} request {request} executed twice at {}",
            self.now
        );
        if honest {
            self.respond(flight, request, Response::Executed);
        }
    }

    fn too_early(&mut self, c: usize, request: usize) {
        let connection = &self.connections[c];
        let flight = connection.flight;
        assert!(self.copy_won[flight], "unnecessary 425: {connection:?} at {}", self.now);
        self.respond(flight, request, Response::TooEarly);
    }

    fn respond(&mut self, flight: usize, request: usize, response: Response) {
        let before = self.responses.insert((flight, request), response);
        assert_eq!(before, None, "flight {flight} request {request} has two responses");
    }

    fn lose_records(&mut self) {
        self.copy_forgotten.iter_mut().zip(&self.copy_won).for_each(|(lost, won)| *lost |= won);
        self.gate = Gate::new(self.config, self.epochs.clone());
    }

    /// Removes finished connections. Checks that honest ones have all their responses.
    fn remove_finished(&mut self) {
        let Self { connections, flights, responses, .. } = self;
        connections.retain(|connection| {
            let Some(hello) = &connection.hello else { return true };
            let requests = flights[connection.flight].requests.len();
            let refused = matches!(hello.outcome, Outcome::Refused(_));
            let delivered = refused || connection.next_request == requests;
            if connection.finished && delivered {
                for request in 0..requests {
                    let response = responses.get(&(connection.flight, request));
                    assert!(response.is_some(), "request {request} of {connection:?} is lost");
                }
            }
            !delivered || (connection.honest && !connection.finished)
        });
    }

    /// Every remaining honest connection completes.
    fn complete_all(&mut self) {
        for c in 0..self.connections.len() {
            self.advance_to_the_end(c);
            self.finish(c);
        }
        self.remove_finished();
        assert!(self.connections.is_empty(), "all connections are finished");
    }
}

/// The defaults, and shorter times, whose ends are closer together. A margin of zero shows that the
/// rules hold to the millisecond with exact clocks.
fn config() -> impl Strategy<Value = GateConfig> {
    let times = prop_oneof![
        Just((10, 5, 60)),
        (1u64..11, prop_oneof![Just(0u64), Just(5)], 10u64..61),
        (1u64..11, Just(0u64), 10u64..15),
    ];
    let capacity = prop_oneof![2 => Just(1usize), 1 => 1usize..9];
    (times, capacity).prop_map(|((freshness, clock_margin, max_skew), capacity)| GateConfig {
        freshness: Duration::from_secs(freshness),
        clock_margin: Duration::from_secs(clock_margin),
        max_skew: Duration::from_secs(max_skew),
        capacity,
    })
}

fn flight() -> impl Strategy<Value = HonestFlight> {
    // Around the middle of a run that takes some minutes, or off by up to an hour.
    let exact = prop_oneof![3 => 60i64..80, 2 => 0i64..250, 2 => -START_SECOND..START_SECOND];
    let request = [prop::bool::weighted(0.8), prop::bool::weighted(0.5)];
    let requests = prop::collection::vec(request, 1..4);
    (exact, requests)
        .prop_map(|(exact, requests)| HonestFlight { exact_second: START_SECOND + exact, requests })
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![4 => 0u64..3_000, 3 => 3_000u64..25_000, 1 => 50_000u64..100_000];
    let downtime = prop_oneof![3 => 0u64..2_000, 1 => 2_000u64..90_000];
    prop_oneof![
        24 => wait.prop_map(Step::Wait),
        3 => (0usize..5).prop_map(Step::WaitFor),
        10 => (0usize..5).prop_map(Step::Original),
        18 => (0usize..5).prop_map(Step::Copy),
        9 => (0usize..6).prop_map(Step::Continue),
        30 => (0usize..6).prop_map(Step::ContinueToTheEnd),
        20 => (0usize..6).prop_map(Step::Finish),
        1 => (0usize..6).prop_map(Step::Disconnect),
        3 => Just(Step::Reload),
        3 => Just(Step::ToggleEarlyData),
        1 => downtime.prop_map(Step::Restart),
        1 => Just(Step::LoseRecords),
    ]
}

fn overflow_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..6_000).prop_map(Step::Wait),
        2 => Just(Step::Copy(1)),
        3 => (0usize..3).prop_map(Step::ContinueToTheEnd),
        2 => (0usize..3).prop_map(Step::Finish),
    ]
}

/// When the model starts, and how far stated ages may be off.
const START_SECOND: i64 = 3600;

/// A few seconds of cases, unless PROPTEST_CASES sets more.
fn cases() -> ProptestConfig {
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    ProptestConfig { cases: if is_set { default.cases } else { 5_000 }, ..default }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_flight_is_executed_twice_and_no_honest_request_is_lost(
        flights in prop::collection::vec(flight(), 1..6),
        config in config(),
        steps in prop::collection::vec(step(), 1..80),
        // Short steps increase the number of events around each flight's exact time.
        speedup in prop_oneof![Just(1u64), Just(3), Just(8)],
        // All originals connect first, so that the register fills up.
        originals_first in any::<bool>(),
    ) {
        let mut world = World::new(flights, config);
        for flight in &mut world.flights {
            flight.exact_second =
                START_SECOND + (flight.exact_second - START_SECOND) / speedup as i64;
        }
        if originals_first {
            (0..world.flights.len()).for_each(|flight| world.apply(&Step::Original(flight)));
        }
        for step in steps {
            world.apply(&match step {
                Step::Wait(ms) => Step::Wait(ms / speedup),
                other => other,
            });
            world.remove_finished();
        }
        world.complete_all();
    }

    /// The same model in the state that chance rarely reaches: a flight arrives when the register
    /// is full, and copies arrive while memory is being freed.
    #[test]
    fn a_flight_that_found_no_room_is_not_executed_twice(
        config in config(),
        after in 0i64..40,
        steps in prop::collection::vec(overflow_step(), 1..40),
    ) {
        let flight =
            |exact_second| HonestFlight { exact_second, requests: vec![[true, true]] };
        let config = GateConfig { capacity: 1, ..config };
        let start = START_SECOND + 20;
        let mut world = World::new(vec![flight(start), flight(start + after)], config);
        let fill = [Step::Wait(20_000), Step::Original(0), Step::ContinueToTheEnd(0)];
        let fill = fill.iter().chain(&[Step::Original(1), Step::ContinueToTheEnd(0)]);
        for step in fill.chain(&steps) {
            world.apply(step);
            world.remove_finished();
        }
        world.complete_all();
    }
}
