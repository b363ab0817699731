//! State that all tasks of a store share, and the names of its keys.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use firstflight_replay::{ClaimKey, SharedConfig};
use redis::Cmd;
use tokio::sync::Notify;
use tracing::warn;

use crate::connection::{ConnectOptions, TlsClient};
use crate::statistics::Counters;
use crate::{Claimant, StoreConfig, StoreError};

/// Timeout of a command on a record, of connecting, and of an exchange.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Delay before reconnecting after a failed connection.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(250);

pub(crate) struct Settings {
    pub connect_options: ConnectOptions,
    /// How to connect to the sentinels.
    pub sentinel_connect_options: ConnectOptions,
    pub budget: Duration,
    /// Timeout of an exchange, after which its connection is closed.
    pub exchange_timeout: Duration,
    pub replicas: u32,
    pub connections: usize,
    pub shared: SharedConfig,
    pub counters: Counters,
    /// Random id of this node, part of the keys of its marks.
    pub node: u64,
    /// Notified when a reply shows that the known topology is outdated.
    pub refresh: Notify,
    started: Instant,
    prefix: String,
    claim_prefix: Vec<u8>,
    name_prefix: Vec<u8>,
    unix_micros: fn() -> i64,
}

impl Settings {
    pub(crate) fn new(config: StoreConfig, unix_micros: fn() -> i64) -> Result<Self, StoreError> {
        config.validate()?;
        let tls = config.tls.as_ref().map(TlsClient::new).transpose()?;
        let connect_options = ConnectOptions {
            tls: RwLock::new(tls.clone()),
            username: config.username,
            password: RwLock::new(config.password),
            database: config.database,
            timeout: REQUEST_TIMEOUT,
        };
        let sentinel_connect_options = ConnectOptions {
            tls: RwLock::new(tls),
            username: None,
            password: RwLock::new(config.sentinel_password),
            database: 0,
            timeout: REQUEST_TIMEOUT,
        };
        Ok(Self {
            connect_options,
            sentinel_connect_options,
            budget: config.budget,
            exchange_timeout: (10 * config.budget).max(REQUEST_TIMEOUT),
            replicas: config.replicas,
            connections: config.connections,
            shared: config.shared,
            counters: Counters::default(),
            node: RandomState::new().build_hasher().finish(),
            refresh: Notify::new(),
            started: Instant::now(),
            claim_prefix: format!("{}:c:", config.prefix).into_bytes(),
            name_prefix: format!("{}:n:", config.prefix).into_bytes(),
            prefix: config.prefix,
            unix_micros,
        })
    }

    /// Replaces the passwords and the authorities for new connections.
    pub(crate) fn set_passwords(&self, config: &StoreConfig) {
        // The file has been checked; if it was replaced since, the authorities in use stay.
        match config.tls.as_ref().map(TlsClient::new).transpose() {
            Ok(tls) => {
                for options in [&self.connect_options, &self.sentinel_connect_options] {
                    let mut current = options.tls.write().unwrap_or_else(PoisonError::into_inner);
                    current.clone_from(&tls);
                }
            }
            Err(error) => warn!("{error}"),
        }
        for (options, password) in [
            (&self.connect_options, &config.password),
            (&self.sentinel_connect_options, &config.sentinel_password),
        ] {
            password
                .clone_into(&mut options.password.write().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Returns the monotonic clock.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns this node's clock, since 1970.
    pub(crate) fn node_time(&self) -> Duration {
        Duration::from_micros(u64::try_from((self.unix_micros)()).unwrap_or(0))
    }

    /// Returns the prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key of a record.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    /// Returns the key of a claim, which is binary.
    pub(crate) fn claim_key(&self, key: ClaimKey) -> Vec<u8> {
        [self.claim_prefix.as_slice(), key.as_bytes()].concat()
    }

    /// Returns the key of a name's claim.
    pub(crate) fn name_key(&self, name: ClaimKey) -> Vec<u8> {
        [self.name_prefix.as_slice(), name.as_bytes()].concat()
    }
}

/// The command that claims a name. The value identifies the claimant.
pub(crate) fn claim_name_command(key: &[u8], claimant: Claimant, ttl: Duration) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(claimant.number()).arg("NX").arg("PX").arg(millis(ttl));
    command
}

/// The command that records a flight until `expires_at` by the store's clock; `condition` is `NX`
/// or `XX`.
pub(crate) fn record_command(
    key: &[u8],
    claimant: Claimant,
    expires_at: Duration,
    condition: &str,
) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(claimant.number()).arg(condition).arg("PXAT").arg(millis(expires_at));
    command
}

/// A duration or time in milliseconds, in 63 bits; at least 1, because the store refuses zero.
pub(crate) fn millis(duration: Duration) -> u64 {
    let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).max(1);
    millis.unsigned_abs()
}
