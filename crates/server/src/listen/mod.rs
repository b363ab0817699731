//! Where connections come in, over TCP and over UDP: sockets, PROXY headers, permits.
//!
//! Here is all that is listened on, and accepting over TCP. Addresses come and go with reloads.

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
use firstflight_tls::Version;
use firstflight_upstream::proxy_protocol::Addresses;
use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout_at};
use tracing::{debug, info, warn};

use crate::ServerError;
use crate::context::{Stop, stopped};
use crate::handoff::{InheritedPort, InheritedState};
use crate::handshake::{self, Handshakes};
use crate::http::connection::Origin;
use crate::http::redirect;
use crate::listen::permits::{ConnectionPermit, ConnectionPermits};
use crate::listen::sockets::Port;
use crate::listen::udp::QuicPorts;
use crate::observe::metrics::ConnectionMetrics;

/// The addresses listened on.
pub(crate) struct Listeners {
    open: Mutex<Vec<Open>>,
    handshakes: Arc<Handshakes>,
    permits: Arc<ConnectionPermits>,
    quic_ports: Arc<QuicPorts>,
}

/// One of them.
struct Open {
    /// As the configuration has it, maybe with port 0.
    asked: SocketAddr,
    /// With the port that the system chose.
    address: SocketAddr,
    settings: Arc<ArcSwap<Listener>>,
    tcp: Arc<TcpListener>,
    closing: watch::Sender<Closing>,
    accepting: JoinHandle<()>,
}

/// How an address is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// Not at all.
    No,
    /// After what waits in the kernel's queue has been accepted: it would be reset.
    AfterQueue,
    /// At once: another process accepts there too.
    AtOnce,
}

/// How the addresses of a new configuration differ from those that are open. New ones are bound
/// already, nobody accepts there yet.
pub(crate) struct Changes {
    new: Vec<(Listener, Port)>,
    kept: Vec<(SocketAddr, Listener)>,
    /// Kept addresses where HTTP/3 starts, and where it ends.
    with_udp: Vec<(SocketAddr, Vec<UdpSocket>)>,
    without_udp: Vec<SocketAddr>,
    gone: Vec<SocketAddr>,
}

/// Listens on all addresses of a configuration, with the sockets that are open already.
///
/// # Errors
/// [`ServerError`] of the first that cannot be had.
pub(crate) fn bind(
    config: &ServerConfig,
    inherited: &mut InheritedState,
) -> Result<Vec<(Listener, Port)>, ServerError> {
    check(config)?;
    let bind = |one: &Listener| {
        let udp = has_udp(one, config);
        let port = match inherited.take(one.address) {
            Some(given) => sockets::listen_with(given, config.limits.backlog, udp)?,
            None => sockets::listen(one.address, config.limits.backlog, udp)?,
        };
        Ok((one.clone(), port))
    };
    config.listeners.iter().map(bind).collect()
}

/// Whether a configuration's addresses can be listened on, as far as that shows beforehand.
///
/// # Errors
/// [`ServerError::NoAddress`], or [`ServerError::Config`] for one that is there twice.
pub(crate) fn check(config: &ServerConfig) -> Result<(), ServerError> {
    if config.listeners.is_empty() {
        return Err(ServerError::NoAddress);
    }
    for (at, one) in config.listeners.iter().enumerate() {
        let before = &config.listeners[..at];
        if one.address.port() != 0 && before.iter().any(|other| other.address == one.address) {
            let text = format!("{} is listened on twice; name it once", one.address);
            return Err(ConfigError::Setting(text).into());
        }
    }
    Ok(())
}

fn has_udp(listener: &Listener, config: &ServerConfig) -> bool {
    serves_http3(config) && listener.http3 && listener.protocol == ListenerProtocol::Https
}

impl Listeners {
    /// Without an address yet.
    pub(crate) fn new(
        handshakes: Arc<Handshakes>,
        permits: Arc<ConnectionPermits>,
        quic_ports: Arc<QuicPorts>,
    ) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), handshakes, permits, quic_ports })
    }

    /// Accepts connections on a port that is bound.
    pub(crate) fn open(self: &Arc<Self>, listener: Listener, port: Port) {
        let Port { address, tcp, udp } = port;
        let asked = listener.address;
        let settings = Arc::new(ArcSwap::from_pointee(listener));
        let (closing, closed) = watch::channel(Closing::No);
        let tcp = Arc::new(tcp);
        let accepting = self.clone().accept(tcp.clone(), address.port(), settings.clone(), closed);
        let accepting = tokio::spawn(accepting);
        self.open_udp(address, udp);
        info!("serving on {address}");
        self.all().push(Open { asked, address, settings, tcp, closing, accepting });
    }

    /// What a configuration changes, with its new addresses bound.
    ///
    /// # Errors
    /// [`ServerError`] of the first address that cannot be had. Nothing has changed then.
    pub(crate) fn plan(&self, config: &ServerConfig) -> Result<Changes, ServerError> {
        check(config)?;
        let mut changes = Changes {
            new: Vec::new(),
            kept: Vec::new(),
            with_udp: Vec::new(),
            without_udp: Vec::new(),
            gone: Vec::new(),
        };
        let mut open: Vec<_> = self.all().iter().map(|one| (one.asked, one.address)).collect();
        for wanted in &config.listeners {
            let udp = has_udp(wanted, config);
            let Some(at) = open.iter().position(|(asked, _)| *asked == wanted.address) else {
                let port = sockets::listen(wanted.address, config.limits.backlog, udp)?;
                changes.new.push((wanted.clone(), port));
                continue;
            };
            let (_, address) = open.swap_remove(at);
            changes.kept.push((address, wanted.clone()));
            match (udp, self.quic_ports.has(address)) {
                (true, false) => changes.with_udp.push((address, sockets::bind_udp(address)?)),
                (true, true) => changes.with_udp.push((address, Vec::new())),
                (false, _) => changes.without_udp.push(address),
            }
        }
        changes.gone = open.into_iter().map(|(_, address)| address).collect();
        Ok(changes)
    }

    /// Does what was planned. Connections that were accepted on an address that is gone go on.
    pub(crate) fn apply(self: &Arc<Self>, changes: Changes) {
        for address in changes.gone.iter().chain(&changes.without_udp) {
            self.quic_ports.retire(*address);
        }
        for (address, listener) in changes.kept {
            for one in self.all().iter().filter(|one| one.address == address) {
                one.settings.store(Arc::new(listener.clone()));
            }
        }
        for (address, sockets) in changes.with_udp {
            match sockets.is_empty() {
                true => self.quic_ports.reopen(address),
                false => self.open_udp(address, sockets),
            }
        }
        for (listener, port) in changes.new {
            self.open(listener, port);
        }
        self.all().retain(|one| {
            let stays = !changes.gone.contains(&one.address);
            if !stays {
                one.closing.send_replace(Closing::AfterQueue);
                info!("no longer serving on {}", one.address);
            }
            stays
        });
    }

    /// Further handles on all, for a next process.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn bequeath(&self) -> io::Result<Vec<InheritedPort>> {
        let given = |one: &Open| {
            let tcp = Some(one.tcp.as_fd().try_clone_to_owned()?.into());
            Ok(InheritedPort { asked: one.asked, address: one.address, tcp, udp: Vec::new() })
        };
        self.all().iter().map(given).collect()
    }

    /// Closes all. What waits in the kernel's queues is accepted first, unless another process
    /// accepts it.
    pub(crate) async fn close(&self, left_to_another: bool) {
        let all = std::mem::take(&mut *self.all());
        let how = if left_to_another { Closing::AtOnce } else { Closing::AfterQueue };
        for one in &all {
            one.closing.send_replace(how);
        }
        for one in all {
            let _ = one.accepting.await;
        }
    }

    /// The addresses, with the ports that the system chose.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.all().iter().map(|one| one.address).collect()
    }

    /// The port of the first address with HTTPS; 443 where none has it, as another process may.
    pub(crate) fn https_port(&self) -> u16 {
        let all = self.all();
        let https = |one: &&Open| one.settings.load().protocol == ListenerProtocol::Https;
        all.iter().find(https).map_or(443, |one| one.address.port())
    }

    fn all(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_udp(&self, address: SocketAddr, sockets: Vec<UdpSocket>) {
        let snapshot = self.handshakes.shared.snapshot();
        let (Some(config), false) = (&snapshot.quic, sockets.is_empty()) else { return };
        if let Err(error) = self.quic_ports.open(address, sockets, config) {
            warn!("no HTTP/3 on {address}: {error}");
        }
    }

    /// Accepts connections while there are permits, until the address is closed.
    async fn accept(
        self: Arc<Self>,
        tcp: Arc<TcpListener>,
        port: u16,
        settings: Arc<ArcSwap<Listener>>,
        mut closed: watch::Receiver<Closing>,
    ) {
        let serve = |stream: TcpStream, client: SocketAddr, permit: ConnectionPermit| {
            let serving = self.clone().serve(stream, client, settings.load_full(), port);
            tokio::spawn(async move {
                serving.await;
                drop(permit);
            });
        };
        let mut waiting = None;
        let accepting = async {
            loop {
                // Without a permit, clients wait in the backlog.
                self.permits.one_is_free().await;
                match tcp.accept().await {
                    Ok(accepted) => {
                        // Another listener may have been faster.
                        waiting = Some(accepted);
                        let permit = self.permits.take().await;
                        if let Some((stream, client)) = waiting.take() {
                            serve(stream, client, permit);
                        }
                    }
                    Err(error) => {
                        // Out of file descriptors or memory, or a peer that has gone again.
                        warn!("cannot accept a connection: {error}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            _ = closed.wait_for(|closing| *closing != Closing::No) => {}
        }
        if let Some((stream, client)) = waiting {
            serve(stream, client, self.permits.take_beyond());
        }
        if *closed.borrow() == Closing::AtOnce {
            return;
        }
        while let Some(Ok((stream, client))) = tcp.accept().now_or_never() {
            serve(stream, client, self.permits.take_beyond());
        }
    }

    /// Serves one connection: its PROXY header first, if its peer has to send one.
    async fn serve(
        self: Arc<Self>,
        mut tcp: TcpStream,
        peer: SocketAddr,
        listener: Arc<Listener>,
        port: u16,
    ) {
        let shared = &self.handshakes.shared;
        let metrics = ConnectionMetrics::begin(&shared.observers.metrics, Transport::Tcp);
        let mut stop = shared.shutdown.subscribe();
        let snapshot = shared.snapshot();
        // Responses leave as they are written; the stream gathers them itself.
        let _ = tcp.set_nodelay(true);
        let limit = snapshot.limits.header_timeout;
        let deadline = (metrics.accepted_at() + limit).into();
        let ends = tokio::select! {
            ends = timeout_at(deadline, proxy_header::ends(&listener, &mut tcp, peer)) => ends,
            () = stopped(&mut stop, Stop::Now) => return,
        };
        let Addresses { source: client, destination: local } = match ends {
            Ok(Ok(ends)) => ends,
            Ok(Err(error)) => return debug!("{peer}: {error}"),
            Err(_) => {
                metrics.timed_out();
                return debug!("{peer}: no PROXY header within {limit:?}");
            }
        };
        if listener.protocol == ListenerProtocol::Redirect {
            metrics.has_no_handshake();
            return redirect::serve(shared.clone(), tcp, || self.https_port()).await;
        }
        let alt_svc = snapshot.alt_svc(&listener, port);
        let origin = Origin { client, local, snapshot, metrics, alt_svc };
        handshake::tcp::serve(&self.handshakes, tcp, origin).await;
    }
}

/// Whether HTTP/3 is served, which needs TLS 1.3.
pub(crate) fn serves_http3(config: &ServerConfig) -> bool {
    config.http3.enabled && config.tls.max_version >= Version::Tls13
}

/// Long enough for permits to come free, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
