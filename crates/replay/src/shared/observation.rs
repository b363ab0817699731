//! What a node sees of the store, and whether that is enough for claims to count.

use std::time::Duration;

use super::{Epoch, SharedConfig, Slots};

/// What one heartbeat read. It is one batch: `INFO`, `GET` of the epoch, `TIME`, `PTTL` of the epoch,
/// `GET` of this node's last confirmed mark, and `SET` of its next one, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Heartbeat {
    /// The process's `run_id`.
    pub run_id: String,
    /// Its `master_replid`.
    pub replication_id: String,
    /// Its `role`.
    pub role: Role,
    /// Its `master_repl_offset`.
    pub replication_offset: u64,
    /// `maxmemory` in bytes; 0 means no limit.
    pub maxmemory: u64,
    /// `maxmemory_policy`.
    pub maxmemory_policy: String,
    /// `evicted_keys` since the process started.
    pub evicted_keys: u64,
    /// The slots that it owns, according to this node's map.
    pub slots: Slots,
    /// The epoch record, if there is one.
    pub epoch: Option<Epoch>,
    /// How long ago it was written, on the store's clock ([`Epoch::age`]).
    pub epoch_age: Duration,
    /// The store's clock, since 1970.
    pub store_time: Duration,
    /// This node's clock when the reply was received, since 1970 (the clock by which ticket ages are
    /// measured).
    pub node_time: Duration,
    /// The number at the key of this node's last confirmed mark, before this heartbeat. Each connection
    /// has its own key, so that a late write of a closed connection does not look like an earlier
    /// state.
    pub mark: Option<u64>,
    /// The mark that this heartbeat wrote: greater than all earlier ones, with a lifetime of
    /// [`Heartbeat::MARK_LIFETIME`]. `None` if the store did not accept it.
    pub marked: Option<u64>,
    /// Who confirms that this is the master.
    pub confirmation: Confirmation,
}

impl Heartbeat {
    /// How long a node's mark lives. It is longer than any recording window: a node that was
    /// disconnected for longer has seen no claim that still matters.
    pub const MARK_LIFETIME: Duration = Duration::from_secs(3600);

    /// What a batch of claims would have read.
    pub fn observation(&self) -> StoreObservation {
        StoreObservation {
            run_id: self.run_id.clone(),
            replication_id: self.replication_id.clone(),
            slots: self.slots,
            epoch: self.epoch.clone(),
            epoch_age: self.epoch_age,
            store_time: self.store_time,
            node_time: self.node_time,
        }
    }

    /// Whether the process may evict records.
    pub fn may_evict(&self) -> bool {
        self.maxmemory > 0 && self.maxmemory_policy != "noeviction"
    }
}

/// A store process's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// It accepts writes.
    Master,
    /// It follows a master.
    Replica,
}

/// Who confirms that a process is the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Confirmation {
    /// No confirmation is needed, because the store is a single process.
    NotNeeded,
    /// When a majority of the sentinels last named the process's address, or a majority of a
    /// cluster's masters its slots, on the monotonic clock. The time is that of the majority's
    /// first *query*. `None` if this has never happened.
    Majority(Option<Duration>),
}

/// What to do after a heartbeat: first write the epoch, then drop the connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HeartbeatActions {
    /// Write this epoch record.
    pub write: Option<EpochWrite>,
    /// Drop all connections to this store and open new ones, for this reason.
    pub dropped: Option<DropReason>,
}

/// An epoch to write: `SET key TEXT PX lifetime`. It may arrive late, since the store dates it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EpochWrite {
    /// The epoch. Its [`Display`](std::fmt::Display) is the record's text.
    pub epoch: Epoch,
    /// The record's lifetime: [`Epoch::LIFETIME`], or longer if the epoch starts in the future.
    pub lifetime: Duration,
}

/// Why connections have to be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Another process replied (`run_id`).
    Process,
    /// The process's replication history changed (`master_replid`).
    Replication,
    /// The process's replication offset went back.
    Offset,
    /// The process is not a master.
    Role,
}

/// What a batch of claims read about the store, after the claims and on the same connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreObservation {
    /// The process's `run_id`.
    pub run_id: String,
    /// Its replication id, as last read.
    pub replication_id: String,
    /// The slots that it owns, according to this node's map.
    pub slots: Slots,
    /// The epoch record, if there is one.
    pub epoch: Option<Epoch>,
    /// How long ago the epoch record was written, on the store's clock ([`Epoch::age`]).
    pub epoch_age: Duration,
    /// The store's clock, since 1970.
    pub store_time: Duration,
    /// This node's clock when the reply was received, since 1970 (the clock by which ticket ages are
    /// measured).
    pub node_time: Duration,
}

/// The store's reply to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreReply {
    /// The key was not recorded before; it is now.
    Won,
    /// The key was recorded before.
    Lost,
    /// There is no reply, or it does not count.
    Unknown(Unknown),
}

/// Why a claim's outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// No connection to the store, or none to a master that a majority of the sentinels confirms.
    Absent,
    /// No reply within the time limit.
    Slow,
    /// The store did not record: out of memory, read-only, loading, moved.
    Refused,
    /// Fewer replicas than required have the record.
    Unreplicated,
    /// The store has not recorded without a gap for a recording window.
    Window,
    /// This node's clock differs from the store's by more than the margin, or the store's clock went
    /// back.
    Clock,
    /// The store may evict records (`maxmemory-policy`).
    Evicting,
}

/// Whether a claim's reply counts, by its batch's observation alone.
/// [`super::Continuity::check_claims`] also uses the heartbeats.
///
/// # Errors
/// Returns [`Unknown::Window`] or [`Unknown::Clock`] if it does not.
pub fn check_observation(
    config: &SharedConfig,
    observed: &StoreObservation,
) -> Result<(), Unknown> {
    if observed.store_time.abs_diff(observed.node_time) > config.clock_margin {
        return Err(Unknown::Clock);
    }
    let is_current = |epoch: &Epoch| {
        epoch.is_of(&observed.run_id, &observed.replication_id, observed.slots, config)
    };
    let old_enough = observed.epoch_age >= config.recording_window();
    match observed.epoch.as_ref().is_some_and(is_current) && old_enough {
        true => Ok(()),
        false => Err(Unknown::Window),
    }
}

/// Whether a record that a batch has written, and that ends at `until`
/// ([`SharedConfig::record_end`]), is still in the store. A store drops a record at once if its
/// clock has passed the end. That does not matter if the flight is stale by the node's clock too;
/// but a clock that is ahead of the node's may be corrected before the flight is fresh.
///
/// # Errors
/// Returns [`Unknown::Clock`] if the store has dropped the record too early.
pub fn check_record_end(
    config: &SharedConfig,
    observed: &StoreObservation,
    until: Duration,
) -> Result<(), Unknown> {
    let exact_at = until.saturating_sub(config.record_lifetime());
    match until <= observed.store_time && observed.node_time < config.closed_at(exact_at) {
        true => Err(Unknown::Clock),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc8446_8_2_a_record_that_the_store_drops_at_once_does_not_count() {
        let config = SharedConfig::default();
        let s = Duration::from_secs;
        let check = |store: u64, node: u64| {
            let observed = StoreObservation {
                run_id: "p".into(),
                replication_id: "r".into(),
                slots: Slots::ALL,
                epoch: None,
                epoch_age: s(0),
                store_time: s(store),
                node_time: s(node),
            };
            check_record_end(&config, &observed, config.record_end(s(1000)))
        };
        // A record until 1035 s; nodes accept copies until 1023 s.
        for (store, node, expected) in [
            (1034, 1000, Ok(())),
            (1035, 1000, Err(Unknown::Clock)),
            (1_000_000, 1022, Err(Unknown::Clock)),
            (1035, 1023, Ok(())),
            (900, 1000, Ok(())),
            (900, 1_000_000, Ok(())),
        ] {
            assert_eq!(check(store, node), expected, "{store}, {node}");
        }
    }
}
