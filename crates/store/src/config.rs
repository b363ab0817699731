//! Which store, and how to talk to it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_replay::SharedConfig;

use crate::StoreError;

/// Where a store process listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
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
#[derive(Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Its processes.
    pub topology: Topology,
    /// TLS; `None`: none.
    pub tls: Option<StoreTls>,
    /// ACL user; `None`: the default user.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// The file that it was read from; `None`: none. Nothing here reads it.
    pub password_file: Option<PathBuf>,
    /// The sentinels' password.
    pub sentinel_password: Option<String>,
    /// The file that it was read from; `None`: none. Nothing here reads it.
    pub sentinel_password_file: Option<PathBuf>,
    /// The database by number (not in a cluster).
    pub database: u32,
    /// How long a claim may take. Default 3 ms.
    pub budget: Duration,
    /// Connections to each master. Default 2.
    pub connections: usize,
    /// How many replicas must have a claim before it counts (`WAIT`). Default 0.
    pub replicas: u32,
    /// What all keys start with. Default `firstflight`.
    pub prefix: String,
    /// The shared register's times.
    pub shared: SharedConfig,
}

/// A longer budget would cost more than the round trip that early data saves.
const MAX_BUDGET: Duration = Duration::from_secs(1);
const MAX_CONNECTIONS: usize = 64;

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
            password_file: None,
            sentinel_password: None,
            sentinel_password_file: None,
            database: 0,
            budget: Duration::from_millis(3),
            connections: 2,
            replicas: 0,
            prefix: "firstflight".to_owned(),
            shared: SharedConfig { confirmation, ..SharedConfig::default() },
        }
    }

    /// Whether it can be.
    ///
    /// # Errors
    /// [`StoreError::Setting`] with the setting and its fix.
    pub fn validate(&self) -> Result<(), StoreError> {
        let wrong = |why: &str| Err(StoreError::Setting(why.to_owned()));
        let clustered = matches!(self.topology, Topology::Cluster { .. });
        let voters = match &self.topology {
            Topology::Single(_) => 1,
            Topology::Sentinel { sentinels, .. } => sentinels.len(),
            Topology::Cluster { seeds } => seeds.len(),
        };
        if voters == 0 {
            return wrong("store: give the address of at least one sentinel or cluster node");
        }
        if self.budget.is_zero() || self.budget > MAX_BUDGET {
            return wrong("store: the budget has to be more than 0 and at most 1s");
        }
        if self.connections == 0 || self.connections > MAX_CONNECTIONS {
            return wrong("store: connections have to be 1 to 64");
        }
        if self.prefix.is_empty() || self.prefix.contains(['{', '}', ' ', '\n']) {
            return wrong("store: the prefix must not be empty nor contain spaces or braces");
        }
        if clustered && self.database != 0 {
            return wrong("store: a cluster has database 0 alone; remove the database");
        }
        if self.username.is_some() && self.password.is_none() {
            return wrong("store: a user needs a password; set password_file");
        }
        if !matches!(self.topology, Topology::Single(_)) && self.shared.confirmation.is_zero() {
            return wrong("store: behind sentinels or in a cluster, confirmation cannot be zero");
        }
        Ok(())
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
