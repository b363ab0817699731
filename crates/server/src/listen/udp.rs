//! All that listens on UDP: ports come and go with reloads, reset key and limiter stay.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use firstflight_quic::{IdMark, ResetKey, Steering};
use firstflight_telemetry::metrics::{Metrics, QuicReading, QuicRefusal};
use firstflight_tickets::Ring;
use quinn::{Endpoint, EndpointConfig, Runtime, ServerConfig, TokioRuntime, VarInt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::debug;

use crate::ServerError;
use crate::context::Stop;
use crate::handoff::relay::{self, Predecessor, RelayedPacket};
use crate::handoff::{InheritedState, Secrets};
use crate::handshake::Handshakes;
use crate::handshake::initials::InitialPackets;
use crate::handshake::quic::{self, NewConnection};
use crate::http::h3_streams::H3_NO_ERROR;
use crate::listen::permits::ConnectionPermits;
use crate::listen::permits::{Admission, HandshakeLimiter};
use crate::listen::udp_dispatch::DatagramDispatch;
use crate::listen::udp_dispatch::WorkerSocket;
use crate::route::QuicConfig;

/// All that listens on UDP.
pub(crate) struct QuicPorts {
    ports: Mutex<Vec<Port>>,
    limiter: Arc<HandshakeLimiter>,
    endpoints: EndpointConfig,
    secrets: Secrets,
    mark: IdMark,
    /// The process before this one, while its connections go on.
    before: Option<Arc<Predecessor>>,
    /// Where the next process passes packets on, once there is one.
    packets: Mutex<Option<StdUnixStream>>,
    /// Whether the next process reads the sockets.
    left: watch::Sender<bool>,
    handshakes: Arc<Handshakes>,
    permits: Arc<ConnectionPermits>,
    /// Whether flights are claimed in a store, so that what comes in has to be read twice.
    with_store: bool,
}

/// A port with its endpoints.
struct Port {
    address: SocketAddr,
    workers: Vec<Worker>,
    /// Further handles on the sockets, for a next process.
    sockets: Vec<UdpSocket>,
    dispatch: Arc<DatagramDispatch>,
    /// Whether it takes new connections. One that does not is kept for those that it has.
    open: Arc<AtomicBool>,
}

/// An endpoint, on one of a port's sockets.
#[derive(Clone)]
struct Worker {
    endpoint: Endpoint,
    /// What comes in on it, where flights are claimed in a store.
    initials: Option<Arc<InitialPackets>>,
}

impl QuicPorts {
    /// Without a port, and with what the process before this one has left, if there was one.
    ///
    /// # Errors
    /// [`ServerError::InheritedState`].
    pub(crate) fn new(
        handshakes: Arc<Handshakes>,
        permits: Arc<ConnectionPermits>,
        settings: &firstflight_config::ServerConfig,
        inherited: &mut InheritedState,
    ) -> Result<Self, ServerError> {
        let http3 = &settings.http3;
        let before = inherited.secrets.take();
        let secrets = before.as_ref().map_or_else(Secrets::fresh, Secrets::after);
        let before = match (before, inherited.packets.take()) {
            (Some(before), Some(stream)) => {
                let mark = IdMark::new(before.id_mark);
                Some(Predecessor::new(stream, mark).map_err(ServerError::InheritedState)?)
            }
            _ => None,
        };
        let mut endpoints = EndpointConfig::new(Arc::new(ResetKey::new(secrets.reset_key)));
        // quinn would name drafts too, whose keys we do not have.
        endpoints.supported_versions(vec![1]);
        Ok(Self {
            ports: Mutex::new(Vec::new()),
            limiter: HandshakeLimiter::new(http3.retry_above, http3.refuse_above),
            handshakes,
            permits,
            endpoints,
            mark: IdMark::new(secrets.id_mark),
            secrets,
            before,
            packets: Mutex::new(None),
            left: watch::Sender::new(false),
            with_store: settings.store.is_some(),
        })
    }

    /// Opens endpoints on a port's sockets and accepts connections, a task an endpoint. When the
    /// server stops, they refuse further ones.
    ///
    /// # Errors
    /// [`ServerError::Listen`].
    pub(crate) fn open(
        self: &Arc<Self>,
        address: SocketAddr,
        sockets: Vec<UdpSocket>,
        quic_config: &QuicConfig,
    ) -> Result<(), ServerError> {
        let failed = |reason| ServerError::Listen { address, reason };
        let open = Arc::new(AtomicBool::new(true));
        // As many as there are sockets: they may have come from a process with more threads.
        let steering = Steering::new(u8::try_from(sockets.len()).unwrap_or(u8::MAX));
        let dispatch = Arc::new(DatagramDispatch::new(steering, self.before.clone(), address));
        let mut workers = Vec::new();
        let further = sockets.iter().map(UdpSocket::try_clone).collect::<Result<_, _>>();
        let further = further.map_err(failed)?;
        for (number, socket) in (0..).zip(sockets) {
            let initials = self.with_store.then(InitialPackets::new);
            let opened = open_endpoint(
                socket,
                quic_config.server.clone(),
                self.endpoints.clone(),
                (steering, &self.mark, number),
                dispatch.clone(),
                initials.clone(),
                self.handshakes.shared.observers.metrics.clone(),
            );
            let endpoint = opened.map_err(failed)?;
            workers.push(Worker { endpoint, initials });
        }
        for worker in workers.clone() {
            tokio::spawn(self.clone().accept(worker, open.clone()));
        }
        self.ports().push(Port { address, workers, sockets: further, dispatch, open });
        Ok(())
    }

    /// Whether a port is open, or can be opened again by [`QuicPorts::reopen`].
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        self.ports().iter().any(|port| port.address == address)
    }

    /// Lets a port take connections again.
    pub(crate) fn reopen(&self, address: SocketAddr) {
        self.set_open(address, true);
    }

    /// Lets a port take no further connections. Those that it has go on.
    pub(crate) fn retire(&self, address: SocketAddr) {
        self.set_open(address, false);
    }

    fn set_open(&self, address: SocketAddr, open: bool) {
        for port in self.ports().iter().filter(|port| port.address == address) {
            port.open.store(open, Ordering::Relaxed);
        }
    }

    /// What the next process needs of this one: further handles on each port's sockets, and the
    /// way on which it passes packets on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn bequeath(
        &self,
        inherited: &mut InheritedState,
        ring: Option<&Ring>,
    ) -> io::Result<()> {
        for port in self.ports().iter().filter(|port| port.open.load(Ordering::Relaxed)) {
            let sockets = port.sockets.iter().map(UdpSocket::try_clone);
            let given = inherited.ports.iter_mut().find(|given| given.address == port.address);
            if let Some(given) = given {
                given.udp = sockets.collect::<Result<_, _>>()?;
            }
        }
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        *self.packets.lock().unwrap_or_else(PoisonError::into_inner) = Some(ours);
        inherited.packets = Some(theirs);
        inherited.secrets = Some(self.secrets.with_ring(ring));
        Ok(())
    }

    /// Leaves the sockets to the next process, which passes on what is for connections of this one.
    /// If that process dies, the sockets are read here again.
    pub(crate) fn leave(self: &Arc<Self>) {
        self.left.send_replace(true);
        for port in self.ports().iter() {
            port.dispatch.leave(true);
        }
        let stream = self.packets.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stream = stream.and_then(|stream| UnixStream::from_std(stream).ok());
        let quic_ports = self.clone();
        tokio::spawn(async move {
            if let Some(stream) = stream {
                let ended = relay::receive(stream, |RelayedPacket { port, meta, datagram }| {
                    for one in quic_ports.ports().iter().filter(|one| one.address == port) {
                        one.dispatch.deliver(meta, datagram.clone());
                    }
                });
                let ended = ended.await;
                debug!("the next process passes no more packets on: {ended:?}");
            }
            // Not sooner: new connections are ignored as long as the register is another process's.
            quic_ports.handshakes.shared.gate.without_successor().await;
            quic_ports.stay();
        });
    }

    /// Reads the sockets again, as there is no next process.
    fn stay(&self) {
        for port in self.ports().iter() {
            port.dispatch.leave(false);
        }
        self.left.send_replace(false);
    }

    /// Waits until the sockets are this process's.
    pub(crate) async fn has_sockets(&self) {
        // The sender is ours too.
        let _ = self.left.subscribe().wait_for(|left| !left).await;
    }

    /// Whether the process before this one still serves connections.
    pub(crate) fn has_predecessor(&self) -> bool {
        self.before.as_ref().is_some_and(|before| !before.is_gone())
    }

    /// Takes up another configuration for what an endpoint decides by itself: tokens and buffers.
    pub(crate) fn take_up(
        &self,
        quic_config: Option<&QuicConfig>,
        http3: &firstflight_config::Http3Settings,
    ) {
        self.limiter.resize(http3.retry_above, http3.refuse_above);
        let Some(quic_config) = quic_config else { return };
        for Worker { endpoint, .. } in self.workers() {
            endpoint.set_server_config(Some(quic_config.server.clone()));
        }
    }

    async fn accept(self: Arc<Self>, worker: Worker, open: Arc<AtomicBool>) {
        let shared = &self.handshakes.shared;
        let stop = shared.shutdown.subscribe();
        while let Some(incoming) = worker.endpoint.accept().await {
            let stage = *stop.borrow();
            let handed_over = shared.gate.has_successor();
            if stage >= Stop::Leave || !open.load(Ordering::Relaxed) || handed_over {
                worker.forget(&incoming);
                match stage {
                    // The client sends again, and the next process hears it, or this one if the
                    // register comes back.
                    Stop::Leave => incoming.ignore(),
                    _ if handed_over => incoming.ignore(),
                    _ => {
                        shared.observers.metrics.quic.refused.count(QuicRefusal::Refused);
                        incoming.refuse();
                    }
                }
                continue;
            }
            self.begin(&worker, incoming, &stop);
        }
    }

    fn begin(
        self: &Arc<Self>,
        worker: &Worker,
        incoming: quinn::Incoming,
        stop: &watch::Receiver<Stop>,
    ) {
        let counts = &self.handshakes.shared.observers.metrics.quic;
        let permit = match self.limiter.enter(incoming.remote_address_validated()) {
            Admission::Handshake(permit) => permit,
            Admission::Retry => {
                counts.refused.count(QuicRefusal::Retry);
                worker.forget(&incoming);
                // An address that was not shown may always be requested.
                let _ = incoming.retry();
                return;
            }
            Admission::Ignore => {
                counts.refused.count(QuicRefusal::Overload);
                worker.forget(&incoming);
                return incoming.ignore();
            }
        };
        // There is no backlog to wait in, and a client that is refused has TCP.
        let Some(connection_permit) = self.permits.try_take() else {
            counts.refused.count(QuicRefusal::Refused);
            worker.forget(&incoming);
            return incoming.refuse();
        };
        // Not one that a Retry brought.
        if incoming.remote_address_validated() && incoming.may_retry() {
            counts.tokens.count(());
        }
        let client = incoming.remote_address();
        let port = worker.endpoint.local_addr().map_or(0, |address| address.port());
        let initials = worker.initials.clone();
        let new = NewConnection { incoming, permit, initials, port };
        let serving = quic::serve(self.handshakes.clone(), new, stop.clone());
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                debug!("{client}: {error}");
            }
            drop(connection_permit);
        });
    }

    /// What metrics say of the limiter.
    pub(crate) fn reading(&self) -> QuicReading {
        QuicReading { handshakes: self.limiter.handshakes() as u64 }
    }

    /// Says when a rush of connections is over, and lets go of ports that are not listened on any
    /// more. Call it about once a second.
    pub(crate) fn look(&self) {
        self.limiter.look();
        self.ports().retain(|port| {
            let used = port.open.load(Ordering::Relaxed) || port.connections() > 0;
            if !used {
                port.close();
            }
            used
        });
    }

    /// Ends what is left, and sees that the last words leave.
    pub(crate) async fn close(&self) {
        let workers = self.workers();
        for Worker { endpoint, .. } in &workers {
            endpoint.close(VarInt::from_u32(H3_NO_ERROR), b"");
        }
        let idle = async {
            for Worker { endpoint, .. } in &workers {
                endpoint.wait_idle().await;
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, idle).await;
    }

    fn workers(&self) -> Vec<Worker> {
        self.ports().iter().flat_map(|port| port.workers.clone()).collect()
    }

    fn ports(&self) -> MutexGuard<'_, Vec<Port>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port {
    fn connections(&self) -> usize {
        self.workers.iter().map(|worker| worker.endpoint.open_connections()).sum()
    }

    /// The sockets close with the last handle on their endpoints, which the accepting tasks have.
    fn close(&self) {
        for Worker { endpoint, .. } in &self.workers {
            endpoint.close(VarInt::from_u32(H3_NO_ERROR), b"");
        }
    }
}

impl Worker {
    /// What was seen of a connection that does not start is not for another one with its id.
    fn forget(&self, incoming: &quinn::Incoming) {
        if let Some(initials) = &self.initials {
            initials.forget(incoming);
        }
    }
}

/// An endpoint on one of a port's sockets, for the worker with this number. What comes in is sorted
/// and shown to `initials` first, where these are.
///
/// # Errors
/// The socket's.
fn open_endpoint(
    socket: UdpSocket,
    server: ServerConfig,
    mut config: EndpointConfig,
    (steering, mark, worker): (Steering, &IdMark, u8),
    dispatch: Arc<DatagramDispatch>,
    initials: Option<Arc<InitialPackets>>,
    metrics: Arc<Metrics>,
) -> io::Result<Endpoint> {
    let mark = mark.clone();
    config.cid_generator(move || steering.marked_ids(worker, mark.clone()));
    let runtime = Arc::new(TokioRuntime);
    let socket = runtime.wrap_udp_socket(socket)?;
    let socket = Arc::new(WorkerSocket { socket, worker, dispatch, initials, metrics });
    Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime)
}

/// For the connections' last packets.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
