//! One master of the store: its connections, its heartbeat, and the commands that wait for it.

mod batch;
mod heartbeat;
mod logging;
mod worker;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use firstflight_replay::{Breaker, Confirmation, Continuity, Slots, Unknown};
use redis::Cmd;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::settings::Settings;
use crate::{Address, StoreError};
use batch::{PendingCommand, Queue};
use logging::ClaimWarnings;

pub(crate) use batch::{Check, Reply};
pub(crate) use heartbeat::ServerInfo;

/// One run of a store process as this node sees it: from the first heartbeat until the connection
/// breaks or another process responds.
struct Incarnation {
    address: Address,
    run_id: String,
    replication_id: String,
}

/// The address of a master, and how it is confirmed.
#[derive(Clone)]
pub(crate) struct MasterAddress {
    pub address: watch::Receiver<Option<Address>>,
    /// `None` if no confirmation is needed.
    pub confirmations: Option<Arc<Confirmations>>,
}

impl MasterAddress {
    /// An address that does not change.
    pub(crate) fn fixed(address: Address, confirmations: Option<Arc<Confirmations>>) -> Self {
        // The receiver keeps the value after its sender is dropped.
        Self { address: watch::channel(Some(address)).1, confirmations }
    }
}

/// The address and slots that the majority of the sentinels, or of a cluster's masters, last
/// reported, and the time of that request.
#[derive(Default)]
pub(crate) struct Confirmations(Mutex<Option<(Address, Slots, Duration)>>);

impl Confirmations {
    pub(crate) fn set(&self, address: Address, slots: Slots, requested_at: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((address, slots, requested_at));
    }

    fn get(&self, address: &Address) -> Option<(Slots, Duration)> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, slots, requested_at) = last.as_ref().filter(|(named, ..)| named == address)?;
        Some((*slots, *requested_at))
    }
}

pub(crate) struct Master {
    settings: Arc<Settings>,
    master_address: MasterAddress,
    epoch_key: String,
    /// Suffix of the keys of the master's own records.
    tag: String,
    epoch_queries: Vec<u8>,
    queue: Queue,
    incarnation: watch::Sender<Option<Arc<Incarnation>>>,
    /// Number of open worker connections.
    open_connections: AtomicUsize,
    continuity: Mutex<Continuity>,
    breaker: Mutex<Breaker>,
    claim_warnings: ClaimWarnings,
    /// The store's clock at the last heartbeat, with the monotonic time of the heartbeat.
    store_clock: Mutex<Option<(Duration, Duration)>>,
    /// Error of the last connection; `None` while connected.
    last_error: Mutex<Option<StoreError>>,
    /// Why claims do not count, by the last heartbeat.
    claim_problem: Mutex<Option<Unknown>>,
}

/// A master and its tasks, which end when this is dropped.
pub(crate) struct MasterHandle {
    pub master: Arc<Master>,
    _tasks: JoinSet<()>,
}

impl Master {
    /// Starts to connect. `tag` is the suffix of the keys of the master's own records: in a
    /// cluster, a hash tag that puts them into one of its slots.
    pub(crate) fn start(
        settings: &Arc<Settings>,
        master_address: MasterAddress,
        tag: &str,
    ) -> MasterHandle {
        let epoch_key = settings.key(&format!("epoch{tag}"));
        let master = Arc::new(Self {
            settings: settings.clone(),
            master_address,
            epoch_queries: batch::epoch_queries(&epoch_key),
            epoch_key,
            tag: tag.to_owned(),
            queue: Queue::new(),
            incarnation: watch::Sender::new(None),
            open_connections: AtomicUsize::new(0),
            continuity: Mutex::new(Continuity::new(settings.shared)),
            breaker: Mutex::default(),
            claim_warnings: ClaimWarnings::default(),
            store_clock: Mutex::default(),
            last_error: Mutex::default(),
            claim_problem: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(heartbeat::run(master.clone()));
        for _ in 0..settings.connections {
            tasks.spawn(worker::run(master.clone()));
        }
        MasterHandle { master, _tasks: tasks }
    }

    /// Returns why claims are not attempted now; `None` if they are.
    pub(crate) fn unavailable_reason(&self) -> Option<Unknown> {
        if self.is_absent() {
            return Some(Unknown::Absent);
        }
        self.breaker().is_open().then_some(Unknown::Slow)
    }

    /// Returns why claims do not count now, as far as it is known without one. They are attempted
    /// nevertheless, unless there is an [`unavailable_reason`](Self::unavailable_reason).
    pub(crate) fn claim_problem(&self) -> Option<Unknown> {
        let last = *self.claim_problem.lock().unwrap_or_else(PoisonError::into_inner);
        self.unavailable_reason().or(last)
    }

    fn set_claim_problem(&self, problem: Option<Unknown>) {
        *self.claim_problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Whether there is no connection for commands.
    pub(crate) fn is_absent(&self) -> bool {
        self.open_connections.load(Ordering::Relaxed) == 0
    }

    /// Returns by how many microseconds the store's clock is ahead of this node's. The reading of the
    /// last heartbeat advances with the monotonic clock, so a step of this node's clock changes the
    /// result.
    pub(crate) fn clock_offset_micros(&self) -> Option<i64> {
        let reading = *self.store_clock.lock().unwrap_or_else(PoisonError::into_inner);
        let (store_time, at) = reading?;
        let store_time = store_time.saturating_add(self.settings.now().saturating_sub(at));
        Some(micros(store_time).saturating_sub(micros(self.settings.node_time())))
    }

    fn set_store_clock(&self, store_time: Duration) {
        let reading = Some((store_time, self.settings.now()));
        *self.store_clock.lock().unwrap_or_else(PoisonError::into_inner) = reading;
    }

    /// Sends `command` and waits for its reply and the result of the `check`, at most `timeout`. The
    /// outcome of claims is reported to the breaker.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Unknown`] with [`Unknown::Slow`] after the timeout.
    pub(crate) async fn request(
        &self,
        command: &Cmd,
        timeout: Duration,
        check: Check,
    ) -> Result<Reply, StoreError> {
        let started = Instant::now();
        let (job, reply) = PendingCommand::new(command, started + timeout, check);
        let result = match self.queue.push(job) {
            false => Err(StoreError::Unknown(Unknown::Slow)),
            true => match tokio::time::timeout(timeout, reply).await {
                // After a pause of this process, a reply may arrive long after the deadline.
                Ok(Ok(Ok(_))) if started.elapsed() > timeout => Err(too_slow()),
                Ok(Ok(result)) => result,
                Ok(Err(_)) | Err(_) => Err(too_slow()),
            },
        };
        if check == Check::Claim {
            self.record_outcome(started, result.is_ok());
        }
        result
    }

    /// Returns the error of the last connection; `None` while connected.
    pub(crate) fn last_error(&self) -> Option<StoreError> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_last_error(&self, last_error: Option<StoreError>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = last_error;
    }

    /// Reports the outcome of a request that was sent at `sent_at` to the breaker.
    fn record_outcome(&self, sent_at: Instant, success: bool) {
        let now = self.settings.now();
        let mut breaker = self.breaker();
        match success {
            true => breaker.succeeded(),
            false => breaker.failed(now.saturating_sub(sent_at.elapsed()), now),
        }
    }

    /// Returns the key of a mark of this node. The upper half of a mark's number identifies the
    /// connection that writes it. Each connection has its own key, because a `SET` of a connection
    /// that timed out may reach the store after one of a later connection.
    fn mark_key(&self, mark: u64) -> String {
        let (node, connection) = (self.settings.node, mark >> MARK_BITS);
        self.settings.key(&format!("mark:{node:016x}:{connection}{}", self.tag))
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn continuity(&self) -> MutexGuard<'_, Continuity> {
        self.continuity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how the process at `address` is confirmed as master.
    fn confirmation(&self, address: &Address) -> Confirmation {
        match &self.master_address.confirmations {
            None => Confirmation::NotNeeded,
            Some(confirmations) => {
                Confirmation::Majority(confirmations.get(address).map(|(_, at)| at))
            }
        }
    }

    /// Returns the slots that the process at `address` owns.
    fn slots(&self, address: &Address) -> Slots {
        let confirmations = self
            .master_address
            .confirmations
            .as_ref()
            .and_then(|confirmations| confirmations.get(address));
        confirmations.map_or(Slots::ALL, |(slots, _)| slots)
    }
}

/// Bits that number the marks of one connection: enough for thirty years.
const MARK_BITS: u32 = 32;

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn too_slow() -> StoreError {
    StoreError::Unknown(Unknown::Slow)
}
