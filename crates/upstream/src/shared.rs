//! What all requests of a pool share: its servers, their state, and the queue.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::balance::Pick;
use crate::connection_cache::Owner;
use crate::sender::Http1;
use crate::server::{self, Server};
use crate::server_list::{AttemptHistory, BodyEnd, Change, RequestTotals, ServerList};
use crate::{PoolConfig, PoolError, SendError, ServerHealth};

/// The state of a pool.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) config: PoolConfig,
    /// The content of the file of certificate authorities when the pool was created.
    authorities: Option<Vec<u8>>,
    pub(crate) servers: Vec<Server>,
    server_list: Mutex<ServerList>,
    /// Wakes one queued request when a request ends: any that waits here can use the capacity.
    capacity_freed: Notify,
    /// When a request ends, also wakes all queued requests that have failed on a server. They may
    /// be unable to use the capacity, and must not take the place of one that can.
    capacity_freed_for_retries: Notify,
    waiting: AtomicUsize,
    rejected: AtomicU64,
    started: AtomicBool,
    /// Whether another pool has replaced this one.
    retired: AtomicBool,
    /// The pool that this one replaces when it starts.
    predecessor: Mutex<Option<Arc<Shared>>>,
}

/// Reads the file of certificate authorities. Returns `None` if there is none, or if it cannot be
/// read.
fn read_authorities(config: &PoolConfig) -> Option<Vec<u8>> {
    config.ca.as_ref().and_then(|path| std::fs::read(path).ok())
}

/// Permits one request on a server.
pub(crate) struct Permit {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
    /// When the server was chosen.
    pub(crate) picked: Instant,
}

impl Shared {
    /// `predecessor`: the pool that this one replaces when it starts.
    ///
    /// # Errors
    /// As [`crate::Pool::new`].
    pub(crate) fn new(
        name: &str,
        config: PoolConfig,
        predecessor: Option<Arc<Shared>>,
    ) -> Result<Self, PoolError> {
        config.check()?;
        let authorities = read_authorities(&config);
        let connector = server::connector(&config)?;
        let servers = config
            .servers
            .iter()
            .map(|address| {
                let connector = connector.clone().filter(|_| address.is_tls());
                Server::new(address.clone(), connector)
            })
            .collect();
        Ok(Self {
            name: name.to_owned(),
            server_list: Mutex::new(ServerList::new(&config, Instant::now())),
            config,
            authorities,
            servers,
            capacity_freed: Notify::new(),
            capacity_freed_for_retries: Notify::new(),
            waiting: AtomicUsize::new(0),
            rejected: AtomicU64::new(0),
            started: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            predecessor: Mutex::new(predecessor),
        })
    }

    /// Returns whether a new pool with this configuration would equal this one.
    pub(crate) fn is_current(&self, config: &PoolConfig) -> bool {
        self.config == *config && self.authorities == read_authorities(config)
    }

    /// Returns whether this is the first call.
    pub(crate) fn mark_started(&self) -> bool {
        !self.started.swap(true, Ordering::Relaxed)
    }

    /// Retires the pool that this one replaces, and continues its counters, which must not
    /// decrease. Requests in flight there are not counted any further.
    pub(crate) fn replace_predecessor(&self) {
        let predecessor = self.predecessor.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(predecessor) = predecessor else { return };
        predecessor.retired.store(true, Ordering::Relaxed);
        self.rejected.store(predecessor.rejected.load(Ordering::Relaxed), Ordering::Relaxed);
        let (old, mut new) = (predecessor.lock(), self.lock());
        (new.retries, new.retries_denied) = (old.retries, old.retries_denied);
        for (index, server) in self.servers.iter().enumerate() {
            let mut old_servers = predecessor.servers.iter().zip(old.members());
            if let Some((old_server, member)) =
                old_servers.find(|(old_server, _)| old_server.address == server.address)
            {
                let connections = old_server.connections.load(Ordering::Relaxed);
                server.connections.store(connections, Ordering::Relaxed);
                new.continue_totals(index, member.totals.clone());
            }
        }
    }

    /// Returns whether another pool has replaced this one.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Chooses a server, and waits in the queue if all are busy.
    pub(crate) async fn permit(
        self: &Arc<Self>,
        history: &AttemptHistory,
    ) -> Result<Permit, SendError> {
        let pick = |shared: &Arc<Self>| {
            let picked = Instant::now();
            match shared.lock().pick(history, picked) {
                Pick::Server(index) => Some(Ok(Permit { shared: shared.clone(), index, picked })),
                Pick::NoServer => Some(Err(SendError::NoServer)),
                Pick::Full => None,
            }
        };
        if let Some(result) = pick(self) {
            return result;
        }
        let _waiting = QueuedRequest::start(&self.waiting);
        let freed = match history.excludes_servers() {
            true => &self.capacity_freed_for_retries,
            false => &self.capacity_freed,
        };
        let limit = self.config.queue_timeout;
        let result = timeout(limit, async {
            loop {
                // Enabled before choosing, so that no end of a request is missed.
                let mut freed = pin!(freed.notified());
                freed.as_mut().enable();
                if let Some(result) = pick(self) {
                    return result;
                }
                let now = Instant::now();
                let next_trial = self.lock().next_trial(now);
                let wait = next_trial.map_or(limit, |trial| trial.saturating_duration_since(now));
                let _ = timeout(wait, freed).await;
            }
        });
        result.await.unwrap_or_else(|_| {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            Err(SendError::Busy(limit))
        })
    }

    /// Handles the result of a health check.
    pub(crate) fn checked(&self, index: usize, result: Result<(), String>) {
        let change = self.lock().checked(index, result.is_ok(), Instant::now());
        self.log_change(
            index,
            change,
            result.as_ref().err().map_or("the health check succeeded", String::as_str),
        );
    }

    pub(crate) fn return_to_cache(&self, index: usize, connection: Http1, owner: Owner) {
        let max = self.config.idle_connections;
        self.servers[index].cache.put(connection, owner, max, Instant::now());
    }

    /// Logs a change of health, and wakes the queue.
    pub(crate) fn log_change(&self, index: usize, (before, after): Change, why: &str) {
        let (pool, server) = (&self.name, &self.servers[index].name);
        match (before, after) {
            _ if before == after => {}
            (_, ServerHealth::Up) => info!("upstream {pool}: {server} is up: {why}"),
            (_, ServerHealth::Down) => warn!("upstream {pool}: {server} is down: {why}"),
            (_, ServerHealth::Ejected) => warn!("upstream {pool}: {server} is ejected: {why}"),
            (_, ServerHealth::Trial) => {}
        }
        if before != after {
            // The server may have capacity for waiting requests.
            self.capacity_freed.notify_waiters();
            self.capacity_freed_for_retries.notify_waiters();
        }
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let now = Instant::now();
        let server_list = self.lock();
        let servers = server_list.members().iter().zip(&self.servers).map(|(member, server)| {
            let since = member.health.since(now);
            ServerStatus {
                address: server.name.clone(),
                state: member.health.state(now),
                unchanged: now.saturating_duration_since(since),
                in_flight: member.in_flight,
                cached_connections: server.cache.count(),
                connections: server.connections.load(Ordering::Relaxed),
                totals: member.totals.clone(),
            }
        });
        PoolStatus {
            name: self.name.clone(),
            servers: servers.collect(),
            retries: server_list.retries,
            retries_denied: server_list.retries_denied,
            waiting: self.waiting.load(Ordering::Relaxed),
            rejected: self.rejected.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ServerList> {
        self.server_list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    pub(crate) fn server(&self) -> &Server {
        &self.shared.servers[self.index]
    }

    pub(crate) fn return_to_cache(&self, connection: Http1, owner: Owner) {
        self.shared.return_to_cache(self.index, connection, owner);
    }

    /// Handles the end of a response body.
    pub(crate) fn body_ended(&self, end: BodyEnd) {
        let change = self.shared.lock().body_ended(self.index, self.picked, end, Instant::now());
        self.shared.log_change(self.index, change, "its responses end early");
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.lock().end(self.index, self.picked);
        self.shared.capacity_freed.notify_one();
        self.shared.capacity_freed_for_retries.notify_waiters();
    }
}

/// A request in the queue.
struct QueuedRequest<'a>(&'a AtomicUsize);

impl<'a> QueuedRequest<'a> {
    fn start(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The status of a pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its servers, in the order of the configuration.
    pub servers: Vec<ServerStatus>,
    /// Requests that were sent again.
    pub retries: u64,
    /// Retries that the budget denied.
    pub retries_denied: u64,
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests rejected after waiting in the queue.
    pub rejected: u64,
}

/// The status of a server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// Its address.
    pub address: String,
    /// Its health.
    pub state: ServerHealth,
    /// Time since its health last changed.
    pub unchanged: Duration,
    /// Requests in flight, until the ends of the request body and of the response body.
    pub in_flight: usize,
    /// Idle connections of HTTP/1.1, and all connections of HTTP/2.
    pub cached_connections: usize,
    /// Connections opened so far.
    pub connections: u64,
    /// Requests since the start.
    pub totals: RequestTotals,
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::EjectionRule;
    use crate::retry::{Failure, Repeatable};

    /// A pool of two servers with one request each. A queued request waits for a long time.
    fn pool(ejection: Option<EjectionRule>) -> Arc<Shared> {
        let servers = ["http://localhost:1", "http://localhost:2"];
        let servers = servers.into_iter().map(|address| address.parse().unwrap()).collect();
        let config = PoolConfig {
            requests: 1,
            queue_timeout: Duration::from_secs(10),
            ejection,
            ..PoolConfig::new(servers)
        };
        Arc::new(Shared::new("test", config, None).unwrap())
    }

    #[tokio::test]
    async fn a_queued_request_gets_a_server_whose_ejection_ends() {
        let first = Duration::from_millis(100);
        let shared = pool(Some(EjectionRule { after: 1, first, ..EjectionRule::default() }));
        let new = AttemptHistory::default();
        let failing = shared.permit(&new).await.unwrap();
        let _busy = shared.permit(&new).await.unwrap();
        let (index, now) = (failing.index, Instant::now());
        shared.lock().failed(index, failing.picked, Failure::Broken, now);
        drop(failing);
        assert_eq!(shared.permit(&new).await.unwrap().index, index);
    }

    #[tokio::test]
    async fn a_request_that_cannot_use_a_free_server_does_not_delay_one_that_can() {
        let shared = pool(None);
        let (new, mut failed) = (AttemptHistory::default(), AttemptHistory::default());
        let first = shared.permit(&new).await.unwrap();
        let _other = shared.permit(&new).await.unwrap();
        let free = first.index;
        let (failure, repeatable) = (Failure::Connect, Repeatable::Never);
        shared.lock().decide_retry(&mut failed, free, failure, true, repeatable, Instant::now());
        let ends = async {
            drop(first);
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            _ = shared.permit(&failed) => panic!("the failed request gave up or got a server"),
            permit = shared.permit(&new) => assert_eq!(permit.unwrap().index, free),
            () = ends => {}
        }
    }
}
