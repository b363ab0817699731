//! Where the keys come from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use firstflight_config::{KeySource, ServerConfig};
use firstflight_store::ring::{NodeStatus, SharedRing, SharedRingError};
use firstflight_store::{Store, StoreConfig, StoreError};
use firstflight_tickets::{DatedKey, KeyEncryption, KeyFile, Ring, Schedule};
use firstflight_tls::SteadyClock;
use tokio::time::{sleep, timeout};

use super::now;

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(super) struct SourceArgs {
    /// Key file, as written by `keys new`.
    file: Option<PathBuf>,
    /// The servers' configuration file, whose [tickets] section names the keys.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A place where keys are.
pub(super) enum Source {
    /// A file.
    File(KeyFile),
    /// A store, by the configuration file that names it.
    Store(PathBuf, SharedRing),
}

impl SourceArgs {
    /// Has to be called inside a runtime, in which a store is spoken to.
    pub(super) fn open(self) -> anyhow::Result<Source> {
        if let Some(file) = self.file {
            return Ok(Source::File(KeyFile::new(file)));
        }
        let path = self.config.unwrap_or_default();
        let config = ServerConfig::read(&path).map_err(|error| anyhow::anyhow!("{error}"))?;
        match (config.tickets.keys, config.store) {
            (KeySource::File(file), _) => Ok(Source::File(KeyFile::new(file))),
            (KeySource::Store { key_encryption, schedule }, Some(store)) => {
                Ok(Source::Store(path, shared(store, &key_encryption, schedule)?))
            }
            _ => anyhow::bail!(
                "{}: each process has ticket keys of its own; set keys to \"file\" or \"store\" in \
                 [tickets]",
                path.display()
            ),
        }
    }
}

fn shared(
    mut store: StoreConfig,
    key_encryption: &Path,
    schedule: Schedule,
) -> anyhow::Result<SharedRing> {
    // No handshake waits here.
    store.connections = 1;
    let store = Store::open(store, SteadyClock::unix_micros)?;
    Ok(SharedRing::new(store, KeyEncryption::open(key_encryption)?, schedule))
}

impl Source {
    /// The ring as it is.
    pub(super) async fn read(&self) -> anyhow::Result<Ring> {
        match self {
            Self::File(file) => Ok(file.read()?),
            Self::Store(_, ring) => Ok(patiently(async || ring.read(now()).await).await?),
        }
    }

    /// The ring as it is, for use: a store that lacks a key gets it.
    pub(super) async fn take(&self) -> anyhow::Result<Ring> {
        match self {
            Self::File(file) => Ok(file.read()?),
            Self::Store(_, ring) => Ok(patiently(async || ring.refresh(now()).await).await?),
        }
    }

    /// The same, once more. A store that does not answer soon is an error.
    pub(super) async fn look_again(&self) -> anyhow::Result<Ring> {
        match self {
            Self::File(file) => Ok(file.read()?),
            Self::Store(_, ring) => {
                let looked = timeout(SOON, ring.refresh(now())).await;
                Ok(looked.context("ticket keys: the store does not answer")??)
            }
        }
    }

    /// Puts another key into use. What there is to say of it.
    pub(super) async fn rotate(&self) -> anyhow::Result<String> {
        match self {
            Self::File(file) => {
                file.rotate(now())?;
                Ok(format!("{self} is rotated; servers take it up within a second"))
            }
            Self::Store(_, ring) => {
                // Asked first, so that it is there; but put in once only, as a response may be
                // lost.
                let before = match patiently(async || ring.read(now()).await).await {
                    Ok(before) => Some(before),
                    Err(SharedRingError::Empty) => None,
                    Err(error) => return Err(error.into()),
                };
                let after = ring.rotate(now()).await?;
                let known = before.as_ref().map_or(&[][..], Ring::keys);
                let is_known = |key: &DatedKey| known.iter().any(|other| other.key == key.key);
                let fresh = after.keys().iter().filter(|key| !is_known(key));
                let at = fresh.map(|key| key.not_before.0).min().unwrap_or_default();
                let soon = at.saturating_sub(now().0);
                Ok(format!("a new key is in the store; servers seal under it in {soon} s"))
            }
        }
    }

    /// The nodes that say that they use the keys; `None`: nobody says such things of a file.
    pub(super) async fn nodes(&self) -> anyhow::Result<Option<Vec<NodeStatus>>> {
        match self {
            Self::File(_) => Ok(None),
            Self::Store(_, ring) => Ok(Some(ring.nodes().await?)),
        }
    }

    /// What is wrong with some of the keys, each told once.
    pub(super) fn complaints(&self) -> Vec<String> {
        match self {
            Self::File(_) => Vec::new(),
            Self::Store(_, ring) => ring.take_warnings().iter().map(ToString::to_string).collect(),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.path().display().fmt(f),
            Self::Store(config, _) => write!(f, "the store of {}", config.display()),
        }
    }
}

/// Asks again for a while as long as the store does not answer: its connections have only started.
async fn patiently<F>(ask: F) -> Result<Ring, SharedRingError>
where
    F: AsyncFn() -> Result<Ring, SharedRingError>,
{
    let began = Instant::now();
    loop {
        match timeout(STORE_TIMEOUT, ask()).await {
            Ok(Err(SharedRingError::Store(_))) if began.elapsed() < STORE_TIMEOUT => {
                sleep(Duration::from_millis(50)).await;
            }
            Ok(response) => return response,
            Err(_) => return Err(StoreError::Absent("it is silent".to_owned()).into()),
        }
    }
}

const STORE_TIMEOUT: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_millis(900);
