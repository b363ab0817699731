//! Generates claims, in a closed loop of callers or at a fixed rate.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use firstflight_replay::{ClaimKey, SharedConfig, StoreReply};
use firstflight_store::{Claimant, Store};
use hdrhistogram::Histogram;
use tokio::task::LocalSet;

/// How claims are generated.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// Each caller waits for its claim before the next one.
    Closed { callers: usize, seconds: f64 },
    /// Claims per second, however long they take.
    Open { rate: f64, seconds: f64 },
}

impl Load {
    pub(crate) fn with_seconds(self, seconds: f64) -> Self {
        match self {
            Self::Closed { callers, .. } => Self::Closed { callers, seconds },
            Self::Open { rate, .. } => Self::Open { rate, seconds },
        }
    }
}

/// The outcomes of a run's claims.
pub(crate) struct Outcomes {
    pub(crate) won: u64,
    /// All other replies, by their name.
    pub(crate) others: BTreeMap<String, u64>,
    /// In nanoseconds. At a fixed rate, from the time at which a claim was due, so that delays of
    /// the client or the store before sending count (no coordinated omission).
    pub(crate) latency: Histogram<u64>,
    pub(crate) seconds: f64,
}

impl Outcomes {
    fn new() -> Self {
        let latency = Histogram::new_with_bounds(100, 60_000_000_000, 3);
        let latency = latency.expect("valid bounds");
        Self { won: 0, others: BTreeMap::new(), latency, seconds: 0.0 }
    }

    fn add(&mut self, reply: StoreReply, due: Instant) {
        match reply {
            StoreReply::Won => self.won += 1,
            other => *self.others.entry(format!("{other:?}")).or_default() += 1,
        }
        let nanos = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(nanos);
    }
}

/// Unused client randoms: the start of this process, its id and a count.
#[derive(Clone)]
pub(crate) struct Keys(Rc<RefCell<[u8; 32]>>);

impl Keys {
    pub(crate) fn new() -> Self {
        let mut random = [0; 32];
        let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        random[8..24].copy_from_slice(&start.unwrap_or_default().as_nanos().to_le_bytes());
        random[24..28].copy_from_slice(&std::process::id().to_le_bytes());
        Self(Rc::new(RefCell::new(random)))
    }

    pub(crate) fn next(&self) -> ClaimKey {
        let mut random = self.0.borrow_mut();
        let mut count = [0; 8];
        count.copy_from_slice(&random[..8]);
        random[..8].copy_from_slice(&(u64::from_le_bytes(count) + 1).to_le_bytes());
        ClaimKey::of_flight(&random)
    }
}

/// Claims a flight whose ticket age is exact now.
async fn claim(store: &Store, key: ClaimKey) -> StoreReply {
    let now = UNIX_EPOCH.elapsed().unwrap_or_default();
    // A claimant is a random number, and the bytes of a key are random.
    let name = key.as_bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    store.claim(key, Claimant::new(name), SharedConfig::default().record_end(now)).await
}

/// Waits until claims count, that is until the store's epoch is older than the recording window.
pub(crate) async fn until_claims_count(store: &Store, timeout: Duration) -> Result<(), String> {
    let keys = Keys::new();
    let start = Instant::now();
    loop {
        let reply = claim(store, keys.next()).await;
        if reply == StoreReply::Won {
            return Ok(());
        }
        if start.elapsed() > timeout {
            return Err(format!("after {timeout:?} a claim is still {reply:?}"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Loads the store, and returns the outcomes.
pub(crate) async fn drive(store: &Store, keys: &Keys, load: Load) -> Outcomes {
    let outcomes = Rc::new(RefCell::new(Outcomes::new()));
    let start = Instant::now();
    let tasks = LocalSet::new();
    match load {
        Load::Closed { callers, seconds } => {
            let until = start + Duration::from_secs_f64(seconds);
            for _ in 0..callers {
                let (store, keys, outcomes) = (store.clone(), keys.clone(), outcomes.clone());
                tasks.spawn_local(async move {
                    while Instant::now() < until {
                        let due = Instant::now();
                        let reply = claim(&store, keys.next()).await;
                        outcomes.borrow_mut().add(reply, due);
                    }
                });
            }
            tasks.await;
        }
        Load::Open { rate, seconds } => {
            let total = tasks.run_until(at_rate(store, keys, &outcomes, rate, seconds)).await;
            tasks.await;
            debug_assert_eq!(total, outcomes.borrow().latency.len());
        }
    }
    let mut outcomes = outcomes.replace(Outcomes::new());
    outcomes.seconds = start.elapsed().as_secs_f64();
    outcomes
}

/// Starts claims when they are due. Timers have a resolution of a millisecond, so this waits busily
/// and yields to other tasks; the processor time of the client is then meaningless.
async fn at_rate(
    store: &Store,
    keys: &Keys,
    outcomes: &Rc<RefCell<Outcomes>>,
    rate: f64,
    seconds: f64,
) -> u64 {
    let start = Instant::now();
    let total = (rate * seconds) as u64;
    for index in 0..total {
        let due = start + Duration::from_secs_f64(index as f64 / rate);
        while Instant::now() < due {
            tokio::task::yield_now().await;
        }
        let (store, key, outcomes) = (store.clone(), keys.next(), outcomes.clone());
        tokio::task::spawn_local(async move {
            let reply = claim(&store, key).await;
            outcomes.borrow_mut().add(reply, due);
        });
    }
    total
}
