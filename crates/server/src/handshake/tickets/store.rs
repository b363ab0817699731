//! Tickets and the store: the shared ticket keys, and the sessions of single-use tickets.
//!
//! The session of a single-use ticket is stored under the ticket's id, and its first use removes
//! it. A used ticket is therefore worthless, even to an attacker who learns all keys later.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firstflight_config::TicketSettings;
use firstflight_replay::Unknown;
use firstflight_store::ring::{NodeStatus, SharedRing, SharedRingError};
use firstflight_store::{Store, Taken};
use firstflight_tickets::{
    DetachedSession, KeyEncryption, Schedule, SessionId, TicketKeys, UnixTime,
};
use firstflight_tls::OpenedTicket;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use crate::context::now;

/// Sessions of single-use tickets in the store.
pub(crate) struct SessionStore {
    pub(crate) store: Store,
    queue: mpsc::Sender<QueuedSession>,
    failures: Arc<StoreFailures>,
}

/// The result of redeeming a ticket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RedeemedTicket {
    /// The session for the handshake.
    pub(crate) session: OpenedTicket,
    /// Why its early data is refused, if the store is the reason: it may have lost the record that
    /// the ticket was used.
    pub(crate) withheld: Option<Unknown>,
}

struct QueuedSession {
    key: String,
    record: Vec<u8>,
}

/// Counts sessions that could not be stored.
#[derive(Default)]
struct StoreFailures {
    total: AtomicU64,
    since_recovery: AtomicU64,
    /// Whether the first failure since the last recovery was logged.
    logged: AtomicBool,
}

impl SessionStore {
    /// Sessions in `store`, which expire after `lifetime`. Needs a tokio runtime.
    pub(crate) fn new(store: Store, lifetime: Duration) -> Self {
        let (queue, deposits) = mpsc::channel(MAX_QUEUED_SESSIONS);
        let failures = Arc::new(StoreFailures::default());
        tokio::spawn(write_sessions(store.clone(), lifetime, deposits, failures.clone()));
        Self { store, queue, failures }
    }

    /// Queues a session for the store and returns its ticket. If the client returns before the
    /// session is stored, it makes a full handshake. Returns `None` if too many sessions are
    /// queued: no ticket is better than a useless one.
    pub(crate) fn deposit(&self, detached: DetachedSession) -> Option<Vec<u8>> {
        let DetachedSession { ticket, id, record } = detached;
        match self.queue.try_send(QueuedSession { key: store_key(&id), record }) {
            Ok(()) => Some(ticket),
            Err(_) => {
                self.failures.record("too many sessions are waiting for the store");
                None
            }
        }
    }

    /// Whether there is no connection to the store.
    pub(crate) fn is_store_absent(&self) -> bool {
        self.store.unavailable_reason() == Some(Unknown::Absent)
    }

    /// The number of sessions that could not be stored.
    pub(crate) fn lost(&self) -> u64 {
        self.failures.total.load(Ordering::Relaxed)
    }

    /// Takes the session with `id` out of the store.
    ///
    /// # Errors
    /// Why the store did not return it.
    pub(crate) async fn take(&self, id: &SessionId) -> Result<Taken, Unknown> {
        self.store.take(&store_key(id)).await.map_err(|error| error.unknown())
    }
}

impl RedeemedTicket {
    /// A ticket without a session: the handshake becomes a full one.
    pub(crate) fn unavailable() -> Self {
        Self { session: OpenedTicket::Ignored, withheld: None }
    }
}

/// Writes queued sessions to the store, many at the same time, because each waits for a round trip.
async fn write_sessions(
    store: Store,
    lifetime: Duration,
    mut deposits: mpsc::Receiver<QueuedSession>,
    failures: Arc<StoreFailures>,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_WRITES));
    while let Some(QueuedSession { key, record }) = deposits.recv().await {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let (store, failures) = (store.clone(), failures.clone());
        tokio::spawn(async move {
            match store.put(&key, &record, lifetime).await {
                Ok(()) => failures.record_recovery(),
                Err(error) => failures.record(&error.to_string()),
            }
            drop(permit);
        });
    }
}

impl StoreFailures {
    fn record(&self, why: &str) {
        self.total.fetch_add(1, Ordering::Relaxed);
        self.since_recovery.fetch_add(1, Ordering::Relaxed);
        if !self.logged.swap(true, Ordering::Relaxed) {
            warn!("single-use tickets cannot be stored: {why}; their clients make full handshakes");
        }
    }

    fn record_recovery(&self) {
        if self.logged.load(Ordering::Relaxed) && self.logged.swap(false, Ordering::Relaxed) {
            let lost = self.since_recovery.swap(0, Ordering::Relaxed);
            info!("single-use tickets are stored again; {lost} were lost");
        }
    }
}

fn store_key(id: &SessionId) -> String {
    format!("ticket:{}", hex::encode(id))
}

/// The maximum number of queued sessions: one second's worth on a busy node.
const MAX_QUEUED_SESSIONS: usize = 16_384;

/// The maximum number of concurrent writes. At 5 ms for a round trip, 200,000 a second.
const MAX_CONCURRENT_WRITES: usize = 1024;

/// Synchronizes the ticket keys with the store.
pub(crate) struct KeySync {
    ring: SharedRing,
    node: String,
    zone: Option<String>,
    started: UnixTime,
    /// Whether the store has delivered a ring.
    has_received: AtomicBool,
    /// The last logged failure, so that each is logged once.
    last_failure: Mutex<Option<String>>,
}

impl KeySync {
    pub(crate) fn new(
        store: Store,
        keys: KeyEncryption,
        schedule: Schedule,
        settings: &TicketSettings,
    ) -> Self {
        Self {
            ring: SharedRing::new(store, keys, schedule),
            node: settings.node.clone().unwrap_or_else(default_node_name),
            zone: settings.zone.clone(),
            started: now(),
            has_received: AtomicBool::new(false),
            last_failure: Mutex::new(None),
        }
    }

    /// Waits for the first ring, for [`FIRST_RING_TIMEOUT`] at most.
    pub(crate) async fn wait_for_first_ring(&self, keys: &TicketKeys) {
        let first_ring = async {
            while self.ring.refresh(now()).await.map(|ring| self.take(keys, ring)).is_err() {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        };
        if timeout(FIRST_RING_TIMEOUT, first_ring).await.is_err() {
            warn!(
                "the store has not delivered the ticket keys yet; until it does, this node uses its own, \
                 and tickets of other nodes cost a full handshake"
            );
        }
    }

    /// Synchronizes the keys, and reports this node to the others, forever.
    pub(crate) async fn follow(&self, keys: &TicketKeys) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for second in 0_u64.. {
            ticks.tick().await;
            self.refresh(keys).await;
            if second.is_multiple_of(REPORT_INTERVAL_SECONDS) {
                // The refresh has logged the store's failure.
                let _ = self.ring.publish_status(&self.status(keys)).await;
            }
        }
    }

    pub(crate) fn refresh_key_encryption(&self, now: UnixTime) {
        self.ring.refresh_key_encryption(now);
    }

    async fn refresh(&self, keys: &TicketKeys) {
        let refreshed = self.ring.refresh(now()).await;
        for warning in self.ring.take_warnings() {
            warn!("{warning}");
        }
        match refreshed {
            Ok(ring) => {
                self.take(keys, ring);
                if self.set_last_failure(None) {
                    info!("ticket keys: in sync with the store again");
                }
            }
            Err(error) => {
                self.rotate_process_ring(keys);
                let failure = match &error {
                    // Logged once, even if the reason changes.
                    SharedRingError::Store(_) => "store".to_owned(),
                    _ => error.to_string(),
                };
                if self.set_last_failure(Some(failure)) {
                    warn!("{error}; the ticket keys in use stay");
                }
            }
        }
    }

    fn take(&self, keys: &TicketKeys, ring: firstflight_tickets::Ring) {
        self.has_received.store(true, Ordering::Relaxed);
        if keys.install(ring, now()) {
            info!("ticket keys received from the store");
        }
    }

    /// Rotates this process's own keys until the store has delivered others.
    fn rotate_process_ring(&self, keys: &TicketKeys) {
        let now = now();
        if !self.has_received.load(Ordering::Relaxed) && keys.ring().due() <= now {
            let mut ring = (*keys.ring()).clone();
            ring.advance(now);
            keys.install(ring, now);
        }
    }

    /// Records the failure, or that there is none. Returns whether this is a change.
    fn set_last_failure(&self, failure: Option<String>) -> bool {
        let mut last_failure = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *last_failure != failure;
        *last_failure = failure;
        changed
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

/// The host's name with a random suffix that distinguishes processes.
pub(crate) fn default_node_name() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host: String = host.to_string_lossy().chars().filter(char::is_ascii_graphic).collect();
    let host = if host.is_empty() { "node" } else { &host };
    format!("{host}-{:06x}", RandomState::new().build_hasher().finish() & 0xff_ffff)
}

/// How long the start waits for the store's keys.
const FIRST_RING_TIMEOUT: Duration = Duration::from_secs(2);

const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Seconds between two reports of this node.
const REPORT_INTERVAL_SECONDS: u64 = 10;
