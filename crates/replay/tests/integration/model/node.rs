//! A node: its clock, its knowledge of the store, its filter, and its claims in progress.

use std::time::Duration;

use firstflight_replay::{
    ClaimKey, Confirmation, Continuity, Flight, FlightOffer, Heartbeat, HeartbeatActions,
    SharedGate, SharedRefusal, Slots, StoreObservation, StoreReply, Unknown, check_record_end,
};

use crate::model::setting::{Rule, START, Setting};
use crate::model::store::{Process, Read, Reply, replication_id, run_id};

/// One node. The rules are those of the crate; the code here is what a server adds to them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    /// How far its clock is from the true time, in milliseconds.
    pub(crate) offset: i64,
    pub(crate) continuity: Continuity,
    pub(crate) link: Option<Link>,
    /// When a majority last named the store to which it is connected, on the monotonic clock.
    pub(crate) confirmed: Option<Duration>,
    /// How far the store's clock was from the true time at the last heartbeat. (A node knows the
    /// difference to its own clock; the result is the same.)
    pub(crate) store_offset: Option<i64>,
    pub(crate) is_cut_off_from_sentinels: bool,
    pub(crate) is_cut_off_from_stores: bool,
    pub(crate) is_paused: bool,
    /// Whether the filter has the flight.
    pub(crate) filter: bool,
}

/// A connection to a store process, with the content of its last `INFO`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) store: usize,
    pub(crate) run: u8,
    pub(crate) history: u8,
}

/// A connection with a claim in progress.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pending {
    pub(crate) node: usize,
    /// Whether this is the honest client's own connection, not a copy's.
    pub(crate) original: bool,
    /// The ticket-age skew, as TLS computed it.
    pub(crate) skew: i32,
    /// When the ClientHello was received, by the node's clock, in milliseconds.
    pub(crate) received_at: i64,
    /// The store's reply, which the node has not read yet.
    pub(crate) reply: Option<Reply>,
    /// Whether the claim's record has been lost since, or will be.
    pub(crate) is_forgotten: bool,
}

impl Node {
    pub(crate) fn new(setting: &Setting, offset: i64) -> Self {
        Self {
            offset,
            continuity: Continuity::new(setting.config),
            link: None,
            confirmed: None,
            store_offset: None,
            is_cut_off_from_sentinels: false,
            is_cut_off_from_stores: false,
            is_paused: false,
            filter: false,
        }
    }

    pub(crate) fn clock(&self, now: i64) -> i64 {
        now + self.offset
    }

    /// Its clock, corrected by the last known difference to the store's, if one is known and within the
    /// margin.
    pub(crate) fn corrected_clock(&self, setting: &Setting, now: i64) -> Option<i64> {
        let margin = setting.config.clock_margin.as_millis() as u64;
        let offset = self.store_offset.filter(|offset| offset.abs_diff(self.offset) <= margin)?;
        Some(now + offset)
    }

    pub(crate) fn connect(&mut self, store: usize, process: &Process) {
        self.disconnect();
        self.link = Some(Link { store, run: process.run, history: process.history });
    }

    pub(crate) fn disconnect(&mut self) {
        self.link = None;
        self.confirmed = None;
        self.continuity.disconnected();
    }

    /// Sends a heartbeat to the connected process, and processes the reply.
    pub(crate) fn beat(
        &mut self,
        setting: &Setting,
        process: &Process,
        now: i64,
    ) -> HeartbeatActions {
        let now_here = monotonic(now);
        self.store_offset = Some(process.offset);
        let seen = self.heartbeat(setting, process, now);
        if setting.leaves_out(Rule::HeartbeatComparison) {
            self.continuity = Continuity::new(setting.config);
        }
        // If one of these rules is left out, the changed heartbeat decides only about the epoch.
        let write_input = match setting.without {
            Some(Rule::EpochAfterMajority) => {
                Heartbeat { confirmation: Confirmation::NotNeeded, ..seen.clone() }
            }
            Some(Rule::EpochWithinMargin) => {
                Heartbeat { node_time: seen.store_time, ..seen.clone() }
            }
            _ => return self.continuity.heartbeat(&seen, now_here),
        };
        let write = self.continuity.clone().heartbeat(&write_input, now_here).write;
        HeartbeatActions { write, ..self.continuity.heartbeat(&seen, now_here) }
    }

    fn heartbeat(&self, setting: &Setting, process: &Process, now: i64) -> Heartbeat {
        let read = process.read(now);
        let (run_id, replication_id) = ids(setting, process.run, process.history, &read);
        Heartbeat {
            run_id,
            replication_id,
            role: process.role,
            replication_offset: 0,
            maxmemory: u64::from(process.may_evict && !setting.leaves_out(Rule::Evictions)),
            maxmemory_policy: "allkeys-lru".into(),
            evicted_keys: 0,
            slots: Slots::ALL,
            epoch_age: age(setting, &read),
            epoch: read.epoch,
            store_time: read.store_time,
            node_time: millis(self.clock(now)),
            mark: None,
            marked: None,
            confirmation: match setting.stores.len() {
                1 => Confirmation::NotNeeded,
                _ if setting.leaves_out(Rule::Confirmation) => Confirmation::NotNeeded,
                _ => Confirmation::Majority(self.confirmed),
            },
        }
    }

    /// Whether the record of a spend, which ends at `until`, counts, and whether it is this
    /// connection's.
    pub(crate) fn spent(
        &self,
        setting: &Setting,
        (link, reply, until): (&Link, &Reply, i64),
        now: i64,
    ) -> Result<bool, Unknown> {
        let Reply::Claim { won, read } = reply else { return Err(Unknown::Refused) };
        if !won {
            return Ok(false);
        }
        let observation = StoreObservation {
            run_id: run_id(link.run),
            replication_id: replication_id(link.history),
            slots: Slots::ALL,
            epoch: read.epoch.clone(),
            epoch_age: read.age,
            store_time: read.store_time,
            node_time: millis(self.clock(now)),
        };
        match self.continuity.check_record(&observation, monotonic(now)) {
            Err(_) if setting.leaves_out(Rule::ConfirmedRecord) => return Ok(true),
            verdict => verdict?,
        }
        match setting.leaves_out(Rule::RecordNotExpired) {
            true => Ok(true),
            false => check_record_end(&setting.config, &observation, millis(until)).map(|()| true),
        }
    }

    /// How the node interprets the reply to a claim.
    pub(crate) fn reply(&self, setting: &Setting, reply: &Reply, now: i64) -> StoreReply {
        let Reply::Claim { won, read } = reply else {
            return StoreReply::Unknown(Unknown::Refused);
        };
        let Some(link) = &self.link else {
            return StoreReply::Unknown(Unknown::Absent);
        };
        let (run_id, replication_id) = ids(setting, link.run, link.history, read);
        let mut observation = StoreObservation {
            run_id,
            replication_id,
            slots: Slots::ALL,
            epoch: read.epoch.clone(),
            epoch_age: age(setting, read),
            store_time: read.store_time,
            node_time: millis(self.clock(now)),
        };
        if setting.leaves_out(Rule::Window) {
            observation.epoch_age = setting.config.recording_window();
        }
        if setting.leaves_out(Rule::WholeWindow) {
            observation.epoch_age += 2 * setting.config.clock_margin + setting.config.confirmation;
        }
        if setting.leaves_out(Rule::ClockMargin) {
            observation.node_time = observation.store_time;
        }
        match self.continuity.check_claims(&observation, monotonic(now)) {
            Err(why) => StoreReply::Unknown(why),
            Ok(()) if *won => StoreReply::Won,
            Ok(()) => StoreReply::Lost,
        }
    }

    /// Decides about a connection's early data.
    pub(crate) fn settle(
        &self,
        setting: &Setting,
        pending: &Pending,
        reply: StoreReply,
        now: i64,
    ) -> Result<Flight, SharedRefusal> {
        let reply = match reply {
            StoreReply::Unknown(_) if setting.leaves_out(Rule::RefuseUnknown) => StoreReply::Won,
            reply => reply,
        };
        let skew = if setting.leaves_out(Rule::Freshness) { 0 } else { pending.skew };
        let offer =
            FlightOffer::new(ClaimKey::of_flight(&[1; 32]), skew, millis(pending.received_at), 0);
        SharedGate::new(setting.config).settle(&offer, reply, millis(self.clock(now)))
    }
}

impl Pending {
    /// When the stated ticket age is exact; the same at each node.
    pub(crate) fn exact_at(&self) -> i64 {
        let offer =
            FlightOffer::new(ClaimKey::of_flight(&[1; 32]), self.skew, millis(self.received_at), 0);
        offer.exact_at().as_millis() as i64
    }
}

impl Link {
    pub(crate) fn is_to(&self, process: &Process) -> bool {
        self.run == process.run
    }
}

/// The process's ids or, without that rule, those in the epoch record.
fn ids(setting: &Setting, run: u8, history: u8, read: &Read) -> (String, String) {
    match (&read.epoch, setting.leaves_out(Rule::EpochOfThisProcess)) {
        (Some(epoch), true) => (epoch.run_id.clone(), epoch.replication_id.clone()),
        _ => (run_id(run), replication_id(history)),
    }
}

fn age(setting: &Setting, read: &Read) -> Duration {
    match setting.leaves_out(Rule::EpochDatedByStore) {
        true => read.age_by_writer,
        false => read.age,
    }
}

/// The nodes' monotonic clock, which is never set.
pub(crate) fn monotonic(now: i64) -> Duration {
    millis(now - START)
}

fn millis(time: i64) -> Duration {
    Duration::from_millis(u64::try_from(time).unwrap_or(0))
}
