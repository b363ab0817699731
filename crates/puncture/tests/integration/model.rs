//! A model of the rules by which a server uses the function, checked over all interleavings.
//!
//! There are one ticket, the flight of an honest client, an attacker with copies of it who also sends
//! the ticket without the client's binder, reloads that switch early data off and on, an upgrade
//! whose new process may die, and the ticket's expiry. A client whose early data is refused sends its
//! request again, which counts as an execution. The function is the real one: the model stores its
//! snapshot. Opening a ticket has two steps, since a server does not hold a lock while it verifies a
//! binder.
//!
//! Each rule is left out in turn, and the model finds what goes wrong.

use firstflight_puncture::{Limits, PuncturableFunction, TicketIndex};
use stateright::{Checker, HasDiscoveries, Model, Property};

const AT_MOST_ONCE: &str = "executed at most once, including what a refused client resends";
const USED_BY_CLIENT_ONLY: &str = "a ticket is used up by flights of its client only";
const FORWARD_SECRECY: &str = "no process has the value of a ticket that was used or has expired";

/// A rule that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The binder is verified before the index is punctured.
    BinderFirst,
    /// The index is punctured before anything runs.
    PunctureBeforeRunning,
    /// Of several connections, the one whose call punctures the index wins.
    FirstPunctureWins,
    /// The index is punctured if early data is refused, too.
    PunctureWhenRefused,
    /// A flight on a used ticket is recorded, so that an original after its copy gets 425.
    UsedFlightsAreRecorded,
    /// After a handoff the old process keeps nothing.
    OldProcessKeepsNothing,
    /// If the new process dies, the old one starts with new values.
    RestartWithNewValues,
    /// Values of tickets that have expired are destroyed.
    Expire,
}

#[derive(Debug, Clone, Default)]
struct Setting {
    upgrade: bool,
    switches: u8,
    /// Whether the ticket may expire.
    expiry: bool,
    without: Option<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Process {
    Old,
    New,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Sender {
    Honest,
    /// An attacker who sends the same bytes again.
    Copy,
    /// An attacker who has seen the ticket and cannot compute a binder.
    Stranger,
}

/// A connection whose ticket was evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Connection {
    sender: Sender,
    process: Process,
    has_value: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    /// The snapshot of the function in each process; `None`: another process has it.
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
    /// What the old process handed over.
    handed_over: Option<Vec<u8>>,
    has_new: bool,
    new_died: bool,
    early_data: bool,
    switches: u8,
    /// Whether the register has the flight: a copy was accepted.
    recorded: bool,
    connections: Vec<Connection>,
    sent: bool,
    copies: u8,
    runs: u8,
    early_runs: u8,
    got_425: bool,
    /// Whether the process that had recorded a copy has died.
    copy_forgotten: bool,
    /// Whether somebody without the client's binder has used up the ticket.
    used_up_by_stranger: bool,
    /// Whether a handshake was settled by the ticket's client or a copy of it.
    used: bool,
    expired: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Hello(Sender, Process),
    Settle(usize),
    Switch,
    HandOver,
    NewDies,
    Expire,
}

/// The index of the ticket. Its epoch has a random id, which is read from the snapshot.
fn index(bytes: &[u8]) -> TicketIndex {
    // `magic (8) | epochs (4) | id (8)`
    TicketIndex { epoch: bytes[12..20].try_into().unwrap(), number: 0 }
}

fn function(bytes: &[u8]) -> PuncturableFunction {
    PuncturableFunction::restore(bytes, Limits::default()).unwrap()
}

impl World {
    fn keys(&mut self, process: Process) -> &mut Option<Vec<u8>> {
        match process {
            Process::Old => &mut self.old,
            Process::New => &mut self.new,
        }
    }

    /// The process that opens a ticket which arrives here.
    fn owner(&self, process: Process) -> Process {
        match process {
            Process::Old if self.old.is_none() && self.has_new => Process::New,
            process => process,
        }
    }

    fn has_value(&mut self, process: Process) -> bool {
        let owner = self.owner(process);
        self.keys(owner).as_ref().is_some_and(|bytes| {
            bytes.len() > 20 && function(bytes).evaluate(&index(bytes)).is_some()
        })
    }

    fn puncture(&mut self, process: Process) -> bool {
        let owner = self.owner(process);
        let Some(bytes) = self.keys(owner).as_mut().filter(|bytes| bytes.len() > 20) else {
            return false;
        };
        let mut function = function(bytes);
        let is_first = function.puncture(&index(bytes));
        *bytes = function.snapshot().to_vec();
        is_first
    }

    fn settle(&mut self, setting: &Setting, connection: Connection) {
        let is_left_out = |rule| setting.without == Some(rule);
        let Connection { sender, process, has_value } = connection;
        if has_value && sender == Sender::Stranger {
            // The handshake fails.
            if is_left_out(Rule::BinderFirst) {
                self.used_up_by_stranger |= self.puncture(process);
            }
            return;
        }
        let is_refused = !self.early_data;
        self.used |= has_value;
        let wins = match has_value {
            false => false,
            true if is_left_out(Rule::PunctureWhenRefused) && is_refused => true,
            true => self.puncture(process) || is_left_out(Rule::FirstPunctureWins),
        };
        match (wins, sender) {
            (true, _) if !is_refused => {
                self.runs += 1;
                self.early_runs += 1;
                self.recorded |= !is_left_out(Rule::UsedFlightsAreRecorded);
            }
            (_, Sender::Honest) if self.recorded => self.got_425 = true,
            // An attacker let a copy run and held the original back until the record was lost: the
            // documented limit.
            (_, Sender::Honest) if self.copy_forgotten => {}
            (_, Sender::Honest) => self.runs += 1,
            _ => {}
        }
    }

    fn apply(&mut self, setting: &Setting, step: &Step) {
        let is_left_out = |rule| setting.without == Some(rule);
        match *step {
            Step::Hello(sender, process) => {
                self.sent |= sender == Sender::Honest;
                self.copies += u8::from(sender != Sender::Honest);
                let has_value = self.has_value(process);
                let connection = Connection { sender, process, has_value };
                if is_left_out(Rule::PunctureBeforeRunning)
                    && has_value
                    && self.early_data
                    && sender != Sender::Stranger
                {
                    // Runs at once, and is punctured when the connection ends.
                    self.runs += 1;
                    self.recorded = true;
                    return;
                }
                self.connections.push(connection);
            }
            Step::Settle(number) => {
                let connection = self.connections.remove(number);
                self.settle(setting, connection);
            }
            Step::Switch => {
                self.switches += 1;
                self.early_data = !self.early_data;
            }
            Step::HandOver => {
                self.has_new = true;
                self.handed_over = self.old.clone();
                self.new = self.old.clone();
                if !is_left_out(Rule::OldProcessKeepsNothing) {
                    self.old = None;
                }
            }
            Step::NewDies => {
                self.new_died = true;
                self.has_new = false;
                self.new = None;
                self.copy_forgotten |= self.recorded;
                self.recorded = false;
                self.connections.retain(|connection| connection.process == Process::Old);
                self.old = match is_left_out(Rule::RestartWithNewValues) {
                    true => self.handed_over.clone(),
                    // Its values are new, so no earlier ticket has one.
                    false => Some(Vec::new()),
                };
            }
            Step::Expire => {
                self.expired = true;
                let keys = [self.old.as_mut(), self.new.as_mut()].into_iter().flatten();
                for bytes in keys.filter(|bytes| bytes.len() > 20 && !is_left_out(Rule::Expire)) {
                    let mut function = function(bytes);
                    function.expire_before(ISSUED_AT + 1);
                    *bytes = function.snapshot().to_vec();
                }
            }
        }
    }

    /// Whether any process can open the ticket.
    fn can_open(&self) -> bool {
        let has_value =
            |bytes: &Vec<u8>| bytes.len() > 20 && function(bytes).evaluate(&index(bytes)).is_some();
        self.old.iter().chain(&self.new).any(has_value)
    }
}

impl Model for Setting {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut function = PuncturableFunction::new(Limits::default());
        function.issue(ISSUED_AT);
        vec![World {
            old: Some(function.snapshot().to_vec()),
            new: None,
            handed_over: None,
            has_new: false,
            new_died: false,
            early_data: true,
            switches: 0,
            recorded: false,
            connections: Vec::new(),
            sent: false,
            copies: 0,
            runs: 0,
            early_runs: 0,
            got_425: false,
            copy_forgotten: false,
            used_up_by_stranger: false,
            used: false,
            expired: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let processes = [Process::Old, Process::New];
        for process in processes.into_iter().take(1 + usize::from(world.has_new)) {
            if !world.sent {
                steps.push(Step::Hello(Sender::Honest, process));
            }
            if world.copies < MAX_COPIES {
                steps.push(Step::Hello(Sender::Copy, process));
                steps.push(Step::Hello(Sender::Stranger, process));
            }
        }
        steps.extend((0..world.connections.len()).map(Step::Settle));
        if world.switches < self.switches {
            steps.push(Step::Switch);
        }
        if self.upgrade && !world.has_new && !world.new_died {
            steps.push(Step::HandOver);
        }
        if world.has_new {
            steps.push(Step::NewDies);
        }
        if self.expiry && !world.expired {
            steps.push(Step::Expire);
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut next = last.clone();
        next.apply(self, &step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(AT_MOST_ONCE, |_, world: &World| world.runs <= 1),
            Property::always(USED_BY_CLIENT_ONLY, |_, world: &World| !world.used_up_by_stranger),
            Property::always(FORWARD_SECRECY, |_, world: &World| {
                !((world.used || world.expired) && world.can_open())
            }),
            Property::sometimes("a flight runs early", |_, world: &World| world.early_runs == 1),
            Property::sometimes("a refused client resends", |_, world: &World| {
                world.runs == 1 && world.early_runs == 0
            }),
            Property::sometimes("an original after its copy gets 425", |_, world: &World| {
                world.got_425
            }),
        ]
    }
}

const MAX_COPIES: u8 = 2;
const ISSUED_AT: u64 = 0;

fn switched() -> Setting {
    Setting { switches: 2, ..Setting::default() }
}

fn upgraded() -> Setting {
    Setting { upgrade: true, ..Setting::default() }
}

fn expiring() -> Setting {
    Setting { expiry: true, ..Setting::default() }
}

fn assert_holds(setting: Setting) {
    let checker = setting.checker().spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

fn assert_needed(rule: Rule, promise: &'static str, setting: Setting) {
    let setting = Setting { without: Some(rule), ..setting };
    let checker =
        setting.checker().finish_when(HasDiscoveries::AllOf([promise].into())).spawn_bfs().join();
    let path = checker.discovery(promise).unwrap_or_else(|| panic!("{rule:?} is not needed"));
    println!("without {rule:?}: {:?}", path.into_actions());
}

#[test]
fn with_all_rules_a_flight_runs_once() {
    assert_holds(switched());
    assert_holds(upgraded());
    assert_holds(Setting { upgrade: true, ..switched() });
    assert_holds(Setting { upgrade: true, ..expiring() });
}

#[test]
fn each_rule_is_needed() {
    assert_needed(Rule::BinderFirst, USED_BY_CLIENT_ONLY, Setting::default());
    assert_needed(Rule::PunctureBeforeRunning, AT_MOST_ONCE, Setting::default());
    assert_needed(Rule::FirstPunctureWins, AT_MOST_ONCE, Setting::default());
    assert_needed(Rule::PunctureWhenRefused, AT_MOST_ONCE, switched());
    assert_needed(Rule::UsedFlightsAreRecorded, AT_MOST_ONCE, Setting::default());
    assert_needed(Rule::OldProcessKeepsNothing, AT_MOST_ONCE, upgraded());
    assert_needed(Rule::RestartWithNewValues, AT_MOST_ONCE, upgraded());
    assert_needed(Rule::Expire, FORWARD_SECRECY, expiring());
    assert_needed(Rule::PunctureWhenRefused, FORWARD_SECRECY, switched());
    assert_needed(Rule::OldProcessKeepsNothing, FORWARD_SECRECY, upgraded());
}
