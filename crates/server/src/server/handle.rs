//! Controls a running server: reload, status, handoff and stop.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{KeySource, ServerConfig};
use firstflight_store::StoreConfig;
use firstflight_telemetry::metrics::{self, RefusedReason};
use firstflight_tickets::KeyStatus;
use firstflight_upstream::{Pool, PoolStatus};
use tokio::net::UnixStream;
use tracing::{debug, warn};

use super::{Server, ServerState};
use crate::ServerError;
use crate::certificates::SiteCertificate;
use crate::context::{ShutdownStage, now};
use crate::handoff::InheritedState;
use crate::handoff::register::{self, HandoffError};
use crate::handshake::tickets::TicketRing;
use crate::observe::status::Replay;
use crate::observe::status::{Events, Status};

/// A handle on a running server.
#[derive(Clone)]
pub struct ServerHandle(pub(crate) Arc<ServerState>);

/// The ticket keys as an operator may see them, without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Where they come from: `process`, `punctured`, `file` or `store`.
    pub source: &'static str,
    /// The zone that is written into tickets, if there is one.
    pub zone: Option<String>,
    /// How long a key is current.
    pub rotation: Duration,
    /// How long a ticket is valid.
    pub lifetime: Duration,
    /// Warnings for an operator, one sentence each.
    pub warnings: Vec<String>,
    /// The keys, the oldest first.
    pub ring: Vec<KeyStatus>,
}

impl ServerHandle {
    /// Replaces the configuration, for new connections and for further requests on existing ones.
    ///
    /// A connection finishes its handshake and its early requests under the configuration that it
    /// was accepted under. No connection is closed. The strike register, the ticket keys and the
    /// store's connections are kept.
    ///
    /// Also reads changed files again: certificates, keys, OCSP responses. Waits until the server
    /// serves.
    ///
    /// # Errors
    /// [`ServerError`]: the new configuration is invalid, or changes something that cannot change
    /// while the process runs. The old one stays in use as a whole.
    pub async fn reload(&self, config: ServerConfig) -> Result<(), ServerError> {
        let outcome = self.apply(Some(config)).await;
        match &outcome {
            Ok(()) => self.note_reload(None),
            Err(error) => self.reload_failed(&error.to_string()).await,
        }
        outcome
    }

    /// Builds the snapshot of the current configuration again, with its files and certificates as
    /// they are now. This does not count as a reload.
    ///
    /// # Errors
    /// [`ServerError`]: the snapshot in use stays.
    pub(crate) async fn rebuild(&self) -> Result<(), ServerError> {
        self.apply(None).await
    }

    /// Records that a configuration could not be loaded, and why. The one in use stays, with its
    /// files as they are now: a renewed certificate does not wait for the fix, or for a restart.
    pub async fn reload_failed(&self, why: &str) {
        if let Err(error) = self.rebuild().await {
            debug!("the files of the configuration in use are not read again: {error}");
        }
        self.note_reload(Some(why.to_owned()));
    }

    /// Reopens the access log's file, after a log rotation has moved it.
    pub fn reopen_access_log(&self) {
        if let Some(log) = self.0.shared.observers.access_log.get() {
            log.reopen();
        }
    }

    /// The state of the server.
    pub fn status(&self) -> Status {
        let Events { started_at, loaded_at, last_reload } = self.0.history.events();
        let not_ready_because = match self.0.shared.shutdown.stage() {
            ShutdownStage::Running if *self.0.serving.borrow() => None,
            ShutdownStage::Running => Some("the server is not serving yet"),
            ShutdownStage::HandedOver => Some("another process has taken over"),
            _ => Some("the server is stopping"),
        };
        Status {
            ready: not_ready_because.is_none(),
            not_ready_because,
            generation: self.0.shared.snapshot().number,
            started_at,
            loaded_at,
            last_reload,
            connections: self.0.permits.in_use(),
            addresses: self.0.listeners.addresses(),
        }
    }

    /// Each site's certificate and where it comes from.
    pub fn certificates(&self) -> Vec<SiteCertificate> {
        self.0.certificates()
    }

    /// The upstream pools and the state of their servers.
    pub fn upstreams(&self) -> Vec<PoolStatus> {
        self.0.shared.snapshot().pools.values().map(Pool::status).collect()
    }

    /// Waits until connections are accepted.
    pub async fn wait_until_serving(&self) {
        // Cannot fail: the sender lives as long as this handle.
        let _ = self.0.serving.subscribe().wait_for(|serving| *serving).await;
    }

    /// The sockets and secrets for a successor. The register is handed over separately, by
    /// [`hand_off`](Self::hand_off).
    ///
    /// # Errors
    /// An I/O error of the system, or [`io::ErrorKind::ResourceBusy`]: this process is stopping,
    /// has a successor, or its own predecessor still serves connections.
    pub fn state_for_successor(&self) -> io::Result<InheritedState> {
        if self.0.shared.shutdown.stage() != ShutdownStage::Running
            || self.0.shared.gate.has_successor()
        {
            let text = "this process is stopping or has a successor";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        if self.0.quic_ports.has_predecessor() {
            let text = "the previous process still serves connections; wait until it has ended";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        let mut state = InheritedState {
            ports: self.0.listeners.duplicate_sockets()?,
            ..InheritedState::default()
        };
        self.0.quic_ports.export_to(&mut state, self.0.ring.process_ring().as_deref())?;
        Ok(state)
    }

    /// Leaves reading from the UDP sockets to the successor, which relays the packets of this
    /// process's connections.
    ///
    /// Call this once the successor has the register. If the successor dies, this process reads the
    /// sockets again.
    pub fn hand_off_udp(&self) {
        self.0.quic_ports.hand_off();
    }

    /// Leaves new connections to the successor. This process ends after its last connection, or
    /// after [`Limits::drain_timeout`](firstflight_config::Limits::drain_timeout).
    ///
    /// Call this once the successor accepts connections.
    pub fn stop_for_successor(&self) {
        self.0.shared.shutdown.advance(ShutdownStage::HandedOver);
    }

    /// Starts a graceful stop: the server reports that it is not ready, accepts no connections
    /// after [`Limits::drain_delay`](firstflight_config::Limits::drain_delay), and finishes running
    /// requests within [`Limits::drain_timeout`](firstflight_config::Limits::drain_timeout).
    ///
    /// A server that has handed over to a successor also closes its idle connections.
    pub fn stop(&self) {
        let is_handed_over = self.0.shared.shutdown.stage() == ShutdownStage::HandedOver;
        self.0.shared.shutdown.advance(if is_handed_over {
            ShutdownStage::Draining
        } else {
            ShutdownStage::Announced
        });
    }

    /// Stops immediately and aborts running requests.
    pub fn stop_now(&self) {
        self.0.shared.shutdown.advance(ShutdownStage::Abort);
    }

    /// Hands the strike register over to the process at the other end of `stream`, which calls
    /// [`ServerHandle::take_over`].
    ///
    /// New flights wait until the handoff is complete. After that this process queries the other one
    /// about each flight, over the same stream, so it may continue to accept and serve until it has
    /// drained. If the other one dies, this process has the register again, but refuses idempotency keys
    /// and nonces that it does not know: the other one may have executed their requests.
    ///
    /// # Errors
    /// [`HandoffError`]: this process keeps the register and continues as before.
    pub async fn hand_off(&self, stream: UnixStream) -> Result<(), HandoffError> {
        // Prevents a reload during the handoff.
        let config = self.0.config.lock().await;
        register::hand_off((&self.0.shared, &self.0.ring), &config, stream).await
    }

    /// Takes the strike register over from the process at the other end of `stream`, which calls
    /// [`ServerHandle::hand_off`], and responds to its queries afterwards.
    ///
    /// Call this between [`Server::bind`] and [`Server::run`]: until then, this process does not
    /// know the flights that the other one has executed.
    ///
    /// # Errors
    /// [`HandoffError`]: the other process keeps the register and continues to serve. This one
    /// must not serve.
    pub async fn take_over(&self, stream: UnixStream) -> Result<(), HandoffError> {
        let config = self.0.config.lock().await.clone();
        register::take_over((&self.0.shared, &self.0.ring), &config, stream).await
    }

    /// Waits until the strike register and the UDP sockets belong to this process again, which
    /// happens if the successor dies. Returns immediately if they were not handed over.
    pub async fn wait_until_taken_back(&self) {
        self.0.shared.gate.wait_for_register().await;
        self.0.quic_ports.wait_for_sockets().await;
    }

    /// The ticket keys.
    pub fn keys(&self) -> Keys {
        keys(&self.0.ring)
    }

    /// The flights that were replayed most recently, the latest first.
    pub fn replays(&self) -> Vec<Replay> {
        self.0.shared.observers.replays.recent()
    }

    /// Whether the configuration enables early data.
    pub fn early_data_enabled(&self) -> bool {
        self.0.shared.snapshot().early_data
    }

    /// Why early data is not accepted at the moment. Returns `None` if it is accepted.
    pub fn early_data_unavailable(&self) -> Option<RefusedReason> {
        match self.early_data_enabled() {
            true => self.0.shared.gate.unavailable(),
            false => Some(RefusedReason::Disabled),
        }
    }

    /// All metrics at this moment.
    pub fn metrics(&self) -> metrics::Snapshot {
        self.0.metrics()
    }

    fn note_reload(&self, error: Option<String>) {
        match error {
            None => self
                .0
                .shared
                .observers
                .metrics
                .reloads
                .succeeded(jiff::Timestamp::now().as_millisecond()),
            Some(_) => self.0.shared.observers.metrics.reloads.failed(),
        }
        self.0.history.note_reload(error);
    }

    /// Applies a configuration. `None`: the one in use, again.
    async fn apply(&self, config: Option<ServerConfig>) -> Result<(), ServerError> {
        let server = &self.0;
        // A reload before the listeners are open would open them a second time.
        self.wait_until_serving().await;
        // One reload at a time.
        let mut current = server.config.lock().await;
        // The number identifies the configuration. Certificate renewals keep it, since nodes renew
        // at different times.
        let number = server.shared.snapshot().number + u64::from(config.is_some());
        let config = config.unwrap_or_else(|| current.clone());
        if server.shared.shutdown.stage() != ShutdownStage::Running {
            return Err(ServerError::setting("the server is stopping and cannot reload"));
        }
        refuse_changes_that_need_a_restart(&current, &config)?;
        let change = server.acme.open(&config).await?;
        let states = server.acme.states_after(&change);
        let snapshot = server.build(&config, number, states).await?;
        let changes = server.listeners.plan(&config)?;
        server.quic_ports.apply_config(snapshot.quic.as_ref(), &config.http3);
        server.permits.resize(config.limits.connections);
        if let (Some(register), Some(store)) = (server.shared.gate.shared(), &config.store) {
            register.set_passwords(store);
        }
        server.shared.memory.resize(config.limits.memory);
        snapshot.start();
        server.shared.snapshot.store(Arc::new(snapshot));
        server.listeners.apply(changes);
        config.warnings().iter().for_each(|warning| warn!("{warning}"));
        *current = config;
        server.replace_manager(change).await;
        Ok(())
    }
}

impl Server {
    /// See [`ServerHandle::take_over`].
    ///
    /// # Errors
    /// [`HandoffError`]
    pub async fn take_over(&self, stream: UnixStream) -> Result<(), HandoffError> {
        self.handle().take_over(stream).await
    }
}

fn keys(ring: &TicketRing) -> Keys {
    let (keys, now) = (ring.keys(), now());
    let settings = ring.settings();
    Keys {
        source: match settings.keys {
            KeySource::Process => "process",
            KeySource::Punctured => "punctured",
            KeySource::File(_) => "file",
            KeySource::Store { .. } => "store",
        },
        zone: settings.zone.clone(),
        rotation: keys.schedule().rotation(),
        lifetime: keys.schedule().lifetime(),
        warnings: keys.warnings(now).iter().map(ToString::to_string).collect(),
        ring: keys.statuses(now),
    }
}

/// Whether both configurations name the same store. Passwords may differ.
fn is_same_store(old: Option<&StoreConfig>, new: Option<&StoreConfig>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => old.is_same_store(new),
        (old, new) => old.is_none() && new.is_none(),
    }
}

/// Whether `[tickets]` is the same. A change of the default of `keys`, which depends on the section
/// `[store]`, does not count.
fn has_same_tickets(old: &ServerConfig, new: &ServerConfig) -> bool {
    let default_keys = |config: &ServerConfig| match &config.store {
        Some(_) => KeySource::Process,
        None => KeySource::Punctured,
    };
    let mut tickets = new.tickets.clone();
    if old.tickets.keys == default_keys(old) && tickets.keys == default_keys(new) {
        tickets.keys = old.tickets.keys.clone();
    }
    old.tickets == tickets
}

/// Refuses changes to settings that early data's safety depends on, or that were applied when the
/// process started.
fn refuse_changes_that_need_a_restart(
    old: &ServerConfig,
    new: &ServerConfig,
) -> Result<(), ServerError> {
    let (old_early, new_early) = (&old.early_data, &new.early_data);
    let checks = [
        ("[store]", is_same_store(old.store.as_ref(), new.store.as_ref())),
        ("[tickets]", has_same_tickets(old, new)),
        ("early_data.freshness", old_early.freshness == new_early.freshness),
        (
            "early_data.register_capacity",
            old_early.register_capacity == new_early.register_capacity,
        ),
        ("[access_log]", old.access_log == new.access_log),
        ("[log]", old.log == new.log),
        ("[telemetry]", old.telemetry == new.telemetry),
        ("limits.backlog", old.limits.backlog == new.limits.backlog),
        ("process.workers", old.process.workers == new.process.workers),
        ("process.user", old.process.user == new.process.user),
        ("process.group", old.process.group == new.process.group),
    ];
    let changed: Vec<_> = checks.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect();
    match &changed[..] {
        [] => Ok(()),
        // A process with another store would not know the claims in this one.
        ["[store]", ..] => Err(ServerError::setting(format!(
            "{} cannot change while the process runs; stop it and start it again",
            changed.join(", ")
        ))),
        _ => Err(ServerError::setting(format!(
            "{} cannot change while the process runs; restart it, or upgrade it by SIGUSR2, \
             which loses no connection",
            changed.join(", ")
        ))),
    }
}
