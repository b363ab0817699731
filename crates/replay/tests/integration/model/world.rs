//! The state of the model, and the steps that are possible in it.

use firstflight_replay::{Epoch, EpochWrite, Role, Slots, Unknown};

use crate::model::node::{Link, Node, Pending, monotonic};
use crate::model::setting::{Fault, Rule, START, Setting, TICK};
use crate::model::store::{Process, Reply, replication_id, run_id};

/// The state at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) tick: u8,
    pub(crate) stores: Vec<Process>,
    /// The master named by a majority of the sentinels.
    pub(crate) named: usize,
    pub(crate) nodes: Vec<Node>,
    /// Sorted, so that states that differ in order only are equal.
    pub(crate) pending: Vec<Pending>,
    pub(crate) late: Option<Late>,
    pub(crate) faults: u8,
    /// What became of the honest client's own connection.
    pub(crate) original: Original,
    pub(crate) copy: Copies,
    /// The honest client's connection while its request waits for a record.
    pub(crate) waiting: Option<Waiting>,
    /// How often the flight's request was executed, as early data or on the connection that was
    /// refused.
    pub(crate) runs: u8,
    /// How many of these executions the exceptions in `mod.rs` allow.
    pub(crate) excused: u8,
    /// Whether the record of an executed copy is lost, or will be.
    pub(crate) forgot_copy: bool,
    pub(crate) next_id: u8,
    pub(crate) unseen_clock_step: UnseenClockStep,
    /// Whether claims were lost.
    pub(crate) claims_lost: bool,
    /// Whether a claim counted after claims were lost.
    pub(crate) counted_again: bool,
}

/// A message still in transit to a store process after its sender has given up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Late {
    pub(crate) store: usize,
    pub(crate) run: u8,
    pub(crate) message: Message,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    Claim { copy: bool, exact_at: i64, node_clock: i64 },
    Epoch { write: EpochWrite, stamp: i64 },
}

/// A step of a store's clock that not all connected nodes have noticed yet. It is an assumption
/// that their heartbeats arrive before the clock steps again or, if it was set back, before the
/// next claim: they are sent four times a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct UnseenClockStep {
    /// One bit for each node that has not noticed it.
    pub(crate) by: u8,
    pub(crate) is_back: bool,
}

/// The honest client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Original {
    NotSent,
    ClaimPending,
    RanEarly,
    /// Refused by TLS: the client has sent its request again on the same connection, where it waits
    /// until the flight is recorded.
    Waiting,
    /// Executed after the flight was recorded.
    RanLate,
    /// The response was 425.
    TooEarly,
    /// The response was 425 because the flight could not be recorded in time.
    Closed,
    /// The node was killed.
    Broken,
}

/// A refused request that waits until its flight is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Waiting {
    pub(crate) node: usize,
    /// The reply to a spend, which the node has not read yet, and its connection.
    pub(crate) reply: Option<(Link, Reply)>,
    /// When the spend's record ends, by the store's clock.
    pub(crate) until: i64,
}

/// What has happened to copies so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Copies {
    /// The store or a filter contains a copy's claim.
    pub(crate) claimed: bool,
    pub(crate) ran: bool,
    pub(crate) lost: bool,
    pub(crate) refused: bool,
}

/// A possible step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Time passes, with heartbeats.
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
    /// The store processes a node's request.
    Process {
        pending: usize,
    },
    /// The node reads the reply.
    Settle {
        pending: usize,
    },
    /// The store records the flight of the waiting request.
    Spend,
    /// The node reads the reply to the spend.
    ReadSpendReply,
    /// The reply to the spend is lost.
    LoseSpendReply,
    /// No node accepts a copy any more, but the request is still waiting.
    Close,
    /// The time budget is exhausted.
    GiveUp {
        pending: usize,
    },
    /// A message in transit arrives.
    Arrive,
    /// A node can reach the stores again.
    EndCutOff {
        node: usize,
    },
    /// A paused node continues.
    Resume {
        node: usize,
    },
    /// The sentinels agree on a new master.
    NameMaster {
        store: usize,
    },
    /// The sentinels demote the old master.
    Demote {
        store: usize,
    },
    /// The store is configured not to evict records any more.
    StopEvicting {
        store: usize,
    },
    /// The store evicts the record.
    EvictRecord {
        store: usize,
    },
    InjectFault {
        fault: Fault,
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
            faults: 0,
            original: Original::NotSent,
            copy: Copies::default(),
            waiting: None,
            runs: 0,
            excused: 0,
            forgot_copy: false,
            unseen_clock_step: UnseenClockStep::default(),
            claims_lost: false,
            counted_again: false,
        };
        world.start(setting);
        world
    }

    /// All nodes are connected, and a recording window has passed.
    fn start(&mut self, setting: &Setting) {
        let process = &self.stores[0];
        let epoch = Epoch {
            run_id: run_id(process.run),
            replication_id: replication_id(process.history),
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

    /// The claim of a stale flight can only leave a record, and so prevent executions. Leaving it
    /// out misses nothing.
    fn is_worth_sending(&self, setting: &Setting, node: usize) -> bool {
        let fresh = self.skew(setting, node).unsigned_abs() <= setting.config.freshness.as_secs();
        fresh || setting.outcomes || setting.leaves_out(Rule::Freshness)
    }

    /// Whether the honest client's flight may still arrive. It is delayed for at most the lifetime
    /// of a record; later arrivals have no further outcomes.
    fn may_arrive(&self, setting: &Setting) -> bool {
        let lifetime = setting.config.record_lifetime().as_millis() as i64;
        setting.honest
            && self.original == Original::NotSent
            && self.now() <= setting.exact_at() + lifetime
    }

    /// Whether the honest client's request may still be executed.
    fn is_under_way(&self, setting: &Setting) -> bool {
        self.waiting.is_some() || self.may_arrive(setting)
    }

    /// Whether no node will find the flight fresh again.
    fn is_over(&self, setting: &Setting) -> bool {
        let freshness = setting.config.freshness.as_secs() as i64;
        let is_stale = |node| self.skew(setting, node) < -freshness;
        let clocks_stay = !setting.faults.iter().any(|fault| matches!(fault, Fault::NodeClock(_)));
        self.pending.is_empty()
            && !self.is_under_way(setting)
            && clocks_stay
            && !setting.leaves_out(Rule::Freshness)
            && (0..self.nodes.len()).all(is_stale)
    }

    /// Adds the possible steps.
    pub(crate) fn steps(&self, setting: &Setting, steps: &mut Vec<Step>) {
        if self.is_over(setting) {
            return;
        }
        // Budgets are short: claims in progress end in the same tick, unless a process is paused.
        let is_paused = |pending: &Pending| self.nodes[pending.node].is_paused;
        let spends = self
            .waiting
            .iter()
            .any(|waiting| waiting.reply.is_some() && !self.nodes[waiting.node].is_paused);
        if self.tick < setting.horizon && self.pending.iter().all(is_paused) && !spends {
            steps.push(Step::Tick);
        }
        if self.late.is_some() {
            steps.push(Step::Arrive);
        }
        let awake = |(_, pending): &(usize, &Pending)| !self.nodes[pending.node].is_paused;
        for (i, pending) in self.pending.iter().enumerate().filter(awake) {
            match pending.reply {
                None if self.can_process(pending) => steps.push(Step::Process { pending: i }),
                None => {}
                Some(_) => steps.push(Step::Settle { pending: i }),
            }
            steps.push(Step::GiveUp { pending: i });
            if self.can_inject(setting, Fault::LateClaim) && self.late.is_none() {
                steps.push(Step::InjectFault { fault: Fault::LateClaim, at: i });
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
            steps.extend([Step::ReadSpendReply, Step::LoseSpendReply]);
            return;
        }
        if self.can_reach(waiting.node) {
            steps.push(Step::Spend);
        }
        let is_closed = node
            .corrected_clock(setting, self.now())
            .is_some_and(|clock| clock >= setting.closed_at());
        if is_closed || setting.leaves_out(Rule::WaitUntilRecorded) {
            steps.push(Step::Close);
        }
    }

    fn steps_of_node(&self, setting: &Setting, node: usize, steps: &mut Vec<Step>) {
        if self.nodes[node].is_paused {
            steps.push(Step::Resume { node });
            return;
        }
        match &self.nodes[node].link {
            Some(_) => steps.push(Step::Beat { node }),
            None if self.nodes[node].is_cut_off_from_stores => steps.push(Step::EndCutOff { node }),
            None => {
                let masters =
                    (0..self.stores.len()).filter(|i| self.stores[*i].role == Role::Master);
                steps.extend(masters.map(|store| Step::Connect { node, store }));
            }
        }
        if self.pending.len() < setting.max_pending {
            if self.may_arrive(setting) {
                steps.push(Step::Hello { node, original: true });
            }
            if self.is_worth_sending(setting, node) {
                steps.push(Step::Hello { node, original: false });
            }
        }
        let faults = setting.faults.iter().filter(|fault| match fault {
            Fault::NodeClock(_) | Fault::Kill => true,
            Fault::CutOffFromSentinels => !self.nodes[node].is_cut_off_from_sentinels,
            Fault::Pause => self.pending.iter().any(|pending| pending.node == node),
            Fault::CutOffFromStores => !self.nodes[node].is_cut_off_from_stores,
            Fault::Disconnect | Fault::LateEpoch => self.nodes[node].link.is_some(),
            _ => false,
        });
        let faults = faults.filter(|fault| self.can_inject(setting, **fault));
        steps.extend(faults.map(|fault| Step::InjectFault { fault: *fault, at: node }));
    }

    fn steps_of_store(&self, setting: &Setting, store: usize, steps: &mut Vec<Step>) {
        let process = &self.stores[store];
        let is_master = process.role == Role::Master;
        // Sentinels change only to a newer master.
        if is_master && process.history > self.stores[self.named].history {
            steps.push(Step::NameMaster { store });
        }
        if is_master && store != self.named && process.history < self.stores[self.named].history {
            steps.push(Step::Demote { store });
        }
        if process.may_evict {
            steps.push(Step::StopEvicting { store });
            let known = setting.leaves_out(Rule::Evictions) || self.all_know_of_evictions(store);
            if process.has_record() && known {
                steps.push(Step::EvictRecord { store });
            }
        }
        let faults = setting.faults.iter().filter(|fault| match fault {
            Fault::Flush | Fault::Restart | Fault::RestartFromSnapshot => is_master,
            // Not twice within a heartbeat: a replica has to catch up first.
            Fault::Failover => !is_master && self.linked_to(store) == 0,
            Fault::StoreClock(_) => self.linked_to(store) != 0,
            Fault::Evict => is_master && !process.may_evict,
            _ => false,
        });
        let faults = faults.filter(|fault| self.can_inject(setting, **fault));
        steps.extend(faults.map(|fault| Step::InjectFault { fault: *fault, at: store }));
    }

    fn can_inject(&self, setting: &Setting, fault: Fault) -> bool {
        self.faults < setting.max_faults
            && self.unseen_clock_step.by == 0
            && setting.faults.contains(&fault)
    }

    /// One bit for each node that is connected to `store`.
    pub(crate) fn linked_to(&self, store: usize) -> u8 {
        let is_linked = |node: &Node| node.link.as_ref().is_some_and(|link| link.store == store);
        let bits = self.nodes.iter().enumerate();
        bits.filter(|(_, node)| is_linked(node)).map(|(i, _)| 1 << i).sum()
    }

    /// Whether the store can process the request of this connection's node.
    fn can_process(&self, pending: &Pending) -> bool {
        self.can_reach(pending.node)
    }

    fn can_reach(&self, node: usize) -> bool {
        let link = self.nodes[node].link.as_ref();
        !(self.unseen_clock_step.by != 0 && self.unseen_clock_step.is_back)
            && link.is_some_and(|link| link.is_to(&self.stores[link.store]))
    }

    /// Whether some node is connected to `store`, and all connected nodes know that it may evict.
    /// The model assumes that nothing is evicted before that (see `mod.rs`).
    fn all_know_of_evictions(&self, store: usize) -> bool {
        let linked = |node: &&Node| node.link.as_ref().is_some_and(|link| link.store == store);
        let now = monotonic(self.now());
        let knows = |node: &Node| node.continuity.status(now) == Err(Unknown::Evicting);
        self.linked_to(store) != 0 && self.nodes.iter().filter(linked).all(knows)
    }
}
