//! Sessions of tickets that can be used once: each lies in the store, and who uses its ticket
//! takes it from there. So a ticket that was used is worth nothing, even to one who gets hold of
//! all keys later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use firstflight_replay::Unknown;
use firstflight_store::Store;
use firstflight_tickets::{Apart, Opened, SessionId};
use firstflight_tls::{OpenedTicket, Withheld};
use tokio::sync::{Semaphore, mpsc};
use tracing::{info, warn};

use crate::handshake::tickets::TicketRing;
use crate::handshake::tickets::now;

/// Sessions in the store.
pub(crate) struct Sessions {
    pub(crate) store: Store,
    queue: mpsc::Sender<Deposit>,
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

struct Deposit {
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
        let (queue, deposits) = mpsc::channel(WAITING);
        let trouble = Arc::new(StoreFailures::default());
        tokio::spawn(keep(store.clone(), life, deposits, trouble.clone()));
        Self { store, queue, trouble }
    }

    /// The ticket, whose session is on its way into the store. The client can't be back before it
    /// is there, unless the store is slow; then it makes a full handshake. `None`: too many are
    /// on their way already, and no ticket is better than one in vain.
    pub(crate) fn deposit(&self, apart: Apart) -> Option<Vec<u8>> {
        let Apart { ticket, id, record } = apart;
        match self.queue.try_send(Deposit { key: place(&id), record }) {
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
    pub(crate) async fn redeem(&self, ring: &TicketRing, id: &[u8]) -> Redeemed {
        let Ok(id) = SessionId::try_from(id) else { return Redeemed::nothing() };
        let taken = match self.store.take(&place(&id)).await {
            Ok(taken) => taken,
            Err(error) => {
                return Redeemed { withheld: Some(error.unknown()), ..Redeemed::nothing() };
            }
        };
        let Some(record) = taken.value else { return Redeemed::nothing() };
        let Opened::Ticket { content, origin } = ring.keys.open_kept(&record, &id, now()) else {
            return Redeemed::nothing();
        };
        match taken.counts {
            Ok(()) => Redeemed { session: ring.session_of(content, origin), withheld: None },
            Err(why) => Redeemed {
                session: OpenedTicket::WithoutEarlyData(content, Withheld::Store),
                withheld: Some(why),
            },
        }
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
    mut deposits: mpsc::Receiver<Deposit>,
    trouble: Arc<StoreFailures>,
) {
    let permits = Arc::new(Semaphore::new(AT_A_TIME));
    while let Some(Deposit { key, record }) = deposits.recv().await {
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
const WAITING: usize = 16_384;

/// Sessions on their way at a time. At 5 ms to the store and back, 200,000 a second.
const AT_A_TIME: usize = 1024;
