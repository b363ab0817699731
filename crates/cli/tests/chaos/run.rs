//! One scenario on one cluster: honest requests, copies of their flights, and the counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firstflight_tls::EarlyData;
use http::StatusCode;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::attacker::{CopyCounts, resend};
use crate::clients::{ClusterClients, Http};
use crate::cluster::{ALL, NODES};
use crate::runtime;
use firstflight_testkit::TEST_TIMEOUT;

/// A scenario in progress. Cheap to clone; clones share their counts.
#[derive(Clone)]
pub(crate) struct Run(Arc<Inner>);

struct Inner {
    clients: Arc<ClusterClients>,
    name: &'static str,
    /// The number of copies to send in all.
    quota: u64,
    http2: AtomicBool,
    sequence: AtomicUsize,
    flights: Mutex<Vec<Flight>>,
    counts: Mutex<Counts>,
}

/// A captured first flight with early data.
#[derive(Clone)]
pub(crate) struct Flight {
    bytes: Arc<[u8]>,
    captured: Instant,
}

/// Counts, apart from executions.
#[derive(Default)]
pub(crate) struct Counts {
    /// Requests of the honest client.
    pub(crate) honest: u64,
    /// Honest requests sent as early data.
    pub(crate) offered: u64,
    /// Honest requests with a response to early data.
    pub(crate) accepted: u64,
    /// Requests without a response, even to a second attempt after 425, with the reason.
    pub(crate) lost: Vec<String>,
    /// Requests with an error as response.
    pub(crate) errors: Vec<String>,
    /// Requests with a 425 (Too Early), because a copy was faster. The client sent them again.
    pub(crate) too_early: u64,
    /// By target.
    pub(crate) requests: HashMap<String, Sent>,
    /// Copies.
    pub(crate) resent: CopyCounts,
}

/// How the honest client's requests were executed, as far as the client knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// It was sent as early data, so there is a flight to copy.
    pub(crate) flight: bool,
    /// Responses to early data.
    pub(crate) early: usize,
    /// Responses after the client had sent it again after the handshake.
    pub(crate) late: usize,
    /// The client got 425, and sent it again on another connection (RFC 8470 section 5.2).
    pub(crate) got_425: bool,
}

impl Run {
    /// Starts a scenario.
    pub(crate) fn new(clients: &Arc<ClusterClients>, name: &'static str, quota: u64) -> Self {
        let inner = Inner {
            clients: clients.clone(),
            name,
            quota,
            http2: AtomicBool::new(false),
            sequence: AtomicUsize::new(0),
            flights: Mutex::default(),
            counts: Mutex::default(),
        };
        Self(Arc::new(inner))
    }

    /// The cluster.
    pub(crate) fn clients(&self) -> &ClusterClients {
        &self.0.clients
    }

    /// The scenario's name.
    pub(crate) fn name(&self) -> &'static str {
        self.0.name
    }

    /// Reads the counts so far.
    pub(crate) fn counts<T>(&self, look: impl FnOnce(&Counts) -> T) -> T {
        look(&self.0.counts.lock().unwrap())
    }

    /// The number of flights for a part of a scenario.
    pub(crate) fn size(&self) -> usize {
        (self.0.quota / 20).clamp(20, 100) as usize
    }

    /// Makes the honest client use HTTP/2 from now on.
    pub(crate) fn use_http2(&self) {
        self.0.http2.store(true, Ordering::SeqCst);
    }

    fn http(&self) -> Http {
        if self.0.http2.load(Ordering::SeqCst) { Http::Two } else { Http::One }
    }

    /// Sends one honest request to a node, or to the next one that is up. Returns whether early
    /// data was accepted.
    pub(crate) async fn request(&self, node: usize) -> bool {
        let number = self.0.sequence.fetch_add(1, Ordering::SeqCst);
        let target = format!("/{}/{number}", self.0.name);
        let node_client = self.clients().enter(node);
        let first = self.clients().get(&node_client, self.http(), &target, true).await;
        let offered = first.early != EarlyData::NotOffered;
        let accepted = first.early == EarlyData::Accepted;
        if offered && !first.flight.is_empty() {
            let flight = Flight { bytes: first.flight.into(), captured: Instant::now() };
            self.0.flights.lock().unwrap().push(flight);
        }
        let mut sent = Sent { flight: offered, ..Sent::default() };
        let mut status = first.status;
        let got_425 = status == Ok(StatusCode::TOO_EARLY) && offered;
        if got_425 {
            // RFC 8470 section 5.2: one more attempt, without early data.
            status = self.clients().get(&node_client, self.http(), &target, false).await.status;
        }
        let succeeded = status == Ok(StatusCode::OK);
        let early = accepted && !got_425;
        sent.early = usize::from(succeeded && early);
        sent.late = usize::from(succeeded && !early);
        sent.got_425 = got_425;

        let mut counts = self.0.counts.lock().unwrap();
        counts.honest += 1;
        counts.offered += u64::from(offered);
        counts.accepted += u64::from(sent.early == 1);
        counts.too_early += u64::from(got_425);
        match status {
            Ok(StatusCode::OK) => {}
            Ok(status) => {
                counts.errors.push(format!("{target} at {}: {status}", node_client.number))
            }
            Err(reason) => {
                counts.lost.push(format!("{target} at {}: {reason}", node_client.number))
            }
        }
        counts.requests.insert(target, sent);
        accepted
    }

    /// Sends honest requests to these nodes in turn, until early data was accepted `count` times.
    ///
    /// # Panics
    /// If it is not accepted for so long that the scenario would be meaningless.
    pub(crate) fn flights(&self, count: usize, nodes: &[usize]) {
        self.flights_within(TEST_TIMEOUT, count, nodes).unwrap();
    }

    /// Like [`Self::flights`] with another timeout, because register and epochs may have to wait
    /// for a recording window.
    ///
    /// # Errors
    /// If early data is not accepted in time.
    pub(crate) fn flights_within(
        &self,
        timeout: Duration,
        count: usize,
        nodes: &[usize],
    ) -> Result<(), String> {
        let started = Instant::now();
        let mut accepted = 0;
        let mut node = nodes.iter().cycle();
        while accepted < count {
            let early = runtime().block_on(self.request(*node.next().unwrap()));
            accepted += usize::from(early);
            if started.elapsed() > timeout {
                let name = self.name();
                return Err(format!("{name}: early data accepted {accepted} times of {count}"));
            }
            if !early {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Sends `count` honest requests to these nodes in turn, whether their early data is accepted
    /// or not.
    pub(crate) fn requests(&self, count: usize, nodes: &[usize]) {
        for node in nodes.iter().cycle().take(count) {
            runtime().block_on(self.request(*node));
        }
    }

    /// Sends a part of the scenario's copies to these nodes: of all flights so far, the latest
    /// first.
    pub(crate) fn copies(&self, part: f64, nodes: &[usize]) {
        let count = (self.0.quota as f64 * part).ceil() as usize;
        let mut flights = self.0.flights.lock().unwrap().clone();
        flights.reverse();
        assert!(!flights.is_empty(), "{}: there are flights to copy", self.name());
        let copies = flights.iter().cycle().flat_map(|flight| {
            nodes
                .iter()
                .filter_map(|node| Some((self.clients().address(*node)?, flight.bytes.clone())))
        });
        // HTTP/2 libraries drop the requests of a connection that has ended.
        let with_close = self.clients().kind.is_ours() && self.http() == Http::One;
        self.count(runtime().block_on(resend(
            copies.take(count),
            MAX_CONCURRENT_COPIES,
            with_close,
        )));
    }

    /// Sends the remaining copies of the scenario to all nodes.
    pub(crate) fn remaining_copies(&self) {
        let sent = self.counts(|counts| counts.resent.sent);
        let remaining = self.0.quota.saturating_sub(sent);
        self.copies(remaining as f64 / self.0.quota as f64, &ALL);
    }

    /// Counts copies of one flight that the caller has sent.
    pub(crate) fn count(&self, resent: CopyCounts) {
        let mut counts = self.0.counts.lock().unwrap();
        counts.resent = counts.resent.and(resent);
    }

    /// Sends honest requests, and copies of fresh flights, without a pause until the load is
    /// ended.
    pub(crate) fn background_load(&self) -> BackgroundLoad {
        let stop = Arc::<AtomicBool>::default();
        let honest = {
            let (run, stop) = (self.clone(), stop.clone());
            runtime().spawn(async move {
                for node in (0..NODES).cycle() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    run.request(node).await;
                    sleep(HONEST_PAUSE).await;
                }
            })
        };
        let attack = {
            let (run, stop) = (self.clone(), stop.clone());
            let pause = LOAD_TIME.div_f64(run.0.quota as f64 / NODES as f64);
            runtime().spawn(async move {
                for turn in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    run.attack(turn).await;
                    sleep(pause).await;
                }
            })
        };
        BackgroundLoad { run: self.clone(), stop, tasks: vec![honest, attack] }
    }

    /// Sends a copy of a fresh flight to all nodes at once.
    async fn attack(&self, turn: usize) {
        let flight = {
            let flights = self.0.flights.lock().unwrap();
            let fresh =
                flights.partition_point(|flight| flight.captured.elapsed() > MAX_FLIGHT_AGE);
            let fresh = &flights[fresh..];
            (!fresh.is_empty()).then(|| fresh[turn % fresh.len()].clone())
        };
        let Some(flight) = flight else { return };
        let nodes = ALL.iter().filter_map(|node| self.clients().address(*node));
        let copies = nodes.map(|node| (node, flight.bytes.clone()));
        self.count(resend(copies.collect::<Vec<_>>(), NODES, false).await);
    }
}

/// Load in the background, until [`Self::end`].
pub(crate) struct BackgroundLoad {
    run: Run,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl BackgroundLoad {
    /// Lets it continue for a while.
    pub(crate) fn run_for(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Waits until honest early data was accepted again `times` times.
    ///
    /// # Panics
    /// If that takes longer than `timeout`.
    pub(crate) fn until_accepted(&self, times: u64, timeout: Duration) {
        let accepted = || self.run.counts(|counts| counts.accepted);
        let (before, started) = (accepted(), Instant::now());
        while accepted() < before + times {
            let name = self.run.name();
            assert!(started.elapsed() < timeout, "{name}: early data is not accepted again");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it. Requests in flight are finished.
    pub(crate) fn end(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        runtime().block_on(async {
            for task in self.tasks.drain(..) {
                task.await.unwrap();
            }
        });
    }
}

impl Drop for BackgroundLoad {
    /// Stops the load also when the scenario has failed.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Maximum number of concurrent copies.
const MAX_CONCURRENT_COPIES: usize = 64;

/// The pause between honest requests of a background load.
const HONEST_PAUSE: Duration = Duration::from_millis(40);

/// The length of a background load that sends all copies of a scenario.
const LOAD_TIME: Duration = Duration::from_secs(60);

/// Older flights are stale at each node, so a background load does not copy them.
const MAX_FLIGHT_AGE: Duration = Duration::from_secs(25);
