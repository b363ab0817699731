//! Starts, runs, reloads and stops a server.

pub(crate) mod acme;
pub(crate) mod handle;
pub(crate) mod metrics;
pub(crate) mod snapshots;

use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use firstflight_certificates::acme::CertificateState;
use firstflight_config::{CertificateSource, ConfigError, Listener, ServerConfig, TicketSettings};
use firstflight_replay::{EpochScope, SharedConfig, TicketEpochs};
use firstflight_store::{Store, StoreTls};
use firstflight_telemetry::metrics::{Metrics, Snapshot as MetricsSnapshot};
use firstflight_telemetry::otlp::{Exporter, TelemetrySettings};
use firstflight_tls::{Connector, ConnectorConfig, SteadyClock, Trust};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{error, info, warn};

use self::acme::AcmeCertificates;
use self::handle::ServerHandle;
use self::snapshots::SnapshotBuilder;
use crate::ServerError;
use crate::certificates::development::now;
use crate::certificates::{SiteCertificate, announce, exposed_keys};
use crate::context::memory::MemoryBudget;
use crate::context::{Shutdown, ShutdownStage, monotonic, wait_for_stage};
use crate::gate::EarlyDataGate;
use crate::handler::proxy::Pools;
use crate::handoff::InheritedState;
use crate::handshake::Handshakes;
use crate::handshake::tickets::{TicketRing, default_node_name};
use crate::http::ServerContext;
use crate::listen::permits::ConnectionPermits;
use crate::listen::sockets::BoundPort;
use crate::listen::udp::QuicPorts;
use crate::listen::{self, Listeners};
use crate::observe::Observers;
use crate::observe::access_log::AccessLog;
use crate::observe::status::History;
use crate::observe::status::Replays;
use crate::observe::trace::Tracer;
use crate::route::Snapshot;

/// A server whose sockets are bound. It accepts connections once [`run`](Self::run) is called.
pub struct Server {
    ports: Vec<(Listener, BoundPort)>,
    addresses: Vec<SocketAddr>,
    /// The previous process's UDP sockets that no listener uses.
    unused: Vec<(SocketAddr, Vec<UdpSocket>)>,
    state: Arc<ServerState>,
}

/// State that lives as long as the process.
pub(crate) struct ServerState {
    /// The configuration of the newest snapshot. Locked while another snapshot is built.
    config: Mutex<ServerConfig>,
    builder: SnapshotBuilder,
    acme: AcmeCertificates,
    /// The state that connections use.
    shared: Arc<ServerContext>,
    ring: Arc<TicketRing>,
    permits: Arc<ConnectionPermits>,
    listeners: Arc<Listeners>,
    quic_ports: Arc<QuicPorts>,
    history: History,
    /// Whether connections are accepted.
    serving: watch::Sender<bool>,
}

impl Server {
    /// Checks the configuration, reads its files and binds the listeners.
    ///
    /// # Errors
    /// [`ServerError`], one sentence with the fix.
    pub async fn bind(config: ServerConfig) -> Result<Self, ServerError> {
        let server = Self::bind_with(config, InheritedState::default()).await?;
        server.open_logs().await?;
        Ok(server)
    }

    /// Like [`bind`](Self::bind), with sockets and secrets inherited from a service manager or from
    /// the previous process.
    ///
    /// The previous process's strike register is taken over afterwards, by
    /// [`ServerHandle::take_over`]. Logs are opened later, by [`open_logs`](Self::open_logs).
    ///
    /// # Errors
    /// [`ServerError`], one sentence with the fix.
    pub async fn bind_with(
        config: ServerConfig,
        mut inherited: InheritedState,
    ) -> Result<Self, ServerError> {
        config.check().map_err(ConfigError::from)?;
        listen::check(&config)?;
        let store = open_store(&config)?;
        let inherited_ring = inherited.ring();
        let store_handle = store.as_ref().map(|(store, _)| store);
        let scope = match store {
            Some(_) => EpochScope::Store,
            None => EpochScope::Process,
        };
        let epochs = Arc::new(TicketEpochs::new(scope));
        let ring = TicketRing::open(&config.tickets, store_handle, inherited_ring, epochs.clone())?;
        let ports = listen::bind(&config, &mut inherited)?;
        let unused = inherited.take_unused();
        let addresses = ports.iter().map(|(_, port)| port.address).collect::<Vec<_>>();
        let metrics = Arc::new(Metrics::default());
        let acme = AcmeCertificates::new(&config, store_handle, &metrics)?;
        let challenges = acme.challenges();
        let tls_challenges = Arc::new(challenges.clone());
        let builder = SnapshotBuilder::new(&config, ring.clone(), &addresses, tls_challenges)?;
        // Issued certificates are read later, after the process has dropped its privileges.
        let snapshot = builder.build(1, &config, &Pools::new(), &[])?;
        snapshot.start();
        announce(&config.certificate);
        if let Some(development) = builder.development_in_use() {
            development.announce();
        }
        let warnings = config.warnings().into_iter().chain(exposed_keys(&config));
        warnings.for_each(|warning| warn!("{warning}"));
        ring.wait_for_first_ring().await;
        let gate = EarlyDataGate::new(&config.early_data, epochs, store);
        let weak_state = Arc::new(OnceLock::new());
        let telemetry = config.telemetry.as_ref();
        let tracer = telemetry.map(|settings| tracer(settings, &config, weak_state.clone()));
        metrics.reloads.started(jiff::Timestamp::now().as_millisecond());
        let (access_log, replays) = (OnceLock::new(), Replays::default());
        let shared = Arc::new(ServerContext {
            snapshot: ArcSwap::from_pointee(snapshot),
            observers: Arc::new(Observers { metrics, tracer, access_log, replays }),
            memory: MemoryBudget::new(config.limits.memory),
            gate: Arc::new(gate),
            challenges,
            shutdown: Shutdown::new(),
        });
        let tokens = builder.tokens.tokens.clone();
        let handshakes = Handshakes { shared: shared.clone(), ring: ring.clone(), tokens };
        let handshakes = Arc::new(handshakes);
        let permits = ConnectionPermits::new(config.limits.connections);
        let quic_ports =
            QuicPorts::new(handshakes.clone(), permits.clone(), &config, &mut inherited)?;
        let quic_ports = Arc::new(quic_ports);
        let listeners = Listeners::new(handshakes, permits.clone(), quic_ports.clone());
        let state = Arc::new(ServerState {
            config: Mutex::new(config),
            builder,
            acme,
            shared,
            ring,
            permits,
            listeners,
            quic_ports,
            history: History::new(),
            serving: watch::Sender::new(false),
        });
        let _ = weak_state.set(Arc::downgrade(&state));
        Ok(Self { ports, addresses, unused, state })
    }

    /// Opens the access log and the key log, unless they are open.
    ///
    /// Call this after the process has dropped its privileges: the owner of the directory may
    /// choose which file is written.
    ///
    /// # Errors
    /// [`ServerError`]: a log cannot be written.
    pub async fn open_logs(&self) -> Result<(), ServerError> {
        let settings = self.state.config.lock().await.access_log.clone();
        if let (Some(settings), None) = (&settings, self.state.shared.observers.access_log.get()) {
            let _ = self.state.shared.observers.access_log.set(AccessLog::open(settings)?);
        }
        if let Some(log) = &self.state.builder.key_log {
            log.open()?;
        }
        Ok(())
    }

    /// The bound addresses, with the ports that the system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle that controls the server and reads its state.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(self.state.clone())
    }

    /// Serves until `shutdown` is ready or [`ServerHandle::stop`] is called. Then finishes running
    /// requests within [`Limits::drain_timeout`](firstflight_config::Limits::drain_timeout) and
    /// flushes the access log.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        if let Err(error) = self.open_logs().await {
            error!("{error}");
        }
        if let Err(error) = self.restore_certificates().await {
            error!(
                "{error}; sites with acme = true are shown with a certificate that nobody trusts"
            );
        }
        let state = self.state;
        let shared = state.shared.clone();
        let mut tasks = JoinSet::new();
        for (listener, port) in self.ports {
            state.listeners.open(listener, port);
        }
        for (address, sockets) in self.unused {
            state.quic_ports.relay_from(address, sockets);
        }
        state.serving.send_replace(true);
        state.start_acme_orders().await;
        tasks.spawn(watch_clock(state.clone()));
        tasks.spawn(maintenance(state.clone()));
        tasks.spawn(state.ring.clone().follow());
        let mut stage = shared.shutdown.subscribe();
        tokio::select! {
            () = shutdown => {}
            () = wait_for_stage(&mut stage, ShutdownStage::Announced) => {}
        }
        shared.shutdown.advance(ShutdownStage::Announced);
        state.stop_acme_orders().await;
        drain(&state).await;
        tasks.shutdown().await;
        state.quic_ports.close().await;
        if let Some(tracer) = &shared.observers.tracer {
            tracer.flush().await;
        }
        let written = tokio::task::spawn_blocking(move || {
            if let Some(log) = shared.observers.access_log.get() {
                log.close();
            }
        });
        if timeout(LOG_TIMEOUT, written).await.is_err() {
            warn!("the last lines of the access log could not be written within {LOG_TIMEOUT:?}");
        }
    }
}

impl ServerState {
    /// Builds a snapshot of a configuration. The snapshot in use stays in use.
    ///
    /// # Errors
    /// [`ServerError`].
    async fn build(
        self: &Arc<Self>,
        config: &ServerConfig,
        number: u64,
        states: Arc<Vec<CertificateState>>,
    ) -> Result<Snapshot, ServerError> {
        let (state, config) = (self.clone(), config.clone());
        let build = move || {
            let pools = &state.shared.snapshot().pools;
            state.builder.build(number, &config, pools, &states)
        };
        // Building reads files, possibly from a slow disk.
        let built = tokio::task::spawn_blocking(build).await;
        built.map_err(|error| ServerError::Interrupted(error.to_string()))?
    }
}

/// Stops accepting and waits until all connections have ended, within the configured limits.
async fn drain(state: &ServerState) {
    let (shared, shutdown) = (&state.shared, &state.shared.shutdown);
    let limits = shared.snapshot().limits.clone();
    let mut stage = shutdown.subscribe();
    let has_successor = *stage.borrow() == ShutdownStage::HandedOver;
    if !limits.drain_delay.is_zero() && !has_successor {
        info!("stopping in {:?}: not ready any more", limits.drain_delay);
        let _ = timeout(limits.drain_delay, wait_for_stage(&mut stage, ShutdownStage::Abort)).await;
    }
    info!("stopping: no new connections, running requests are finished");
    // A reload that is under way would open listeners again.
    let reloading = timeout(RELOAD_TIMEOUT, state.config.lock()).await;
    state.listeners.close(has_successor).await;
    drop(reloading);
    if !has_successor {
        shutdown.advance(ShutdownStage::Draining);
    }
    if drained_within(state, &mut stage, limits.drain_timeout).await {
        return;
    }
    // Idle connections that the handoff left open are closed now.
    shutdown.advance(ShutdownStage::Draining);
    if has_successor && drained_within(state, &mut stage, CLOSE_TIMEOUT).await {
        return;
    }
    warn!("drain_timeout has passed: aborting the requests that are still running");
    shutdown.advance(ShutdownStage::Abort);
    let _ = timeout(CLOSE_TIMEOUT, state.permits.wait_until_unused()).await;
}

/// Returns whether all connections end within `time`, and before the server is told to abort.
async fn drained_within(
    state: &ServerState,
    stage: &mut watch::Receiver<ShutdownStage>,
    time: Duration,
) -> bool {
    tokio::select! {
        () = state.permits.wait_until_unused() => true,
        () = tokio::time::sleep(time) => false,
        () = wait_for_stage(stage, ShutdownStage::Abort) => false,
    }
}

/// Checks whether a configuration could be served: reads all files that it names, but binds no
/// socket and does not connect to the store. Returns the sites' certificates, self-signed ones in
/// place of those of the development authority.
///
/// # Errors
/// [`ServerError`], one sentence with the fix.
pub fn check(config: &ServerConfig) -> Result<Vec<SiteCertificate>, ServerError> {
    listen::check(config)?;
    if let Some(StoreTls { ca_file: Some(file), .. }) =
        config.store.as_ref().and_then(|store| store.tls.as_ref())
    {
        Connector::new(ConnectorConfig::new(Trust::File(file.clone())))?;
    }
    TicketRing::check(&config.tickets)?;
    let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
    let ring = TicketRing::open(&TicketSettings::default(), None, None, epochs)?;
    let mut config = config.clone();
    // The check writes no file and creates no development authority.
    if let CertificateSource::SelfSigned { .. } | CertificateSource::Development =
        config.certificate
    {
        config.certificate = CertificateSource::SelfSigned { names: Vec::new(), save: None };
    }
    let acme = AcmeCertificates::new(&config, None, &Arc::default())?;
    let builder = SnapshotBuilder::new(&config, ring, &[], Arc::new(acme.challenges()))?;
    Ok(builder.build(0, &config, &Pools::new(), &[])?.certificates)
}

/// Opens the configured store, if there is one. An unreachable store is not an error: connections
/// are opened, and reopened, in the background.
fn open_store(config: &ServerConfig) -> Result<Option<(Store, SharedConfig)>, ServerError> {
    let Some(store) = &config.store else { return Ok(None) };
    let mut store = store.clone();
    store.shared.freshness = config.early_data.freshness;
    let shared = store.shared;
    Ok(Some((Store::open(store, SteadyClock::unix_micros)?, shared)))
}

/// Starts the exporter of traces and metrics. `server` provides the metrics, once it is set.
fn tracer(
    settings: &TelemetrySettings,
    config: &ServerConfig,
    server: Arc<OnceLock<Weak<ServerState>>>,
) -> Tracer {
    let snapshot = move || {
        let server = server.get().and_then(Weak::upgrade);
        server.map_or_else(MetricsSnapshot::default, |server| server.metrics())
    };
    let exporter = settings.otlp.clone().map(|endpoint| {
        let node = config.tickets.node.clone().unwrap_or_else(default_node_name);
        Exporter::start(endpoint, settings, &node, Box::new(snapshot)).0
    });
    Tracer::new(settings.clone(), exporter)
}

/// Checks the machine's clock once a second. Not part of [`maintenance`], which may wait for a slow
/// disk.
async fn watch_clock(state: Arc<ServerState>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        state.shared.gate.watch_clock(state.ring.punctured().is_some());
    }
}

/// Does periodic work about once a second.
async fn maintenance(state: Arc<ServerState>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        state.quic_ports.maintain();
        renew_development_certificates(&state).await;
        // Key files may be on a slow disk.
        let ring = state.ring.clone();
        let _ = tokio::task::spawn_blocking(move || ring.refresh(monotonic())).await;
    }
}

/// Renews the certificates of the development authority before they expire.
async fn renew_development_certificates(state: &Arc<ServerState>) {
    let Some(development) = state.builder.development_in_use() else { return };
    if !development.is_due(now()) || state.shared.shutdown.stage() != ShutdownStage::Running {
        return;
    }
    match ServerHandle(state.clone()).rebuild().await {
        Ok(()) => info!("the development authority has signed a new certificate"),
        Err(error) => {
            warn!("no new development certificate: {error}; the next attempt is in an hour");
            development.postpone(now() + 3600);
        }
    }
}

/// How long connections may take to end after an abort.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the last lines of the access log may take, whose reader may have stopped.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for a reload, which reads files, possibly from a slow disk.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(5);
