//! What a claim's batch saw of the store, and whether the store's word counts by that.

use std::time::Duration;

use super::{Epoch, SharedConfig, Slots};

/// What was seen of the store on the connection of a claim, after the claim, in the same batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreObservation {
    /// The `run_id` of the process at the other end of this connection.
    pub run_id: String,
    /// Its replication id, as it was when last asked.
    pub replication_id: String,
    /// The slots that it owns, as this node knows them.
    pub slots: Slots,
    /// The epoch record, if there is one.
    pub epoch: Option<Epoch>,
    /// How long ago the epoch record was written, by the store's clock ([`Epoch::age`]).
    pub epoch_age: Duration,
    /// The store's clock, since 1970.
    pub store_time: Duration,
    /// This node's clock when the response had come, since 1970 (the clock by which ticket ages are
    /// measured).
    pub node_time: Duration,
}

/// The store's word on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreReply {
    /// The key was not there; it is now, and nobody else has won it.
    Won,
    /// The key was there.
    Lost,
    /// There is no response, or none that counts.
    Unknown(Unknown),
}

/// Why a claim's outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// No connection to the store, or none to a master for which a majority of the sentinels
    /// vouches.
    Absent,
    /// No response within the budget.
    Slow,
    /// The store did not record: out of memory, read-only, loading, moved.
    Refused,
    /// Fewer replicas have it than asked for.
    Unreplicated,
    /// The store has not recorded without a gap for a recording window.
    Window,
    /// This node's clock is further from the store's than the margin, or the store's was set back.
    Clock,
    /// The store may drop records before their time (`maxmemory-policy`).
    Evicting,
}

/// Whether a claim's answer counts, by what its batch alone saw. [`super::Continuity::judge`]
/// knows more.
///
/// # Errors
/// Why not: [`Unknown::Window`] or [`Unknown::Clock`].
pub fn judge(config: &SharedConfig, seen: &StoreObservation) -> Result<(), Unknown> {
    if seen.store_time.abs_diff(seen.node_time) > config.clock_margin {
        return Err(Unknown::Clock);
    }
    let of_this_life =
        |epoch: &Epoch| epoch.is_of(&seen.run_id, &seen.replication_id, seen.slots, config);
    let old_enough = seen.epoch_age >= config.recording_window();
    match seen.epoch.as_ref().is_some_and(of_this_life) && old_enough {
        true => Ok(()),
        false => Err(Unknown::Window),
    }
}
