//! The section `[store]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use firstflight_store::{Address, StoreConfig, StoreError, StoreTls, StoreUrl, Topology};
use firstflight_units::DurationText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{beside, password};
use crate::SettingError;

/// The Redis or Valkey that the cluster's nodes share; more in [cluster.md](cluster.md). Without
/// this section the process is alone, and its strike register too.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSection {
    /// Its address, `"redis://HOST:PORT"`, `"rediss://HOST:PORT"` for TLS or `"unix:///PATH"`; a
    /// list of them for sentinels or some of a cluster's nodes. Needed.
    pub(crate) url: Urls,
    /// How its processes belong together.
    ///
    /// By default there is one.
    pub(crate) mode: StoreMode,
    /// With mode = `"sentinel"`: the master's name at the sentinels.
    pub(crate) master: Option<String>,
    /// ACL user.
    ///
    /// By default the store's default user.
    pub(crate) username: Option<String>,
    /// A file whose first line is the password, for nobody else to read.
    pub(crate) password_file: Option<PathBuf>,
    /// With mode = `"sentinel"`: likewise, for the sentinels.
    pub(crate) sentinel_password_file: Option<PathBuf>,
    /// With `rediss://`: certificates to trust, PEM.
    ///
    /// By default the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// With `rediss://`: the name in the store's certificate.
    ///
    /// By default the host of its address.
    pub(crate) server_name: Option<String>,
    /// The database by number; a cluster has 0 alone.
    ///
    /// By default the one that every client starts with.
    pub(crate) database: u32,
    /// How long a flight may wait for its claim, up to 1s; after it, its early data is refused.
    ///
    /// By default several round trips within one data centre, and less than what most clients
    /// lose by a refusal, a round trip of theirs.
    #[serde(with = "DurationText")]
    pub(crate) budget: Duration,
    /// Connections to each master, 1 to 64.
    ///
    /// By default two, so that one is in use while the other is made again.
    pub(crate) connections: usize,
    /// How many replicas have to have a claim before it counts (`WAIT`).
    ///
    /// By default none: a failover closes the gate for a window, so that nothing runs twice.
    pub(crate) replicas: u32,
    /// What all keys in the store start with, so that several installations can share one.
    ///
    /// By default the program's name, which whoever looks into the store will know.
    pub(crate) prefix: String,
    /// How far a node's clock may be from the store's, 1s to 60s; one that is further off runs
    /// nothing early. It has to be the same on all nodes, as `freshness` and `prefix` have to.
    ///
    /// By default far more than what NTP leaves. With it, a record ends 35 s after the moment at
    /// which its client's ticket age is exact, and an emptied store closes the gate for 52 s.
    #[serde(with = "DurationText")]
    pub(crate) clock_margin: Duration,
}

/// How a store's processes belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreMode {
    /// One process.
    #[default]
    Single,
    /// A master and its replicas, watched by sentinels.
    Sentinel,
    /// A cluster of masters.
    Cluster,
}

/// One URL, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged, expecting = "url is a string such as \"redis://HOST:PORT\", or a list of them")]
pub(crate) enum Urls {
    /// One.
    One(String),
    /// A list.
    Several(Vec<String>),
}

impl StoreSection {
    /// The settings, in a file whose freshness window is `freshness`. Reads the passwords.
    pub(super) fn config(
        self,
        freshness: Duration,
        base: &Path,
    ) -> Result<StoreConfig, SettingError> {
        let (addresses, tls) = self.addresses()?;
        let tls = self.tls(tls, base)?;
        let topology = self.topology(addresses)?;
        let mut config = StoreConfig::new(topology);
        config.tls = tls;
        config.username = self.username;
        config.password_file = self.password_file.map(|file| beside(base, file));
        config.password = password("password_file", config.password_file.as_deref())?;
        config.sentinel_password_file = self.sentinel_password_file.map(|file| beside(base, file));
        let sentinels = config.sentinel_password_file.as_deref();
        config.sentinel_password = password("sentinel_password_file", sentinels)?;
        config.database = self.database;
        config.budget = self.budget;
        config.connections = self.connections;
        config.replicas = self.replicas;
        config.prefix = self.prefix;
        config.shared.freshness = freshness;
        config.shared.clock_margin = self.clock_margin;
        check(&config)?;
        Ok(config)
    }

    /// The addresses, and whether they are spoken to by TLS.
    fn addresses(&self) -> Result<(Vec<Address>, bool), SettingError> {
        let wrong = |reason: &str| SettingError::new("url", reason);
        let port = if self.mode == StoreMode::Sentinel { SENTINEL_PORT } else { STORE_PORT };
        let urls = match &self.url {
            Urls::One(url) => std::slice::from_ref(url),
            Urls::Several(urls) => urls.as_slice(),
        };
        let urls = urls.iter().map(|url| StoreUrl::parse(url, port));
        let urls = urls.collect::<Result<Vec<_>, StoreError>>();
        let urls = urls.map_err(|error| wrong(&error.to_string()))?;
        let Some(first) = urls.first() else {
            return Err(wrong("the store has no `url`; give one such as redis://HOST:PORT"));
        };
        let tls = first.tls;
        if urls.iter().any(|url| url.tls != tls) {
            return Err(wrong("either all urls are rediss:// or none"));
        }
        if self.mode == StoreMode::Single && urls.len() > 1 {
            return Err(wrong(
                "a list of urls is for sentinels or a cluster's seeds; set mode to \"sentinel\" \
                 or \"cluster\"",
            ));
        }
        let unix = urls.iter().any(|url| matches!(url.address, Address::Unix(_)));
        if self.mode == StoreMode::Cluster && unix {
            return Err(wrong("a cluster's nodes are at redis:// or rediss:// addresses"));
        }
        Ok((urls.into_iter().map(|url| url.address).collect(), tls))
    }

    fn tls(&self, tls: bool, base: &Path) -> Result<Option<StoreTls>, SettingError> {
        let unused =
            [("ca_file", self.ca_file.is_some()), ("server_name", self.server_name.is_some())];
        if let (false, Some((key, _))) = (tls, unused.iter().find(|(_, given)| *given)) {
            let reason = format!("{key} is for TLS only; give the url as rediss://HOST:PORT");
            return Err(SettingError::new(*key, reason));
        }
        Ok(tls.then(|| StoreTls {
            ca_file: self.ca_file.clone().map(|file| beside(base, file)),
            server_name: self.server_name.clone(),
        }))
    }

    fn topology(&self, mut addresses: Vec<Address>) -> Result<Topology, SettingError> {
        if self.mode != StoreMode::Sentinel {
            let unused = [
                ("master", self.master.is_some()),
                ("sentinel_password_file", self.sentinel_password_file.is_some()),
            ];
            if let Some((key, _)) = unused.iter().find(|(_, given)| *given) {
                let reason = format!("{key} is for mode = \"sentinel\" only");
                return Err(SettingError::new(*key, reason));
            }
        }
        match (self.mode, &self.master, self.database) {
            (StoreMode::Single, ..) => Ok(Topology::Single(addresses.remove(0))),
            (StoreMode::Sentinel, Some(master), _) => {
                Ok(Topology::Sentinel { sentinels: addresses, master: master.clone() })
            }
            (StoreMode::Sentinel, None, _) => Err(SettingError::new(
                "mode",
                "mode = \"sentinel\" needs the master's name; give master = \"mymaster\"",
            )),
            (StoreMode::Cluster, _, 0) => Ok(Topology::Cluster { seeds: addresses }),
            (StoreMode::Cluster, ..) => {
                Err(SettingError::new("database", "a cluster has database 0 alone"))
            }
        }
    }

    pub(super) fn of(config: &StoreConfig) -> Self {
        let scheme = if config.tls.is_some() { "rediss" } else { "redis" };
        let url = |address: &Address| match address {
            Address::Tcp(..) => format!("{scheme}://{address}"),
            Address::Unix(path) => format!("unix://{}", path.display()),
        };
        let urls = |addresses: &[Address]| Urls::Several(addresses.iter().map(url).collect());
        let (url, mode, master) = match &config.topology {
            Topology::Single(address) => (Urls::One(url(address)), StoreMode::Single, None),
            Topology::Sentinel { sentinels, master } => {
                (urls(sentinels), StoreMode::Sentinel, Some(master.clone()))
            }
            Topology::Cluster { seeds } => (urls(seeds), StoreMode::Cluster, None),
        };
        let tls = config.tls.clone().unwrap_or_default();
        Self {
            url,
            mode,
            master,
            username: config.username.clone(),
            password_file: config.password_file.clone(),
            sentinel_password_file: config.sentinel_password_file.clone(),
            ca_file: tls.ca_file,
            server_name: tls.server_name,
            database: config.database,
            budget: config.budget,
            connections: config.connections,
            replicas: config.replicas,
            prefix: config.prefix.clone(),
            clock_margin: config.shared.clock_margin,
        }
    }
}

impl Default for StoreSection {
    fn default() -> Self {
        let default = StoreConfig::new(Topology::Cluster { seeds: Vec::new() });
        Self { mode: StoreMode::default(), ..Self::of(&default) }
    }
}

fn password(key: &'static str, file: Option<&Path>) -> Result<Option<String>, SettingError> {
    file.map(|file| password::read(file).map_err(|error| SettingError::new(key, error))).transpose()
}

/// What cannot be, whatever else is said.
fn check(config: &StoreConfig) -> Result<(), SettingError> {
    let times = config.shared;
    if times.clock_margin < MIN_CLOCK_MARGIN || times.clock_margin > MAX_CLOCK_MARGIN {
        let reason = "clock_margin is out of bounds; allowed are 1s to 60s";
        return Err(SettingError::new("clock_margin", reason));
    }
    config.validate().map_err(|error| {
        let reason = error.to_string();
        let keys = ["budget", "connections", "prefix", "user"];
        let key = keys.into_iter().find(|key| reason.contains(key)).unwrap_or("url");
        SettingError::new(if key == "user" { "username" } else { key }, reason)
    })
}

/// Where sentinels and stores listen unless told otherwise.
const SENTINEL_PORT: u16 = 26379;
const STORE_PORT: u16 = 6379;

/// Less than what TLS rounds by would leave nodes without early data; more would make a window
/// after which no operator asks any more.
const MIN_CLOCK_MARGIN: Duration = Duration::from_secs(1);
const MAX_CLOCK_MARGIN: Duration = Duration::from_secs(60);
