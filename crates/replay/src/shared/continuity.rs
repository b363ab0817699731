//! Decides by heartbeats whether a store has recorded without a gap.

use std::time::Duration;

use super::observation::{Confirmation, DropReason, EpochWrite, Heartbeat, HeartbeatActions, Role};
use super::{Epoch, SharedConfig, StoreObservation, Unknown, check_observation};
use crate::flight::MAX_TICKET_LIFETIME;

/// Watches one master by its heartbeats. Decides when connections have to be dropped, when an epoch
/// record has to be written, and whether claims count.
///
/// Keep one per master over reconnections and failovers, since it remembers the store's clock. `now`
/// is since an arbitrary start on a monotonic clock.
///
/// The rules, and why:
///
/// - *An epoch is replaced if it is missing, or of another process, replication history or
///   settings.* `FLUSHALL`, a restart and a failover all show in it, in every batch of claims.
/// - *An epoch is written only to a master*, one that *a majority of the sentinels has named*, and
///   only while *the store's clock agrees with the node's*. An epoch that is written earlier would
///   age while the old master still grants claims, or when the clock is corrected.
/// - *An epoch has to be younger than the last gap.* Gaps are: the replication offset or the store's
///   clock went back, or records may have been evicted.
/// - *A node's mark that is missing, or older than the last one that the store confirmed, is a gap
///   too.* A store whose machine was reset to a snapshot keeps its process, epoch and replication
///   history. An epoch that was written since counts, whichever node wrote it.
/// - *The epoch contains the slots that its master owned.* A cluster master that gets further slots
///   without their keys needs a new epoch. Nodes with different maps replace each other's epoch
///   until a majority of the masters confirms one map; a node without a majority writes none.
/// - *While records may be evicted, the epoch is void*, so that a node that starts afterwards does
///   not trust the previous epoch.
///
/// It cannot detect a store that was reset to a snapshot while none of the current nodes ran, nor a
/// gap between two heartbeats that leaves no trace: a store's clock that was ahead by a record's
/// remaining lifetime for less than [`Continuity::HEARTBEAT`]; an eviction policy that is set on a
/// full store before the next heartbeat; a process that is demoted and promoted again within that
/// time and keeps its connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Continuity {
    settings: SharedConfig,
    /// The last heartbeat on the current connection.
    last: Option<LastHeartbeat>,
    /// The latest reading of the last process's clock, on any connection.
    clock: Option<Clock>,
    /// The furthest reading of the store's clock while it agreed with the node's, so that claims
    /// could count.
    furthest_clock: Option<Clock>,
    /// Records from before this time on the store's clock may be missing. Only younger epochs count.
    gap: Option<Duration>,
    /// The last mark that the store confirmed.
    mark: Option<Mark>,
}

/// A mark that this node has written to a store process, and the process has confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mark {
    number: u64,
    run_id: String,
    replication_id: String,
    /// The store's clock just before the mark was written.
    store_time: Duration,
}

/// The last heartbeat: compared to the next one, and the basis for claims until then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LastHeartbeat {
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
    /// The mark's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the process has lost the mark. `current` is the mark that it has now, `store_time`
    /// its clock.
    pub fn is_lost(
        &self,
        run_id: &str,
        replication_id: &str,
        current: Option<u64>,
        store_time: Duration,
    ) -> bool {
        self.run_id == run_id
            && self.replication_id == replication_id
            && current.is_none_or(|current| current < self.number)
            && store_time < self.store_time.saturating_add(Heartbeat::MARK_LIFETIME)
    }
}

impl LastHeartbeat {
    /// Whether a batch saw the same process and replication history.
    fn matches(&self, observed: &StoreObservation) -> bool {
        self.run_id == observed.run_id && self.replication_id == observed.replication_id
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
    /// The interval between heartbeats.
    pub const HEARTBEAT: Duration = Duration::from_millis(250);

    /// How long claims count after the last heartbeat.
    pub const CLAIM_TRUST: Duration = Duration::from_secs(1);

    /// How long records count after the last heartbeat. Longer, because an open breaker lets one
    /// heartbeat pass per [`super::Breaker::MAX_BREAK`], and a store that is too slow for claims can
    /// still take records. If the store loses a record meanwhile, the recording window that follows
    /// covers it.
    pub const RECORD_TRUST: Duration = Duration::from_secs(4);

    /// How far the store's clock may go back without being a gap. Redis caches its clock briefly.
    const MAX_STEP_BACK: Duration = Duration::from_millis(500);

    /// `PTTL` returns whole milliseconds.
    const AGE_ROUNDING: Duration = Duration::from_millis(10);

    /// The most time between reading the store's clock and writing the mark, in one batch.
    const MARK_DELAY: Duration = Duration::from_millis(100);

    /// Creates it without a heartbeat, so nothing counts yet.
    pub fn new(settings: SharedConfig) -> Self {
        Self { settings, last: None, clock: None, furthest_clock: None, gap: None, mark: None }
    }

    /// Reports that the connection of the heartbeats was closed. Nothing counts until the next
    /// heartbeat.
    pub fn disconnected(&mut self) {
        self.last = None;
    }

    /// The last mark that the store confirmed. A new connection for claims checks it first, so that
    /// no claim counts before a heartbeat has noticed a lost mark.
    pub fn mark(&self) -> Option<&Mark> {
        self.mark.as_ref()
    }

    /// Processes a heartbeat whose reply came at `now`, and returns what to do.
    pub fn heartbeat(&mut self, observed: &Heartbeat, now: Duration) -> HeartbeatActions {
        let drop_reason = self.drop_reason(observed);
        if drop_reason == Some(DropReason::Offset) || self.may_have_evicted(observed) {
            self.gap = self.gap.max(Some(observed.store_time));
        }
        // The snapshot is older than the last mark, so an epoch that is younger was written since.
        if let Some(mark) = self.lost_mark(observed) {
            self.gap = self.gap.max(Some(mark.store_time.saturating_add(Self::MARK_DELAY)));
        }
        if self.clock_went_back(observed, now) {
            self.gap = self.gap.max(Some(self.end_of_step(observed, now)));
            self.clock = None;
        }
        let write = self.epoch_due(observed, now);
        self.remember(observed, now);
        if drop_reason.is_some() {
            self.disconnected();
        }
        HeartbeatActions { write, dropped: drop_reason }
    }

    /// Whether claims can count now, according to the heartbeats.
    ///
    /// # Errors
    /// Returns the reason if they do not.
    pub fn status(&self, now: Duration) -> Result<(), Unknown> {
        match self.master(Self::CLAIM_TRUST, now)?.may_evict {
            true => Err(Unknown::Evicting),
            false => Ok(()),
        }
    }

    /// The confirmed master, if its last heartbeat is within `trust`.
    fn master(&self, trust: Duration, now: Duration) -> Result<&LastHeartbeat, Unknown> {
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

    /// Whether a record that a batch has written, or found to be its own, is present for all claims
    /// that count later. `observed` is that batch's observation, received at `now`.
    ///
    /// The batch must have reached the confirmed master of the heartbeats. The record counts even
    /// while claims do not (in a recording window, while this node's clock is off, or while records
    /// may be evicted): before claims count again, either a window passes or the record is present.
    ///
    /// # Errors
    /// Returns the reason if the record may be missing.
    pub fn check_record(&self, observed: &StoreObservation, now: Duration) -> Result<(), Unknown> {
        match self.master(Self::RECORD_TRUST, now)?.matches(observed) {
            true => Ok(()),
            false => Err(Unknown::Absent),
        }
    }

    /// Whether a batch of claims counts, by its own observation, received at `now`, and by the
    /// heartbeats.
    ///
    /// # Errors
    /// Returns the reason if it does not.
    pub fn check_claims(&self, observed: &StoreObservation, now: Duration) -> Result<(), Unknown> {
        self.status(now)?;
        if !self.last.as_ref().is_some_and(|last| last.matches(observed)) {
            return Err(Unknown::Window);
        }
        let behind = |clock: &Clock| observed.store_time + Self::MAX_STEP_BACK < clock.store_time;
        if self.clock.as_ref().is_some_and(behind) {
            return Err(Unknown::Clock);
        }
        check_observation(&self.settings, observed)?;
        match self.is_after_gap(observed.store_time, observed.epoch_age) {
            true => Ok(()),
            false => Err(Unknown::Window),
        }
    }

    /// Why the connection has to be dropped, compared to the previous heartbeat.
    fn drop_reason(&self, observed: &Heartbeat) -> Option<DropReason> {
        if observed.role != Role::Master {
            return Some(DropReason::Role);
        }
        let last = self.last.as_ref()?;
        if observed.run_id != last.run_id {
            Some(DropReason::Process)
        } else if observed.replication_id != last.replication_id {
            Some(DropReason::Replication)
        } else if observed.replication_offset < last.offset {
            Some(DropReason::Offset)
        } else {
            None
        }
    }

    fn may_have_evicted(&self, observed: &Heartbeat) -> bool {
        let evicted_more = |last: &LastHeartbeat| {
            last.run_id == observed.run_id && observed.evicted_keys > last.evicted_keys
        };
        observed.may_evict() || self.last.as_ref().is_some_and(evicted_more)
    }

    /// The last mark that the store confirmed, if the store has lost it.
    fn lost_mark(&self, observed: &Heartbeat) -> Option<&Mark> {
        self.mark.as_ref().filter(|mark| {
            mark.is_lost(
                &observed.run_id,
                &observed.replication_id,
                observed.mark,
                observed.store_time,
            )
        })
    }

    /// Whether the store's clock went back.
    fn clock_went_back(&self, observed: &Heartbeat, now: Duration) -> bool {
        let Some(clock) = &self.clock else { return false };
        // Another process has another clock. The recording window allows for this difference.
        let tolerated = match clock.run_id == observed.run_id {
            true => Self::MAX_STEP_BACK,
            false => 2 * self.settings.clock_margin,
        };
        observed.store_time.saturating_add(tolerated) < self.expected(clock, observed, now)
    }

    /// The time until which flights can be fresh whose records were dropped while the store's clock
    /// was ahead.
    fn end_of_step(&self, observed: &Heartbeat, now: Duration) -> Duration {
        let furthest =
            self.furthest_clock.as_ref().map(|clock| self.expected(clock, observed, now));
        let near = |end: &Duration| end.saturating_sub(observed.store_time) <= MAX_TICKET_LIFETIME;
        furthest.filter(near).unwrap_or_default().max(observed.store_time)
    }

    /// The earliest time that the store's clock should show. The same process's clock may be slow
    /// or stopped. Another process's clock is compared to the extrapolated clock of the previous
    /// process.
    fn expected(&self, clock: &Clock, observed: &Heartbeat, now: Duration) -> Duration {
        match clock.run_id == observed.run_id {
            true => clock.store_time,
            false => clock.store_time.saturating_add(now.saturating_sub(clock.at)),
        }
    }

    /// The epoch to write, if one is needed and this node may write it.
    fn epoch_due(&self, observed: &Heartbeat, now: Duration) -> Option<EpochWrite> {
        if observed.role != Role::Master || !self.is_confirmed(observed.confirmation, now) {
            return None;
        }
        if observed.may_evict() {
            let is_void = observed.epoch.as_ref().is_some_and(Epoch::is_void);
            let epoch = Epoch::void(self.settings);
            return (!is_void).then_some(EpochWrite { epoch, lifetime: Epoch::LIFETIME });
        }
        let is_current = |epoch: &Epoch| {
            epoch.is_of(&observed.run_id, &observed.replication_id, observed.slots, &self.settings)
        };
        let is_valid = observed.epoch.as_ref().is_some_and(is_current)
            && self.is_after_gap(observed.store_time, observed.epoch_age);
        if is_valid || !self.is_within_margin(observed) {
            return None;
        }
        let epoch = Epoch {
            run_id: observed.run_id.clone(),
            replication_id: observed.replication_id.clone(),
            slots: observed.slots,
            settings: self.settings,
        };
        let ahead = self.gap.unwrap_or_default().saturating_sub(observed.store_time);
        Some(EpochWrite { epoch, lifetime: Epoch::LIFETIME + ahead })
    }

    /// Whether an epoch of this age started after the last gap.
    fn is_after_gap(&self, store_time: Duration, age: Duration) -> bool {
        let started = store_time.saturating_sub(age).saturating_add(Self::AGE_ROUNDING);
        self.gap.is_none_or(|gap| started >= gap)
    }

    fn is_confirmed(&self, confirmation: Confirmation, now: Duration) -> bool {
        match confirmation {
            Confirmation::NotNeeded => true,
            Confirmation::Majority(at) => {
                at.is_some_and(|at| now.saturating_sub(at) <= self.settings.confirmation)
            }
        }
    }

    fn is_within_margin(&self, observed: &Heartbeat) -> bool {
        observed.store_time.abs_diff(observed.node_time) <= self.settings.clock_margin
    }

    fn remember(&mut self, observed: &Heartbeat, now: Duration) {
        if observed.role == Role::Master {
            let clock =
                Clock { run_id: observed.run_id.clone(), store_time: observed.store_time, at: now };
            let is_further = |old: &Clock| observed.store_time >= self.expected(old, observed, now);
            if self.is_within_margin(observed)
                && self.furthest_clock.as_ref().is_none_or(is_further)
            {
                self.furthest_clock = Some(clock.clone());
            }
            let is_ahead = |old: &Clock| {
                old.run_id != observed.run_id || observed.store_time >= old.store_time
            };
            if self.clock.as_ref().is_none_or(is_ahead) {
                self.clock = Some(clock);
            }
        }
        if let Some(number) = observed.marked {
            self.mark = Some(Mark {
                number,
                run_id: observed.run_id.clone(),
                replication_id: observed.replication_id.clone(),
                store_time: observed.store_time,
            });
        }
        self.last = Some(LastHeartbeat {
            at: now,
            run_id: observed.run_id.clone(),
            replication_id: observed.replication_id.clone(),
            role: observed.role,
            offset: observed.replication_offset,
            evicted_keys: observed.evicted_keys,
            may_evict: observed.may_evict(),
            confirmation: observed.confirmation,
        });
    }
}

#[cfg(test)]
#[path = "continuity_tests.rs"]
mod tests;
