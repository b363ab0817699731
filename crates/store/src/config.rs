//! Which store, and how to talk to it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_replay::SharedConfig;

/// Where a store process listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

/// How the store's processes belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// One process.
    Single(Address),
    /// A master and its replicas, watched by sentinels.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<Address>,
        /// The master's name there.
        master: String,
    },
    /// A cluster of masters with 16,384 slots.
    Cluster {
        /// Some of its nodes, to ask for the others.
        seeds: Vec<Address>,
    },
}

/// TLS to the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreTls {
    /// Certificates to trust, PEM; `None`: the system's.
    pub ca_file: Option<PathBuf>,
    /// The name in the store's certificate; `None`: the host of its address.
    pub server_name: Option<String>,
}

/// A store's configuration.
#[derive(Clone)]
pub struct StoreConfig {
    /// Its processes.
    pub topology: Topology,
    /// TLS; `None`: none.
    pub tls: Option<StoreTls>,
    /// ACL user; `None`: the default user.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// The sentinels' password.
    pub sentinel_password: Option<String>,
    /// The database by number (not in a cluster).
    pub database: u32,
    /// How long a claim may take. Default 3 ms.
    pub budget: Duration,
    /// Connections to each master. Default 2.
    pub connections: usize,
    /// How many replicas must have a claim before it counts (`WAIT`). Default 0.
    pub replicas: u32,
    /// What all keys begin with. Default `firstflight`.
    pub prefix: String,
    /// The shared register's times.
    pub shared: SharedConfig,
}

impl StoreConfig {
    /// One process at `address`, with all defaults.
    pub fn new(topology: Topology) -> Self {
        let confirmation = match topology {
            Topology::Single(_) => Duration::ZERO,
            _ => SharedConfig::default().confirmation,
        };
        Self {
            topology,
            tls: None,
            username: None,
            password: None,
            sentinel_password: None,
            database: 0,
            budget: Duration::from_millis(3),
            connections: 2,
            replicas: 0,
            prefix: "firstflight".to_owned(),
            shared: SharedConfig { confirmation, ..SharedConfig::default() },
        }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("topology", &self.topology)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}
