//! Accepts connections over TCP and UDP: sockets, PROXY headers, connection permits.
//!
//! This file accepts over TCP. Reloads add and remove listeners.

pub(crate) mod permits;
pub(crate) mod proxy_header;
pub(crate) mod sockets;
pub(crate) mod udp;
pub(crate) mod udp_dispatch;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use firstflight_config::{ConfigError, Listener, ListenerProtocol, ServerConfig};
use firstflight_telemetry::metrics::Transport;
use firstflight_upstream::proxy_protocol::Addresses;
use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, unconstrained};
use tokio::time::{sleep, timeout_at};
use tracing::{debug, info, warn};

use crate::ServerError;
use crate::context::{ShutdownStage, wait_for_stage};
use crate::handoff::{InheritedPort, InheritedState};
use crate::handshake::tcp::OpenConnection;
use crate::handshake::{self, Handshakes};
use crate::http::connection::AcceptedConnection;
use crate::http::redirect;
use crate::listen::permits::{ConnectionPermit, ConnectionPermits};
use crate::listen::sockets::BoundPort;
use crate::listen::udp::QuicPorts;
use crate::observe::metrics::ConnectionMetrics;

/// The open listeners.
pub(crate) struct Listeners {
    open: Mutex<Vec<OpenListener>>,
    handshakes: Arc<Handshakes>,
    permits: Arc<ConnectionPermits>,
    quic_ports: Arc<QuicPorts>,
}

/// An open listener.
struct OpenListener {
    /// The configured address, possibly with port 0.
    requested: SocketAddr,
    /// The bound address.
    address: SocketAddr,
    settings: Arc<ArcSwap<Listener>>,
    tcp: Arc<TcpListener>,
    closing: watch::Sender<Closing>,
    accepting: JoinHandle<()>,
}

/// How a listener is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// It stays open.
    No,
    /// It first accepts the connections in the kernel's backlog, which would be reset otherwise.
    AfterBacklog,
    /// It closes immediately: another process accepts on the same socket.
    Immediately,
}

/// The differences between the open listeners and a new configuration. New addresses are bound
/// already, but do not accept yet.
pub(crate) struct ListenerChanges {
    new: Vec<(Listener, BoundPort)>,
    kept: Vec<(SocketAddr, Listener)>,
    /// Listeners that serve HTTP/3, with new sockets where their UDP ports are not bound yet.
    with_udp: Vec<(SocketAddr, Vec<UdpSocket>)>,
    /// Kept listeners that do not serve HTTP/3.
    without_udp: Vec<SocketAddr>,
    removed: Vec<SocketAddr>,
}

/// Binds all listeners of a configuration, using inherited sockets where there are any.
///
/// # Errors
/// The [`ServerError`] of the first listener that fails.
pub(crate) fn bind(
    config: &ServerConfig,
    inherited: &mut InheritedState,
) -> Result<Vec<(Listener, BoundPort)>, ServerError> {
    check(config)?;
    let bind = |listener: &Listener| {
        let udp = config.serves_http3(listener);
        let port = match inherited.take(listener.address) {
            Some(mut inherited_port) => {
                if !udp {
                    inherited.give_back_udp(&mut inherited_port);
                }
                sockets::listen_with(inherited_port, config.limits.backlog, udp)?
            }
            None => sockets::listen(listener.address, config.limits.backlog, udp)?,
        };
        Ok((listener.clone(), port))
    };
    config.listeners.iter().map(bind).collect()
}

/// Checks the addresses without binding them.
///
/// # Errors
/// [`ServerError::NoAddress`], or [`ServerError::Config`] for an address that occurs twice.
pub(crate) fn check(config: &ServerConfig) -> Result<(), ServerError> {
    if config.listeners.is_empty() {
        return Err(ServerError::NoAddress);
    }
    for (index, Listener { address, .. }) in config.listeners.iter().enumerate() {
        let before = &config.listeners[..index];
        if address.port() != 0 && before.iter().any(|other| other.address == *address) {
            let text = format!("{address} is listed twice; list it once");
            return Err(ConfigError::Setting(text).into());
        }
    }
    Ok(())
}

impl Listeners {
    /// No open listener yet.
    pub(crate) fn new(
        handshakes: Arc<Handshakes>,
        permits: Arc<ConnectionPermits>,
        quic_ports: Arc<QuicPorts>,
    ) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), handshakes, permits, quic_ports })
    }

    /// Accepts connections on a bound port.
    pub(crate) fn open(self: &Arc<Self>, listener: Listener, port: BoundPort) {
        let BoundPort { address, tcp, udp } = port;
        let requested = listener.address;
        let settings = Arc::new(ArcSwap::from_pointee(listener));
        let (closing, closed) = watch::channel(Closing::No);
        let tcp = Arc::new(tcp);
        let accepting = self.clone().accept(tcp.clone(), address, settings.clone(), closed);
        let accepting = tokio::spawn(accepting);
        self.open_udp(address, udp);
        info!("serving on {address}");
        self.lock().push(OpenListener { requested, address, settings, tcp, closing, accepting });
    }

    /// Compares a configuration with the open listeners and binds its new addresses.
    ///
    /// # Errors
    /// The [`ServerError`] of the first address that cannot be bound. Nothing has changed then.
    pub(crate) fn plan(&self, config: &ServerConfig) -> Result<ListenerChanges, ServerError> {
        check(config)?;
        let mut changes = ListenerChanges {
            new: Vec::new(),
            kept: Vec::new(),
            with_udp: Vec::new(),
            without_udp: Vec::new(),
            removed: Vec::new(),
        };
        let mut open: Vec<_> =
            self.lock().iter().map(|listener| (listener.requested, listener.address)).collect();
        for listener in &config.listeners {
            let udp = config.serves_http3(listener);
            let Some(index) = open.iter().position(|(requested, _)| *requested == listener.address)
            else {
                // A removed port stays bound for UDP while it has connections.
                let bind_udp = udp && !self.quic_ports.has(listener.address);
                let port = sockets::listen(listener.address, config.limits.backlog, bind_udp)?;
                if udp && !bind_udp {
                    changes.with_udp.push((listener.address, Vec::new()));
                }
                changes.new.push((listener.clone(), port));
                continue;
            };
            let (_, address) = open.swap_remove(index);
            changes.kept.push((address, listener.clone()));
            match (udp, self.quic_ports.has(address)) {
                (true, false) => changes.with_udp.push((address, sockets::bind_udp(address)?)),
                (true, true) => changes.with_udp.push((address, Vec::new())),
                (false, _) => changes.without_udp.push(address),
            }
        }
        changes.removed = open.into_iter().map(|(_, address)| address).collect();
        Ok(changes)
    }

    /// Applies planned changes. Connections that were accepted on removed listeners continue.
    pub(crate) fn apply(self: &Arc<Self>, changes: ListenerChanges) {
        for address in changes.removed.iter().chain(&changes.without_udp) {
            self.quic_ports.retire(*address);
        }
        for (address, listener) in changes.kept {
            for open in self.lock().iter().filter(|open| open.address == address) {
                open.settings.store(Arc::new(listener.clone()));
            }
        }
        for (address, mut sockets) in changes.with_udp {
            // A closed port may have been dropped since the plan, with its last connection.
            if sockets.is_empty() && !self.quic_ports.reopen(address) {
                sockets = sockets::bind_udp(address).unwrap_or_else(|error| {
                    warn!("HTTP/3 cannot be served on {address}: {error}");
                    Vec::new()
                });
            }
            self.open_udp(address, sockets);
        }
        for (listener, port) in changes.new {
            self.open(listener, port);
        }
        self.lock().retain(|listener| {
            let stays = !changes.removed.contains(&listener.address);
            if !stays {
                listener.closing.send_replace(Closing::AfterBacklog);
                info!("no longer serving on {}", listener.address);
            }
            stays
        });
    }

    /// Duplicates the listening sockets for a successor.
    ///
    /// # Errors
    /// The system's I/O error.
    pub(crate) fn duplicate_sockets(&self) -> io::Result<Vec<InheritedPort>> {
        let duplicate = |listener: &OpenListener| {
            let tcp = Some(listener.tcp.as_fd().try_clone_to_owned()?.into());
            Ok(InheritedPort {
                requested: listener.requested,
                address: listener.address,
                tcp,
                udp: Vec::new(),
            })
        };
        self.lock().iter().map(duplicate).collect()
    }

    /// Closes all listeners. The connections in the kernel's backlog are accepted first, unless
    /// another process accepts them.
    pub(crate) async fn close(&self, has_successor: bool) {
        let listeners = std::mem::take(&mut *self.lock());
        let closing = if has_successor { Closing::Immediately } else { Closing::AfterBacklog };
        for listener in &listeners {
            listener.closing.send_replace(closing);
        }
        for listener in listeners {
            let _ = listener.accepting.await;
        }
    }

    /// The bound addresses.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.lock().iter().map(|listener| listener.address).collect()
    }

    /// The port of the first HTTPS listener, or 443 if there is none, since another process may
    /// listen there.
    pub(crate) fn https_port(&self) -> u16 {
        let listeners = self.lock();
        let is_https =
            |open: &&OpenListener| open.settings.load().protocol == ListenerProtocol::Https;
        listeners.iter().find(is_https).map_or(443, |open| open.address.port())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OpenListener>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_udp(&self, address: SocketAddr, sockets: Vec<UdpSocket>) {
        let snapshot = self.handshakes.shared.snapshot();
        let (Some(config), false) = (&snapshot.quic, sockets.is_empty()) else { return };
        if let Err(error) = self.quic_ports.open(address, sockets, config) {
            warn!("HTTP/3 cannot be served on {address}: {error}");
        }
    }

    /// Accepts connections while permits are available, until the listener is closed.
    async fn accept(
        self: Arc<Self>,
        tcp: Arc<TcpListener>,
        address: SocketAddr,
        settings: Arc<ArcSwap<Listener>>,
        mut closed: watch::Receiver<Closing>,
    ) {
        let serve = |stream: TcpStream, client: SocketAddr, permit: ConnectionPermit| {
            // Boxed, so that the task stays small: its memory is kept as long as the connection.
            let opening =
                self.clone().open_connection(stream, client, settings.load_full(), address);
            let opening = Box::pin(opening);
            tokio::spawn(async move {
                let connection = opening.await;
                if let Some(connection) = connection {
                    connection.serve().await;
                }
                drop(permit);
            });
        };
        let mut waiting = None;
        let accepting = async {
            loop {
                // Without a permit, clients wait in the kernel's backlog.
                self.permits.wait_for_free().await;
                match tcp.accept().await {
                    Ok(accepted) => {
                        // Another listener may have taken the permit meanwhile.
                        waiting = Some(accepted);
                        let permit = self.permits.take().await;
                        if let Some((stream, client)) = waiting.take() {
                            serve(stream, client, permit);
                        }
                    }
                    Err(error) => {
                        // Out of file descriptors or memory, or the client has disconnected.
                        warn!("cannot accept a connection: {error}");
                        sleep(ACCEPT_RETRY_DELAY).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            _ = closed.wait_for(|closing| *closing != Closing::No) => {}
        }
        if let Some((stream, client)) = waiting {
            serve(stream, client, self.permits.take_above_limit());
        }
        if *closed.borrow() == Closing::Immediately {
            return;
        }
        // Clients that connect meanwhile could keep the queue from ever getting empty.
        let backlog = self.handshakes.shared.snapshot().limits.backlog;
        for _ in 0..=backlog {
            // Without `unconstrained` the queue would seem empty whenever the runtime wants this task
            // to yield.
            let Some(accepted) = unconstrained(tcp.accept()).now_or_never() else { return };
            match accepted {
                Ok((stream, client)) => serve(stream, client, self.permits.take_above_limit()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return warn!("cannot accept the waiting connections: {error}"),
            }
        }
    }

    /// Reads the PROXY header, if the peer has to send one, and performs the handshake. Returns
    /// `None` if the connection has ended. Redirects are served here.
    async fn open_connection(
        self: Arc<Self>,
        mut tcp: TcpStream,
        peer: SocketAddr,
        listener: Arc<Listener>,
        address: SocketAddr,
    ) -> Option<OpenConnection> {
        let shared = &self.handshakes.shared;
        let metrics = ConnectionMetrics::start(&shared.observers.metrics, Transport::Tcp);
        let mut stage = shared.shutdown.subscribe();
        let snapshot = shared.snapshot();
        let limit = snapshot.limits.header_timeout;
        let deadline = (metrics.accepted_at() + limit).into();
        let client_addresses = tokio::select! {
            client_addresses = timeout_at(deadline, proxy_header::client_addresses(&listener, address, &mut tcp, peer)) => client_addresses,
            () = wait_for_stage(&mut stage, ShutdownStage::Abort) => return None,
        };
        let Addresses { source: client, destination: local } = match client_addresses {
            Ok(Ok(client_addresses)) => client_addresses,
            Ok(Err(error)) => {
                debug!("{peer}: {error}");
                return None;
            }
            Err(_) => {
                metrics.note_timeout();
                debug!("{peer}: no PROXY header within {limit:?}");
                return None;
            }
        };
        if listener.protocol == ListenerProtocol::Redirect {
            metrics.expect_no_handshake();
            let redirecting = redirect::serve(shared.clone(), tcp, || self.https_port());
            Box::pin(redirecting).await;
            return None;
        }
        let alt_svc = snapshot.alt_svc(&listener, address.port());
        let origin = AcceptedConnection { client, local, snapshot, metrics, alt_svc };
        handshake::tcp::open(&self.handshakes, tcp, origin).await
    }
}

/// Gives other connections time to release resources.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
