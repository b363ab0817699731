//! The gate of one process in a model, over all interleavings: two flights, an attacker with
//! copies of them, room for one record, a policy that a reload changes, restarts with the same
//! ticket keys, and a clock that is set. The gate is the real one; between two steps it is kept as
//! what it knows.
//!
//! Time goes in ticks of 2 s: freshness lasts one, TLS takes two, and all that happens within one
//! is tried in every order. That the model can fail is shown by leaving out the rules one by one.

use stateright::{Model, Property};

use super::*;
use crate::register::Records;
use crate::{ClaimKey, Decision, HoldReason, Release};

const TICK: u64 = 2;
const ONCE: &str = "executed at most once from its bytes";
const ONCE_IN_ALL: &str = "executed at most once, with what a refused client sends again";
const NEEDED: &str = "425 only if a copy has the claim";

#[derive(Debug, Clone)]
struct Setting {
    horizon: u8,
    /// For each flight, the tick at which its skew is zero.
    zero_skews: Vec<u8>,
    most_connections: usize,
    restarts: u8,
    /// By how many ticks the clock may be set, once.
    clock_steps: Vec<i64>,
    /// How often a reload may change whether the request may run early.
    reloads: u8,
    without: Option<Rule>,
}

/// A rule that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    WindowAtStart,
    ClockIsWatched,
    RecordsOutliveFreshness,
    RefusedFlightsAreRecorded,
    UnrecordedFlightsCloseTheGate,
    ClaimsComeBeforeAcceptance,
    LostWhateverThePolicy,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    tick: u8,
    gate: Known,
    clock_offset: i64,
    may_run_early: bool,
    connections: Vec<Connection>,
    flights: Vec<Fate>,
    restarts: u8,
    steps: u8,
    reloads: u8,
}

/// All that a gate knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Known {
    records: Records,
    begins_at: i64,
    lost_until: i64,
    blind_until: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Connection {
    flight: usize,
    honest: bool,
    skew_seconds: i32,
    seen_at: Duration,
    /// The policy under which it was accepted.
    may_run_early: bool,
    claimed: Option<Flight>,
    held: Option<HoldReason>,
}

/// What became of a flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Fate {
    sent: bool,
    runs: u8,
    sent_again: bool,
    copy_won: bool,
    copy_ran: bool,
    needless_425: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Tick,
    Hello { flight: usize, honest: bool },
    Request { connection: usize },
    Finish { connection: usize },
    Restart,
    Reload,
    SetClock { ticks: i64 },
}

fn config(startup: Startup) -> GateConfig {
    let tick = Duration::from_secs(TICK);
    GateConfig {
        freshness: tick,
        clock_margin: Duration::ZERO,
        max_skew: 2 * tick,
        capacity: 1,
        startup,
    }
}

impl Known {
    fn of(gate: &Gate) -> Self {
        Self {
            records: gate.register.records(),
            begins_at: gate.begins_at.load(Ordering::SeqCst),
            lost_until: gate.lost_until.load(Ordering::SeqCst),
            blind_until: gate.blind_until.load(Ordering::SeqCst),
        }
    }

    fn gate(&self) -> Gate {
        Gate {
            config: config(Startup::KeysAreNew),
            register: StrikeRegister::with_records(1, &self.records),
            names: StrikeRegister::new(0),
            begins_at: AtomicI64::new(self.begins_at),
            names_blind_until: AtomicI64::new(i64::MIN),
            lost_until: AtomicI64::new(self.lost_until),
            blind_until: AtomicI64::new(self.blind_until),
        }
    }
}

impl World {
    fn new(setting: &Setting) -> Self {
        Self {
            tick: 0,
            gate: Known::of(&Gate::new(config(Startup::KeysAreNew), Duration::ZERO)),
            clock_offset: 0,
            may_run_early: true,
            connections: Vec::new(),
            flights: vec![Fate::default(); setting.zero_skews.len()],
            restarts: 0,
            steps: 0,
            reloads: 0,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_secs(u64::from(self.tick) * TICK)
    }

    fn with_gate<T>(&mut self, setting: &Setting, act: impl FnOnce(&Gate, Duration) -> T) -> T {
        let gate = self.gate.gate();
        let outcome = act(&gate, self.now());
        self.gate = Known::of(&gate);
        match setting.without {
            Some(Rule::UnrecordedFlightsCloseTheGate) => self.gate.blind_until = i64::MIN,
            Some(Rule::RefusedFlightsAreRecorded) => self.gate.records.drop_barred(),
            Some(Rule::RecordsOutliveFreshness) => {
                // As long as the flight is fresh, from a skew of zero on.
                let end = |key: &ClaimKey| {
                    let is_of =
                        |flight: &usize| ClaimKey::from_client_random(&random(*flight)) == *key;
                    let flight = (0..self.flights.len()).find(is_of).unwrap_or_default();
                    (u64::from(setting.zero_skews[flight]) + 1) * TICK + 1
                };
                self.gate.records.shorten(end);
            }
            _ => {}
        }
        outcome
    }

    fn take(&mut self, setting: &Setting, step: &Step) {
        match *step {
            Step::Tick => self.tick += 1,
            Step::Hello { flight, honest } => self.hello(setting, flight, honest),
            Step::Request { connection } => self.request(setting, connection),
            Step::Finish { connection } => self.finish(setting, connection),
            Step::Restart => self.restart(setting),
            Step::Reload => {
                self.reloads += 1;
                self.may_run_early = !self.may_run_early;
            }
            Step::SetClock { ticks } => self.set_clock(setting, ticks),
        }
    }

    /// A ClientHello comes. What TLS itself refuses never gets here.
    fn hello(&mut self, setting: &Setting, flight: usize, honest: bool) {
        self.flights[flight].sent |= honest;
        let skew = i64::from(setting.zero_skews[flight]) - i64::from(self.tick) - self.clock_offset;
        let skew = skew * TICK as i64;
        if skew.unsigned_abs() > config(Startup::KeysAreNew).max_skew.as_secs() {
            return;
        }
        let mut connection = Connection {
            flight,
            honest,
            skew_seconds: skew as i32,
            seen_at: self.now(),
            may_run_early: self.may_run_early,
            claimed: None,
            held: None,
        };
        let claims_now = setting.without != Some(Rule::ClaimsComeBeforeAcceptance);
        if claims_now && !self.claim(setting, &mut connection) {
            self.flights[flight].sent_again |= honest;
            return;
        }
        if !self.connections.contains(&connection) {
            self.connections.push(connection);
        }
    }

    /// Whether the connection's early data is accepted.
    fn claim(&mut self, setting: &Setting, connection: &mut Connection) -> bool {
        let offer = connection.offer();
        connection.claimed = self.with_gate(setting, |gate, now| gate.claim(&offer, now)).ok();
        let won = connection.claimed.is_some_and(|flight| flight.won());
        self.flights[connection.flight].copy_won |= won && !connection.honest;
        connection.claimed.is_some()
    }

    fn request(&mut self, setting: &Setting, connection: usize) {
        let mut open = self.connections.remove(connection);
        if open.claimed.is_none() && open.may_run_early {
            self.claim(setting, &mut open);
        }
        let decision = match open.claimed {
            Some(flight) => flight.early_request(open.may_run_early),
            None => Decision::Hold(HoldReason::Policy),
        };
        match decision {
            Decision::Execute => self.execute(&open),
            Decision::Hold(reason) if open.honest => {
                open.held = Some(reason);
                self.connections.insert(connection, open);
            }
            // A copy's handshake never completes.
            Decision::Hold(_) => {}
        }
    }

    fn finish(&mut self, setting: &Setting, connection: usize) {
        let open = self.connections.remove(connection);
        let by_policy = setting.without == Some(Rule::LostWhateverThePolicy) && !open.may_run_early;
        let release = match open.claimed {
            Some(flight) if !by_policy => flight.handshake_complete(),
            _ => Release::Execute,
        };
        match release {
            Release::Execute => self.execute(&open),
            Release::TooEarly => {
                let fate = &mut self.flights[open.flight];
                fate.needless_425 |= !fate.copy_won;
            }
        }
    }

    fn execute(&mut self, open: &Connection) {
        let fate = &mut self.flights[open.flight];
        fate.runs += 1;
        fate.copy_ran |= !open.honest;
    }

    fn restart(&mut self, setting: &Setting) {
        self.restarts += 1;
        self.connections.clear();
        let startup = match setting.without {
            Some(Rule::WindowAtStart) => Startup::KeysAreNew,
            _ => Startup::KeysMayPredateStart,
        };
        self.gate = Known::of(&Gate::new(config(startup), self.now()));
    }

    fn set_clock(&mut self, setting: &Setting, ticks: i64) {
        self.steps += 1;
        if ticks < 0 && setting.without != Some(Rule::ClockIsWatched) {
            let step = Duration::from_secs(ticks.unsigned_abs() * TICK);
            self.with_gate(setting, |gate, now| gate.clock_set_back(step, now));
        }
        self.clock_offset += ticks;
    }
}

impl Connection {
    fn offer(&self) -> Offer {
        Offer::new(&random(self.flight), self.skew_seconds, self.seen_at)
    }
}

fn random(flight: usize) -> [u8; 32] {
    [flight as u8 + 1; 32]
}

impl Model for Setting {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.tick < self.horizon {
            steps.push(Step::Tick);
        }
        for (connection, open) in world.connections.iter().enumerate() {
            steps.push(match open.held {
                None => Step::Request { connection },
                Some(_) => Step::Finish { connection },
            });
        }
        if world.connections.len() < self.most_connections {
            for (flight, fate) in world.flights.iter().enumerate() {
                steps.push(Step::Hello { flight, honest: false });
                if !fate.sent {
                    steps.push(Step::Hello { flight, honest: true });
                }
            }
        }
        if world.restarts < self.restarts {
            steps.push(Step::Restart);
        }
        if world.reloads < self.reloads {
            steps.push(Step::Reload);
        }
        if world.steps == 0 {
            steps.extend(self.clock_steps.iter().map(|ticks| Step::SetClock { ticks: *ticks }));
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut next = last.clone();
        next.take(self, &step);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, world: &World| world.flights.iter().all(|f| f.runs <= 1)),
            Property::always(ONCE_IN_ALL, |setting: &Setting, world: &World| {
                // What is refused because records are missing may have run all the same.
                let is_promised = setting.restarts == 0 && setting.clock_steps.is_empty();
                !is_promised || world.flights.iter().all(|f| f.runs + u8::from(f.sent_again) <= 1)
            }),
            Property::always(NEEDED, |_, world: &World| {
                world.flights.iter().all(|fate| !fate.needless_425)
            }),
            Property::sometimes("an original runs", |_, world: &World| {
                world.flights.iter().any(|fate| fate.runs == 1 && !fate.copy_ran)
            }),
            Property::sometimes("a copy runs", |_, world: &World| {
                world.flights.iter().any(|fate| fate.copy_ran)
            }),
            Property::sometimes("a refused client sends again", |_, world: &World| {
                world.flights.iter().any(|fate| fate.sent_again)
            }),
        ]
    }
}

#[path = "gate_model_checks.rs"]
mod checks;
