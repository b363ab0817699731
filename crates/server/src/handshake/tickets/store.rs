//! What tickets have in the store: keys that all nodes share, and the sessions of single-use
//! tickets.
//!
//! A single-use ticket's session lies in the store, and its use takes it from there. So a used
//! ticket is worth nothing, even to an attacker who gets hold of all keys later.

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

/// Sessions in the store.
pub(crate) struct Sessions {
    pub(crate) store: Store,
    queue: mpsc::Sender<StoredSession>,
    trouble: Arc<StoreFailures>,
}

/// What became of a ticket whose session lies in the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Redeemed {
    /// For the handshake to go on with.
    pub(crate) session: OpenedTicket,
    /// Why its early data is refused, if the store is the reason: it may have forgotten that the
    /// ticket was used.
    pub(crate) withheld: Option<Unknown>,
}

struct StoredSession {
    key: String,
    record: Vec<u8>,
}

/// Sessions that could not be kept.
#[derive(Default)]
struct StoreFailures {
    /// Since the start, and since it was last told that all is well.
    all: AtomicU64,
    lost: AtomicU64,
    told: AtomicBool,
}

impl Sessions {
    /// Sessions in `store`, where each is kept for `life`. Inside a tokio runtime.
    pub(crate) fn new(store: Store, life: Duration) -> Self {
        let (queue, deposits) = mpsc::channel(MAX_WAITING);
        let trouble = Arc::new(StoreFailures::default());
        tokio::spawn(keep(store.clone(), life, deposits, trouble.clone()));
        Self { store, queue, trouble }
    }

    /// The ticket, whose session is on its way into the store. The client can't be back before it
    /// is there, unless the store is slow; then it makes a full handshake. `None`: too many are
    /// on their way already, and no ticket is better than one in vain.
    pub(crate) fn deposit(&self, apart: DetachedSession) -> Option<Vec<u8>> {
        let DetachedSession { ticket, id, record } = apart;
        match self.queue.try_send(StoredSession { key: place(&id), record }) {
            Ok(()) => Some(ticket),
            Err(_) => {
                self.trouble.met("too many sessions wait for the store");
                None
            }
        }
    }

    /// Sessions that could not be kept so far.
    pub(crate) fn lost(&self) -> u64 {
        self.trouble.all.load(Ordering::Relaxed)
    }

    /// Takes the session with `id` out of the store.
    ///
    /// # Errors
    /// Why it is not to be had.
    pub(crate) async fn take(&self, id: &SessionId) -> Result<Taken, Unknown> {
        self.store.take(&place(id)).await.map_err(|error| error.unknown())
    }
}

impl Redeemed {
    /// A ticket whose session is not to be had: the handshake becomes a full one.
    pub(crate) fn nothing() -> Self {
        Self { session: OpenedTicket::Ignored, withheld: None }
    }
}

/// Puts sessions into the store, many at a time: each waits for the store's answer, and the store
/// may be far.
async fn keep(
    store: Store,
    life: Duration,
    mut deposits: mpsc::Receiver<StoredSession>,
    trouble: Arc<StoreFailures>,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
    while let Some(StoredSession { key, record }) = deposits.recv().await {
        let Ok(place) = permits.clone().acquire_owned().await else { return };
        let (store, trouble) = (store.clone(), trouble.clone());
        tokio::spawn(async move {
            match store.put(&key, &record, life).await {
                Ok(()) => trouble.is_over(),
                Err(error) => trouble.met(&error.to_string()),
            }
            drop(place);
        });
    }
}

impl StoreFailures {
    fn met(&self, why: &str) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.lost.fetch_add(1, Ordering::Relaxed);
        if !self.told.swap(true, Ordering::Relaxed) {
            warn!("single-use tickets cannot be kept: {why}; their clients make full handshakes");
        }
    }

    fn is_over(&self) {
        if self.told.load(Ordering::Relaxed) && self.told.swap(false, Ordering::Relaxed) {
            let lost = self.lost.swap(0, Ordering::Relaxed);
            info!("single-use tickets are kept again; {lost} were not");
        }
    }
}

fn place(id: &SessionId) -> String {
    format!("ticket:{}", hex::encode(id))
}

/// Sessions that may wait for their turn: a second's worth on a busy node.
const MAX_WAITING: usize = 16_384;

/// Sessions on their way at a time. At 5 ms to the store and back, 200,000 a second.
const MAX_CONCURRENT: usize = 1024;

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

    /// Waits for the first ring, for [`FIRST_RING_TIMEOUT`] at most.
    pub(crate) async fn begin(&self, keys: &TicketKeys) {
        let come = async {
            while self.ring.refresh(now()).await.map(|ring| self.take(keys, ring)).is_err() {
                tokio::time::sleep(RETRY).await;
            }
        };
        if timeout(FIRST_RING_TIMEOUT, come).await.is_err() {
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
            if second.is_multiple_of(REPORT_INTERVAL) {
                // What is wrong with the store, the refresh has said.
                let _ = self.ring.publish_status(&self.status(keys)).await;
            }
        }
    }

    pub(crate) fn refresh_key_encryption(&self, now: UnixTime) {
        self.ring.refresh_key_encryption(now);
    }

    async fn refresh(&self, keys: &TicketKeys) {
        let refreshed = self.ring.refresh(now()).await;
        for complaint in self.ring.take_warnings() {
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

    /// Turns the keys with which this process started, as long as there are no others.
    fn keep_own_up(&self, keys: &TicketKeys) {
        let now = now();
        if !self.has_come.load(Ordering::Relaxed) && keys.ring().due() <= now {
            let mut ring = (*keys.ring()).clone();
            ring.advance(now);
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
const FIRST_RING_TIMEOUT: Duration = Duration::from_secs(2);

const RETRY: Duration = Duration::from_millis(50);

/// Every how many seconds the others are told of this node.
const REPORT_INTERVAL: u64 = 10;
