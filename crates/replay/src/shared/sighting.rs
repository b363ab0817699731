//! What a claim's batch saw of the store, and whether the store's word counts by that.

use std::time::Duration;

use super::SharedConfig;

/// Since when the store has recorded without a gap. One record in the store itself, written by
/// whichever node first sees that it is missing or belongs to another life of the store.
///
/// The time of its writing is the store's to say, not the writer's: the record is set with a life
/// of [`Epoch::LIFE`], and its age is read off the life that is left (`PTTL`). A writer's own stamp
/// could come late (held up in a socket by a partition or a stopped process) and call an epoch old
/// that has just begun. And it is written only by a node whose clock is within the margin of the
/// store's: otherwise a store's clock that is set right afterwards would age it at once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// The store process's own id (`run_id`), new at each of its starts.
    pub run_id: String,
    /// Its replication id (`master_replid`), new whenever a replica becomes a master.
    pub replication_id: String,
}

impl Epoch {
    /// The life that the record is given (`PX`), from which its age is reckoned: a hundred years.
    pub const LIFE: Duration = Duration::from_secs(100 * 365 * 86_400);
}

/// What was seen of the store on the connection of a claim, after the claim, in the same batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sighting {
    /// The `run_id` of the process at the other end of this connection.
    pub run_id: String,
    /// Its replication id, as it was when last asked.
    pub replication_id: String,
    /// The epoch record, if there is one.
    pub epoch: Option<Epoch>,
    /// How long ago the epoch record was written, by the store's clock.
    pub epoch_age: Duration,
    /// The store's clock, since 1970.
    pub store_time: Duration,
    /// This node's clock at the same moment (the one by which ticket ages are measured).
    pub node_time: Duration,
}

/// The store's word on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreAnswer {
    /// The key was not there; it is now, and nobody else has won it.
    Won,
    /// The key was there.
    Lost,
    /// There is no answer, or none that counts.
    Unknown(Unknown),
}

/// Why a claim's outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// No connection to the store.
    Absent,
    /// No answer within the budget.
    Slow,
    /// The store did not record: out of memory, read-only, loading, moved.
    Refused,
    /// Fewer replicas have it than asked for.
    Unreplicated,
    /// The store has not recorded without a gap for a recording window.
    Window,
    /// This node's clock is further from the store's than the margin.
    Clock,
    /// The store may drop records before their time (`maxmemory-policy`).
    Evicting,
}

/// Whether a claim's answer counts, by what its batch saw.
///
/// # Errors
/// Why not: [`Unknown::Window`] or [`Unknown::Clock`].
pub fn judge(config: &SharedConfig, seen: &Sighting) -> Result<(), Unknown> {
    if seen.store_time.abs_diff(seen.node_time) > config.clock_margin {
        return Err(Unknown::Clock);
    }
    let Some(epoch) = &seen.epoch else { return Err(Unknown::Window) };
    let same = epoch.run_id == seen.run_id && epoch.replication_id == seen.replication_id;
    match same && seen.epoch_age >= config.recording_window() {
        true => Ok(()),
        false => Err(Unknown::Window),
    }
}
