//! The gate of one process in a model, over all interleavings: two flights, an attacker with
//! copies of them, room for one record, restarts with the same ticket keys, and a wall clock that
//! is set. The gate is the real one; between two steps it is kept as what it knows.
//!
//! Time goes in ticks of 2 s: freshness and a handshake last one, TLS takes two, and all that
//! happens within one is tried in every order. That the model can fail is shown by leaving out the
//! rules one by one.

use stateright::{Model, Property};

use super::*;
use crate::ClaimKey;
use crate::register::Records;

const TICK: u64 = 2;
const ONCE: &str = "executed at most once";
const NEEDED: &str = "425 only if a copy ran, records were lost, or the handshake took too long";

#[derive(Debug, Clone)]
struct Setting {
    horizon: u8,
    /// For each flight, the tick at which its skew is zero.
    zero_skews: Vec<u8>,
    most_connections: usize,
    restarts: u8,
    /// By how many ticks the wall clock may be set, once.
    clock_steps: Vec<i64>,
    without: Option<Rule>,
}

/// A rule that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    WindowAtStart,
    WallClockIsWatched,
    RecordsOutliveFreshness,
    UnrecordedFlightsCloseTheGate,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    tick: u8,
    gate: Known,
    wall_offset: i64,
    connections: Vec<Connection>,
    flights: Vec<Fate>,
    restarts: u8,
    steps: u8,
}

/// All that a gate knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Known {
    records: Records,
    lost_until: i64,
    blind_until: i64,
    wall_offset: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Connection {
    flight: usize,
    honest: bool,
    skew_seconds: i32,
    seen_at: Duration,
    standing: Standing,
    held: Option<HoldReason>,
}

/// What became of a flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Fate {
    sent: bool,
    runs: u8,
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
    SetClock { ticks: i64 },
}

fn config(startup: Startup) -> GateConfig {
    let tick = Duration::from_secs(TICK);
    GateConfig {
        freshness: tick,
        clock_margin: Duration::ZERO,
        max_skew: 2 * tick,
        max_handshake: tick,
        capacity: 1,
        startup,
    }
}

impl Known {
    fn of(gate: &Gate) -> Self {
        Self {
            records: gate.register.records(),
            lost_until: gate.lost_until.load(Ordering::SeqCst),
            blind_until: gate.blind_until.load(Ordering::SeqCst),
            wall_offset: gate.wall_offset.load(Ordering::SeqCst),
        }
    }

    fn gate(&self) -> Gate {
        Gate {
            config: config(Startup::KeysAreNew),
            register: StrikeRegister::with_records(1, &self.records),
            lost_until: AtomicI64::new(self.lost_until),
            blind_until: AtomicI64::new(self.blind_until),
            wall_offset: AtomicI64::new(self.wall_offset),
        }
    }
}

impl World {
    fn new(setting: &Setting) -> Self {
        let mut world = Self {
            tick: 0,
            gate: Known::of(&Gate::new(config(Startup::KeysAreNew), Duration::ZERO)),
            wall_offset: 0,
            connections: Vec::new(),
            flights: vec![Fate::default(); setting.zero_skews.len()],
            restarts: 0,
            steps: 0,
        };
        world.with_gate(setting, |world, gate| gate.observe_wall_clock(world.wall(), world.now()));
        world
    }

    fn now(&self) -> Duration {
        Duration::from_secs(u64::from(self.tick) * TICK)
    }

    fn wall(&self) -> Duration {
        Duration::from_secs((1000 + self.tick as i64 + self.wall_offset) as u64 * TICK)
    }

    fn with_gate<T>(&mut self, setting: &Setting, act: impl FnOnce(&mut Self, &Gate) -> T) -> T {
        let gate = self.gate.gate();
        let outcome = act(self, &gate);
        self.gate = Known::of(&gate);
        match setting.without {
            Some(Rule::UnrecordedFlightsCloseTheGate) => self.gate.blind_until = i64::MIN,
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
            Step::SetClock { ticks } => {
                self.steps += 1;
                self.wall_offset += ticks;
            }
        }
    }

    fn hello(&mut self, setting: &Setting, flight: usize, honest: bool) {
        self.flights[flight].sent |= honest;
        let skew = i64::from(setting.zero_skews[flight]) - i64::from(self.tick) - self.wall_offset;
        let skew = skew * TICK as i64;
        let admission = self.with_gate(setting, |world, gate| gate.admission(world.now()));
        let max_skew = config(Startup::KeysAreNew).max_skew.as_secs();
        if admission != Admission::Accept || skew.unsigned_abs() > max_skew {
            return;
        }
        let connection = Connection {
            flight,
            honest,
            skew_seconds: skew as i32,
            seen_at: self.now(),
            standing: Standing::Undecided,
            held: None,
        };
        if !self.connections.contains(&connection) {
            self.connections.push(connection);
        }
    }

    fn request(&mut self, setting: &Setting, connection: usize) {
        let mut open = self.connections.remove(connection);
        let mut flight = open.flight();
        let decision = self.with_gate(setting, |world, gate| {
            if setting.without != Some(Rule::WallClockIsWatched) {
                gate.observe_wall_clock(world.wall(), world.now());
            }
            gate.early_request(&mut flight, true, world.now())
        });
        open.standing = flight.standing;
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
        let Some(reason) = open.held else { return };
        let mut flight = open.flight();
        let release = self.with_gate(setting, |world, gate| {
            gate.handshake_complete(&mut flight, reason, world.now())
        });
        if release == Release::Execute {
            self.execute(&open);
            return;
        }
        let took_too_long = self.now() - open.seen_at > config(Startup::KeysAreNew).max_handshake;
        let fate = &mut self.flights[open.flight];
        fate.needless_425 |= !fate.copy_ran && self.steps == 0 && !took_too_long;
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
        self.with_gate(setting, |world, gate| gate.observe_wall_clock(world.wall(), world.now()));
    }
}

impl Connection {
    fn flight(&self) -> Flight {
        Flight {
            key: ClaimKey::from_client_random(&random(self.flight)),
            skew_seconds: self.skew_seconds,
            seen_at: self.seen_at,
            standing: self.standing,
        }
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
            Property::always(NEEDED, |_, world: &World| {
                world.flights.iter().all(|fate| !fate.needless_425)
            }),
            Property::sometimes("an original runs", |_, world: &World| {
                world.flights.iter().any(|fate| fate.runs == 1 && !fate.copy_ran)
            }),
            Property::sometimes("a copy runs", |_, world: &World| {
                world.flights.iter().any(|fate| fate.copy_ran)
            }),
        ]
    }
}

#[path = "gate_model_checks.rs"]
mod checks;
