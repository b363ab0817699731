//! A server from its configuration to its last answer: listeners, connections, housekeeping.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use firstflight_quic::ServerCrypto;
use firstflight_replay::SharedConfig;
use firstflight_store::Store;
use firstflight_tls::{Acceptor, AcceptorConfig, KeyLog, KeyLogFile, SteadyClock, Version};
use http::HeaderValue;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use crate::access_log::AccessLog;
use crate::content::Service;
use crate::gatekeeper::Gatekeeper;
use crate::keys::TicketRing;
use crate::quic::Front;
use crate::{Content, Limits, ServerConfig, ServerError, certificate, connection, listener};

/// A server that listens. Connections are accepted once it runs.
pub struct Server {
    listeners: Vec<(TcpListener, Option<HeaderValue>)>,
    addresses: Vec<SocketAddr>,
    front: Option<Arc<Front>>,
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

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) acceptor: Acceptor,
    pub(crate) gatekeeper: Gatekeeper,
    pub(crate) service: Service,
    pub(crate) limits: Limits,
    pub(crate) keep_alive: bool,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) ring: Arc<TicketRing>,
}

impl Server {
    /// Checks the configuration, reads its files and listens.
    ///
    /// # Errors
    /// [`ServerError`], one sentence with the mend.
    pub async fn bind(config: ServerConfig) -> Result<Self, ServerError> {
        config.limits.check()?;
        if config.listen.is_empty() {
            return Err(ServerError::NoAddress);
        }
        let service = Service::new(&config.content, &config.limits)?;
        let store = open_store(&config)?;
        let ring = TicketRing::open(&config.tickets, store.as_ref().map(|(store, _)| store))?;
        let access_log = config.access_log.as_ref().map(AccessLog::open).transpose()?;
        let http3 = config.http3.enabled && config.tls.max_version >= Version::Tls13;
        let ports = config
            .listen
            .iter()
            .map(|address| listener::listen(*address, config.backlog, http3))
            .collect::<Result<Vec<_>, _>>()?;
        let addresses = ports.iter().map(|port| port.address).collect::<Vec<_>>();
        let identity = certificate::identity(&config.certificate, &addresses)?;
        let acceptor_config = acceptor(&config, identity, ring.clone())?;
        let quic = match http3 {
            true => {
                let quic = for_quic(&acceptor_config, &config.content);
                // What a client remembers of HTTP/3's settings beside the transport's.
                let settings = config.limits.header_size.to_be_bytes();
                Some(ServerCrypto::with_settings(quic, &settings)?)
            }
            false => None,
        };
        let acceptor = Acceptor::new(acceptor_config)?;
        ring.begin().await;
        // After the listeners: a process before us that has the ports has ended its last request.
        let gatekeeper = Gatekeeper::new(&config.early_data, ring.may_predate_start(), store);
        let (tcp, udp): (Vec<_>, Vec<_>) =
            ports.into_iter().map(|port| (port.tcp, (port.address, port.udp))).unzip();
        let front = match quic {
            Some(crypto) => Some(Arc::new(Front::open(udp, crypto, &ring, &config)?)),
            None => None,
        };
        let listeners = tcp.into_iter().zip(&addresses).map(|(tcp, address)| {
            (tcp, front.as_ref().and_then(|_| alt_svc(&config, address.port())))
        });
        let listeners = listeners.collect();
        let shared = Shared {
            acceptor,
            gatekeeper,
            service,
            limits: config.limits,
            keep_alive: config.keep_alive,
            access_log,
            ring,
        };
        Ok(Self { listeners, addresses, front, shared: Arc::new(shared) })
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
        let places = Arc::new(Semaphore::new(self.shared.limits.connections as usize));
        let (mut tasks, mut doors) = (JoinSet::new(), JoinSet::new());
        for (listener, alt_svc) in self.listeners {
            let (shared, places, stop) = (self.shared.clone(), places.clone(), stopped.clone());
            tasks.spawn(accept(listener, alt_svc, shared, places, stop));
        }
        if let Some(front) = &self.front {
            front.run(&self.shared, &places, &stopped, &mut doors);
        }
        tasks.spawn(housekeeping(self.shared.clone(), self.front.clone()));
        tasks.spawn(self.shared.ring.clone().follow());
        for address in &self.addresses {
            info!("serving on {address}");
        }
        shutdown.await;
        info!("stopping: no new connections, running requests are finished");
        // The listeners close here.
        tasks.shutdown().await;
        stop.send_replace(Stop::Finish);
        let all = self.shared.limits.connections;
        let drained = timeout(self.shared.limits.drain_timeout, places.acquire_many(all)).await;
        if drained.is_err() {
            warn!("requests still running after the drain timeout are broken off");
            stop.send_replace(Stop::Now);
            let _ = timeout(LAST_WORDS, places.acquire_many(all)).await;
        }
        if let Some(front) = &self.front {
            front.close().await;
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

impl ServerHandle {
    /// Opens the access log's file anew, after a log rotation has moved it.
    pub fn reopen_access_log(&self) {
        if let Some(log) = &self.0.access_log {
            log.reopen();
        }
    }
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

/// What answers over TCP say about HTTP/3 (RFC 7838 section 3).
fn alt_svc(config: &ServerConfig, port: u16) -> Option<HeaderValue> {
    let age = config.http3.alt_svc?.as_secs();
    HeaderValue::from_str(&format!("h3=\":{port}\"; ma={age}")).ok()
}

/// The same for QUIC. Certificate, ring and key log are shared; a ticket is good for one of both
/// alone, as the library sees to.
fn for_quic(config: &AcceptorConfig, content: &Content) -> AcceptorConfig {
    let alpn: &[u8] = match content {
        Content::PingPong => b"firstflight-ping-pong",
        _ => b"h3",
    };
    AcceptorConfig { alpn: vec![alpn.to_vec()], ..config.clone() }
}

fn acceptor(
    config: &ServerConfig,
    identity: firstflight_tls::Identity,
    ring: Arc<TicketRing>,
) -> Result<AcceptorConfig, ServerError> {
    let tls = &config.tls;
    if tls.min_version > tls.max_version {
        return Err(ServerError::Setting(format!(
            "the oldest TLS version ({}) is newer than the newest ({}); swap --tls-min and \
             --tls-max",
            tls.min_version, tls.max_version
        )));
    }
    let key_log = match &tls.key_log {
        Some(path) => Some(Arc::new(KeyLogFile::open(path)?) as Arc<dyn KeyLog>),
        None => None,
    };
    let alpn: &[&str] = match (&config.content, tls.http2) {
        (Content::PingPong, _) => &[],
        (_, true) => &["h2", "http/1.1"],
        (_, false) => &["http/1.1"],
    };
    let lifetime = ring.lifetime();
    Ok(AcceptorConfig {
        min_version: tls.min_version,
        max_version: tls.max_version,
        ciphers: tls.ciphers.clone(),
        alpn: alpn.iter().map(|name| name.as_bytes().to_vec()).collect(),
        early_data: config.early_data.enabled,
        sealer: Some(ring),
        tickets: tls.tickets,
        // A ticket outlives its key otherwise, and is offered in vain.
        ticket_lifetime: lifetime,
        key_log,
        ..AcceptorConfig::new(identity)
    })
}

/// Accepts connections while there are places.
async fn accept(
    listener: TcpListener,
    alt_svc: Option<HeaderValue>,
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
    stop: watch::Receiver<Stop>,
) {
    loop {
        // First the place, then the connection: without one, clients wait in the backlog.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, client)) => {
                let serving = connection::serve(
                    shared.clone(),
                    stream,
                    client,
                    alt_svc.clone(),
                    stop.clone(),
                );
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
async fn housekeeping(shared: Arc<Shared>, front: Option<Arc<Front>>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.gatekeeper.watch_clock();
        if let Some(front) = &front {
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
