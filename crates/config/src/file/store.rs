//! The section `[store]`.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use firstflight_store::{Address, StoreConfig, StoreError, StoreTls, StoreUrl, Topology};
use firstflight_tickets::{SecretFileError, read_secret_file};
use firstflight_units::DurationText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resolve;
use crate::SettingError;
use crate::error::failed_checks;

/// The Redis or Valkey shared by the nodes of a cluster; see [cluster.md](../operate/cluster.md).
/// Without this section the process has its own strike register.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSection {
    /// Address of the store, `"redis://HOST:PORT"`, `"rediss://HOST:PORT"` for TLS or
    /// `"unix:///PATH"`; or a list with sentinels or some nodes of a cluster. Required.
    pub(crate) url: Urls,
    /// Topology of the store.
    pub(crate) mode: StoreMode,
    /// With mode = `"sentinel"`: name of the master.
    pub(crate) master: Option<String>,
    /// ACL user.
    ///
    /// By default the store's default user.
    pub(crate) username: Option<String>,
    /// File whose first line is the password; other users must not be able to read it.
    pub(crate) password_file: Option<PathBuf>,
    /// With mode = `"sentinel"`: the same for the sentinels.
    pub(crate) sentinel_password_file: Option<PathBuf>,
    /// With `rediss://`: PEM file of trusted certificates.
    ///
    /// By default the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// With `rediss://`: expected name in the store's certificate.
    ///
    /// By default the host of its address.
    pub(crate) server_name: Option<String>,
    /// Database number.
    ///
    /// By default 0, the only database of a cluster.
    pub(crate) database: u32,
    /// How long a flight may wait for its claim, at most 1s, before its early data is refused.
    ///
    /// By default what a busy processor adds to a round trip within a data centre, and less than a
    /// refusal costs most clients: one round trip.
    #[serde(with = "DurationText")]
    pub(crate) budget: Duration,
    /// Connections to each master, 1 to 64.
    ///
    /// By default two, so that one remains while the other reconnects.
    pub(crate) connections: usize,
    /// Replicas that have to confirm a claim before it counts (`WAIT`).
    ///
    /// By default none: after a failover early data is refused for a recording window, so that
    /// nothing runs twice.
    pub(crate) replicas: u32,
    /// Prefix of all keys in the store, so that installations can share it.
    ///
    /// By default the program's name, easy to recognize.
    pub(crate) prefix: String,
    /// Maximum difference between the clocks of a node and the store, 1s to 60s; beyond it a node
    /// runs nothing early. All nodes need the same value, as for `freshness` and `prefix`.
    ///
    /// By default far more than NTP leaves. A record then expires 35 s after its client's ticket
    /// age is exact, and an emptied store stops early data for 47 s (with sentinels or a
    /// cluster 52 s).
    #[serde(with = "DurationText")]
    pub(crate) clock_margin: Duration,
}

/// The topology of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreMode {
    /// A single server.
    #[default]
    Single,
    /// A master with replicas, monitored by sentinels.
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
    /// Converts to settings, or returns all errors. Reads the password files.
    pub(super) fn config(
        self,
        freshness: Duration,
        base: &Path,
    ) -> Result<StoreConfig, Vec<SettingError>> {
        let (addresses, tls) = self.addresses().map_err(|error| vec![error])?;
        let mut errors = Vec::new();
        let tls = take_error(self.tls(tls, base), &mut errors).flatten();
        let Some(topology) = take_error(self.topology(addresses), &mut errors) else {
            return Err(errors);
        };
        let mut config = StoreConfig::new(topology);
        config.tls = tls;
        config.username = self.username;
        config.password_file = self.password_file.map(|file| resolve(base, file));
        let read = password("password_file", config.password_file.as_deref());
        config.password = take_error(read, &mut errors).flatten();
        config.sentinel_password_file = self.sentinel_password_file.map(|file| resolve(base, file));
        let read = password("sentinel_password_file", config.sentinel_password_file.as_deref());
        config.sentinel_password = take_error(read, &mut errors).flatten();
        config.database = self.database;
        config.budget = self.budget;
        config.connections = self.connections;
        config.replicas = self.replicas;
        config.prefix = self.prefix;
        config.shared.freshness = freshness;
        config.shared.clock_margin = self.clock_margin;
        // A password that cannot be read looks like one that is missing.
        if errors.is_empty() {
            errors = check(&config);
        }
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }

    /// The addresses, and whether they use TLS.
    fn addresses(&self) -> Result<(Vec<Address>, bool), SettingError> {
        let problem = |reason: &str| SettingError::new("url", reason);
        let port = if self.mode == StoreMode::Sentinel { SENTINEL_PORT } else { STORE_PORT };
        let urls = match &self.url {
            Urls::One(url) => std::slice::from_ref(url),
            Urls::Several(urls) => urls.as_slice(),
        };
        let urls = urls.iter().map(|url| StoreUrl::parse(url, port));
        let urls = urls.collect::<Result<Vec<_>, StoreError>>();
        let urls = urls.map_err(|error| problem(&error.to_string()))?;
        let Some(first) = urls.first() else {
            return Err(problem("the store has no `url`; add one such as redis://HOST:PORT"));
        };
        let tls = first.tls;
        if urls.iter().any(|url| url.tls != tls) {
            return Err(problem("use rediss:// for all urls or for none"));
        }
        if self.mode == StoreMode::Single && urls.len() > 1 {
            return Err(problem(
                "a list of urls is for sentinels or a cluster's seeds; set mode to \"sentinel\" \
                 or \"cluster\"",
            ));
        }
        let unix = urls.iter().any(|url| matches!(url.address, Address::Unix(_)));
        if self.mode == StoreMode::Cluster && unix {
            return Err(problem("a cluster needs redis:// or rediss:// addresses"));
        }
        Ok((urls.into_iter().map(|url| url.address).collect(), tls))
    }

    fn tls(&self, tls: bool, base: &Path) -> Result<Option<StoreTls>, SettingError> {
        let unused =
            [("ca_file", self.ca_file.is_some()), ("server_name", self.server_name.is_some())];
        if let (false, Some((key, _))) = (tls, unused.iter().find(|(_, set)| *set)) {
            let reason = format!("{key} is for TLS only; set url to rediss://HOST:PORT");
            return Err(SettingError::new(*key, reason));
        }
        Ok(tls.then(|| StoreTls {
            ca_file: self.ca_file.clone().map(|file| resolve(base, file)),
            server_name: self.server_name.clone(),
        }))
    }

    fn topology(&self, mut addresses: Vec<Address>) -> Result<Topology, SettingError> {
        if self.mode != StoreMode::Sentinel {
            let unused = [
                ("master", self.master.is_some()),
                ("sentinel_password_file", self.sentinel_password_file.is_some()),
            ];
            if let Some((key, _)) = unused.iter().find(|(_, set)| *set) {
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
                "mode = \"sentinel\" needs the master's name; add master = \"mymaster\"",
            )),
            (StoreMode::Cluster, _, 0) => Ok(Topology::Cluster { seeds: addresses }),
            (StoreMode::Cluster, ..) => {
                Err(SettingError::new("database", "a cluster has only database 0"))
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
    file.map(|file| read_password(file).map_err(|error| SettingError::new(key, error))).transpose()
}

/// Moves the error of a result to `errors`.
fn take_error<T>(result: Result<T, SettingError>, errors: &mut Vec<SettingError>) -> Option<T> {
    result.map_err(|error| errors.push(error)).ok()
}

/// Returns all errors of values.
fn check(config: &StoreConfig) -> Vec<SettingError> {
    // `StoreConfig::validate` does not check the margin.
    let margins = MIN_CLOCK_MARGIN..=MAX_CLOCK_MARGIN;
    let mut errors = failed_checks([(
        "clock_margin",
        margins.contains(&config.shared.clock_margin),
        "clock_margin is out of range; allowed are 1s to 60s",
    )]);
    errors.extend(config.validate().err().map(|error| {
        let reason = error.to_string();
        let keys = ["budget", "connections", "prefix", "user"];
        let key = keys.into_iter().find(|key| reason.contains(key)).unwrap_or("url");
        SettingError::new(if key == "user" { "username" } else { key }, reason)
    }));
    errors
}

/// Default ports.
const SENTINEL_PORT: u16 = 26379;
const STORE_PORT: u16 = 6379;

/// Below this, the rounding of ticket ages in TLS would refuse early data; above it, recording
/// windows become very long.
const MIN_CLOCK_MARGIN: Duration = Duration::from_secs(1);
const MAX_CLOCK_MARGIN: Duration = Duration::from_secs(60);

/// Reads the first line of a file that other users cannot read, so that the configuration itself
/// has no secrets.
///
/// # Errors
/// One sentence with the fix.
fn read_password(path: &Path) -> Result<String, String> {
    let cannot = |reason: &dyn Display| {
        format!("cannot read the password in {}: {reason}; use a readable file", path.display())
    };
    let (text, _) = read_secret_file(path).map_err(|error| match error {
        SecretFileError::Read(reason) => cannot(&reason),
        SecretFileError::ReadableByOthers(mode) => format!(
            "the password in {0} can be read by others (mode {mode:03o}); run `chmod 600 {0}`",
            path.display()
        ),
        SecretFileError::TooLong => cannot(&"it is too long for a password"),
    })?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{} has no password in its first line", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_line_of_a_private_file_is_the_password() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read_password(&path)
        };
        assert_eq!(write("hush\nold\n", 0o600).unwrap(), "hush");
        assert_eq!(write("no end of line", 0o400).unwrap(), "no end of line");
        let error = write("hush\n", 0o640).unwrap_err();
        assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
        assert!(!error.contains("hush"));
        assert!(write("\nhush", 0o600).unwrap_err().contains("no password"));
        assert!(read_password(dir.path()).unwrap_err().contains("not a regular file"));
        assert!(
            read_password(&dir.path().join("none")).unwrap_err().contains("use a readable file")
        );
    }
}
