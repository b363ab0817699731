//! One master of the store: its connections, its heartbeat, and what waits for it.

mod batch;
mod info;
mod keeper;
mod lane;
mod queue;
mod voice;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use firstflight_replay::{Breaker, Confirmation, Continuity, Slots, Unknown};
use redis::Cmd;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::settings::Settings;
use crate::{Address, StoreError};
use queue::{Job, Queue};
use voice::Complaints;

pub(crate) use info::Report;
pub(crate) use queue::{Check, Reply};

/// One life of a store process, as far as this node follows it: from the first heartbeat until the
/// connection breaks or it turns out to be another.
struct Life {
    address: Address,
    run_id: String,
    replication_id: String,
}

/// Where a master is, and since when those who know have said so.
#[derive(Clone)]
pub(crate) struct Place {
    pub address: watch::Receiver<Option<Address>>,
    /// `None`: nobody needs to be asked.
    pub confirmed: Option<Arc<Confirmed>>,
}

impl Place {
    /// A fixed one.
    pub(crate) fn fixed(address: Address, confirmed: Option<Arc<Confirmed>>) -> Self {
        // A receiver outlives its sender: the value stays.
        Self { address: watch::channel(Some(address)).1, confirmed }
    }
}

/// Which address the majority of the sentinels, or of a cluster's masters, last named, with which
/// slots, and when they were asked.
#[derive(Default)]
pub(crate) struct Confirmed(Mutex<Option<(Address, Slots, Duration)>>);

impl Confirmed {
    pub(crate) fn set(&self, address: Address, slots: Slots, asked: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((address, slots, asked));
    }

    fn get(&self, address: &Address) -> Option<(Slots, Duration)> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, slots, asked) = last.as_ref().filter(|(named, ..)| named == address)?;
        Some((*slots, *asked))
    }
}

pub(crate) struct Master {
    settings: Arc<Settings>,
    place: Place,
    epoch_key: String,
    /// The key of this node's mark.
    mark_key: String,
    epoch_questions: Vec<u8>,
    queue: Queue,
    life: watch::Sender<Option<Arc<Life>>>,
    /// Connections that take claims.
    open: AtomicUsize,
    continuity: Mutex<Continuity>,
    breaker: Mutex<Breaker>,
    complaints: Complaints,
    /// The store's clock by the last heartbeat, and when that was on the monotonic clock.
    store_clock: Mutex<Option<(Duration, Duration)>>,
    /// Why the last connection failed.
    trouble: Mutex<Option<StoreError>>,
}

/// A master and its tasks, which end with it.
pub(crate) struct Running {
    pub master: Arc<Master>,
    _tasks: JoinSet<()>,
}

impl Master {
    /// Starts to connect. `tag`: what the keys of its own records end with, so that they lie in one
    /// of its slots.
    pub(crate) fn start(settings: &Arc<Settings>, place: Place, tag: &str) -> Running {
        let epoch_key = settings.key(&format!("epoch{tag}"));
        let master = Arc::new(Self {
            settings: settings.clone(),
            place,
            epoch_questions: batch::epoch_questions(&epoch_key),
            epoch_key,
            mark_key: settings.key(&format!("mark:{:016x}{tag}", settings.node)),
            queue: Queue::new(),
            life: watch::Sender::new(None),
            open: AtomicUsize::new(0),
            continuity: Mutex::new(Continuity::new(settings.shared)),
            breaker: Mutex::default(),
            complaints: Complaints::default(),
            store_clock: Mutex::default(),
            trouble: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(keeper::run(master.clone()));
        for _ in 0..settings.connections {
            tasks.spawn(lane::run(master.clone()));
        }
        Running { master, _tasks: tasks }
    }

    /// Why nothing is worth a try now, if so.
    pub(crate) fn resting(&self) -> Option<Unknown> {
        if self.is_absent() {
            return Some(Unknown::Absent);
        }
        self.breaker().is_open().then_some(Unknown::Slow)
    }

    /// Whether there is no connection by which a command could be sent.
    pub(crate) fn is_absent(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    /// How far the store's clock is ahead of this node's, in microseconds. The last heartbeat's
    /// reading is carried on evenly, so this node's clock may have been set meanwhile.
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

    /// Has `command` answered within `patience`, with the outcome of the `check`. Claims tell the
    /// breaker whether the store is of use to them.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Unknown`] with [`Unknown::Slow`] if time was up.
    pub(crate) async fn request(
        &self,
        command: &Cmd,
        patience: Duration,
        check: Check,
    ) -> Result<Reply, StoreError> {
        let began = Instant::now();
        let (job, reply) = Job::new(command, began + patience, check);
        let answered = match self.queue.push(job) {
            false => Err(StoreError::Unknown(Unknown::Slow)),
            true => match tokio::time::timeout(patience, reply).await {
                // A node that was stopped for a while finds the response and the time long gone.
                Ok(Ok(Ok(_))) if began.elapsed() > patience => Err(too_slow()),
                Ok(Ok(answered)) => answered,
                Ok(Err(_)) | Err(_) => Err(too_slow()),
            },
        };
        if check == Check::Claim {
            self.feel(answered.is_ok());
        }
        answered
    }

    /// What was wrong with the last connection, if there is none now.
    pub(crate) fn trouble(&self) -> Option<StoreError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, trouble: Option<StoreError>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Tells the breaker how the store did.
    fn feel(&self, well: bool) {
        let now = self.settings.now();
        let mut breaker = self.breaker();
        match well {
            true => breaker.succeeded(),
            false => breaker.failed(now),
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn continuity(&self) -> MutexGuard<'_, Continuity> {
        self.continuity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who says that the process at `address` is the master.
    fn confirmation(&self, address: &Address) -> Confirmation {
        match &self.place.confirmed {
            None => Confirmation::NotNeeded,
            Some(confirmed) => Confirmation::Majority(confirmed.get(address).map(|(_, at)| at)),
        }
    }

    /// Which slots that process owns.
    fn slots(&self, address: &Address) -> Slots {
        let confirmed = self.place.confirmed.as_ref().and_then(|confirmed| confirmed.get(address));
        confirmed.map_or(Slots::ALL, |(slots, _)| slots)
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn too_slow() -> StoreError {
    StoreError::Unknown(Unknown::Slow)
}
