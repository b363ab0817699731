//! All that is listened on, and accepting there. Addresses come and go with reloads.

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use firstflight_config::{ConfigError, Listener, ListenerProtocol, ServerConfig};
use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::generation::serves_http3;
use crate::listener::{self, Port};
use crate::places::Place;
use crate::server::Shared;
use crate::{ServerError, connection, quic};

/// The addresses listened on.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Open>>);

/// One of them.
struct Open {
    /// As the configuration has it, maybe with port 0.
    asked: SocketAddr,
    /// With the port that the system chose.
    address: SocketAddr,
    settings: Arc<ArcSwap<Listener>>,
    closing: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

/// Where a connection came in.
#[derive(Clone)]
pub(crate) struct Entrance {
    /// The settings of the address as they were then.
    pub(crate) listener: Arc<Listener>,
    /// The port, also where the system chose it.
    pub(crate) port: u16,
}

/// How the addresses of a new configuration differ from those that are open. New ones are bound
/// already, nobody accepts there yet.
pub(crate) struct Changes {
    new: Vec<(Listener, Port)>,
    kept: Vec<(SocketAddr, Listener)>,
    /// Kept addresses where HTTP/3 begins, and where it ends.
    with_udp: Vec<(SocketAddr, Vec<UdpSocket>)>,
    without_udp: Vec<SocketAddr>,
    gone: Vec<SocketAddr>,
}

/// Listens on all addresses of a configuration.
///
/// # Errors
/// [`ServerError`] of the first that cannot be had.
pub(crate) fn bind(config: &ServerConfig) -> Result<Vec<(Listener, Port)>, ServerError> {
    check(config)?;
    let bind = |one: &Listener| {
        let port = listener::listen(one.address, config.limits.backlog, has_udp(one, config))?;
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
    /// Accepts connections on a port that is bound.
    pub(crate) fn open(&self, server: &Arc<Shared>, listener: Listener, port: Port) {
        let Port { address, tcp, udp } = port;
        let asked = listener.address;
        let settings = Arc::new(ArcSwap::from_pointee(listener));
        let (closing, closed) = watch::channel(false);
        let accepting = accept(tcp, address.port(), settings.clone(), server.clone(), closed);
        let accepting = tokio::spawn(accepting);
        open_udp(server, address, udp);
        info!("serving on {address}");
        self.all().push(Open { asked, address, settings, closing, accepting });
    }

    /// What a configuration changes, with its new addresses bound.
    ///
    /// # Errors
    /// [`ServerError`] of the first address that cannot be had. Nothing has changed then.
    pub(crate) fn plan(
        &self,
        config: &ServerConfig,
        front: &quic::Front,
    ) -> Result<Changes, ServerError> {
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
                let port = listener::listen(wanted.address, config.limits.backlog, udp)?;
                changes.new.push((wanted.clone(), port));
                continue;
            };
            let (_, address) = open.swap_remove(at);
            changes.kept.push((address, wanted.clone()));
            match (udp, front.has(address)) {
                (true, false) => changes.with_udp.push((address, quic::bind(address)?)),
                (true, true) => changes.with_udp.push((address, Vec::new())),
                (false, _) => changes.without_udp.push(address),
            }
        }
        changes.gone = open.into_iter().map(|(_, address)| address).collect();
        Ok(changes)
    }

    /// Does what was planned. Connections that were accepted on an address that is gone go on.
    pub(crate) fn apply(&self, server: &Arc<Shared>, changes: Changes) {
        for address in changes.gone.iter().chain(&changes.without_udp) {
            server.front.retire(*address);
        }
        for (address, listener) in changes.kept {
            for one in self.all().iter().filter(|one| one.address == address) {
                one.settings.store(Arc::new(listener.clone()));
            }
        }
        for (address, sockets) in changes.with_udp {
            match sockets.is_empty() {
                true => server.front.reopen(address),
                false => open_udp(server, address, sockets),
            }
        }
        for (listener, port) in changes.new {
            self.open(server, listener, port);
        }
        self.all().retain(|one| {
            let stays = !changes.gone.contains(&one.address);
            if !stays {
                one.closing.send_replace(true);
                info!("no longer serving on {}", one.address);
            }
            stays
        });
    }

    /// Closes all. What waits in the kernel's queues is accepted first.
    pub(crate) async fn close(&self) {
        let all = std::mem::take(&mut *self.all());
        for one in &all {
            one.closing.send_replace(true);
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_udp(server: &Arc<Shared>, address: SocketAddr, sockets: Vec<UdpSocket>) {
    let generation = server.current();
    let (Some(terms), false) = (&generation.quic, sockets.is_empty()) else { return };
    if let Err(error) = server.front.open(address, sockets, terms, server) {
        warn!("no HTTP/3 on {address}: {error}");
    }
}

/// Accepts connections while there are places, until the address is closed.
async fn accept(
    tcp: TcpListener,
    port: u16,
    settings: Arc<ArcSwap<Listener>>,
    server: Arc<Shared>,
    mut closed: watch::Receiver<bool>,
) {
    let serve = |stream: TcpStream, client: SocketAddr, place: Place| {
        let entrance = Entrance { listener: settings.load_full(), port };
        let serving = connection::serve(server.clone(), stream, client, entrance);
        tokio::spawn(async move {
            serving.await;
            drop(place);
        });
    };
    let mut waiting = None;
    let accepting = async {
        loop {
            // Without a free place, clients wait in the backlog.
            server.places.one_is_free().await;
            match tcp.accept().await {
                Ok(accepted) => {
                    // Another listener may have been faster.
                    waiting = Some(accepted);
                    let place = server.places.take().await;
                    if let Some((stream, client)) = waiting.take() {
                        serve(stream, client, place);
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
        _ = closed.wait_for(|closed| *closed) => {}
    }
    if let Some((stream, client)) = waiting {
        serve(stream, client, server.places.take_beyond());
    }
    // The kernel would reset what it has queued.
    while let Some(Ok((stream, client))) = tcp.accept().now_or_never() {
        serve(stream, client, server.places.take_beyond());
    }
}

/// Long enough for places to come free, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
