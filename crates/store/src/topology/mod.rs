//! Which processes are masters, and of what: found out and kept up to date.

mod cluster;
mod sentinel;
mod slots;
mod votes;

use std::sync::Arc;

use firstflight_replay::Unknown;
use tokio::task::JoinSet;

use crate::StoreError;
use crate::master::{Master, Place, Running};
use crate::settings::Settings;
use crate::{Address, Topology};
use cluster::Cluster;
pub(crate) use slots::{SLOTS, SlotMap};

/// The masters, and the tasks that follow them.
pub(crate) enum Masters {
    /// One, wherever it is now.
    One {
        running: Running,
        /// Those that ask the sentinels.
        _tasks: JoinSet<()>,
    },
    /// One for each part of the slots.
    Many(Cluster),
}

impl Masters {
    pub(crate) fn start(settings: &Arc<Settings>, topology: Topology) -> Self {
        let (place, tasks) = match topology {
            Topology::Single(address) => (Place::fixed(address, None), JoinSet::new()),
            Topology::Sentinel { sentinels, master } => {
                sentinel::watch(settings, sentinels, master)
            }
            Topology::Cluster { seeds } => return Self::Many(Cluster::start(settings, seeds)),
        };
        Self::One { running: Master::start(settings, place, ""), _tasks: tasks }
    }

    /// Whose `key` is, and whether the owner has had it for long enough.
    pub(crate) fn owner(&self, key: &[u8]) -> Result<Owner, Unknown> {
        match self {
            Self::One { running, .. } => {
                Ok(Owner { master: running.master.clone(), settled: Ok(()) })
            }
            Self::Many(cluster) => cluster.owner(key),
        }
    }

    /// The same, but waits for a cluster to be known at all.
    pub(crate) async fn owner_soon(&self, key: &[u8]) -> Result<Arc<Master>, StoreError> {
        match self {
            Self::One { running, .. } => Ok(running.master.clone()),
            Self::Many(cluster) => cluster.owner_soon(key).await,
        }
    }

    /// How far the store's clock is ahead of this node's: the one furthest behind, of those known.
    pub(crate) fn clock_offset_micros(&self) -> Option<i64> {
        match self {
            Self::One { running, .. } => running.master.clock_offset_micros(),
            Self::Many(cluster) => cluster.clock_offset_micros(),
        }
    }

    /// Why nothing is worth a try now, if so.
    pub(crate) fn resting(&self) -> Option<Unknown> {
        match self {
            Self::One { running, .. } => running.master.resting(),
            Self::Many(cluster) => cluster.resting(),
        }
    }
}

/// A key's master.
pub(crate) struct Owner {
    pub master: Arc<Master>,
    /// Whether all claims under this key have been with this master for a recording window.
    pub settled: Result<(), Unknown>,
}

/// Host and port as stores give them. An empty host is the one that was asked.
fn address(host: &str, port: i64, asked: &Address) -> Option<Address> {
    let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
    match (host, asked) {
        ("" | "?", Address::Tcp(host, _)) => Some(Address::Tcp(host.clone(), port)),
        ("" | "?", Address::Unix(_)) => None,
        _ => Some(Address::Tcp(host.to_owned(), port)),
    }
}
