//! The world: what may happen next, and what comes of it.

use firstflight_replay::{Epoch, EpochWrite, Role, Slots, Unknown};

use crate::model::node::{Link, Node, Pending, monotonic};
use crate::model::setting::{Rule, START, Setting, TICK, Trouble};
use crate::model::store::{Process, Reply, replication_id, run_id};

/// All of it at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) tick: u8,
    pub(crate) stores: Vec<Process>,
    /// The master that a majority of the sentinels names.
    pub(crate) named: usize,
    pub(crate) nodes: Vec<Node>,
    /// Sorted, so that worlds that differ in their order only are one.
    pub(crate) pending: Vec<Pending>,
    pub(crate) late: Option<Late>,
    pub(crate) troubles: u8,
    /// What came of the honest client's own connection.
    pub(crate) original: Original,
    pub(crate) copy: Copies,
    /// The honest client's connection while its request waits for a record.
    pub(crate) waiting: Option<Waiting>,
    /// How often the flight's request was executed, as early data or on the connection that was
    /// refused.
    pub(crate) runs: u8,
    /// How many of those are for exceptions that are left (see `main.rs`).
    pub(crate) excused: u8,
    /// The record of a copy is lost, or will be.
    pub(crate) forgot_copy: bool,
    pub(crate) next_id: u8,
    pub(crate) unseen: Unseen,
    /// Whether claims were lost, and one counted again afterwards.
    pub(crate) lost: bool,
    pub(crate) counted_again: bool,
}

/// Something that is still on its way to a store process, when its sender has given up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Late {
    pub(crate) store: usize,
    pub(crate) run: u8,
    pub(crate) message: Message,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    ClaimOutcome { copy: bool, exact_at: i64, node_clock: i64 },
    Epoch { write: EpochWrite, stamp: i64 },
}

/// A step of a store's clock that not all connected nodes have seen yet. That their heartbeats come
/// before the clock steps again, or, if it was set back, before the next claim, is an assumption:
/// they come four times a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Unseen {
    /// One bit for each node that has not seen it.
    pub(crate) by: u8,
    pub(crate) is_back: bool,
}

/// The honest client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Original {
    NotSent,
    Asking,
    RanEarly,
    /// Refused by TLS: the client has sent its request again on the same connection, where it
    /// waits until the flight is recorded.
    Waiting,
    /// Executed after that.
    RanLate,
    /// Answered 425.
    TooEarly,
    /// Answered 425 because the flight could not be recorded in time.
    Closed,
    /// The node was killed.
    Broken,
}

/// A request that waits for a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Waiting {
    pub(crate) node: usize,
    /// The response to a spend, which the node has not read yet, and the connection it came by.
    pub(crate) reply: Option<(Link, Reply)>,
    /// Whether that spend came after the record's end.
    pub(crate) is_late: bool,
}

/// What came of copies so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Copies {
    /// The store, or a filter, has a copy's claim.
    pub(crate) claimed: bool,
    pub(crate) ran: bool,
    pub(crate) lost: bool,
    pub(crate) refused: bool,
}

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Time goes on; heartbeats come by themselves.
    Tick,
    Connect {
        node: usize,
        store: usize,
    },
    Beat {
        node: usize,
    },
    /// A flight arrives at a node: the original, or a copy.
    Hello {
        node: usize,
        original: bool,
    },
    /// The store does what a node asks of it.
    Ask {
        pending: usize,
    },
    /// The node reads the response.
    Settle {
        pending: usize,
    },
    /// The store does what a waiting request's node asks of it.
    Spend,
    /// The node reads the response, or it is lost.
    SpendOutcome,
    SpendLost,
    /// No node accepts a copy any more, and the request still waits.
    Close,
    /// The budget is over.
    GiveUp {
        pending: usize,
    },
    /// What was on its way arrives.
    Arrive,
    /// A node reaches the stores again.
    Reach {
        node: usize,
    },
    /// A node's process goes on.
    WakeUp {
        node: usize,
    },
    /// The sentinels agree on a new master; the old one learns of it.
    Name {
        store: usize,
    },
    Demote {
        store: usize,
    },
    WellAgain {
        store: usize,
    },
    DropRecord {
        store: usize,
    },
    Wrong {
        trouble: Trouble,
        at: usize,
    },
}

impl World {
    pub(crate) fn new(setting: &Setting, clocks: &[i64]) -> Self {
        let role = |i| if i == 0 { Role::Master } else { Role::Replica };
        let stores = setting.stores.iter().enumerate();
        let stores: Vec<_> =
            stores.map(|(i, offset)| Process::new(i as u8, 0, role(i), *offset)).collect();
        let mut world = Self {
            tick: 0,
            next_id: stores.len() as u8,
            stores,
            named: 0,
            nodes: clocks.iter().map(|offset| Node::new(setting, *offset)).collect(),
            pending: Vec::new(),
            late: None,
            troubles: 0,
            original: Original::NotSent,
            copy: Copies::default(),
            waiting: None,
            runs: 0,
            excused: 0,
            forgot_copy: false,
            unseen: Unseen::default(),
            lost: false,
            counted_again: false,
        };
        world.begin(setting);
        world
    }

    /// All nodes are connected, and the store has recorded for a window already.
    fn begin(&mut self, setting: &Setting) {
        let process = &self.stores[0];
        let epoch = Epoch {
            run_id: run_id(process.run),
            replication_id: replication_id(process.line),
            slots: Slots::ALL,
            settings: setting.config,
        };
        let window = setting.config.recording_window();
        self.stores[0] = process.clone().with_epoch(epoch, window, self.now());
        for node in 0..self.nodes.len() {
            self.connect(setting, node, 0);
        }
    }

    pub(crate) fn now(&self) -> i64 {
        START + i64::from(self.tick) * TICK
    }

    /// Whole seconds that the flight's stated age is ahead of what a node would compute.
    pub(crate) fn skew(&self, setting: &Setting, node: usize) -> i64 {
        let clock = self.nodes[node].clock(self.now());
        setting.exact_at().div_euclid(1000) - clock.div_euclid(1000)
    }

    /// A stale flight's claim can only leave a record, and so keep others from running: nothing
    /// is missed without it.
    fn is_worth_sending(&self, setting: &Setting, node: usize) -> bool {
        let fresh = self.skew(setting, node).unsigned_abs() <= setting.config.freshness.as_secs();
        fresh || setting.outcomes || setting.leaves_out(Rule::Freshness)
    }

    /// Whether the honest client's flight may still come, and what would come of it is of interest:
    /// it is held back for no longer than a record lives.
    fn may_come(&self, setting: &Setting) -> bool {
        let life = setting.config.record_life().as_millis() as i64;
        setting.honest
            && self.original == Original::NotSent
            && self.now() <= setting.exact_at() + life
    }

    /// Whether a request is executed before the flight is recorded is still open.
    fn is_under_way(&self, setting: &Setting) -> bool {
        self.waiting.is_some() || self.may_come(setting)
    }

    /// Whether no node will ever find the flight fresh again.
    fn is_over(&self, setting: &Setting) -> bool {
        let freshness = setting.config.freshness.as_secs() as i64;
        let is_stale = |node| self.skew(setting, node) < -freshness;
        let clocks_stay = !setting.troubles.iter().any(|t| matches!(t, Trouble::NodeClock(_)));
        self.pending.is_empty()
            && !self.is_under_way(setting)
            && clocks_stay
            && !setting.leaves_out(Rule::Freshness)
            && (0..self.nodes.len()).all(is_stale)
    }

    /// What may happen next.
    pub(crate) fn steps(&self, setting: &Setting, steps: &mut Vec<Step>) {
        if self.is_over(setting) {
            return;
        }
        // Budgets are short: what is under way is concluded in the same tick, but for a pause.
        let stands_still = |pending: &Pending| self.nodes[pending.node].is_paused;
        let spends = self
            .waiting
            .iter()
            .any(|waiting| waiting.reply.is_some() && !self.nodes[waiting.node].is_paused);
        if self.tick < setting.horizon && self.pending.iter().all(stands_still) && !spends {
            steps.push(Step::Tick);
        }
        if self.late.is_some() {
            steps.push(Step::Arrive);
        }
        let awake = |(_, pending): &(usize, &Pending)| !self.nodes[pending.node].is_paused;
        for (i, pending) in self.pending.iter().enumerate().filter(awake) {
            match pending.reply {
                None if self.can_ask(pending) => steps.push(Step::Ask { pending: i }),
                None => {}
                Some(_) => steps.push(Step::Settle { pending: i }),
            }
            steps.push(Step::GiveUp { pending: i });
            if self.can_go_wrong(setting, Trouble::LateClaim) && self.late.is_none() {
                steps.push(Step::Wrong { trouble: Trouble::LateClaim, at: i });
            }
        }
        self.steps_of_waiting(setting, steps);
        for node in 0..self.nodes.len() {
            self.steps_of_node(setting, node, steps);
        }
        for store in 0..self.stores.len() {
            self.steps_of_store(setting, store, steps);
        }
    }

    fn steps_of_waiting(&self, setting: &Setting, steps: &mut Vec<Step>) {
        let Some(waiting) = &self.waiting else { return };
        let node = &self.nodes[waiting.node];
        if node.is_paused {
            return;
        }
        if waiting.reply.is_some() {
            steps.extend([Step::SpendOutcome, Step::SpendLost]);
            return;
        }
        if self.can_reach(waiting.node) {
            steps.push(Step::Spend);
        }
        let is_closed = node.corrected_clock(self.now()) >= setting.closed_at();
        if is_closed || setting.leaves_out(Rule::Waiting) {
            steps.push(Step::Close);
        }
    }

    fn steps_of_node(&self, setting: &Setting, node: usize, steps: &mut Vec<Step>) {
        if self.nodes[node].is_paused {
            steps.push(Step::WakeUp { node });
            return;
        }
        match &self.nodes[node].link {
            Some(_) => steps.push(Step::Beat { node }),
            None if self.nodes[node].is_cut_off => steps.push(Step::Reach { node }),
            None => {
                let masters =
                    (0..self.stores.len()).filter(|i| self.stores[*i].role == Role::Master);
                steps.extend(masters.map(|store| Step::Connect { node, store }));
            }
        }
        if self.pending.len() < setting.most_pending {
            if self.may_come(setting) {
                steps.push(Step::Hello { node, original: true });
            }
            if self.is_worth_sending(setting, node) {
                steps.push(Step::Hello { node, original: false });
            }
        }
        let troubles = setting.troubles.iter().filter(|trouble| match trouble {
            Trouble::NodeClock(_) | Trouble::Kill => true,
            Trouble::Deaf => !self.nodes[node].is_deaf,
            Trouble::Pause => self.pending.iter().any(|pending| pending.node == node),
            Trouble::CutOff => !self.nodes[node].is_cut_off,
            Trouble::Disconnect | Trouble::LateEpoch => self.nodes[node].link.is_some(),
            _ => false,
        });
        let troubles = troubles.filter(|trouble| self.can_go_wrong(setting, **trouble));
        steps.extend(troubles.map(|trouble| Step::Wrong { trouble: *trouble, at: node }));
    }

    fn steps_of_store(&self, setting: &Setting, store: usize, steps: &mut Vec<Step>) {
        let process = &self.stores[store];
        let is_master = process.role == Role::Master;
        // They do not change their mind: only to a master that is newer.
        if is_master && process.line > self.stores[self.named].line {
            steps.push(Step::Name { store });
        }
        if is_master && store != self.named && process.line < self.stores[self.named].line {
            steps.push(Step::Demote { store });
        }
        if process.may_evict {
            steps.push(Step::WellAgain { store });
            let known = setting.leaves_out(Rule::Evictions) || self.all_know_of_evictions(store);
            if process.has_record() && known {
                steps.push(Step::DropRecord { store });
            }
        }
        let troubles = setting.troubles.iter().filter(|trouble| match trouble {
            Trouble::Flush | Trouble::Restart | Trouble::RestartFromSnapshot => is_master,
            // Twice within a heartbeat does not happen: a replica has to catch up first.
            Trouble::Failover => !is_master && self.linked_to(store) == 0,
            Trouble::StoreClock(_) => self.linked_to(store) != 0,
            Trouble::Evict => is_master && !process.may_evict,
            _ => false,
        });
        let troubles = troubles.filter(|trouble| self.can_go_wrong(setting, **trouble));
        steps.extend(troubles.map(|trouble| Step::Wrong { trouble: *trouble, at: store }));
    }

    fn can_go_wrong(&self, setting: &Setting, trouble: Trouble) -> bool {
        self.troubles < setting.most_troubles
            && self.unseen.by == 0
            && setting.troubles.contains(&trouble)
    }

    /// One bit for each node that is connected to `store`.
    pub(crate) fn linked_to(&self, store: usize) -> u8 {
        let is_linked = |node: &Node| node.link.as_ref().is_some_and(|link| link.store == store);
        let bits = self.nodes.iter().enumerate();
        bits.filter(|(_, node)| is_linked(node)).map(|(i, _)| 1 << i).sum()
    }

    /// Whether the store can process what this connection's node asks of it.
    fn can_ask(&self, pending: &Pending) -> bool {
        self.can_reach(pending.node)
    }

    fn can_reach(&self, node: usize) -> bool {
        let link = self.nodes[node].link.as_ref();
        !(self.unseen.by != 0 && self.unseen.is_back)
            && link.is_some_and(|link| link.is_to(&self.stores[link.store]))
    }

    /// A policy that is set on a full store is an assumption of its own: some node is connected,
    /// and nothing is dropped before the next heartbeats.
    fn all_know_of_evictions(&self, store: usize) -> bool {
        let linked = |node: &&Node| node.link.as_ref().is_some_and(|link| link.store == store);
        let now = monotonic(self.now());
        let knows = |node: &Node| node.continuity.status(now) == Err(Unknown::Evicting);
        self.linked_to(store) != 0 && self.nodes.iter().filter(linked).all(knows)
    }
}
