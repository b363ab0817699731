//! What a heartbeat sees of the store, and what is to be done then.

use std::time::Duration;

use super::{Epoch, Slots};

/// What one heartbeat saw, all in one batch: `INFO`, then `GET` of the epoch, `TIME`, `PTTL` of the
/// epoch, `GET` of this node's mark, and `SET` of its next one, in this order.
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
    /// `maxmemory` in bytes; 0: no limit.
    pub maxmemory: u64,
    /// `maxmemory_policy`.
    pub maxmemory_policy: String,
    /// `evicted_keys` since the process started.
    pub evicted_keys: u64,
    /// The slots that it owns, as this node knows them.
    pub slots: Slots,
    /// The epoch record, if there is one.
    pub epoch: Option<Epoch>,
    /// How long ago it was written, by the store's clock ([`Epoch::age`]).
    pub epoch_age: Duration,
    /// The store's clock, since 1970.
    pub store_time: Duration,
    /// This node's clock when the response had come, since 1970 (the clock by which ticket ages are
    /// measured).
    pub node_time: Duration,
    /// This node's mark in the store as it was before this heartbeat: the number that one of its
    /// heartbeats wrote, under a key of the node's own.
    pub mark: Option<u64>,
    /// The mark that this heartbeat wrote instead, greater than all before it and with a life of
    /// [`Heartbeat::MARK_LIFE`]; `None` if the store did not take it.
    pub marked: Option<u64>,
    /// Who else says that this is the master.
    pub confirmation: Confirmation,
}

impl Heartbeat {
    /// How long a node's mark lives. Longer than any recording window: a node that was away for
    /// longer has seen no claim that still matters.
    pub const MARK_LIFE: Duration = Duration::from_secs(3600);

    /// Whether the process may drop records before their time.
    pub fn may_evict(&self) -> bool {
        self.maxmemory > 0 && self.maxmemory_policy != "noeviction"
    }
}

/// A store process's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// It takes writes.
    Master,
    /// It follows a master.
    Replica,
}

/// Who says that a process is the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Confirmation {
    /// There is nobody to ask: one process, or a cluster.
    NotNeeded,
    /// Sentinels. When a majority of them last named its address, on the monotonic clock: the
    /// moment at which the first of those answers was *asked for*. `None`: they never did.
    Majority(Option<Duration>),
}

/// What to do after a heartbeat: first `write`, then `dropped`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HeartbeatActions {
    /// Write this epoch record.
    pub write: Option<EpochWrite>,
    /// Drop all connections to this store, and make new ones.
    pub dropped: Option<Break>,
}

/// An epoch to be written: `SET key TEXT PX life`. It may be late; it dates itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EpochWrite {
    /// Its [`Display`](std::fmt::Display) is the record's text.
    pub epoch: Epoch,
    /// The record's life: [`Epoch::LIFE`], or longer for an epoch that starts later than now.
    pub life: Duration,
}

/// Why connections are not to be used any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Break {
    /// Another process answers (`run_id`).
    Process,
    /// It belongs to another line of replication (`master_replid`).
    Replication,
    /// Its replication offset went back.
    Offset,
    /// It is no master.
    Role,
}
