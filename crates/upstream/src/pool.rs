use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::attempt::AttemptError;
use crate::attempt::Observer;
use crate::balance::Pick;
use crate::body::{Progress, Upload};
use crate::connection_cache::Owner;
use crate::retry::{RetryDecision, is_repeatable};
use crate::server::Server;
use crate::server_list::{AttemptHistory, BodyEnd, Change, ServerList};
use crate::{Body, PoolConfig, PoolError, SendError, ServerHealth, attempt, health_check, server};

/// Servers that serve the same requests. Cheap to clone.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

/// On whose behalf a request is sent, and who is told how it goes.
#[derive(Clone, Copy)]
pub struct SendOptions<'a> {
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// Told of each try.
    pub observer: &'a dyn Observer,
}

pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) config: PoolConfig,
    pub(crate) servers: Vec<Server>,
    server_list: Mutex<ServerList>,
    /// Woken when a request ends, where requests may have to wait for that.
    capacity_freed: Notify,
    waiting: AtomicUsize,
    rejected: AtomicU64,
    started: AtomicBool,
}

/// A request's place on a server.
pub(crate) struct Permit {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
}

impl Pool {
    /// A pool of that name. Nothing is connected yet.
    ///
    /// # Errors
    /// [`PoolError`]: settings that make no sense, or authorities that cannot be read.
    pub fn new(name: &str, config: PoolConfig) -> Result<Self, PoolError> {
        config.check()?;
        let connector = server::connector(&config)?;
        let servers = config
            .servers
            .iter()
            .map(|address| {
                let connector = connector.clone().filter(|_| address.is_tls());
                Server::new(address.clone(), connector)
            })
            .collect();
        Ok(Self(Arc::new(Shared {
            name: name.to_owned(),
            server_list: Mutex::new(ServerList::new(&config, Instant::now())),
            config,
            servers,
            capacity_freed: Notify::new(),
            waiting: AtomicUsize::new(0),
            rejected: AtomicU64::new(0),
            started: AtomicBool::new(false),
        })))
    }

    /// Starts the health checks and the closing of idle connections; both end with the last clone
    /// of the pool. In a tokio runtime; again is no harm.
    pub fn start(&self) {
        if !self.0.started.swap(true, Ordering::Relaxed) {
            health_check::start(&self.0);
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.0.config
    }

    /// How it is now.
    pub fn status(&self) -> PoolStatus {
        self.0.status()
    }

    /// Has a request answered. Its URI is a path with a query, and `Host` says for whom it is. It
    /// is in flight until the response's body has ended or is dropped; that holds for the tunnel
    /// after a 101 too, which is to be had by [`hyper::upgrade::on`].
    ///
    /// # Errors
    /// [`SendError`], when all tries have failed.
    pub async fn send(
        &self,
        request: Request<Body>,
        options: &SendOptions<'_>,
    ) -> Result<Response<Body>, SendError> {
        let shared = &self.0;
        let (mut head, body) = request.into_parts();
        attempt::prepare(&mut head, &body, &shared.config)?;
        let progress = Progress::new();
        let spare = is_repeatable(&head, body.is_end_stream()).then(|| head.clone());
        let mut request = Request::from_parts(head, Upload::new(body, progress.clone()));
        let (mut history, mut fresh) = (AttemptHistory::default(), false);
        let mut last = None;
        shared.lock().start();
        loop {
            // Who has failed before says more than that there is nobody left.
            let permit = match (shared.permit(&history).await, last.take()) {
                (Ok(permit), _) => permit,
                (Err(SendError::NoServer), Some(error)) | (Err(error), _) => return Err(error),
            };
            let index = permit.index;
            progress.note();
            let AttemptError { failure, error, unsent } =
                match shared.attempt(permit, request, &progress, options, fresh).await {
                    Ok(response) => return Ok(response),
                    Err(failed) => failed,
                };
            let again = shared.lock().again(
                &mut history,
                index,
                failure,
                unsent.is_some(),
                spare.is_some(),
            );
            fresh = again == RetryDecision::Fresh;
            request = match (again, unsent, &spare) {
                (RetryDecision::No, ..) | (_, None, None) => return Err(error),
                (_, Some(request), _) => request,
                (_, None, Some(head)) => Request::from_parts(head.clone(), empty_body(&progress)),
            };
            last = Some(error);
        }
    }
}

impl Shared {
    /// Takes a place on a server, and waits for one if need be.
    async fn permit(self: &Arc<Self>, history: &AttemptHistory) -> Result<Permit, SendError> {
        let pick = |shared: &Arc<Self>| match shared.lock().pick(history, Instant::now()) {
            Pick::Server(index) => Some(Ok(Permit { shared: shared.clone(), index })),
            Pick::NoServer => Some(Err(SendError::NoServer)),
            Pick::Full => None,
        };
        if let Some(picked) = pick(self) {
            return picked;
        }
        let _waiting = QueuedRequest::start(&self.waiting);
        let limit = self.config.queue_timeout;
        let found = timeout(limit, async {
            loop {
                // Before the look, so that no end of a request is missed after it.
                let capacity_freed = self.capacity_freed.notified();
                if let Some(picked) = pick(self) {
                    return picked;
                }
                capacity_freed.await;
            }
        });
        found.await.unwrap_or_else(|_| {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            Err(SendError::Busy(limit))
        })
    }

    /// A health check has ended.
    pub(crate) fn checked(&self, index: usize, found: Result<(), String>) {
        let change = self.lock().checked(index, found.is_ok(), Instant::now());
        self.log_change(index, change, found.as_ref().err().map_or("it is well", String::as_str));
    }

    pub(crate) fn keep(&self, index: usize, sender: http1::SendRequest<Upload>, owner: Owner) {
        self.servers[index].cache.put(sender, owner, self.config.keep, Instant::now());
    }

    /// Tells people about a change.
    pub(crate) fn log_change(&self, index: usize, (before, after): Change, why: &str) {
        let (pool, server) = (&self.name, &self.servers[index].name);
        match (before, after) {
            _ if before == after => {}
            (_, ServerHealth::Up) => info!("upstream {pool}: {server} is up: {why}"),
            (_, ServerHealth::Down) => warn!("upstream {pool}: {server} is down: {why}"),
            (_, ServerHealth::Ejected) => warn!("upstream {pool}: {server} is set aside: {why}"),
            (_, ServerHealth::Trial) => {}
        }
        if before != after {
            // A server that is back has room.
            self.capacity_freed.notify_waiters();
        }
    }

    fn status(&self) -> PoolStatus {
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

    pub(crate) fn keep(&self, sender: http1::SendRequest<Upload>, owner: Owner) {
        self.shared.keep(self.index, sender, owner);
    }

    /// The response's body has ended.
    pub(crate) fn body_ended(&self, end: BodyEnd) {
        let change = self.shared.lock().body_ended(self.index, end, Instant::now());
        self.shared.log_change(self.index, change, "its answers break off");
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.lock().end(self.index);
        self.shared.capacity_freed.notify_one();
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

fn empty_body(progress: &Progress) -> Upload {
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
    Upload::new(body, progress.clone())
}

/// A pool as it is now, for metrics and people.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its servers, in the order of the configuration.
    pub servers: Vec<ServerStatus>,
    /// Requests that were sent again.
    pub retries: u64,
    /// Requests that were not, because the budget was used up.
    pub retries_denied: u64,
    /// Requests that wait because every server has as many as it may.
    pub waiting: usize,
    /// Requests that waited for too long.
    pub rejected: u64,
}

/// A server as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// Its address.
    pub address: String,
    /// What is thought of it.
    pub state: ServerHealth,
    /// For how long.
    pub unchanged: Duration,
    /// Requests that are running, bodies of responses included.
    pub in_flight: usize,
    /// Connections that are kept, idle ones of HTTP/1.1 and all of HTTP/2.
    pub cached_connections: usize,
    /// Connections that were opened.
    pub connections: u64,
    /// Requests since the start.
    pub totals: RequestTotals,
}

/// A server's requests since the start, by how they went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestTotals {
    /// Sent, or tried to be.
    pub requests: u64,
    /// Answers by the first digit of their status, from 1 to 5.
    pub responses: [u64; 5],
    /// No connection.
    pub connect_failed: u64,
    /// On a kept connection that ended meanwhile.
    pub stale: u64,
    /// No response, or none that can be understood.
    pub broken: u64,
    /// Refused by the server before it did anything (HTTP/2).
    pub refused: u64,
    /// No response in time.
    pub timeouts: u64,
    /// Answers that the server broke off.
    pub bodies_broken: u64,
    /// Answers that stood still.
    pub bodies_stalled: u64,
    /// Requests that the client did not send to the end, and answers that it did not take to the
    /// end.
    pub abandoned: u64,
}
