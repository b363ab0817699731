use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::attempt::Failed;
use crate::balance::Pick;
use crate::kept::Owner;
use crate::observer::Observer;
use crate::progress::{Progress, Upload};
use crate::retry::{RetryTerms, is_repeatable};
use crate::roster::{BodyEnd, Change, RequestProgress, ServerList};
use crate::server::Server;
use crate::status::{PoolStatus, ServerStatus};
use crate::{Body, PoolConfig, PoolError, SendError, ServerHealth, check, connect, form};

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
    roster: Mutex<ServerList>,
    /// Woken when a request ends, where requests may have to wait for that.
    room: Notify,
    waiting: AtomicUsize,
    turned_away: AtomicU64,
    begun: AtomicBool,
}

/// A request's place on a server.
pub(crate) struct Permit {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: usize,
}

impl Pool {
    /// A pool of that name. Nothing is connected yet.
    ///
    /// # Errors
    /// [`PoolError`]: settings that make no sense, or authorities that cannot be read.
    pub fn new(name: &str, config: PoolConfig) -> Result<Self, PoolError> {
        config.check()?;
        let connector = connect::connector(&config)?;
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
            roster: Mutex::new(ServerList::new(&config, Instant::now())),
            config,
            servers,
            room: Notify::new(),
            waiting: AtomicUsize::new(0),
            turned_away: AtomicU64::new(0),
            begun: AtomicBool::new(false),
        })))
    }

    /// Starts the health checks and the closing of idle connections; both end with the last clone
    /// of the pool. In a tokio runtime; again is no harm.
    pub fn begin(&self) {
        if !self.0.begun.swap(true, Ordering::Relaxed) {
            check::begin(&self.0);
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
        terms: &SendOptions<'_>,
    ) -> Result<Response<Body>, SendError> {
        let shared = &self.0;
        let (mut head, body) = request.into_parts();
        form::shape(&mut head, &body, &shared.config)?;
        let progress = Progress::new();
        let spare = is_repeatable(&head, body.is_end_stream()).then(|| head.clone());
        let mut request = Request::from_parts(head, Upload::new(body, progress.clone()));
        let (mut course, mut fresh) = (RequestProgress::default(), false);
        let mut last = None;
        shared.lock().begin();
        loop {
            // Who has failed before says more than that there is nobody left.
            let lease = match (shared.lease(&course).await, last.take()) {
                (Ok(lease), _) => lease,
                (Err(SendError::NoServer), Some(error)) | (Err(error), _) => return Err(error),
            };
            let at = lease.at;
            progress.note();
            let Failed { failure, error, unsent } =
                match shared.attempt(lease, request, &progress, terms, fresh).await {
                    Ok(response) => return Ok(response),
                    Err(failed) => failed,
                };
            let again =
                shared.lock().again(&mut course, at, failure, unsent.is_some(), spare.is_some());
            fresh = again == RetryTerms::Fresh;
            request = match (again, unsent, &spare) {
                (RetryTerms::No, ..) | (_, None, None) => return Err(error),
                (_, Some(request), _) => request,
                (_, None, Some(head)) => Request::from_parts(head.clone(), nothing(&progress)),
            };
            last = Some(error);
        }
    }
}

impl Shared {
    /// Takes a place on a server, and waits for one if need be.
    async fn lease(self: &Arc<Self>, course: &RequestProgress) -> Result<Permit, SendError> {
        let pick = |shared: &Arc<Self>| match shared.lock().pick(course, Instant::now()) {
            Pick::Server(at) => Some(Ok(Permit { shared: shared.clone(), at })),
            Pick::Nobody => Some(Err(SendError::NoServer)),
            Pick::Full => None,
        };
        if let Some(picked) = pick(self) {
            return picked;
        }
        let _waiting = Waiting::begin(&self.waiting);
        let limit = self.config.queue_timeout;
        let found = timeout(limit, async {
            loop {
                // Before the look, so that no end of a request is missed after it.
                let room = self.room.notified();
                if let Some(picked) = pick(self) {
                    return picked;
                }
                room.await;
            }
        });
        found.await.unwrap_or_else(|_| {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            Err(SendError::Busy(limit))
        })
    }

    /// A health check has ended.
    pub(crate) fn checked(&self, at: usize, found: Result<(), String>) {
        let change = self.lock().checked(at, found.is_ok(), Instant::now());
        self.tell(at, change, found.as_ref().err().map_or("it is well", String::as_str));
    }

    pub(crate) fn keep(&self, at: usize, sender: http1::SendRequest<Upload>, owner: Owner) {
        self.servers[at].kept.put(sender, owner, self.config.keep, Instant::now());
    }

    /// Tells people about a change.
    pub(crate) fn tell(&self, at: usize, (before, after): Change, why: &str) {
        let (pool, server) = (&self.name, &self.servers[at].name);
        match (before, after) {
            _ if before == after => {}
            (_, ServerHealth::Up) => info!("upstream {pool}: {server} is up: {why}"),
            (_, ServerHealth::Down) => warn!("upstream {pool}: {server} is down: {why}"),
            (_, ServerHealth::Aside) => warn!("upstream {pool}: {server} is set aside: {why}"),
            (_, ServerHealth::Trial) => {}
        }
        if before != after {
            // A server that is back has room.
            self.room.notify_waiters();
        }
    }

    fn status(&self) -> PoolStatus {
        let now = Instant::now();
        let roster = self.lock();
        let servers = roster.members().iter().zip(&self.servers).map(|(member, server)| {
            let since = member.health.since(now);
            ServerStatus {
                address: server.name.clone(),
                standing: member.health.standing(now),
                unchanged: now.saturating_duration_since(since),
                in_flight: member.in_flight,
                kept: server.kept.count(),
                connections: server.connections.load(Ordering::Relaxed),
                totals: member.totals.clone(),
            }
        });
        PoolStatus {
            name: self.name.clone(),
            servers: servers.collect(),
            retries: roster.retries,
            retries_denied: roster.retries_denied,
            waiting: self.waiting.load(Ordering::Relaxed),
            turned_away: self.turned_away.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ServerList> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    pub(crate) fn server(&self) -> &Server {
        &self.shared.servers[self.at]
    }

    pub(crate) fn keep(&self, sender: http1::SendRequest<Upload>, owner: Owner) {
        self.shared.keep(self.at, sender, owner);
    }

    /// The response's body has ended.
    pub(crate) fn body_ended(&self, ending: BodyEnd) {
        let change = self.shared.lock().body_ended(self.at, ending, Instant::now());
        self.shared.tell(self.at, change, "its answers break off");
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.lock().end(self.at);
        self.shared.room.notify_one();
    }
}

/// A request in the queue.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn nothing(progress: &Progress) -> Upload {
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
    Upload::new(body, progress.clone())
}
