//! Ticket keys from the store: followed by a task, which also tells the others of this node.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use firstflight_config::TicketSettings;
use firstflight_store::Store;
use firstflight_store::ring::{NodeStatus, SharedRing, SharedRingError};
use firstflight_tickets::{KeyEncryption, Schedule, TicketKeys, UnixTime};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use crate::handshake::tickets::now;

/// The store's side of the ticket keys in use.
pub(crate) struct SharedKeys {
    ring: SharedRing,
    node: String,
    zone: Option<String>,
    started: UnixTime,
    /// Whether a ring has come from the store.
    has_come: AtomicBool,
    /// What was last logged as missing, so that it is logged once.
    missing: Mutex<Option<String>>,
}

impl SharedKeys {
    pub(crate) fn new(
        store: Store,
        keys: KeyEncryption,
        schedule: Schedule,
        settings: &TicketSettings,
    ) -> Self {
        Self {
            ring: SharedRing::new(store, keys, schedule),
            node: settings.node.clone().unwrap_or_else(name_of_this_node),
            zone: settings.zone.clone(),
            started: now(),
            has_come: AtomicBool::new(false),
            missing: Mutex::new(None),
        }
    }

    /// Waits for the first ring, for [`BEGIN`] at most.
    pub(crate) async fn begin(&self, keys: &TicketKeys) {
        let come = async {
            while self.ring.refresh(now()).await.map(|ring| self.take(keys, ring)).is_err() {
                tokio::time::sleep(RETRY).await;
            }
        };
        if timeout(BEGIN, come).await.is_err() {
            warn!(
                "no ticket keys have come from the store; until they do, this node has its own, \
                 and tickets of other nodes cost a full handshake"
            );
        }
    }

    /// Keeps `keys` up with the store, and the store with this node, for ever.
    pub(crate) async fn follow(&self, keys: &TicketKeys) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for second in 0_u64.. {
            ticks.tick().await;
            self.refresh(keys).await;
            if second.is_multiple_of(REPORT) {
                // What is wrong with the store, the refresh has said.
                let _ = self.ring.report(&self.status(keys)).await;
            }
        }
    }

    pub(crate) fn refresh_key_encryption(&self, now: UnixTime) {
        self.ring.refresh_key_encryption(now);
    }

    async fn refresh(&self, keys: &TicketKeys) {
        let refreshed = self.ring.refresh(now()).await;
        for complaint in self.ring.complaints() {
            warn!("{complaint}");
        }
        match refreshed {
            Ok(ring) => {
                self.take(keys, ring);
                if self.set_missing(None) {
                    info!("ticket keys: in step with the store again");
                }
            }
            Err(error) => {
                self.keep_own_up(keys);
                let what = match &error {
                    // Said once, though its reason may be another each time.
                    SharedRingError::Store(_) => "store".to_owned(),
                    _ => error.to_string(),
                };
                if self.set_missing(Some(what)) {
                    warn!("{error}; the ticket keys in use stay");
                }
            }
        }
    }

    fn take(&self, keys: &TicketKeys, ring: firstflight_tickets::Ring) {
        self.has_come.store(true, Ordering::Relaxed);
        if keys.install(ring, now()) {
            info!("ticket keys taken up from the store");
        }
    }

    /// Turns the keys with which this process began, as long as there are no others.
    fn keep_own_up(&self, keys: &TicketKeys) {
        let now = now();
        if !self.has_come.load(Ordering::Relaxed) && keys.ring().due() <= now {
            let mut ring = (*keys.ring()).clone();
            ring.keep_up(now);
            keys.install(ring, now);
        }
    }

    /// Whether this is news.
    fn set_missing(&self, what: Option<String>) -> bool {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let news = *missing != what;
        *missing = what;
        news
    }

    fn status(&self, keys: &TicketKeys) -> NodeStatus {
        let now = now();
        NodeStatus {
            node: self.node.clone(),
            zone: self.zone.clone(),
            started: self.started.0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            keys: keys.statuses(now),
            seen_at: now.0,
        }
    }
}

/// The host's name, and something that tells this process from others there.
pub(crate) fn name_of_this_node() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host: String = host.to_string_lossy().chars().filter(char::is_ascii_graphic).collect();
    let host = if host.is_empty() { "node" } else { &host };
    format!("{host}-{:06x}", RandomState::new().build_hasher().finish() & 0xff_ffff)
}

/// How long a start may wait for the store's keys.
const BEGIN: Duration = Duration::from_secs(2);

const RETRY: Duration = Duration::from_millis(50);

/// Every how many seconds the others are told of this node.
const REPORT: u64 = 10;
