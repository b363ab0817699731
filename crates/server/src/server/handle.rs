//! What can be done to a server while it runs: another configuration, a question, an end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{ConfigError, KeySource, ServerConfig};
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tickets::KeyStatus;
use firstflight_upstream::{Pool, PoolStatus};
use tokio::net::UnixStream;
use tracing::warn;

use super::{Server, ServerState};
use crate::ServerError;
use crate::certificates::SiteCertificate;
use crate::context::{Stop, now};
use crate::handoff::InheritedState;
use crate::handoff::register::{self, HandOverError};
use crate::handshake::tickets::TicketRing;
use crate::observe::status::Replay;
use crate::observe::status::{Events, Status};

/// A handle on a server while it runs.
#[derive(Clone)]
pub struct ServerHandle(pub(crate) Arc<ServerState>);

/// Ticket keys as an operator may see them: no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Where they come from: process, file or store.
    pub source: &'static str,
    /// The zone that tickets name, if there is one.
    pub zone: Option<String>,
    /// How long a key is to be current.
    pub rotation: Duration,
    /// How long a ticket is good.
    pub lifetime: Duration,
    /// What an operator should know, a sentence each.
    pub warnings: Vec<String>,
    /// The keys, the oldest first.
    pub ring: Vec<KeyStatus>,
}

impl ServerHandle {
    /// Serves by another configuration from now on: new connections, and further requests on old
    /// ones. A connection finishes its handshake and its early requests by the configuration under
    /// which it was accepted. No connection ends, and the strike register, the ticket keys and the
    /// connections to the store live on.
    ///
    /// Takes up files that have changed, too: certificates, keys, OCSP responses. Waits until the
    /// server runs.
    ///
    /// # Errors
    /// [`ServerError`]: the new configuration is of no use, or changes what cannot change while
    /// the process runs. The old one stays as a whole.
    pub async fn reload(&self, config: ServerConfig) -> Result<(), ServerError> {
        let outcome = self.take_up(Some(config)).await;
        match &outcome {
            Ok(()) => self.note_reload(None),
            Err(error) => self.note_reload(Some(error.to_string())),
        }
        outcome
    }

    /// The configuration in use once more, with its files and certificates as they are now. Not
    /// a reload: nobody has asked for it.
    ///
    /// # Errors
    /// [`ServerError`]. What is in use stays.
    pub(crate) async fn rebuild(&self) -> Result<(), ServerError> {
        self.take_up(None).await
    }

    /// Notes that there was no configuration to reload: its file could not be read, and `why`.
    pub fn reload_failed(&self, why: &str) {
        self.note_reload(Some(why.to_owned()));
    }

    /// Opens the access log's file again, after a log rotation has moved it.
    pub fn reopen_access_log(&self) {
        if let Some(log) = self.0.shared.observers.access_log.get() {
            log.reopen();
        }
    }

    /// How the server is.
    pub fn status(&self) -> Status {
        let Events { started_at, loaded_at, last_reload } = self.0.history.so_far();
        let not_ready_because = match self.0.shared.shutdown.stage() {
            Stop::No if *self.0.serving.borrow() => None,
            Stop::No => Some("the server has not begun to serve"),
            Stop::Leave => Some("another process has taken over"),
            _ => Some("the server is stopping"),
        };
        Status {
            ready: not_ready_because.is_none(),
            not_ready_because,
            generation: self.0.shared.snapshot().number,
            started_at,
            loaded_at,
            last_reload,
            connections: self.0.permits.taken(),
            addresses: self.0.listeners.addresses(),
        }
    }

    /// Each site's certificate: what is shown, and what is done about it.
    pub fn certificates(&self) -> Vec<SiteCertificate> {
        self.0.certificates()
    }

    /// The pools that requests are forwarded to, as they are now.
    pub fn upstreams(&self) -> Vec<PoolStatus> {
        self.0.shared.snapshot().pools.values().map(Pool::status).collect()
    }

    /// Waits until connections are accepted.
    pub async fn serves(&self) {
        // The sender is ours too.
        let _ = self.0.serving.subscribe().wait_for(|serving| *serving).await;
    }

    /// What the process needs that is to take this one's place, beside the register.
    ///
    /// # Errors
    /// The process before this one has not gone, or this one stops or has a successor; or the
    /// system's.
    pub fn state_for_successor(&self) -> io::Result<InheritedState> {
        if self.0.shared.shutdown.stage() != Stop::No || self.0.shared.gate.has_successor() {
            let text = "this process is stopping, or has handed its place over";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        if self.0.quic_ports.has_predecessor() {
            let text = "the process before this one still serves connections; wait until it has \
                        gone";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        let mut state =
            InheritedState { ports: self.0.listeners.bequeath()?, ..InheritedState::default() };
        self.0.quic_ports.bequeath(&mut state, self.0.ring.of_this_process().as_deref())?;
        Ok(state)
    }

    /// Leaves the UDP sockets to the process that takes this one's place, and has the register by
    /// now. Packets of connections of this process come back from there. If that process goes,
    /// the sockets are this one's again.
    pub fn leave_udp(&self) {
        self.0.quic_ports.leave();
    }

    /// Leaves all else to the process that takes this one's place, and ends when the last
    /// connection has: after
    /// [`Limits::drain_timeout`](firstflight_config::Limits::drain_timeout) at the latest. Call it
    /// when the other one accepts connections.
    pub fn leave(&self) {
        self.0.shared.shutdown.advance(Stop::Leave);
    }

    /// Starts to stop: not ready from now on, no new connections after
    /// [`Limits::drain_delay`](firstflight_config::Limits::drain_delay), and running requests are
    /// finished within [`Limits::drain_timeout`](firstflight_config::Limits::drain_timeout).
    ///
    /// A server whose place another process has taken ends its idle connections too.
    pub fn stop(&self) {
        let is_left = self.0.shared.shutdown.stage() == Stop::Leave;
        self.0.shared.shutdown.advance(if is_left { Stop::Finish } else { Stop::Announced });
    }

    /// Stops at once: what runs is broken off.
    pub fn stop_now(&self) {
        self.0.shared.shutdown.advance(Stop::Now);
    }

    /// Hands the strike register over to the process at the other end, which calls
    /// [`ServerHandle::take_over`]. Flights that come here while that lasts wait for it. From then
    /// on this process asks the other one about each, over the same stream: it may go on to serve,
    /// and to accept, until it has drained.
    ///
    /// # Errors
    /// [`HandOverError`]: the register is this process's still, and it goes on as before.
    pub async fn hand_over(&self, stream: UnixStream) -> Result<(), HandOverError> {
        // No reload meanwhile.
        let config = self.0.config.lock().await;
        register::hand_over(&self.0.shared, &config, stream).await
    }

    /// Takes the strike register over from the process at the other end, which calls
    /// [`ServerHandle::hand_over`]; and answers that one's questions from then on. Call it between
    /// [`Server::bind`] and [`Server::run`]: before it, flights that the other process has
    /// run are not known here.
    ///
    /// # Errors
    /// [`HandOverError`]: the other process has the register still, and goes on to serve. This one
    /// must not.
    pub async fn take_over(&self, stream: UnixStream) -> Result<(), HandOverError> {
        let config = self.0.config.lock().await.clone();
        register::take_over(&self.0.shared, &config, stream).await
    }

    /// Waits until the strike register and the UDP sockets are this process's again, after the
    /// process at the other end has died. If they were not handed over, returns at once.
    pub async fn take_back(&self) {
        self.0.shared.gate.without_successor().await;
        self.0.quic_ports.has_sockets().await;
    }

    /// The ticket keys.
    pub fn keys(&self) -> Keys {
        keys(&self.0.ring)
    }

    /// The last flights that came more than once, the last one first.
    pub fn replays(&self) -> Vec<Replay> {
        self.0.shared.observers.replays.recent()
    }

    /// Whether the configuration wants early data.
    pub fn wants_early_data(&self) -> bool {
        self.0.shared.snapshot().early_data
    }

    /// Why no early data is accepted now; `None`: it is.
    pub fn early_data_closed(&self) -> Option<RefusedReason> {
        match self.wants_early_data() {
            true => self.0.shared.gate.closed(),
            false => Some(RefusedReason::Disabled),
        }
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

    /// `None`: the configuration in use.
    async fn take_up(&self, config: Option<ServerConfig>) -> Result<(), ServerError> {
        let server = &self.0;
        // A signal may come before the first addresses are open; it would open them again.
        self.serves().await;
        // One at a time.
        let mut in_use = server.config.lock().await;
        // The number says which configuration serves, and nodes renew at different times.
        let number = server.shared.snapshot().number + u64::from(config.is_some());
        let config = config.unwrap_or_else(|| in_use.clone());
        if server.shared.shutdown.stage() != Stop::No {
            return Err(setting("the server is stopping and takes up no configuration".to_owned()));
        }
        refuse_changes_that_need_a_restart(&in_use, &config)?;
        let change = server.acme.open(&config).await?;
        let states = server.acme.after(&change);
        let snapshot = server.build(&config, number, states).await?;
        let changes = server.listeners.plan(&config)?;
        server.quic_ports.take_up(snapshot.quic.as_ref(), &config.http3);
        server.permits.resize(config.limits.connections);
        server.shared.memory.resize(config.limits.memory);
        snapshot.begin();
        server.shared.snapshot.store(Arc::new(snapshot));
        server.listeners.apply(changes);
        config.warnings().iter().for_each(|warning| warn!("{warning}"));
        *in_use = config;
        server.keep_certificates(change).await;
        Ok(())
    }
}

impl Server {
    /// See [`ServerHandle::take_over`].
    ///
    /// # Errors
    /// [`HandOverError`]
    pub async fn take_over(&self, stream: UnixStream) -> Result<(), HandOverError> {
        self.handle().take_over(stream).await
    }
}

fn keys(ring: &TicketRing) -> Keys {
    let (keys, now) = (ring.keys(), now());
    let settings = ring.settings();
    Keys {
        source: match settings.keys {
            KeySource::Process => "process",
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

/// What early data's safety rests on cannot be exchanged beneath it, nor what was settled when the
/// process started.
fn refuse_changes_that_need_a_restart(
    old: &ServerConfig,
    new: &ServerConfig,
) -> Result<(), ServerError> {
    let (early, then) = (&old.early_data, &new.early_data);
    let checks = [
        ("[store]", old.store == new.store),
        ("[tickets]", old.tickets == new.tickets),
        ("early_data.freshness", early.freshness == then.freshness),
        ("early_data.register_capacity", early.register_capacity == then.register_capacity),
        ("[access_log]", old.access_log == new.access_log),
        ("[telemetry]", old.telemetry == new.telemetry),
        ("process.workers", old.process.workers == new.process.workers),
        ("process.user", old.process.user == new.process.user),
        ("process.group", old.process.group == new.process.group),
    ];
    let changed: Vec<_> = checks.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect();
    match &changed[..] {
        [] => Ok(()),
        // A process with another store would not know what was claimed in this one.
        ["[store]", ..] => Err(setting(format!(
            "{} cannot change while the process runs; stop it and start it again",
            changed.join(", ")
        ))),
        _ => Err(setting(format!(
            "{} cannot change while the process runs; restart it, or upgrade it by SIGUSR2, \
             which loses no connection",
            changed.join(", ")
        ))),
    }
}

fn setting(text: String) -> ServerError {
    ServerError::Config(ConfigError::Setting(text))
}
