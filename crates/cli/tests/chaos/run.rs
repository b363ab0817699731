//! One scenario on one cluster: honest requests, copies of their flights, and what is counted.

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

/// A scenario under way. Cheap to clone; clones count together.
#[derive(Clone)]
pub(crate) struct Run(Arc<Inner>);

struct Inner {
    clients: Arc<ClusterClients>,
    name: &'static str,
    /// How many copies are to be sent in all.
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

/// What was counted besides executions.
#[derive(Default)]
pub(crate) struct Counts {
    /// Requests of the honest client.
    pub(crate) honest: u64,
    /// Those of them that were sent as early data.
    pub(crate) offered: u64,
    /// Those of them that a node answered from early data.
    pub(crate) accepted: u64,
    /// No response, also not to a second request after 425; why.
    pub(crate) lost: Vec<String>,
    /// Answered by an error.
    pub(crate) errors: Vec<String>,
    /// Told 425 (Too Early), because a copy had overtaken the flight. The client sent it again.
    pub(crate) too_early: u64,
    /// By target.
    pub(crate) requests: HashMap<String, Sent>,
    /// Copies.
    pub(crate) resent: CopyCounts,
}

/// How the honest client's request came to be executed, by its own word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// It was sent as early data: there is a flight to copy.
    pub(crate) flight: bool,
    /// It was answered from its flight.
    pub(crate) early: usize,
    /// It was sent again by the client after the handshake and answered.
    pub(crate) late: usize,
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

    /// What was counted so far.
    pub(crate) fn counts<T>(&self, look: impl FnOnce(&Counts) -> T) -> T {
        look(&self.0.counts.lock().unwrap())
    }

    /// How many flights make a good part of a scenario.
    pub(crate) fn size(&self) -> usize {
        (self.0.quota / 20).clamp(20, 100) as usize
    }

    /// Has the honest client speak HTTP/2 from now on.
    pub(crate) fn use_http2(&self) {
        self.0.http2.store(true, Ordering::SeqCst);
    }

    fn http(&self) -> Http {
        if self.0.http2.load(Ordering::SeqCst) { Http::Two } else { Http::One }
    }

    /// One honest request to a node, or to the next that is up. Whether its early data was taken.
    pub(crate) async fn request(&self, node: usize) -> bool {
        let number = self.0.sequence.fetch_add(1, Ordering::SeqCst);
        let target = format!("/{}/{number}", self.0.name);
        let place = self.clients().enter(node);
        let first = self.clients().get(&place, self.http(), &target, true).await;
        let offered = first.early != EarlyData::NotOffered;
        let accepted = first.early == EarlyData::Accepted;
        if offered && !first.flight.is_empty() {
            let flight = Flight { bytes: first.flight.into(), captured: Instant::now() };
            self.0.flights.lock().unwrap().push(flight);
        }
        let mut sent = Sent { flight: offered, ..Sent::default() };
        let mut status = first.status;
        let told = status == Ok(StatusCode::TOO_EARLY) && offered;
        if told {
            // RFC 8470 section 5.2: once more, and not early.
            status = self.clients().get(&place, self.http(), &target, false).await.status;
        }
        let answered = status == Ok(StatusCode::OK);
        let early = accepted && !told;
        sent.early = usize::from(answered && early);
        sent.late = usize::from(answered && !early);

        let mut counts = self.0.counts.lock().unwrap();
        counts.honest += 1;
        counts.offered += u64::from(offered);
        counts.accepted += u64::from(sent.early == 1);
        counts.too_early += u64::from(told);
        match status {
            Ok(StatusCode::OK) => {}
            Ok(status) => counts.errors.push(format!("{target} at {}: {status}", place.number)),
            Err(reason) => counts.lost.push(format!("{target} at {}: {reason}", place.number)),
        }
        counts.requests.insert(target, sent);
        accepted
    }

    /// Honest requests to these nodes in turn, until early data was taken so often.
    ///
    /// # Panics
    /// If it is not taken for so long that the scenario would say nothing.
    pub(crate) fn flights(&self, count: usize, nodes: &[usize]) {
        self.flights_within(TEST_TIMEOUT, count, nodes).unwrap();
    }

    /// The same, with a patience of its own: register and epochs may have a window to wait for.
    ///
    /// # Errors
    /// If it is not taken for so long.
    pub(crate) fn flights_within(
        &self,
        timeout: Duration,
        count: usize,
        nodes: &[usize],
    ) -> Result<(), String> {
        let started = Instant::now();
        let mut taken = 0;
        let mut node = nodes.iter().cycle();
        while taken < count {
            let early = runtime().block_on(self.request(*node.next().unwrap()));
            taken += usize::from(early);
            if started.elapsed() > timeout {
                let name = self.name();
                return Err(format!("{name}: early data taken {taken} times of {count}"));
            }
            if !early {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// So many honest requests to these nodes in turn, whatever becomes of their early data.
    pub(crate) fn requests(&self, count: usize, nodes: &[usize]) {
        for node in nodes.iter().cycle().take(count) {
            runtime().block_on(self.request(*node));
        }
    }

    /// A part of the copies that the scenario is to send: of all flights so far, the latest first,
    /// to these nodes.
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
        // A library for HTTP/2 hands out no request of a connection that has ended.
        let with_close = self.clients().kind.is_ours() && self.http() == Http::One;
        self.count(runtime().block_on(resend(copies.take(count), AT_ONCE, with_close)));
    }

    /// Whatever is left to be sent of the scenario's copies, to all nodes.
    pub(crate) fn remaining_copies(&self) {
        let sent = self.counts(|counts| counts.resent.sent);
        let left = self.0.quota.saturating_sub(sent);
        self.copies(left as f64 / self.0.quota as f64, &ALL);
    }

    /// Copies of one flight, sent by the caller.
    pub(crate) fn count(&self, resent: CopyCounts) {
        let mut counts = self.0.counts.lock().unwrap();
        counts.resent = counts.resent.and(resent);
    }

    /// Honest requests, and copies of what is fresh, without a pause until the storm is ended.
    pub(crate) fn storm(&self) -> Storm {
        let over = Arc::<AtomicBool>::default();
        let honest = {
            let (run, over) = (self.clone(), over.clone());
            runtime().spawn(async move {
                for node in (0..NODES).cycle() {
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                    run.request(node).await;
                    sleep(PACE).await;
                }
            })
        };
        let attack = {
            let (run, over) = (self.clone(), over.clone());
            let pause = STORM.div_f64(run.0.quota as f64 / NODES as f64);
            runtime().spawn(async move {
                for turn in 0.. {
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                    run.attack(turn).await;
                    sleep(pause).await;
                }
            })
        };
        Storm { run: self.clone(), over, tasks: vec![honest, attack] }
    }

    /// A copy of one of the flights that are still fresh, to each node at once.
    async fn attack(&self, turn: usize) {
        let flight = {
            let flights = self.0.flights.lock().unwrap();
            let fresh = flights.partition_point(|flight| flight.captured.elapsed() > FRESH);
            let fresh = &flights[fresh..];
            (!fresh.is_empty()).then(|| fresh[turn % fresh.len()].clone())
        };
        let Some(flight) = flight else { return };
        let nodes = ALL.iter().filter_map(|node| self.clients().address(*node));
        let copies = nodes.map(|node| (node, flight.bytes.clone()));
        self.count(resend(copies.collect::<Vec<_>>(), NODES, false).await);
    }
}

/// Goes on in the background until it is ended.
pub(crate) struct Storm {
    run: Run,
    over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Storm {
    /// Lets it go on for a while.
    pub(crate) fn rage(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Waits until honest early data is taken again, so often.
    ///
    /// # Panics
    /// If that takes longer than `timeout`.
    pub(crate) fn until_taken(&self, times: u64, timeout: Duration) {
        let accepted = || self.run.counts(|counts| counts.accepted);
        let (before, started) = (accepted(), Instant::now());
        while accepted() < before + times {
            let name = self.run.name();
            assert!(started.elapsed() < timeout, "{name}: early data is not taken again");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it. What is under way is finished.
    pub(crate) fn end(self) {
        self.over.store(true, Ordering::SeqCst);
        runtime().block_on(async {
            for task in self.tasks {
                task.await.unwrap();
            }
        });
    }
}

/// Copies that race each other.
const AT_ONCE: usize = 64;

/// Between honest requests of a storm.
const PACE: Duration = Duration::from_millis(40);

/// A storm of this length sends all copies of a scenario.
const STORM: Duration = Duration::from_secs(60);

/// Older flights are stale at each node, and not worth a copy in a storm.
const FRESH: Duration = Duration::from_secs(25);
