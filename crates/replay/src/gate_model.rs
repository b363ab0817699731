//! A model of the gate of one process, checked over all interleavings.
//!
//! It has flights whose stated ticket ages are right or far off, an attacker with copies of them,
//! room for one record, reloads that change the policy and whether TLS accepts early data, restarts
//! with the same ticket keys, and a clock that is set. A client whose early data is refused sends
//! its request again, which counts as an execution. The gate is the real one; between two steps the
//! model stores its state.
//!
//! Time is in ticks of 2 s. Flights are fresh for one tick, and TLS accepts a skew of two. Within a
//! tick all orders are tried. `gate_model_checks.rs` also shows that the model fails if any one of
//! the rules is left out.

use stateright::{Model, Property};

use super::*;
use crate::register::Records;
use crate::{ClaimKey, Decision, HoldReason, Release};

const TICK: u64 = 2;
const AT_MOST_ONCE: &str = "executed at most once, including what a refused client resends";
const NO_NEEDLESS_425: &str = "425 only if a copy has the claim";

#[derive(Debug, Clone)]
struct Setting {
    horizon: u8,
    /// For each flight, the tick at which its stated ticket age is exact.
    exact_ticks: Vec<u8>,
    max_connections: usize,
    restarts: u8,
    /// By how many ticks the clock may be set, once.
    clock_steps: Vec<i64>,
    /// How often a reload may change whether the request may run early.
    reloads: u8,
    /// How often a reload may change whether TLS accepts any early data.
    early_data_toggles: u8,
    /// The rule that is left out.
    without: Option<Rule>,
}

/// A rule that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    RestartStartsAnEpoch,
    ClockStepsStartAnEpoch,
    RecordsOutliveFreshness,
    RefusedFlightsAreRecorded,
    FlightsRefusedByTlsAreSpent,
    RecordsFollowTheSkew,
    UnrecordedFlightsStartAnEpoch,
    ClaimsComeBeforeAcceptance,
    LostFlightsGet425UnderAnyPolicy,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    tick: u8,
    gate: GateState,
    clock_offset: i64,
    may_run_early: bool,
    tls_refuses: bool,
    connections: Vec<Connection>,
    flights: Vec<FlightOutcome>,
    restarts: u8,
    clock_steps: u8,
    reloads: u8,
    early_data_toggles: u8,
}

/// The state of a gate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct GateState {
    records: Records,
    /// The number of the ticket epoch.
    epoch: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Connection {
    flight: usize,
    honest: bool,
    skew_seconds: i32,
    received_at: Duration,
    /// The policy under which it was accepted.
    may_run_early: bool,
    epoch: u32,
    claimed: Option<Flight>,
    held: Option<HoldReason>,
    refused: Option<Refused>,
}

/// Whether TLS or the gate has refused a flight's early data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Refused {
    ByTls,
    ByGate,
}

/// What has happened to a flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct FlightOutcome {
    sent: bool,
    runs: u8,
    resent: bool,
    copy_won: bool,
    /// Until when, in seconds, the copy's claim is recorded.
    copy_recorded_until: u64,
    copy_ran: bool,
    /// A copy won, and its record was lost.
    copy_forgotten: bool,
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
    ToggleEarlyData,
    SetClock { ticks: i64 },
}

fn config() -> GateConfig {
    let tick = Duration::from_secs(TICK);
    GateConfig { freshness: tick, clock_margin: Duration::ZERO, max_skew: 2 * tick, capacity: 1 }
}

impl GateState {
    fn empty(epoch: u32) -> Self {
        Self { records: StrikeRegister::new(1).records(), epoch }
    }

    fn gate(&self) -> Gate {
        Gate {
            config: config(),
            register: StrikeRegister::with_records(1, &self.records),
            names: StrikeRegister::new(0),
            epochs: Arc::new(TicketEpochs::with_current(self.epoch)),
            names_lost_at: AtomicI64::new(i64::MIN),
        }
    }

    /// The state of a gate that was created from this state.
    fn after(&self, gate: &Gate) -> Self {
        // A new epoch is random; the model counts instead.
        let is_next = gate.epochs.current() != self.epoch;
        Self { records: gate.register.records(), epoch: self.epoch + u32::from(is_next) }
    }
}

impl World {
    fn new(setting: &Setting) -> Self {
        Self {
            tick: 0,
            gate: GateState::empty(FIRST_EPOCH),
            clock_offset: 0,
            may_run_early: true,
            tls_refuses: false,
            connections: Vec::new(),
            flights: vec![FlightOutcome::default(); setting.exact_ticks.len()],
            restarts: 0,
            clock_steps: 0,
            reloads: 0,
            early_data_toggles: 0,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_secs(u64::from(self.tick) * TICK)
    }

    fn with_gate<T>(&mut self, setting: &Setting, act: impl FnOnce(&Gate, Duration) -> T) -> T {
        let gate = self.gate.gate();
        let outcome = act(&gate, self.now());
        let epoch = self.gate.epoch;
        self.gate = self.gate.after(&gate);
        match setting.without {
            Some(Rule::UnrecordedFlightsStartAnEpoch) => self.gate.epoch = epoch,
            Some(Rule::RefusedFlightsAreRecorded) => self.gate.records.drop_barred(),
            Some(Rule::RecordsFollowTheSkew) => {
                self.gate.records.shorten_barred(self.now().as_secs() + 2 * TICK);
            }
            Some(Rule::RecordsOutliveFreshness) => {
                // As long as the flight is fresh, from its exact tick on.
                let end = |key: &ClaimKey| {
                    let is_of = |flight: &usize| ClaimKey::of_flight(&digest(*flight)) == *key;
                    let flight = (0..self.flights.len()).find(is_of).unwrap_or_default();
                    (u64::from(setting.exact_ticks[flight]) + 1) * TICK + 1
                };
                self.gate.records.shorten(end);
            }
            _ => {}
        }
        outcome
    }

    fn apply(&mut self, setting: &Setting, step: &Step) {
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
            Step::ToggleEarlyData => {
                self.early_data_toggles += 1;
                self.tls_refuses = !self.tls_refuses;
            }
            Step::SetClock { ticks } => self.set_clock(setting, ticks),
        }
    }

    /// A ClientHello is received.
    fn hello(&mut self, setting: &Setting, flight: usize, honest: bool) {
        self.flights[flight].sent |= honest;
        let skew =
            i64::from(setting.exact_ticks[flight]) - i64::from(self.tick) - self.clock_offset;
        let skew = skew * TICK as i64;
        let mut connection = Connection {
            flight,
            honest,
            skew_seconds: skew as i32,
            received_at: self.now(),
            may_run_early: self.may_run_early,
            epoch: self.gate.epoch,
            claimed: None,
            held: None,
            refused: None,
        };
        let claims_now = setting.without != Some(Rule::ClaimsComeBeforeAcceptance);
        // All tickets were issued before the first step.
        if self.tls_refuses
            || self.gate.epoch != FIRST_EPOCH
            || skew.unsigned_abs() > config().max_skew.as_secs()
        {
            connection.refused = Some(Refused::ByTls);
        } else if claims_now && !self.claim(setting, &mut connection) {
            connection.refused = Some(Refused::ByGate);
        }
        // The handshake of a copy is never complete.
        let is_over = connection.refused.is_some() && !honest;
        if !is_over && !self.connections.contains(&connection) {
            self.connections.push(connection);
        }
    }

    /// Whether the connection's early data is accepted.
    fn claim(&mut self, setting: &Setting, connection: &mut Connection) -> bool {
        let offer = connection.offer();
        connection.claimed = self.with_gate(setting, |gate, now| gate.claim(&offer, now)).ok();
        let won = connection.claimed.is_some_and(|flight| flight.won());
        if won && !connection.honest {
            let (outcome, exact_at) = (&mut self.flights[connection.flight], offer.exact_at());
            outcome.copy_won = true;
            outcome.copy_recorded_until = (exact_at + config().max_skew).as_secs() + 1;
        }
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
        if let Some(refused) = open.refused {
            return self.resend(setting, &open, refused);
        }
        let by_policy =
            setting.without == Some(Rule::LostFlightsGet425UnderAnyPolicy) && !open.may_run_early;
        let release = match open.claimed {
            Some(flight) if !by_policy => flight.handshake_complete(),
            _ => Release::Execute,
        };
        match release {
            Release::Execute => self.execute(&open),
            Release::TooEarly => {
                let outcome = &mut self.flights[open.flight];
                outcome.needless_425 |= !outcome.copy_won;
            }
        }
    }

    /// The handshake of a refused client is complete: it sends its request again.
    fn resend(&mut self, setting: &Setting, open: &Connection, refused: Refused) {
        let is_spent =
            refused == Refused::ByTls && setting.without != Some(Rule::FlightsRefusedByTlsAreSpent);
        let offer = open.offer();
        let spent = match is_spent {
            true => self.with_gate(setting, |gate, now| gate.spend(&offer, now)),
            false => SpendOutcome::Recorded,
        };
        let now = self.now().as_secs();
        let outcome = &mut self.flights[open.flight];
        let is_late = now >= outcome.copy_recorded_until;
        match spent {
            SpendOutcome::Executed => outcome.needless_425 |= !outcome.copy_won,
            // An attacker let a copy run and held the original back beyond the record's life: the
            // documented limit.
            _ if outcome.copy_forgotten || outcome.copy_won && is_late => {}
            _ => {
                outcome.runs += 1;
                outcome.resent = true;
            }
        }
    }

    fn execute(&mut self, open: &Connection) {
        let outcome = &mut self.flights[open.flight];
        outcome.runs += 1;
        outcome.copy_ran |= !open.honest;
    }

    fn restart(&mut self, setting: &Setting) {
        self.restarts += 1;
        self.connections.clear();
        self.flights.iter_mut().for_each(|outcome| outcome.copy_forgotten |= outcome.copy_won);
        let is_next = setting.without != Some(Rule::RestartStartsAnEpoch);
        self.gate = GateState::empty(self.gate.epoch + u32::from(is_next));
    }

    fn set_clock(&mut self, setting: &Setting, ticks: i64) {
        self.clock_steps += 1;
        if setting.without != Some(Rule::ClockStepsStartAnEpoch) {
            self.with_gate(setting, |gate, _| gate.start_epoch());
        }
        self.clock_offset += ticks;
    }
}

impl Connection {
    fn offer(&self) -> FlightOffer {
        let key = ClaimKey::of_flight(&digest(self.flight));
        FlightOffer::new(key, self.skew_seconds, self.received_at, self.epoch)
    }
}

/// The epoch of all tickets.
const FIRST_EPOCH: u32 = 1;

fn digest(flight: usize) -> [u8; 32] {
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
            steps.push(match open.held.is_none() && open.refused.is_none() {
                true => Step::Request { connection },
                false => Step::Finish { connection },
            });
        }
        if world.connections.len() < self.max_connections {
            for (flight, outcome) in world.flights.iter().enumerate() {
                steps.push(Step::Hello { flight, honest: false });
                if !outcome.sent {
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
        if world.early_data_toggles < self.early_data_toggles {
            steps.push(Step::ToggleEarlyData);
        }
        if world.clock_steps == 0 {
            steps.extend(self.clock_steps.iter().map(|ticks| Step::SetClock { ticks: *ticks }));
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut next = last.clone();
        next.apply(self, &step);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(AT_MOST_ONCE, |_, world: &World| {
                world.flights.iter().all(|f| f.runs <= 1)
            }),
            Property::always(NO_NEEDLESS_425, |_, world: &World| {
                world.flights.iter().all(|outcome| !outcome.needless_425)
            }),
            Property::sometimes("an original runs", |_, world: &World| {
                world.flights.iter().any(|outcome| outcome.runs == 1 && !outcome.copy_ran)
            }),
            Property::sometimes("a copy runs", |_, world: &World| {
                world.flights.iter().any(|outcome| outcome.copy_ran)
            }),
            Property::sometimes("a refused client resends", |_, world: &World| {
                world.flights.iter().any(|outcome| outcome.resent)
            }),
        ]
    }
}

#[path = "gate_model_checks.rs"]
mod checks;
