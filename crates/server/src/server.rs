//! A server from its configuration to its last answer.

pub(crate) mod certificates;
pub(crate) mod handle;
pub(crate) mod inside;
pub(crate) mod key_log;
pub(crate) mod readings;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use firstflight_config::{CertificateSource, ConfigError, Listener, ServerConfig, TicketSettings};
use firstflight_replay::{EpochScope, SharedConfig, TicketEpochs};
use firstflight_store::{Store, StoreTls};
use firstflight_telemetry::metrics::{Metrics, Snapshot};
use firstflight_telemetry::otlp::{Exporter, TelemetrySettings};
use firstflight_tls::{Connector, ConnectorConfig, SteadyClock, Trust};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{error, info, warn};

use crate::ServerError;
use crate::certificates::acme::Acme;
use crate::certificates::development::now;
use crate::certificates::exposed_keys::exposed_keys;
use crate::certificates::self_signed;
use crate::context::memory::Budget;
use crate::gate::EarlyDataGate;
use crate::handler::upstreams::Pools;
use crate::handoff::state::InheritedState;
use crate::handshake::quic_config::QuicPorts;
use crate::handshake::tickets::TicketRing;
use crate::handshake::tickets::name_of_this_node;
use crate::http::connection::stopped;
use crate::listen::listeners::{self, Listeners};
use crate::listen::permits::ConnectionPermits;
use crate::listen::tcp_socket::Port;
use crate::observe::access_log::AccessLog;
use crate::observe::replays::Replays;
use crate::observe::status::History;
use crate::observe::trace::Tracer;
use crate::route::snapshot::{Snapshot, SnapshotBuilder};
use crate::server::handle::ServerHandle;

/// A server that listens. Connections are accepted once it runs.
pub struct Server {
    ports: Vec<(Listener, Port)>,
    addresses: Vec<SocketAddr>,
    pub(crate) shared: Arc<Shared>,
}

/// How far stopping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// Not at all.
    No,
    /// Probes are told that it will, connections are still accepted.
    Announced,
    /// Another process has taken over. Requests go on until a connection has had its last answer,
    /// which says so.
    Leave,
    /// Running requests are finished, idle connections closed.
    Finish,
    /// Everything is dropped.
    Now,
}

/// What all connections share, as long as the process lives.
pub(crate) struct Shared {
    pub(crate) current: ArcSwap<Snapshot>,
    /// What the newest snapshot was made of. Held while another is made.
    pub(crate) config: Mutex<ServerConfig>,
    pub(crate) builder: SnapshotBuilder,
    pub(crate) acme: Arc<Acme>,
    pub(crate) quic_ports: Arc<QuicPorts>,
    pub(crate) listeners: Listeners,
    pub(crate) permits: Arc<ConnectionPermits>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) gate: EarlyDataGate,
    /// Opened once the process has given up its privileges.
    pub(crate) access_log: OnceLock<AccessLog>,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) ring: Arc<TicketRing>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) replays: Replays,
    pub(crate) history: History,
    stop: watch::Sender<Stop>,
    /// Whether connections are accepted.
    pub(crate) serving: watch::Sender<bool>,
}

impl Server {
    /// Checks the configuration, reads its files and listens.
    ///
    /// # Errors
    /// [`ServerError`], one sentence with the mend.
    pub async fn bind(config: ServerConfig) -> Result<Self, ServerError> {
        let server = Self::bind_with(config, InheritedState::default()).await?;
        server.open_logs().await?;
        Ok(server)
    }

    /// The same with sockets that are open already, and what the process before this one has left.
    /// If there was one, its register comes after this ([`ServerHandle::take_over`]). Logs are
    /// opened later, by [`open_logs`](Self::open_logs).
    ///
    /// # Errors
    /// [`ServerError`], one sentence with the mend.
    pub async fn bind_with(
        config: ServerConfig,
        mut estate: InheritedState,
    ) -> Result<Self, ServerError> {
        config.check().map_err(ConfigError::from)?;
        listeners::check(&config)?;
        let store = open_store(&config)?;
        let keys_before = estate.ring();
        let known_store = store.as_ref().map(|(store, _)| store);
        let scope = match store {
            Some(_) => EpochScope::Store,
            None => EpochScope::Process,
        };
        let epochs = Arc::new(TicketEpochs::new(scope));
        let ring = TicketRing::open(&config.tickets, known_store, keys_before, epochs.clone())?;
        let ports = listeners::bind(&config, &mut estate)?;
        estate.warn_of_the_rest();
        let addresses = ports.iter().map(|(_, port)| port.address).collect::<Vec<_>>();
        let metrics = Arc::new(Metrics::default());
        let acme = Arc::new(Acme::new(&config, known_store, &metrics)?);
        let builder = SnapshotBuilder::lay(&config, ring.clone(), &addresses, acme.challenges())?;
        // What an authority has issued is read later, by the user that the process becomes.
        let snapshot = Snapshot::build(1, &config, &builder, &Pools::new(), &[])?;
        snapshot.begin();
        self_signed::announce(&config.certificate);
        if let Some(development) = builder.development_in_use() {
            development.announce();
        }
        let warnings = config.warnings().into_iter().chain(exposed_keys(&config));
        warnings.for_each(|warning| warn!("{warning}"));
        ring.begin().await;
        let gate = EarlyDataGate::new(&config.early_data, epochs, ring.lifetime(), store);
        let oneself = Arc::new(OnceLock::new());
        let tracer = config.telemetry.as_ref().map(|one| tracer(one, &config, oneself.clone()));
        metrics.reloads.began(jiff::Timestamp::now().as_millisecond());
        let shared = Shared {
            current: ArcSwap::from_pointee(snapshot),
            quic_ports: Arc::new(QuicPorts::new(&builder.tokens, &config, &mut estate)?),
            listeners: Listeners::default(),
            permits: ConnectionPermits::new(config.limits.connections),
            budget: Budget::new(config.limits.memory),
            metrics,
            replays: Replays::default(),
            history: History::begin(),
            stop: watch::Sender::new(Stop::No),
            serving: watch::Sender::new(false),
            config: Mutex::new(config),
            builder,
            acme,
            gate,
            access_log: OnceLock::new(),
            tracer,
            ring,
        };
        let shared = Arc::new(shared);
        let _ = oneself.set(Arc::downgrade(&shared));
        Ok(Self { ports, addresses, shared })
    }

    /// Opens the access log and the key log, if they are not open yet. To be called as the user that
    /// the process runs as, once it is that: whoever owns their directory chooses what is written.
    ///
    /// # Errors
    /// [`ServerError`]: a log cannot be written.
    pub async fn open_logs(&self) -> Result<(), ServerError> {
        let settings = self.shared.config.lock().await.access_log.clone();
        if let (Some(settings), None) = (&settings, self.shared.access_log.get()) {
            let _ = self.shared.access_log.set(AccessLog::open(settings)?);
        }
        if let Some(log) = &self.shared.builder.key_log {
            log.open()?;
        }
        Ok(())
    }

    /// The addresses listened on, with the ports that the system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle that stays good while the server runs.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(self.shared.clone())
    }

    /// Serves until `shutdown` is ready or [`ServerHandle::stop`] is called, then finishes running
    /// requests, for [`Limits::drain_timeout`](firstflight_config::Limits::drain_timeout) at most,
    /// and writes the access log to its end.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        if let Err(error) = self.open_logs().await {
            error!("{error}");
        }
        if let Err(error) = self.restore_certificates().await {
            error!(
                "{error}; sites with acme = true are shown with a certificate that nobody trusts"
            );
        }
        let shared = self.shared;
        let mut tasks = JoinSet::new();
        for (listener, port) in self.ports {
            shared.listeners.open(&shared, listener, port);
        }
        shared.serving.send_replace(true);
        shared.begin_to_ask().await;
        tasks.spawn(housekeeping(shared.clone()));
        tasks.spawn(shared.ring.clone().follow());
        let mut told = shared.stopping();
        tokio::select! {
            () = shutdown => {}
            () = stopped(&mut told, Stop::Announced) => {}
        }
        shared.stop_at_least(Stop::Announced);
        shared.end_asking().await;
        drain(&shared).await;
        tasks.shutdown().await;
        shared.quic_ports.close().await;
        if let Some(tracer) = &shared.tracer {
            tracer.flush().await;
        }
        let written = tokio::task::spawn_blocking(move || {
            if let Some(log) = shared.access_log.get() {
                log.close();
            }
        });
        let _ = written.await;
    }
}

impl Shared {
    /// The newest snapshot.
    pub(crate) fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// How far stopping has come, from now on.
    pub(crate) fn stopping(&self) -> watch::Receiver<Stop> {
        self.stop.subscribe()
    }

    /// Whether connections are to end.
    pub(crate) fn is_finishing(&self) -> bool {
        *self.stop.borrow() >= Stop::Leave
    }

    /// Stops, if it has not come as far.
    pub(crate) fn stop_at_least(&self, stage: Stop) {
        self.stop.send_if_modified(|now| {
            let further = *now < stage;
            *now = stage.max(*now);
            further
        });
    }
}

/// From the word to stop until no connection is left.
async fn drain(shared: &Arc<Shared>) {
    let limits = shared.current().limits.clone();
    let mut told = shared.stopping();
    let left_to_another = *told.borrow() == Stop::Leave;
    if !limits.drain_delay.is_zero() && !left_to_another {
        info!("stopping in {:?}: not ready any more", limits.drain_delay);
        let _ = timeout(limits.drain_delay, stopped(&mut told, Stop::Now)).await;
    }
    info!("stopping: no new connections, running requests are finished");
    shared.listeners.close(left_to_another).await;
    if !left_to_another {
        shared.stop_at_least(Stop::Finish);
    }
    if is_empty_within(shared, &mut told, limits.drain_timeout).await {
        return;
    }
    // Idle connections that were left open hear of it now.
    shared.stop_at_least(Stop::Finish);
    if left_to_another && is_empty_within(shared, &mut told, LAST_WORDS).await {
        return;
    }
    warn!("requests that are still running are broken off");
    shared.stop_at_least(Stop::Now);
    let _ = timeout(LAST_WORDS, shared.permits.all_free()).await;
}

/// Whether all connections end in that time, and before all is to be dropped.
async fn is_empty_within(
    shared: &Shared,
    told: &mut watch::Receiver<Stop>,
    time: Duration,
) -> bool {
    tokio::select! {
        () = shared.permits.all_free() => true,
        () = tokio::time::sleep(time) => false,
        () = stopped(told, Stop::Now) => false,
    }
}

/// Whether a configuration could be served: reads all files that it names, and listens nowhere.
/// The store is not asked.
///
/// # Errors
/// [`ServerError`], one sentence with the mend.
pub fn check(config: &ServerConfig) -> Result<(), ServerError> {
    listeners::check(config)?;
    if let Some(StoreTls { ca_file: Some(file), .. }) =
        config.store.as_ref().and_then(|store| store.tls.as_ref())
    {
        Connector::new(ConnectorConfig::new(Trust::File(file.clone())))?;
    }
    TicketRing::check(&config.tickets)?;
    let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
    let ring = TicketRing::open(&TicketSettings::default(), None, None, epochs)?;
    let mut config = config.clone();
    // No file is written, nor an authority made.
    if let CertificateSource::SelfSigned { .. } | CertificateSource::Development =
        config.certificate
    {
        config.certificate = CertificateSource::SelfSigned { names: Vec::new(), save: None };
    }
    let acme = Acme::new(&config, None, &Arc::default())?;
    let builder = SnapshotBuilder::lay(&config, ring, &[], acme.challenges())?;
    Snapshot::build(0, &config, &builder, &Pools::new(), &[])?;
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

/// `server`: whose metrics are sent beside the spans, once there is one.
fn tracer(
    settings: &TelemetrySettings,
    config: &ServerConfig,
    server: Arc<OnceLock<Weak<Shared>>>,
) -> Tracer {
    let snapshot = move || {
        let server = server.get().and_then(Weak::upgrade);
        server.map_or_else(Snapshot::default, |server| server.snapshot())
    };
    let exporter = settings.otlp.clone().map(|endpoint| {
        let node = config.tickets.node.clone().unwrap_or_else(name_of_this_node);
        Exporter::start(endpoint, settings, &node, Box::new(snapshot)).0
    });
    Tracer::new(settings.clone(), exporter)
}

/// What has to be looked at about once a second.
async fn housekeeping(shared: Arc<Shared>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.gate.watch_clock();
        shared.quic_ports.look();
        renew(&shared).await;
        // Files of keys may lie on a slow disk.
        let ring = shared.ring.clone();
        let _ = tokio::task::spawn_blocking(move || ring.refresh()).await;
    }
}

/// Shows new certificates of the development authority before the old ones end.
async fn renew(shared: &Arc<Shared>) {
    let Some(development) = shared.builder.development_in_use() else { return };
    if !development.is_due(now()) || *shared.stopping().borrow() != Stop::No {
        return;
    }
    match ServerHandle(shared.clone()).build_anew().await {
        Ok(()) => info!("the development authority has signed a new certificate"),
        Err(error) => {
            warn!("no new development certificate: {error}; the next try is in an hour");
            development.put_off(now() + 3600);
        }
    }
}

/// For connections to end after they were told to drop everything.
const LAST_WORDS: Duration = Duration::from_secs(2);
