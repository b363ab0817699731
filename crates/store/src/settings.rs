//! What all tasks of a store share.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use firstflight_replay::{ClaimKey, SharedConfig};
use redis::Cmd;
use tokio::sync::Notify;

use crate::link::{Access, Secure};
use crate::statistics::Counters;
use crate::{Claimant, StoreConfig, StoreError};

/// How long a record may take, and connecting, and an exchange until its connection is given up.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How long after a failed connection the next is tried.
pub(crate) const RETRY: Duration = Duration::from_millis(250);

pub(crate) struct Settings {
    pub access: Access,
    /// The way into the sentinels.
    pub sentinel_access: Access,
    pub budget: Duration,
    /// After this an exchange's connection is given up.
    pub overdue: Duration,
    pub replicas: u32,
    pub connections: usize,
    pub shared: SharedConfig,
    pub counters: Counters,
    /// Tells this node's marks from others', chosen at random.
    pub node: u64,
    /// Somebody has found the topology to be another than he thought.
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
        let access = Access {
            secure: config.tls.as_ref().map(Secure::new).transpose()?,
            username: config.username,
            password: config.password,
            database: config.database,
            patience: REQUEST_TIMEOUT,
        };
        let sentinel_access = Access {
            username: None,
            password: config.sentinel_password,
            database: 0,
            ..access.clone()
        };
        Ok(Self {
            access,
            sentinel_access,
            budget: config.budget,
            overdue: (10 * config.budget).max(REQUEST_TIMEOUT),
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

    /// The monotonic clock.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// This node's clock, since 1970.
    pub(crate) fn node_time(&self) -> Duration {
        Duration::from_micros(u64::try_from((self.unix_micros)()).unwrap_or(0))
    }

    /// What all keys start with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of a record.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    /// The key of a claim, which is not text.
    pub(crate) fn claim_key(&self, key: ClaimKey) -> Vec<u8> {
        [self.claim_prefix.as_slice(), key.as_bytes()].concat()
    }

    /// The key of a name's claim.
    pub(crate) fn name_key(&self, name: ClaimKey) -> Vec<u8> {
        [self.name_prefix.as_slice(), name.as_bytes()].concat()
    }
}

/// The command that claims a name. The record's being there is all that it says; a small number
/// costs the store no memory of its own.
pub(crate) fn claim_name(key: &[u8], life: Duration) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(1).arg("NX").arg("PX").arg(millis(life));
    command
}

/// The command that records a flight until `end`, by the store's clock. `condition`: `NX`, `XX`.
pub(crate) fn record(key: &[u8], claimant: Claimant, end: Duration, condition: &str) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(claimant.number()).arg(condition).arg("PXAT").arg(millis(end));
    command
}

/// A duration or a time as the store takes it, in 63 bits; zero would be an error there.
pub(crate) fn millis(duration: Duration) -> u64 {
    let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).max(1);
    millis.unsigned_abs()
}
