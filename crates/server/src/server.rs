//! A server from its configuration to its last answer: listeners, connections, housekeeping.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use firstflight_config::{ServerConfig, TicketSettings};
use firstflight_otlp::{Exporter, TelemetrySettings};
use firstflight_replay::SharedConfig;
use firstflight_store::{Store, StoreTls};
use firstflight_tls::{Connector, ConnectorConfig, SteadyClock, Trust};
use firstflight_upstream::{Pool, PoolStatus};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use crate::access_log::AccessLog;
use crate::gatekeeper::Gatekeeper;
use crate::generation::{Foundation, Generation, serves_http3};
use crate::keys::{TicketRing, name_of_this_node};
use crate::quic::Front;
use crate::trace::Tracer;
use crate::upstreams::Pools;
use crate::{ServerError, connection, listener};

/// A server that listens. Connections are accepted once it runs.
pub struct Server {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

/// A handle on a server while it runs.
#[derive(Clone)]
pub struct ServerHandle(Arc<Shared>);

/// How far stopping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// Not at all.
    No,
    /// Running requests are finished, idle connections closed.
    Finish,
    /// Everything is dropped.
    Now,
}

/// What all connections share, as long as the process lives.
pub(crate) struct Shared {
    current: ArcSwap<Generation>,
    foundation: Foundation,
    front: Option<Arc<Front>>,
    pub(crate) gatekeeper: Gatekeeper,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) ring: Arc<TicketRing>,
}

impl Server {
    /// Checks the configuration, reads its files and listens.
    ///
    /// # Errors
    /// [`ServerError`], one sentence with the mend.
    pub async fn bind(config: ServerConfig) -> Result<Self, ServerError> {
        config.limits.check()?;
        if config.listeners.is_empty() {
            return Err(ServerError::NoAddress);
        }
        let store = open_store(&config)?;
        let ring = TicketRing::open(&config.tickets, store.as_ref().map(|(store, _)| store))?;
        let access_log = config.access_log.as_ref().map(AccessLog::open).transpose()?;
        let http3 = serves_http3(&config);
        let ports = config
            .listeners
            .iter()
            .map(|one| listener::listen(one.address, config.backlog, http3 && one.http3))
            .collect::<Result<Vec<_>, _>>()?;
        let addresses = ports.iter().map(|port| port.address).collect::<Vec<_>>();
        let foundation = Foundation::lay(&config, ring.clone(), &addresses)?;
        let generation = Generation::build(1, &config, &foundation, &Pools::new())?;
        generation.begin();
        ring.begin().await;
        // After the listeners: a process before us that has the ports has ended its last request.
        let gatekeeper = Gatekeeper::new(&config.early_data, ring.may_predate_start(), store);
        let (tcp, udp): (Vec<_>, Vec<_>) =
            ports.into_iter().map(|port| (port.tcp, (port.address, port.udp))).unzip();
        let front = match &generation.quic {
            Some(terms) => Some(Arc::new(Front::open(udp, terms, &foundation.tokens, &config)?)),
            None => None,
        };
        let current = ArcSwap::from_pointee(generation);
        let tracer = config.telemetry.as_ref().map(|settings| tracer(settings, &config));
        let shared = Shared { current, tracer, foundation, front, gatekeeper, access_log, ring };
        Ok(Self { listeners: tcp, addresses, shared: Arc::new(shared) })
    }

    /// The addresses listened on, with the ports that the system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle that stays good while the server runs.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(self.shared.clone())
    }

    /// Serves until `shutdown` is ready, then finishes running requests, for
    /// [`Limits::drain_timeout`] at most, and writes the access log to its end.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let (stop, stopped) = watch::channel(Stop::No);
        let limits = self.shared.current().limits.clone();
        let places = Arc::new(Semaphore::new(limits.connections as usize));
        let (mut tasks, mut doors) = (JoinSet::new(), JoinSet::new());
        for (listener, address) in self.listeners.into_iter().zip(&self.addresses) {
            let (shared, places, stop) = (self.shared.clone(), places.clone(), stopped.clone());
            tasks.spawn(accept(listener, address.port(), shared, places, stop));
        }
        if let Some(front) = &self.shared.front {
            front.run(&self.shared, &places, &stopped, &mut doors);
        }
        tasks.spawn(housekeeping(self.shared.clone()));
        tasks.spawn(self.shared.ring.clone().follow());
        for address in &self.addresses {
            info!("serving on {address}");
        }
        shutdown.await;
        info!("stopping: no new connections, running requests are finished");
        // The listeners close here.
        tasks.shutdown().await;
        stop.send_replace(Stop::Finish);
        let all = limits.connections;
        let drain_timeout = self.shared.current().limits.drain_timeout;
        let drained = timeout(drain_timeout, places.acquire_many(all)).await;
        if drained.is_err() {
            warn!("requests still running after the drain timeout are broken off");
            stop.send_replace(Stop::Now);
            let _ = timeout(LAST_WORDS, places.acquire_many(all)).await;
        }
        if let Some(front) = &self.shared.front {
            front.close().await;
        }
        if let Some(tracer) = &self.shared.tracer {
            tracer.flush().await;
        }
        let shared = self.shared.clone();
        let written = tokio::task::spawn_blocking(move || {
            if let Some(log) = &shared.access_log {
                log.close();
            }
        });
        let _ = written.await;
    }
}

impl Shared {
    /// The newest generation.
    pub(crate) fn current(&self) -> Arc<Generation> {
        self.current.load_full()
    }
}

impl ServerHandle {
    /// Serves by another configuration from now on: new connections, and further requests on old
    /// ones. Listeners, store and ticket keys stay what they are.
    ///
    /// # Errors
    /// [`ServerError`]: the configuration is of no use, and the old one stays.
    pub fn reload(&self, config: &ServerConfig) -> Result<(), ServerError> {
        let before = self.0.current();
        let foundation = &self.0.foundation;
        let generation = Generation::build(before.number + 1, config, foundation, &before.pools)?;
        if let (Some(front), Some(terms)) = (&self.0.front, &generation.quic) {
            front.take_up(terms);
        }
        if generation.early_data && !self.0.current().early_data {
            // Flights that were refused meanwhile, and sent again, have left no record.
            self.0.gatekeeper.claims_lost();
        }
        generation.begin();
        self.0.current.store(Arc::new(generation));
        Ok(())
    }

    /// The pools that requests are forwarded to, as they are now.
    pub fn upstreams(&self) -> Vec<PoolStatus> {
        self.0.current().pools.values().map(Pool::status).collect()
    }

    /// Opens the access log's file anew, after a log rotation has moved it.
    pub fn reopen_access_log(&self) {
        if let Some(log) = &self.0.access_log {
            log.reopen();
        }
    }
}

/// Whether a configuration could be served: reads all files that it names, and listens nowhere.
/// The store is not asked.
///
/// # Errors
/// [`ServerError`], one sentence with the mend.
pub fn check(config: &ServerConfig) -> Result<(), ServerError> {
    if let Some(StoreTls { ca_file: Some(file), .. }) =
        config.store.as_ref().and_then(|store| store.tls.as_ref())
    {
        Connector::new(ConnectorConfig::new(Trust::File(file.clone())))?;
    }
    TicketRing::check(&config.tickets)?;
    let ring = TicketRing::open(&TicketSettings::default(), None)?;
    Generation::build(0, config, &Foundation::lay(config, ring, &[])?, &Pools::new())?;
    Ok(())
}

/// The store that the configuration names, if it does. That it is not there is no error: its
/// connections are made, and made again, beside all else.
fn open_store(config: &ServerConfig) -> Result<Option<(Store, SharedConfig)>, ServerError> {
    let Some(store) = &config.store else { return Ok(None) };
    let mut store = store.clone();
    store.shared.freshness = config.early_data.freshness;
    let shared = store.shared;
    Ok(Some((Store::open(store, SteadyClock::unix_micros)?, shared)))
}

fn tracer(settings: &TelemetrySettings, config: &ServerConfig) -> Tracer {
    let exporter = settings.otlp.clone().map(|endpoint| {
        let node = config.tickets.node.clone().unwrap_or_else(name_of_this_node);
        Exporter::start(endpoint, settings, &node, Box::new(String::new)).0
    });
    Tracer::new(settings.clone(), exporter)
}

/// Accepts connections while there are places.
async fn accept(
    listener: TcpListener,
    port: u16,
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
    stop: watch::Receiver<Stop>,
) {
    loop {
        // First the place, then the connection: without one, clients wait in the backlog.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, client)) => {
                let serving = connection::serve(shared.clone(), stream, client, port, stop.clone());
                tokio::spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors or memory, or a peer that has gone again.
                warn!("cannot accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What has to be looked at about once a second.
async fn housekeeping(shared: Arc<Shared>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.gatekeeper.watch_clock();
        if let Some(front) = &shared.front {
            front.look();
        }
        // Files of keys may lie on a slow disk.
        let ring = shared.ring.clone();
        let _ = tokio::task::spawn_blocking(move || ring.refresh()).await;
    }
}

/// Long enough for places to come free, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// For connections to end after they were told to drop everything.
const LAST_WORDS: Duration = Duration::from_secs(2);
