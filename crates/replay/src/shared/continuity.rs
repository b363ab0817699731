//! Whether a store has recorded without a gap, by what its heartbeats say.

use std::time::Duration;

use super::heartbeat::{Break, Confirmation, EpochWrite, Heartbeat, HeartbeatActions, Role};
use super::{Epoch, SharedConfig, StoreObservation, Unknown, judge};

/// Watches one master by its heartbeats: when its connections are to be dropped, when an epoch
/// record is due, and why claims do not count now.
///
/// One for each master, kept over reconnections and failovers: it remembers how far the store's
/// clock had come. `now` is since an arbitrary start on a monotonic clock.
///
/// What each rule is for:
///
/// - *An epoch that is missing, or of another process, line of replication or settings*, is
///   replaced. `FLUSHALL`, a restart and a failover all show in it, to every batch of claims.
/// - *Only a master* is written to, one that *a majority of the sentinels has named*, and only
///   while *the store's clock agrees with the node's*. An epoch written sooner would grow old
///   while the old master still grants claims, or be aged by the clock's being set right.
/// - *An epoch has to be younger than the last gap seen*: a replication offset that went back, a
///   store's clock that did, a time in which records may have been evicted.
/// - *A node's mark that is missing, or older than the last one that the store confirmed*, is such
///   a gap too: a store whose machine was set back to a snapshot keeps its process, its epoch and
///   its line of replication. An epoch written since counts, whichever node wrote it.
/// - *The epoch names the slots that its master owned*: a master of a cluster that is given others,
///   without their keys, needs a new one. Nodes whose maps differ replace each other's epoch until
///   a majority of the masters confirms one map to both; without a majority a node writes none.
/// - *While records may be evicted* the epoch is void, so that a node that comes at the end of it
///   does not count by the epoch from before.
///
/// What it cannot see: a store set back to a snapshot while no node ran that runs now. And a gap
/// between two heartbeats that leaves no trace. A store's clock that was
/// ahead by a record's remaining life for less than [`Continuity::HEARTBEAT`]; an eviction policy
/// set on a full store, before the next heartbeat or while no node is connected; a process that is
/// demoted and promoted again within one, its connections kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Continuity {
    settings: SharedConfig,
    /// The last heartbeat on the present connection.
    last: Option<Seen>,
    /// How far the clock of the process last seen had come, on any connection.
    clock: Option<Clock>,
    /// The furthest that the store's clock had come while claims could count.
    reached: Option<Clock>,
    /// Records from before this moment of the store's clock may be missing; an epoch counts if it
    /// is younger.
    gap: Option<Duration>,
    /// The last mark that the store confirmed.
    mark: Option<Mark>,
}

/// A mark of this node in a store process, which the process has confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mark {
    number: u64,
    run_id: String,
    replication_id: String,
    /// The store's clock, just before it was written.
    store_time: Duration,
}

/// What is compared to the next heartbeat, and what claims are judged by until then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Seen {
    at: Duration,
    run_id: String,
    replication_id: String,
    role: Role,
    offset: u64,
    evicted_keys: u64,
    may_evict: bool,
    confirmation: Confirmation,
}

impl Mark {
    /// Whether the process that has it, on this line of replication, has gone back to before it,
    /// or has dropped it: if its clock shows `store_time` and the node's mark `there`.
    pub fn is_lost(
        &self,
        run_id: &str,
        replication_id: &str,
        there: Option<u64>,
        store_time: Duration,
    ) -> bool {
        self.run_id == run_id
            && self.replication_id == replication_id
            && there.is_none_or(|there| there < self.number)
            && store_time < self.store_time.saturating_add(Heartbeat::MARK_LIFE)
    }
}

impl Seen {
    /// Whether a batch saw the same process and line of replication.
    fn is_of(&self, seen: &StoreObservation) -> bool {
        self.run_id == seen.run_id && self.replication_id == seen.replication_id
    }
}

/// A reading of a store process's clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Clock {
    run_id: String,
    store_time: Duration,
    at: Duration,
}

impl Continuity {
    /// How often a heartbeat is due.
    pub const HEARTBEAT: Duration = Duration::from_millis(250);

    /// For how long the last heartbeat vouches for claims.
    pub const TRUST: Duration = Duration::from_secs(1);

    /// For how long the last heartbeat vouches for records. A breaker that is open lets a
    /// heartbeat through every [`super::Breaker::LONGEST`] only, and a store that is too slow for
    /// claims takes records all the same. A record that the store loses meanwhile is covered by
    /// the window that follows.
    pub const RECORD_TRUST: Duration = Duration::from_secs(4);

    /// How far the store's clock may go back unnoticed. Redis caches its clock for a moment.
    const TOLERANCE: Duration = Duration::from_millis(500);

    /// `PTTL` says an age in whole milliseconds.
    const AGE_ROUNDING: Duration = Duration::from_millis(10);

    /// What happens in a store between its clock's being read and the mark, in one batch.
    const MARK_DELAY: Duration = Duration::from_millis(100);

    /// The longest life of a ticket (RFC 8446 section 4.6.1). TLS takes no ticket from the future,
    /// so flights from further ahead than this are never accepted again.
    const MAX_TICKET: Duration = Duration::from_secs(7 * 86_400);

    /// Knows nothing yet, so nothing counts.
    pub fn new(settings: SharedConfig) -> Self {
        Self { settings, last: None, clock: None, reached: None, gap: None, mark: None }
    }

    /// The connection that heartbeats come by is gone, or a new one is made: until its first
    /// heartbeat nothing counts.
    pub fn disconnected(&mut self) {
        self.last = None;
    }

    /// The last mark that the store confirmed. A new connection that carries claims compares it to
    /// what is there, so that no claim on it counts before a heartbeat has seen a lost one.
    pub fn mark(&self) -> Option<&Mark> {
        self.mark.as_ref()
    }

    /// Takes a heartbeat, of which the response came at `now`, and says what to do.
    pub fn heartbeat(&mut self, seen: &Heartbeat, now: Duration) -> HeartbeatActions {
        let broken = self.find_break(seen);
        if broken == Some(Break::Offset) || self.may_have_evicted(seen) {
            self.gap = self.gap.max(Some(seen.store_time));
        }
        // What the snapshot holds is from before the last mark, so what is younger came after it.
        if let Some(mark) = self.lost_mark(seen) {
            self.gap = self.gap.max(Some(mark.store_time.saturating_add(Self::MARK_DELAY)));
        }
        if self.was_set_back(seen, now) {
            self.gap = self.gap.max(Some(self.end_of_step(seen, now)));
            self.clock = None;
        }
        let write = self.epoch_due(seen, now);
        self.remember(seen, now);
        if broken.is_some() {
            self.disconnected();
        }
        HeartbeatActions { write, dropped: broken }
    }

    /// Whether claims can count now, as far as heartbeats know.
    ///
    /// # Errors
    /// Why they do not.
    pub fn standing(&self, now: Duration) -> Result<(), Unknown> {
        match self.master(Self::TRUST, now)?.may_evict {
            true => Err(Unknown::Evicting),
            false => Ok(()),
        }
    }

    /// The confirmed master that heartbeats see, the last of them within `trust`.
    fn master(&self, trust: Duration, now: Duration) -> Result<&Seen, Unknown> {
        let last = self.last.as_ref().ok_or(Unknown::Absent)?;
        if now.saturating_sub(last.at) > trust {
            return Err(Unknown::Slow);
        }
        if last.role != Role::Master {
            return Err(Unknown::Refused);
        }
        match self.is_confirmed(last.confirmation, now) {
            true => Ok(last),
            false => Err(Unknown::Absent),
        }
    }

    /// Whether a record that a batch has written, or found to be its own, is there for all claims
    /// that count later. `seen`: that batch's sighting, which came at `now`.
    ///
    /// It is, in the process that the heartbeats see, a confirmed master. It also is where claims
    /// do not count now: in a recording window, while this node's clock is off, while records may
    /// be evicted. Before claims count again a window passes, or the record is there by then.
    ///
    /// # Errors
    /// Why it may be missing then.
    pub fn judge_record(&self, seen: &StoreObservation, now: Duration) -> Result<(), Unknown> {
        match self.master(Self::RECORD_TRUST, now)?.is_of(seen) {
            true => Ok(()),
            false => Err(Unknown::Absent),
        }
    }

    /// Whether the responses of a batch of claims count: by its own sighting, which came at `now`,
    /// and by all that the heartbeats know.
    ///
    /// # Errors
    /// Why they do not.
    pub fn judge(&self, seen: &StoreObservation, now: Duration) -> Result<(), Unknown> {
        self.standing(now)?;
        if !self.last.as_ref().is_some_and(|last| last.is_of(seen)) {
            return Err(Unknown::Window);
        }
        let behind = |clock: &Clock| seen.store_time + Self::TOLERANCE < clock.store_time;
        if self.clock.as_ref().is_some_and(behind) {
            return Err(Unknown::Clock);
        }
        judge(&self.settings, seen)?;
        match self.is_after_gap(seen.store_time, seen.epoch_age) {
            true => Ok(()),
            false => Err(Unknown::Window),
        }
    }

    /// What is wrong with the connection, compared to the heartbeat before it.
    fn find_break(&self, seen: &Heartbeat) -> Option<Break> {
        if seen.role != Role::Master {
            return Some(Break::Role);
        }
        let last = self.last.as_ref()?;
        if seen.run_id != last.run_id {
            Some(Break::Process)
        } else if seen.replication_id != last.replication_id {
            Some(Break::Replication)
        } else if seen.replication_offset < last.offset {
            Some(Break::Offset)
        } else {
            None
        }
    }

    fn may_have_evicted(&self, seen: &Heartbeat) -> bool {
        let more =
            |last: &Seen| last.run_id == seen.run_id && seen.evicted_keys > last.evicted_keys;
        seen.may_evict() || self.last.as_ref().is_some_and(more)
    }

    /// The last mark that the store confirmed, if it has gone back to before it.
    fn lost_mark(&self, seen: &Heartbeat) -> Option<&Mark> {
        self.mark.as_ref().filter(|mark| {
            mark.is_lost(&seen.run_id, &seen.replication_id, seen.mark, seen.store_time)
        })
    }

    /// Whether the store's clock is behind where it was.
    fn was_set_back(&self, seen: &Heartbeat, now: Duration) -> bool {
        let Some(clock) = &self.clock else { return false };
        // Another process has another clock; the recording window allows for that much.
        let tolerated = match clock.run_id == seen.run_id {
            true => Self::TOLERANCE,
            false => 2 * self.settings.clock_margin,
        };
        seen.store_time.saturating_add(tolerated) < self.expected(clock, seen, now)
    }

    /// Until when flights are fresh again whose records may be gone: a store that was set back
    /// dropped records when its clock was ahead.
    fn end_of_step(&self, seen: &Heartbeat, now: Duration) -> Duration {
        let reached = self.reached.as_ref().map(|clock| self.expected(clock, seen, now));
        let near = |end: &Duration| end.saturating_sub(seen.store_time) <= Self::MAX_TICKET;
        reached.filter(near).unwrap_or_default().max(seen.store_time)
    }

    /// What the store's clock should show at least. The clock of the same process may be slow or
    /// stand still; that of another is compared to what the old one's would be by now.
    fn expected(&self, clock: &Clock, seen: &Heartbeat, now: Duration) -> Duration {
        match clock.run_id == seen.run_id {
            true => clock.store_time,
            false => clock.store_time.saturating_add(now.saturating_sub(clock.at)),
        }
    }

    /// The epoch to write, if one is due and this node may write it.
    fn epoch_due(&self, seen: &Heartbeat, now: Duration) -> Option<EpochWrite> {
        if seen.role != Role::Master || !self.is_confirmed(seen.confirmation, now) {
            return None;
        }
        if seen.may_evict() {
            let is_void = seen.epoch.as_ref().is_some_and(Epoch::is_void);
            let epoch = Epoch::void(self.settings);
            return (!is_void).then_some(EpochWrite { epoch, life: Epoch::LIFE });
        }
        let of_this_life = |epoch: &Epoch| {
            epoch.is_of(&seen.run_id, &seen.replication_id, seen.slots, &self.settings)
        };
        let counts = seen.epoch.as_ref().is_some_and(of_this_life)
            && self.is_after_gap(seen.store_time, seen.epoch_age);
        if counts || !self.is_within_margin(seen) {
            return None;
        }
        let epoch = Epoch {
            run_id: seen.run_id.clone(),
            replication_id: seen.replication_id.clone(),
            slots: seen.slots,
            settings: self.settings,
        };
        let ahead = self.gap.unwrap_or_default().saturating_sub(seen.store_time);
        Some(EpochWrite { epoch, life: Epoch::LIFE + ahead })
    }

    /// Whether an epoch of this age started after the last gap.
    fn is_after_gap(&self, store_time: Duration, age: Duration) -> bool {
        let began = store_time.saturating_sub(age).saturating_add(Self::AGE_ROUNDING);
        self.gap.is_none_or(|gap| began >= gap)
    }

    fn is_confirmed(&self, confirmation: Confirmation, now: Duration) -> bool {
        match confirmation {
            Confirmation::NotNeeded => true,
            Confirmation::Majority(at) => {
                at.is_some_and(|at| now.saturating_sub(at) <= self.settings.confirmation)
            }
        }
    }

    fn is_within_margin(&self, seen: &Heartbeat) -> bool {
        seen.store_time.abs_diff(seen.node_time) <= self.settings.clock_margin
    }

    fn remember(&mut self, seen: &Heartbeat, now: Duration) {
        if seen.role == Role::Master {
            let clock = Clock { run_id: seen.run_id.clone(), store_time: seen.store_time, at: now };
            let is_further = |old: &Clock| seen.store_time >= self.expected(old, seen, now);
            if self.is_within_margin(seen) && self.reached.as_ref().is_none_or(is_further) {
                self.reached = Some(clock.clone());
            }
            let is_ahead =
                |old: &Clock| old.run_id != seen.run_id || seen.store_time >= old.store_time;
            if self.clock.as_ref().is_none_or(is_ahead) {
                self.clock = Some(clock);
            }
        }
        if let Some(number) = seen.marked {
            self.mark = Some(Mark {
                number,
                run_id: seen.run_id.clone(),
                replication_id: seen.replication_id.clone(),
                store_time: seen.store_time,
            });
        }
        self.last = Some(Seen {
            at: now,
            run_id: seen.run_id.clone(),
            replication_id: seen.replication_id.clone(),
            role: seen.role,
            offset: seen.replication_offset,
            evicted_keys: seen.evicted_keys,
            may_evict: seen.may_evict(),
            confirmation: seen.confirmation,
        });
    }
}

#[cfg(test)]
#[path = "continuity_tests.rs"]
mod tests;
