//! A server from its configuration to its last response.

pub(crate) mod certificates;
pub(crate) mod handle;
pub(crate) mod readings;
pub(crate) mod snapshots;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use firstflight_certificates::acme::CertificateState;
use firstflight_config::{CertificateSource, ConfigError, Listener, ServerConfig, TicketSettings};
use firstflight_replay::{EpochScope, SharedConfig, TicketEpochs};
use firstflight_store::{Store, StoreTls};
use firstflight_telemetry::metrics::{self, Metrics};
use firstflight_telemetry::otlp::{Exporter, TelemetrySettings};
use firstflight_tls::{Connector, ConnectorConfig, SteadyClock, Trust};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{error, info, warn};

use self::certificates::AcmeCertificates;
use self::handle::ServerHandle;
use self::snapshots::SnapshotBuilder;
use crate::ServerError;
use crate::certificates::development::now;
use crate::certificates::{announce, exposed_keys};
use crate::context::memory::Budget;
use crate::context::{Shutdown, Stop, stopped};
use crate::gate::EarlyDataGate;
use crate::handler::proxy::Pools;
use crate::handoff::InheritedState;
use crate::handshake::Handshakes;
use crate::handshake::tickets::{TicketRing, name_of_this_node};
use crate::http::Shared;
use crate::listen::permits::ConnectionPermits;
use crate::listen::sockets::Port;
use crate::listen::udp::QuicPorts;
use crate::listen::{self, Listeners};
use crate::observe::Observers;
use crate::observe::access_log::AccessLog;
use crate::observe::status::History;
use crate::observe::status::Replays;
use crate::observe::trace::Tracer;
use crate::route::Snapshot;

/// A server that listens. Connections are accepted once it runs.
pub struct Server {
    ports: Vec<(Listener, Port)>,
    addresses: Vec<SocketAddr>,
    state: Arc<ServerState>,
}

/// A server's state, as long as the process lives.
pub(crate) struct ServerState {
    /// What the newest snapshot was made of. Held while another is made.
    config: Mutex<ServerConfig>,
    builder: SnapshotBuilder,
    acme: AcmeCertificates,
    /// What connections need of it.
    shared: Arc<Shared>,
    ring: Arc<TicketRing>,
    permits: Arc<ConnectionPermits>,
    listeners: Arc<Listeners>,
    quic_ports: Arc<QuicPorts>,
    history: History,
    /// Whether connections are accepted.
    serving: watch::Sender<bool>,
}

impl Server {
    /// Checks the configuration, reads its files and listens.
    ///
    /// # Errors
    /// [`ServerError`], one sentence with the fix.
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
    /// [`ServerError`], one sentence with the fix.
    pub async fn bind_with(
        config: ServerConfig,
        mut inherited: InheritedState,
    ) -> Result<Self, ServerError> {
        config.check().map_err(ConfigError::from)?;
        listen::check(&config)?;
        let store = open_store(&config)?;
        let keys_before = inherited.ring();
        let known_store = store.as_ref().map(|(store, _)| store);
        let scope = match store {
            Some(_) => EpochScope::Store,
            None => EpochScope::Process,
        };
        let epochs = Arc::new(TicketEpochs::new(scope));
        let ring = TicketRing::open(&config.tickets, known_store, keys_before, epochs.clone())?;
        let ports = listen::bind(&config, &mut inherited)?;
        inherited.warn_of_the_rest();
        let addresses = ports.iter().map(|(_, port)| port.address).collect::<Vec<_>>();
        let metrics = Arc::new(Metrics::default());
        let acme = AcmeCertificates::new(&config, known_store, &metrics)?;
        let challenges = acme.challenges();
        let tls_challenges = Arc::new(challenges.clone());
        let builder = SnapshotBuilder::new(&config, ring.clone(), &addresses, tls_challenges)?;
        // What an authority has issued is read later, by the user that the process becomes.
        let snapshot = builder.build(1, &config, &Pools::new(), &[])?;
        snapshot.begin();
        announce(&config.certificate);
        if let Some(development) = builder.development_in_use() {
            development.announce();
        }
        let warnings = config.warnings().into_iter().chain(exposed_keys(&config));
        warnings.for_each(|warning| warn!("{warning}"));
        ring.begin().await;
        let gate = EarlyDataGate::new(&config.early_data, epochs, ring.lifetime(), store);
        let state = Arc::new(OnceLock::new());
        let tracer = config.telemetry.as_ref().map(|one| tracer(one, &config, state.clone()));
        metrics.reloads.started(jiff::Timestamp::now().as_millisecond());
        let (access_log, replays) = (OnceLock::new(), Replays::default());
        let shared = Arc::new(Shared {
            snapshot: ArcSwap::from_pointee(snapshot),
            observers: Arc::new(Observers { metrics, tracer, access_log, replays }),
            memory: Budget::new(config.limits.memory),
            gate,
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
        let server = Arc::new(ServerState {
            config: Mutex::new(config),
            builder,
            acme,
            shared,
            ring,
            permits,
            listeners,
            quic_ports,
            history: History::begin(),
            serving: watch::Sender::new(false),
        });
        let _ = state.set(Arc::downgrade(&server));
        Ok(Self { ports, addresses, state: server })
    }

    /// Opens the access log and the key log, if they are not open yet. To be called as the user
    /// that the process runs as, once it is that: whoever owns their directory chooses what is
    /// written.
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

    /// The addresses listened on, with the ports that the system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle that stays good while the server runs.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(self.state.clone())
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
        let state = self.state;
        let shared = state.shared.clone();
        let mut tasks = JoinSet::new();
        for (listener, port) in self.ports {
            state.listeners.open(listener, port);
        }
        state.serving.send_replace(true);
        state.start_orders().await;
        tasks.spawn(housekeeping(state.clone()));
        tasks.spawn(state.ring.clone().follow());
        let mut told = shared.shutdown.subscribe();
        tokio::select! {
            () = shutdown => {}
            () = stopped(&mut told, Stop::Announced) => {}
        }
        shared.shutdown.advance(Stop::Announced);
        state.stop_orders().await;
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
        let _ = written.await;
    }
}

impl ServerState {
    /// The snapshot of a configuration, beside the one in use.
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
        // It reads files, maybe from a slow disk.
        let built = tokio::task::spawn_blocking(build).await;
        built.map_err(|error| ServerError::Interrupted(error.to_string()))?
    }
}

/// From the word to stop until no connection is left.
async fn drain(state: &ServerState) {
    let (shared, shutdown) = (&state.shared, &state.shared.shutdown);
    let limits = shared.snapshot().limits.clone();
    let mut told = shutdown.subscribe();
    let left_to_another = *told.borrow() == Stop::Leave;
    if !limits.drain_delay.is_zero() && !left_to_another {
        info!("stopping in {:?}: not ready any more", limits.drain_delay);
        let _ = timeout(limits.drain_delay, stopped(&mut told, Stop::Now)).await;
    }
    info!("stopping: no new connections, running requests are finished");
    state.listeners.close(left_to_another).await;
    if !left_to_another {
        shutdown.advance(Stop::Finish);
    }
    if is_empty_within(state, &mut told, limits.drain_timeout).await {
        return;
    }
    // Idle connections that were left open hear of it now.
    shutdown.advance(Stop::Finish);
    if left_to_another && is_empty_within(state, &mut told, CLOSE_TIMEOUT).await {
        return;
    }
    warn!("requests that are still running are broken off");
    shutdown.advance(Stop::Now);
    let _ = timeout(CLOSE_TIMEOUT, state.permits.all_free()).await;
}

/// Whether all connections end in that time, and before all is to be dropped.
async fn is_empty_within(
    state: &ServerState,
    told: &mut watch::Receiver<Stop>,
    time: Duration,
) -> bool {
    tokio::select! {
        () = state.permits.all_free() => true,
        () = tokio::time::sleep(time) => false,
        () = stopped(told, Stop::Now) => false,
    }
}

/// Whether a configuration could be served: reads all files that it names, and listens nowhere.
/// The store is not asked.
///
/// # Errors
/// [`ServerError`], one sentence with the fix.
pub fn check(config: &ServerConfig) -> Result<(), ServerError> {
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
    // No file is written, nor an authority made.
    if let CertificateSource::SelfSigned { .. } | CertificateSource::Development =
        config.certificate
    {
        config.certificate = CertificateSource::SelfSigned { names: Vec::new(), save: None };
    }
    let acme = AcmeCertificates::new(&config, None, &Arc::default())?;
    let builder = SnapshotBuilder::new(&config, ring, &[], Arc::new(acme.challenges()))?;
    builder.build(0, &config, &Pools::new(), &[])?;
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

/// `server`: the one whose metrics are sent beside the spans, once there is one.
fn tracer(
    settings: &TelemetrySettings,
    config: &ServerConfig,
    server: Arc<OnceLock<Weak<ServerState>>>,
) -> Tracer {
    let snapshot = move || {
        let server = server.get().and_then(Weak::upgrade);
        server.map_or_else(metrics::Snapshot::default, |server| server.metrics())
    };
    let exporter = settings.otlp.clone().map(|endpoint| {
        let node = config.tickets.node.clone().unwrap_or_else(name_of_this_node);
        Exporter::start(endpoint, settings, &node, Box::new(snapshot)).0
    });
    Tracer::new(settings.clone(), exporter)
}

/// What has to be looked at about once a second.
async fn housekeeping(state: Arc<ServerState>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        state.shared.gate.watch_clock();
        state.quic_ports.look();
        renew(&state).await;
        // Files of keys may lie on a slow disk.
        let ring = state.ring.clone();
        let _ = tokio::task::spawn_blocking(move || ring.refresh()).await;
    }
}

/// Shows new certificates of the development authority before the old ones end.
async fn renew(state: &Arc<ServerState>) {
    let Some(development) = state.builder.development_in_use() else { return };
    if !development.is_due(now()) || state.shared.shutdown.stage() != Stop::No {
        return;
    }
    match ServerHandle(state.clone()).rebuild().await {
        Ok(()) => info!("the development authority has signed a new certificate"),
        Err(error) => {
            warn!("no new development certificate: {error}; the next try is in an hour");
            development.put_off(now() + 3600);
        }
    }
}

/// For connections to end after they were told to drop everything.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
