//! Which processes are masters, and of which slots.

use std::sync::Arc;
use std::time::Duration;

use cluster::Cluster;
use firstflight_replay::Unknown;
pub(crate) use slots::{SLOTS, SlotMap};
use tokio::task::JoinSet;

use crate::master::{Master, MasterAddress, MasterHandle};
use crate::settings::Settings;
use crate::{Address, StoreError, Topology};

mod cluster;
mod sentinel;
mod slots;

/// The masters, and the tasks that keep track of them.
pub(crate) enum Masters {
    /// One master, at a fixed or changing address.
    One {
        handle: MasterHandle,
        /// The tasks that poll the sentinels.
        _tasks: JoinSet<()>,
    },
    /// The masters of a cluster.
    Many(Cluster),
}

impl Masters {
    pub(crate) fn start(settings: &Arc<Settings>, topology: Topology) -> Self {
        let (master_address, tasks) = match topology {
            Topology::Single(address) => (MasterAddress::fixed(address, None), JoinSet::new()),
            Topology::Sentinel { sentinels, master } => {
                sentinel::watch(settings, sentinels, master)
            }
            Topology::Cluster { seeds } => return Self::Many(Cluster::start(settings, seeds)),
        };
        Self::One { handle: Master::start(settings, master_address, ""), _tasks: tasks }
    }

    /// Returns the master that owns `key`.
    pub(crate) fn owner(&self, key: &[u8]) -> Result<Owner, Unknown> {
        match self {
            Self::One { handle, .. } => {
                Ok(Owner { master: handle.master.clone(), settled: Ok(()) })
            }
            Self::Many(cluster) => cluster.owner(key),
        }
    }

    /// Returns the owner of `key`; waits until the map of a cluster is known.
    pub(crate) async fn wait_for_owner(&self, key: &[u8]) -> Result<Arc<Master>, StoreError> {
        match self {
            Self::One { handle, .. } => Ok(handle.master.clone()),
            Self::Many(cluster) => cluster.wait_for_owner(key).await,
        }
    }

    /// See [`Master::clock_offset_micros`]; of several masters, the one furthest behind.
    pub(crate) fn clock_offset_micros(&self) -> Option<i64> {
        match self {
            Self::One { handle, .. } => handle.master.clock_offset_micros(),
            Self::Many(cluster) => cluster.clock_offset_micros(),
        }
    }

    /// Returns why claims are not attempted now; `None` if they are.
    pub(crate) fn unavailable_reason(&self) -> Option<Unknown> {
        match self {
            Self::One { handle, .. } => handle.master.unavailable_reason(),
            Self::Many(cluster) => cluster.first_reason(Master::unavailable_reason),
        }
    }

    /// Returns why claims do not count now, as far as it is known without one.
    pub(crate) fn claim_problem(&self) -> Option<Unknown> {
        match self {
            Self::One { handle, .. } => handle.master.claim_problem(),
            Self::Many(cluster) => cluster.first_reason(Master::claim_problem),
        }
    }
}

/// The master that owns a key.
pub(crate) struct Owner {
    pub master: Arc<Master>,
    /// Whether this master has owned the key for a recording window.
    pub settled: Result<(), Unknown>,
}

/// Host and port as stores report them. An empty host means the responder.
fn address(host: &str, port: i64, responder: &Address) -> Option<Address> {
    let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
    match (host, responder) {
        ("" | "?", Address::Tcp(host, _)) => Some(Address::Tcp(host.clone(), port)),
        ("" | "?", Address::Unix(_)) => None,
        _ => Some(Address::Tcp(host.to_owned(), port)),
    }
}

/// The last reply of each voter, with the time of its request.
pub(super) struct Votes<T> {
    cast: Vec<Option<(T, Duration)>>,
}

impl<T: PartialEq> Votes<T> {
    pub(super) fn new(voters: usize) -> Self {
        Self { cast: (0..voters).map(|_| None).collect() }
    }

    /// Replaces the vote of a voter; `None` if it knows no master. The vote of a voter that does not
    /// reply stays, and gets older.
    pub(super) fn cast(&mut self, voter: usize, vote: Option<T>, requested_at: Duration) {
        if let Some(slot) = self.cast.get_mut(voter) {
            *slot = vote.map(|vote| (vote, requested_at));
        }
    }

    /// Returns the newest of the equal votes of more than half of all voters, with the earliest
    /// request time among the newest votes that make up this majority.
    pub(super) fn majority(&self) -> Option<(&T, Duration)> {
        let needed = self.cast.len() / 2 + 1;
        self.cast.iter().flatten().find_map(|(vote, _)| {
            let mut same: Vec<_> =
                self.cast.iter().flatten().filter(|(other, _)| other == vote).collect();
            same.sort_by(|(_, a), (_, b)| b.cmp(a));
            let (_, requested_at) = same.get(needed - 1)?;
            // The newest, because equal slot maps may differ in addresses, and the last vote of a
            // voter that is gone has outdated ones.
            same.first().map(|(newest, _)| (newest, *requested_at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn half_is_no_majority() {
        let mut votes = Votes::new(4);
        votes.cast(0, Some('a'), seconds(1));
        votes.cast(1, Some('a'), seconds(1));
        assert_eq!(votes.majority(), None);
        votes.cast(2, Some('a'), seconds(1));
        assert_eq!(votes.majority(), Some((&'a', seconds(1))));
    }

    #[test]
    fn the_newest_of_equal_votes_is_returned() {
        #[derive(Debug)]
        struct Map {
            owner: char,
            address: u8,
        }
        impl PartialEq for Map {
            fn eq(&self, other: &Self) -> bool {
                self.owner == other.owner
            }
        }
        let mut votes = Votes::new(3);
        votes.cast(0, Some(Map { owner: 'a', address: 1 }), seconds(1));
        votes.cast(1, Some(Map { owner: 'a', address: 2 }), seconds(9));
        votes.cast(2, Some(Map { owner: 'a', address: 2 }), seconds(9));
        let (map, requested_at) = votes.majority().unwrap();
        assert_eq!((map.address, requested_at), (2, seconds(9)));
    }

    #[test]
    fn a_majority_is_as_old_as_its_oldest_needed_vote() {
        let mut votes = Votes::new(3);
        votes.cast(0, Some('a'), seconds(1));
        votes.cast(1, Some('a'), seconds(7));
        assert_eq!(votes.majority(), Some((&'a', seconds(1))));
        votes.cast(2, Some('a'), seconds(5));
        assert_eq!(votes.majority(), Some((&'a', seconds(5))));
        votes.cast(2, Some('b'), seconds(9));
        assert_eq!(votes.majority(), Some((&'a', seconds(1))));
        votes.cast(1, None, seconds(9));
        assert_eq!(votes.majority(), None);
        votes.cast(7, Some('b'), seconds(9));
        assert_eq!(votes.majority(), None);
    }
}
