//! The section `[store]`.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use firstflight_store::{Address, StoreConfig, StoreError, StoreTls, StoreUrl, Topology};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::{Length, Misplaced, password};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreSection {
    url: Spanned<Urls>,
    #[serde(default)]
    mode: Mode,
    master: Option<Spanned<String>>,
    username: Option<String>,
    password_file: Option<Spanned<PathBuf>>,
    sentinel_password_file: Option<Spanned<PathBuf>>,
    ca_file: Option<Spanned<PathBuf>>,
    server_name: Option<Spanned<String>>,
    database: Option<Spanned<u32>>,
    budget: Option<Length>,
    connections: Option<usize>,
    replicas: Option<u32>,
    prefix: Option<String>,
    clock_margin: Option<Length>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Single,
    Sentinel,
    Cluster,
}

/// One URL, or a list of them.
struct Urls(Vec<String>);

impl StoreSection {
    /// The section that stands at `at`, of a file whose freshness window is `freshness`.
    pub(super) fn config(
        self,
        at: Range<usize>,
        freshness: Duration,
    ) -> Result<StoreConfig, Misplaced> {
        let (addresses, tls) = self.addresses()?;
        let tls = self.tls(tls)?;
        let topology = self.topology(addresses)?;
        let mut config = StoreConfig::new(topology);
        config.tls = tls;
        config.username = self.username;
        config.password = password(self.password_file)?;
        config.sentinel_password = password(self.sentinel_password_file)?;
        config.database = self.database.map_or(config.database, Spanned::into_inner);
        config.budget = self.budget.map_or(config.budget, |budget| budget.0);
        config.connections = self.connections.unwrap_or(config.connections);
        config.replicas = self.replicas.unwrap_or(config.replicas);
        config.prefix = self.prefix.unwrap_or(config.prefix);
        config.shared.freshness = freshness;
        let margin = self.clock_margin.map_or(config.shared.clock_margin, |margin| margin.0);
        config.shared.clock_margin = margin;
        check(&config).map_err(|reason| Misplaced(at, reason))?;
        Ok(config)
    }

    /// The addresses, and whether they are spoken to by TLS.
    fn addresses(&self) -> Result<(Vec<Address>, bool), Misplaced> {
        let at = self.url.span();
        let wrong = |reason: &str| Misplaced(at.clone(), reason.to_owned());
        let port = if self.mode == Mode::Sentinel { SENTINEL_PORT } else { STORE_PORT };
        let urls = self.url.get_ref().0.iter().map(|url| StoreUrl::parse(url, port));
        let urls = urls.collect::<Result<Vec<_>, StoreError>>();
        let urls = urls.map_err(|error| wrong(&error.to_string()))?;
        let Some(first) = urls.first() else {
            return Err(wrong("the store has no url; give one such as redis://HOST:PORT"));
        };
        let tls = first.tls;
        if urls.iter().any(|url| url.tls != tls) {
            return Err(wrong("either all urls are rediss:// or none"));
        }
        if self.mode == Mode::Single && urls.len() > 1 {
            return Err(wrong(
                "a list of urls is for sentinels or a cluster's seeds; set mode to \"sentinel\" \
                 or \"cluster\"",
            ));
        }
        let unix = urls.iter().any(|url| matches!(url.address, Address::Unix(_)));
        if self.mode == Mode::Cluster && unix {
            return Err(wrong("a cluster's nodes are at redis:// or rediss:// addresses"));
        }
        Ok((urls.into_iter().map(|url| url.address).collect(), tls))
    }

    fn tls(&self, tls: bool) -> Result<Option<StoreTls>, Misplaced> {
        let unused = [
            self.ca_file.as_ref().map(|file| (file.span(), "ca_file")),
            self.server_name.as_ref().map(|name| (name.span(), "server_name")),
        ];
        if let (false, Some((at, name))) = (tls, unused.into_iter().flatten().next()) {
            let reason = format!("{name} is for TLS only; give the url as rediss://HOST:PORT");
            return Err(Misplaced(at, reason));
        }
        if let Some(file) = &self.ca_file {
            readable(file.get_ref()).map_err(|reason| Misplaced(file.span(), reason))?;
        }
        Ok(tls.then(|| StoreTls {
            ca_file: self.ca_file.as_ref().map(|file| file.get_ref().clone()),
            server_name: self.server_name.as_ref().map(|name| name.get_ref().clone()),
        }))
    }

    fn topology(&self, mut addresses: Vec<Address>) -> Result<Topology, Misplaced> {
        let wrong = |at: Range<usize>, reason: &str| Err(Misplaced(at, reason.to_owned()));
        if self.mode != Mode::Sentinel {
            let master = self.master.as_ref().map(|master| (master.span(), "master"));
            let password = self.sentinel_password_file.as_ref();
            let password = password.map(|file| (file.span(), "sentinel_password_file"));
            if let Some((at, name)) = master.or(password) {
                return wrong(at, &format!("{name} is for mode = \"sentinel\" only"));
            }
        }
        match (self.mode, &self.master, &self.database) {
            (Mode::Single, ..) => Ok(Topology::Single(addresses.remove(0))),
            (Mode::Sentinel, Some(master), _) => {
                Ok(Topology::Sentinel { sentinels: addresses, master: master.get_ref().clone() })
            }
            (Mode::Sentinel, None, _) => wrong(
                self.url.span(),
                "mode = \"sentinel\" needs the master's name; give master = \"mymaster\"",
            ),
            (Mode::Cluster, _, Some(database)) if *database.get_ref() != 0 => {
                wrong(database.span(), "a cluster has database 0 alone")
            }
            (Mode::Cluster, ..) => Ok(Topology::Cluster { seeds: addresses }),
        }
    }
}

fn password(file: Option<Spanned<PathBuf>>) -> Result<Option<String>, Misplaced> {
    file.map(|file| password::read(file.get_ref()).map_err(|error| Misplaced(file.span(), error)))
        .transpose()
}

fn readable(path: &Path) -> Result<(), String> {
    match std::fs::File::open(path) {
        Ok(_) => Ok(()),
        Err(reason) => Err(format!(
            "cannot read the certificate authorities in {}: {reason}; give a PEM file",
            path.display()
        )),
    }
}

/// What cannot be, whatever else is said.
fn check(config: &StoreConfig) -> Result<(), String> {
    let times = config.shared;
    if times.freshness.is_zero() || times.freshness > MAX_FRESHNESS {
        return Err("with a store, freshness may be more than 0s and up to 60s".to_owned());
    }
    if times.clock_margin < MIN_CLOCK_MARGIN || times.clock_margin > MAX_CLOCK_MARGIN {
        return Err("clock_margin is out of bounds; allowed are 1s to 60s".to_owned());
    }
    config.validate().map_err(|error| error.to_string())
}

impl<'de> Deserialize<'de> for Urls {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OneOrMore;

        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Urls;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a url such as \"redis://HOST:PORT\" or a list of them")
            }

            fn visit_str<E: de::Error>(self, url: &str) -> Result<Urls, E> {
                Ok(Urls(vec![url.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Urls, A::Error> {
                let mut urls = Vec::new();
                while let Some(url) = list.next_element()? {
                    urls.push(url);
                }
                Ok(Urls(urls))
            }
        }

        from.deserialize_any(OneOrMore)
    }
}

/// Where sentinels and stores listen unless told otherwise.
const SENTINEL_PORT: u16 = 26379;
const STORE_PORT: u16 = 6379;

/// TLS itself refuses early data whose ticket's age is further off.
const MAX_FRESHNESS: Duration = Duration::from_secs(60);

/// Less than what TLS rounds by would leave nodes without early data; more would make a window
/// after which no operator asks any more.
const MIN_CLOCK_MARGIN: Duration = Duration::from_secs(1);
const MAX_CLOCK_MARGIN: Duration = Duration::from_secs(60);
