//! The source of ticket keys: a key file or a store.

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

/// Reads and rotates a ticket ring.
pub(super) enum RingSource {
    /// A key file.
    File(KeyFile),
    /// A store, with the configuration file that names it.
    Store(PathBuf, SharedRing),
}

impl SourceArgs {
    /// Opens the source. Call this in a tokio runtime, which the store's connections use.
    pub(super) fn open(self) -> anyhow::Result<RingSource> {
        if let Some(file) = self.file {
            return Ok(RingSource::File(KeyFile::new(file)));
        }
        let path = self.config.unwrap_or_default();
        let config = ServerConfig::read(&path).map_err(|error| anyhow::anyhow!("{error}"))?;
        match (config.tickets.keys, config.store) {
            (KeySource::File(file), _) => Ok(RingSource::File(KeyFile::new(file))),
            (KeySource::Store { key_encryption, schedule }, Some(store)) => {
                Ok(RingSource::Store(path, shared_ring(store, &key_encryption, schedule)?))
            }
            (KeySource::Punctured, _) => anyhow::bail!(
                "{}: punctured ticket keys are in the server's memory only, one for each ticket; its \
                 metrics (firstflight_punctured_tickets_*) show how many there are. For keys that can be listed, set \
                 keys to \"file\" or \"store\" in [tickets]",
                path.display()
            ),
            _ => anyhow::bail!(
                "{}: each process generates its own ticket keys; set keys to \"file\" or \"store\" \
                 in [tickets]",
                path.display()
            ),
        }
    }
}

fn shared_ring(
    mut store: StoreConfig,
    key_encryption: &Path,
    schedule: Schedule,
) -> anyhow::Result<SharedRing> {
    // One connection is enough, as no handshake waits for it.
    store.connections = 1;
    let store = Store::open(store, SteadyClock::unix_micros)?;
    Ok(SharedRing::new(store, KeyEncryption::open(key_encryption)?, schedule))
}

impl RingSource {
    /// Reads the ring without changing it.
    pub(super) async fn read(&self) -> anyhow::Result<Ring> {
        match self {
            Self::File(file) => Ok(file.read()?),
            Self::Store(_, ring) => {
                Ok(retry_until_available(async || ring.read(now()).await).await?)
            }
        }
    }

    /// Reads the ring, and adds keys that the store lacks.
    pub(super) async fn read_for_use(&self) -> anyhow::Result<Ring> {
        match self {
            Self::File(file) => Ok(file.read()?),
            Self::Store(_, ring) => {
                Ok(retry_until_available(async || ring.refresh(now()).await).await?)
            }
        }
    }

    /// Like [`read_for_use`](Self::read_for_use), with one attempt and a short timeout. Called once
    /// a second.
    pub(super) async fn refresh(&self) -> anyhow::Result<Ring> {
        match self {
            Self::File(file) => Ok(file.read()?),
            Self::Store(_, ring) => {
                let refreshed = timeout(REFRESH_TIMEOUT, ring.refresh(now())).await;
                Ok(refreshed.context("ticket keys: the store does not respond")??)
            }
        }
    }

    /// Makes another key current. Returns a message for the user.
    pub(super) async fn rotate(&self) -> anyhow::Result<String> {
        match self {
            Self::File(file) => {
                file.rotate(now())?;
                Ok(format!("rotated {self}; servers read it within a second"))
            }
            Self::Store(_, ring) => {
                // Only reading is retried: a rotation may have changed the store although its
                // response was lost.
                let before = match retry_until_available(async || ring.read(now()).await).await {
                    Ok(before) => Some(before),
                    Err(SharedRingError::Empty) => None,
                    Err(error) => return Err(error.into()),
                };
                let after = ring.rotate(now()).await?;
                let known = before.as_ref().map_or(&[][..], Ring::keys);
                let is_known = |key: &DatedKey| known.iter().any(|other| other.key == key.key);
                let new_keys = after.keys().iter().filter(|key| !is_known(key));
                let first_use = new_keys.map(|key| key.not_before.0).min().unwrap_or_default();
                let delay = first_use.saturating_sub(now().0);
                Ok(format!("added a new key to the store; servers seal with it in {delay} s"))
            }
        }
    }

    /// The nodes that report using the keys. Returns `None` for a file, which has no reports.
    pub(super) async fn nodes(&self) -> anyhow::Result<Option<Vec<NodeStatus>>> {
        match self {
            Self::File(_) => Ok(None),
            Self::Store(_, ring) => Ok(Some(ring.nodes().await?)),
        }
    }

    /// New problems with keys in the store. Each is returned once.
    pub(super) fn problems(&self) -> Vec<String> {
        match self {
            Self::File(_) => Vec::new(),
            Self::Store(_, ring) => ring.take_warnings().iter().map(ToString::to_string).collect(),
        }
    }
}

impl fmt::Display for RingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.path().display().fmt(f),
            Self::Store(config, _) => write!(f, "the store of {}", config.display()),
        }
    }
}

/// Retries while the store does not respond, because its connections are still being opened.
async fn retry_until_available<F>(request: F) -> Result<Ring, SharedRingError>
where
    F: AsyncFn() -> Result<Ring, SharedRingError>,
{
    let started = Instant::now();
    loop {
        match timeout(STORE_TIMEOUT, request()).await {
            Ok(Err(SharedRingError::Store(_))) if started.elapsed() < STORE_TIMEOUT => {
                sleep(Duration::from_millis(50)).await;
            }
            Ok(result) => return result,
            Err(_) => return Err(StoreError::Absent("no response".to_owned()).into()),
        }
    }
}

const STORE_TIMEOUT: Duration = Duration::from_secs(5);
const REFRESH_TIMEOUT: Duration = Duration::from_millis(900);
