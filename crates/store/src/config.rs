//! The configuration of a store.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_replay::SharedConfig;
use url::{Host, Url};

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

/// How the processes of the store are organised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// One process.
    Single(Address),
    /// A master and its replicas, watched by sentinels.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<Address>,
        /// The name that the sentinels have for the master.
        master: String,
    },
    /// A cluster of masters with 16,384 slots.
    Cluster {
        /// Addresses of some nodes, from which the others are discovered.
        seeds: Vec<Address>,
    },
}

/// TLS to the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreTls {
    /// Trusted certificates, PEM. `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// The name in the store's certificate. `None`: the host of its address.
    pub server_name: Option<String>,
}

/// A store's configuration.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// The processes of the store.
    pub topology: Topology,
    /// TLS settings. `None`: no TLS.
    pub tls: Option<StoreTls>,
    /// ACL user. `None`: the default user.
    pub username: Option<String>,
    /// Password of the user.
    pub password: Option<String>,
    /// The file from which the password was read. This crate does not read it.
    pub password_file: Option<PathBuf>,
    /// Password of the sentinels.
    pub sentinel_password: Option<String>,
    /// The file from which the password was read. This crate does not read it.
    pub sentinel_password_file: Option<PathBuf>,
    /// The number of the database (not in a cluster).
    pub database: u32,
    /// Timeout of a claim. Default 25 ms: on a busy processor the reply waits too.
    pub budget: Duration,
    /// Connections to each master. Default 2.
    pub connections: usize,
    /// How many replicas must have a claim before it counts (`WAIT`). Default 0.
    pub replicas: u32,
    /// Prefix of all keys. Default `firstflight`.
    pub prefix: String,
    /// Times of the shared strike register.
    pub shared: SharedConfig,
}

/// A longer budget would cost more than the round trip that early data saves.
const MAX_BUDGET: Duration = Duration::from_secs(1);
const MAX_CONNECTIONS: usize = 64;

impl StoreConfig {
    /// A store of this topology, with default settings.
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
            budget: Duration::from_millis(25),
            connections: 2,
            replicas: 0,
            prefix: "firstflight".to_owned(),
            shared: SharedConfig { confirmation, ..SharedConfig::default() },
        }
    }

    /// Whether `other` has the same settings, apart from the passwords.
    pub fn is_same_store(&self, other: &Self) -> bool {
        let without_passwords =
            |config: &Self| Self { password: None, sentinel_password: None, ..config.clone() };
        without_passwords(self) == without_passwords(other)
    }

    /// Checks that the settings are valid together.
    ///
    /// # Errors
    /// [`StoreError::Setting`], which names the setting and its fix.
    pub fn validate(&self) -> Result<(), StoreError> {
        let invalid = |why: &str| Err(StoreError::Setting(why.to_owned()));
        let clustered = matches!(self.topology, Topology::Cluster { .. });
        let voters = match &self.topology {
            Topology::Single(_) => 1,
            Topology::Sentinel { sentinels, .. } => sentinels.len(),
            Topology::Cluster { seeds } => seeds.len(),
        };
        if voters == 0 {
            return invalid("store: set the address of at least one sentinel or cluster node");
        }
        if self.budget.is_zero() || self.budget > MAX_BUDGET {
            return invalid("store: budget must be more than 0 and at most 1s");
        }
        if self.connections == 0 || self.connections > MAX_CONNECTIONS {
            return invalid("store: connections must be 1 to 64");
        }
        if self.prefix.is_empty() || self.prefix.contains(['{', '}', ' ', '\n']) {
            return invalid("store: prefix must not be empty or contain spaces or braces");
        }
        if clustered && self.database != 0 {
            return invalid("store: a cluster has only database 0; remove the database setting");
        }
        if self.username.is_some() && self.password.is_none() {
            return invalid("store: a user needs a password; set password_file");
        }
        if !matches!(self.topology, Topology::Single(_)) && self.shared.confirmation.is_zero() {
            return invalid("store: with sentinels or a cluster, confirmation must not be zero");
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

/// A store's address, parsed from a URL: `redis://HOST:PORT`, `rediss://HOST:PORT` for TLS, or
/// `unix:///PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUrl {
    /// The address.
    pub address: Address,
    /// Whether to use TLS.
    pub tls: bool,
}

impl StoreUrl {
    /// Parses a URL; the port defaults to `default_port`.
    ///
    /// # Errors
    /// [`StoreError::Setting`] with the allowed forms. It does not repeat a URL that may contain a
    /// password.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, StoreError> {
        let url = Url::parse(text).map_err(|_| invalid_url(text))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(StoreError::Setting(
                "the store's URL must not contain a user or password; set username and \
                 password_file"
                    .to_owned(),
            ));
        }
        let tls = match url.scheme() {
            "redis" => false,
            "rediss" => true,
            "unix" => return parse_unix(&url).ok_or_else(|| invalid_url(text)),
            _ => return Err(invalid_url(text)),
        };
        let host = match url.host() {
            Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            _ => return Err(invalid_url(text)),
        };
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(StoreError::Setting(format!(
                "{text:?} has a path or query; set the database by its own setting"
            )));
        }
        let address = Address::Tcp(host, url.port().unwrap_or(default_port));
        Ok(Self { address, tls })
    }
}

fn parse_unix(url: &Url) -> Option<StoreUrl> {
    let plain = url.host().is_none() && url.query().is_none() && url.fragment().is_none();
    let path = PathBuf::from(url.path());
    (plain && path.is_absolute() && !url.path().contains('%') && path.file_name().is_some())
        .then_some(StoreUrl { address: Address::Unix(path), tls: false })
}

fn invalid_url(text: &str) -> StoreError {
    // The part before an @ may be a password.
    let shown = text.rsplit('@').next().unwrap_or_default();
    StoreError::Setting(format!(
        "{shown:?} is not the address of a store; use redis://HOST:PORT, rediss://HOST:PORT \
         (TLS) or unix:///PATH"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(text: &str) -> (String, u16, bool) {
        match StoreUrl::parse(text, 6379).unwrap() {
            StoreUrl { address: Address::Tcp(host, port), tls } => (host, port, tls),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn urls_are_parsed() {
        assert_eq!(tcp("redis://127.0.0.1:7000"), ("127.0.0.1".into(), 7000, false));
        assert_eq!(tcp("redis://store.example/"), ("store.example".into(), 6379, false));
        assert_eq!(tcp("rediss://[2001:db8::1]:7"), ("2001:db8::1".into(), 7, true));
        let unix = StoreUrl::parse("unix:///run/redis/redis.sock", 6379).unwrap();
        assert_eq!(unix.address, Address::Unix("/run/redis/redis.sock".into()));
    }

    #[test]
    fn invalid_urls_are_refused_with_the_allowed_forms() {
        for text in [
            "",
            "localhost",
            "localhost:6379",
            "http://localhost",
            "redis://",
            "redis://:6379",
            "redis://h:99999",
            "unix://",
            "unix://host/path",
            "unix:///",
            "unix:relative",
            "redis:h",
        ] {
            let error = StoreUrl::parse(text, 6379).unwrap_err().to_string();
            assert!(error.contains("redis://HOST:PORT"), "{text}: {error}");
        }
        for text in ["redis://h:1/0", "redis://h/?db=1", "rediss://h#insecure"] {
            let error = StoreUrl::parse(text, 6379).unwrap_err().to_string();
            assert!(error.contains("database"), "{text}: {error}");
        }
    }

    #[test]
    fn no_error_repeats_a_password() {
        for text in ["redis://:hush@h", "redis://u:hush@h:1", "redi://u:hush@h", "u:hush@h"] {
            let error = StoreUrl::parse(text, 6379).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(redis|rediss|unix)?(:/{0,3})?\\PC{0,40}") {
            let _ = StoreUrl::parse(&text, 6379);
        }
    }
}
