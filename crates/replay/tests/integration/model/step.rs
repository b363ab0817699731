//! The effect of each step.

use firstflight_replay::{Role, StoreReply, Unknown};

use crate::model::node::{Node, Pending, monotonic};
use crate::model::setting::{Fault, Rule, Setting, UnrecordedRequest};
use crate::model::store::Process;
use crate::model::world::{Late, Message, Original, Step, UnseenClockStep, Waiting, World};

impl World {
    /// Applies `step`.
    pub(crate) fn apply(&mut self, setting: &Setting, step: Step) {
        match step {
            Step::Tick => self.tick(setting),
            Step::Connect { node, store } => self.connect(setting, node, store),
            Step::Beat { node } => self.beat(setting, node, false),
            Step::Hello { node, original } => self.hello(setting, node, original),
            Step::Process { pending } => self.process(setting, pending),
            Step::Settle { pending } => self.settle(setting, pending),
            Step::GiveUp { pending } => self.give_up(setting, pending),
            Step::Spend => self.spend(setting),
            Step::ReadSpendReply => self.spent(setting),
            Step::LoseSpendReply => {
                self.waiting.iter_mut().for_each(|waiting| waiting.reply = None)
            }
            Step::Close => self.close(setting),
            Step::EndCutOff { node } => self.nodes[node].is_cut_off_from_stores = false,
            Step::Resume { node } => self.nodes[node].is_paused = false,
            Step::Arrive => self.arrive(setting),
            Step::NameMaster { store } => self.named = store,
            Step::Demote { store } => {
                self.lose_records(setting, store);
                let master = self.stores[self.named].clone();
                self.stores[store].follow(&master);
            }
            Step::StopEvicting { store } => self.stores[store].may_evict = false,
            Step::EvictRecord { store } => {
                self.claims_lost = setting.honest;
                self.lose_records(setting, store);
                self.stores[store].drop_record();
            }
            Step::InjectFault { fault, at } => {
                self.faults += 1;
                self.inject(setting, fault, at);
            }
        }
        self.pending.sort_by_key(|p| (p.node, p.original, p.received_at, p.reply.is_some()));
    }

    fn tick(&mut self, setting: &Setting) {
        self.tick += 1;
        let now = self.now();
        self.stores.iter_mut().for_each(|store| store.expire_at(now));
        for node in 0..self.nodes.len() {
            if !self.nodes[node].is_paused {
                self.beat(setting, node, false);
            }
        }
    }

    /// A new connection starts with a heartbeat.
    pub(crate) fn connect(&mut self, setting: &Setting, node: usize, store: usize) {
        let process = &self.stores[store];
        self.nodes[node].connect(store, process);
        self.beat(setting, node, false);
    }

    fn beat(&mut self, setting: &Setting, i: usize, late: bool) {
        let now = self.now();
        let Some(link) = self.nodes[i].link.clone() else { return };
        let process = &mut self.stores[link.store];
        let is_named = self.named == link.store;
        let node = &mut self.nodes[i];
        if !link.is_to(process) {
            node.disconnect();
            return;
        }
        if is_named && !node.is_cut_off_from_sentinels {
            node.confirmed = Some(monotonic(now));
        }
        let actions = node.beat(setting, process, now);
        self.unseen_clock_step.by &= !(1 << i);
        if let Some(write) = actions.write {
            let stamp = now + process.offset;
            match late {
                false => process.write_epoch(&write, stamp, now),
                true => {
                    let message = Message::Epoch { write, stamp };
                    self.late = Some(Late { store: link.store, run: link.run, message });
                }
            }
        }
        // A node that is connected to the sentinels follows them.
        let stays = actions.dropped.is_none() && (is_named || node.is_cut_off_from_sentinels);
        match &mut node.link {
            Some(link) if stays => link.history = process.history,
            _ => node.disconnect(),
        }
    }

    /// TLS processes a ClientHello, and would accept its early data.
    fn hello(&mut self, setting: &Setting, node: usize, original: bool) {
        let clock = self.nodes[node].clock(self.now());
        let skew = self.skew(setting, node) as i32;
        let pending =
            Pending { node, original, skew, received_at: clock, reply: None, is_forgotten: false };
        if original {
            self.original = Original::ClaimPending;
        }
        if self.nodes[node].filter {
            self.conclude(setting, &pending, StoreReply::Lost);
            return;
        }
        if setting.leaves_out(Rule::FilterOfSettledClaims) {
            self.nodes[node].filter = true;
        }
        // A second copy at the same node adds nothing.
        if !self.pending.contains(&pending) {
            self.pending.push(pending);
        }
    }

    fn process(&mut self, setting: &Setting, pending: usize) {
        let now = self.now();
        let claim = &mut self.pending[pending];
        let node = &self.nodes[claim.node];
        let Some(link) = &node.link else { return };
        if setting.leaves_out(Rule::TimeBeforeHello) {
            claim.received_at = node.clock(now);
        }
        let store = &mut self.stores[link.store];
        let until = setting.record_end(claim.exact_at(), node.clock(now), store.clock(now));
        claim.reply = Some(store.claim(claim.original, until, now));
        self.copy.claimed |= setting.honest && !claim.original;
        let store = link.store;
        self.pending[pending].is_forgotten = setting.honest && self.is_old_master(store);
    }

    fn settle(&mut self, setting: &Setting, pending: usize) {
        let pending = self.pending.remove(pending);
        let node = &self.nodes[pending.node];
        let reply = match &pending.reply {
            Some(reply) => node.reply(setting, reply, self.now()),
            None => StoreReply::Unknown(Unknown::Slow),
        };
        self.conclude(setting, &pending, reply);
    }

    fn give_up(&mut self, setting: &Setting, pending: usize) {
        let pending = self.pending.remove(pending);
        self.conclude(setting, &pending, StoreReply::Unknown(Unknown::Slow));
    }

    /// Sends a node's message although the node no longer waits for the reply.
    fn send_late(&mut self, pending: usize) {
        let pending = &self.pending[pending];
        if let (None, Some(link)) = (&pending.reply, &self.nodes[pending.node].link) {
            let node_clock = self.nodes[pending.node].clock(self.now());
            let (copy, exact_at) = (!pending.original, pending.exact_at());
            let message = Message::Claim { copy, exact_at, node_clock };
            self.late = Some(Late { store: link.store, run: link.run, message });
        }
    }

    /// Handles a connection after its claim was won, lost or unknown.
    fn conclude(&mut self, setting: &Setting, pending: &Pending, reply: StoreReply) {
        let node = &self.nodes[pending.node];
        let settled = node.settle(setting, pending, reply, self.now());
        if !matches!(reply, StoreReply::Unknown(_)) {
            self.nodes[pending.node].filter = true;
        }
        let runs = settled.is_ok_and(|flight| flight.won());
        if runs {
            self.runs += 1;
        }
        if !setting.honest {
            return;
        }
        self.counted_again |= self.claims_lost && reply == StoreReply::Won;
        if pending.original {
            self.original = match settled {
                Ok(_) if runs => Original::RanEarly,
                Ok(_) => Original::TooEarly,
                Err(_) => Original::Waiting,
            };
            if self.original == Original::Waiting {
                self.refused(setting, pending.node);
            }
        } else {
            self.copy.ran |= runs;
            if runs && pending.is_forgotten {
                self.forgot_copy = true;
                self.excused += u8::from(self.original == Original::RanLate);
            }
            self.copy.lost |= settled.is_ok() && !runs;
            self.copy.refused |= settled.is_err();
        }
    }

    /// The client sends its request again, once the handshake is complete.
    fn refused(&mut self, setting: &Setting, node: usize) {
        match setting.leaves_out(Rule::SpendBeforeExecution) {
            true => self.run_late(),
            false => self.waiting = Some(Waiting { node, reply: None, until: 0 }),
        }
    }

    fn run_late(&mut self) {
        self.runs += 1;
        self.original = Original::RanLate;
        self.waiting = None;
    }

    fn spend(&mut self, setting: &Setting) {
        let now = self.now();
        let Some(waiting) = &mut self.waiting else { return };
        let node = &self.nodes[waiting.node];
        let Some(link) = &node.link else { return };
        let store = &mut self.stores[link.store];
        let clock = store.clock(now);
        let until = setting.record_end(setting.exact_at(), node.clock(now), clock);
        waiting.reply = Some((link.clone(), store.spend(until, now)));
        waiting.until = until;
    }

    fn spent(&mut self, setting: &Setting) {
        let Some(waiting) = &mut self.waiting else { return };
        let Some((link, reply)) = waiting.reply.take() else { return };
        let (at, until) = (waiting.node, waiting.until);
        let node = &self.nodes[at];
        match node.spent(setting, (&link, &reply, until), self.now()) {
            Ok(true) => {
                let is_late = reply.store_clock().is_some_and(|clock| clock >= until);
                let is_forgotten = is_late || self.forgot_copy;
                self.excused += u8::from(self.copy.ran && is_forgotten);
                let is_old = self.is_old_master(link.store);
                let is_confirmed = self.is_confirmed(setting, at);
                self.run_late();
                if is_old && is_confirmed {
                    self.lose_records(setting, link.store);
                }
            }
            Ok(false) => {
                self.original = Original::TooEarly;
                self.waiting = None;
            }
            Err(_) => {}
        }
    }

    fn close(&mut self, setting: &Setting) {
        match setting.unrecorded_request {
            UnrecordedRequest::Runs => {
                // The node does not know whether a copy was executed before.
                let is_in_time = !setting.leaves_out(Rule::WaitUntilRecorded);
                self.excused += u8::from(self.copy.ran && is_in_time);
                self.run_late();
            }
            UnrecordedRequest::TooEarly => {
                self.original = Original::Closed;
                self.waiting = None;
            }
        }
    }

    /// A store loses records, or will. A recording window does not cover the record of a flight
    /// that becomes fresh only after the window.
    fn lose_records(&mut self, setting: &Setting, store: usize) {
        self.forgot_copy |= self.copy.ran;
        let with_reply = self.pending.iter_mut().filter(|pending| pending.reply.is_some());
        with_reply.for_each(|pending| pending.is_forgotten |= setting.honest);
        let bound = setting.config.freshness + setting.config.clock_margin;
        let last = self.stores[store].clock(self.now()) + bound.as_millis() as i64;
        let is_sent = self.waiting.as_ref().is_some_and(|waiting| waiting.reply.is_some());
        let is_spent = is_sent || self.original == Original::RanLate;
        if is_spent && setting.exact_at() > last {
            self.excused = self.excused.max(1);
        }
    }

    fn is_old_master(&self, store: usize) -> bool {
        self.stores.iter().any(|other| other.history > self.stores[store].history)
    }

    fn is_confirmed(&self, setting: &Setting, node: usize) -> bool {
        let last = self.nodes[node].confirmed;
        last.is_some_and(|at| monotonic(self.now()) - at <= setting.config.confirmation)
    }

    fn arrive(&mut self, setting: &Setting) {
        let now = self.now();
        let Some(late) = self.late.take() else { return };
        let process = &mut self.stores[late.store];
        if process.run != late.run {
            return;
        }
        match late.message {
            Message::Claim { copy, exact_at, node_clock } => {
                let until = setting.record_end(exact_at, node_clock, process.clock(now));
                process.claim(!copy, until, now);
                self.copy.claimed |= setting.honest && copy;
            }
            Message::Epoch { write, stamp } => process.write_epoch(&write, stamp, now),
        }
    }

    fn inject(&mut self, setting: &Setting, fault: Fault, at: usize) {
        match fault {
            Fault::Flush => {
                self.claims_lost = setting.honest;
                self.lose_records(setting, at);
                self.stores[at].flush();
            }
            Fault::Restart => self.restart(setting, at, false),
            Fault::RestartFromSnapshot => self.restart(setting, at, true),
            Fault::Failover => self.promote(setting, at),
            Fault::StoreClock(step) => self.set_store_clock(setting, at, step),
            Fault::NodeClock(step) => self.nodes[at].offset += step,
            Fault::Kill => self.kill(setting, at),
            Fault::CutOffFromSentinels => self.nodes[at].is_cut_off_from_sentinels = true,
            Fault::CutOffFromStores => {
                self.nodes[at].is_cut_off_from_stores = true;
                self.nodes[at].disconnect();
            }
            Fault::Disconnect => self.nodes[at].disconnect(),
            Fault::LateEpoch => self.beat(setting, at, true),
            Fault::LateClaim => {
                self.send_late(at);
                self.give_up(setting, at);
            }
            Fault::Pause => self.nodes[at].is_paused = true,
            Fault::Evict => self.stores[at].may_evict = true,
        }
    }

    fn restart(&mut self, setting: &Setting, at: usize, from_snapshot: bool) {
        self.claims_lost = setting.honest;
        self.lose_records(setting, at);
        let (run, history) = (self.fresh_id(), self.fresh_id());
        let old = &self.stores[at];
        let mut new = Process::new(run, history, Role::Master, old.offset);
        if from_snapshot {
            new.take_epoch_of(old);
        }
        self.stores[at] = new;
    }

    /// A lagging replica becomes a master; the old master does not know yet.
    fn promote(&mut self, setting: &Setting, at: usize) {
        self.claims_lost = setting.honest;
        self.lose_records(setting, self.named);
        let history = self.fresh_id();
        let old = self.stores[self.named].clone();
        let store = &mut self.stores[at];
        store.take_epoch_of(&old);
        store.role = Role::Master;
        store.history = history;
    }

    fn set_store_clock(&mut self, setting: &Setting, at: usize, step: i64) {
        let now = self.now();
        self.claims_lost = setting.honest;
        self.lose_records(setting, at);
        self.stores[at].offset += step;
        self.stores[at].expire_at(now);
        self.unseen_clock_step = UnseenClockStep { by: self.linked_to(at), is_back: step < 0 };
    }

    fn kill(&mut self, setting: &Setting, at: usize) {
        self.break_off(at);
        self.nodes[at] = Node::new(setting, self.nodes[at].offset);
    }

    /// Ends a node's connections before their claims are decided.
    fn break_off(&mut self, at: usize) {
        let is_at_node = |pending: &Pending| pending.node == at;
        if self.pending.iter().any(|pending| is_at_node(pending) && pending.original) {
            self.original = Original::Broken;
        }
        self.pending.retain(|pending| !is_at_node(pending));
        if self.waiting.take_if(|waiting| waiting.node == at).is_some() {
            self.original = Original::Broken;
        }
    }

    fn fresh_id(&mut self) -> u8 {
        self.next_id += 1;
        self.next_id
    }
}
