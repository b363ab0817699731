//! UDP ports with their QUIC endpoints. Reloads add and remove ports; the reset key and the
//! handshake limiter stay.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use firstflight_endpoint::{DatagramSocket, Endpoint, Incoming, Socket};
use firstflight_quic::{IdMark, ResetKey, Steering};
use firstflight_telemetry::metrics::{Metrics, QuicReading, QuicRefusal};
use firstflight_tickets::Ring;
use quinn_proto::{EndpointConfig, ServerConfig, VarInt};
use quinn_udp::RecvMeta;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::ServerError;
use crate::context::ShutdownStage;
use crate::handoff::relay::{self, Predecessor, RelayedPacket};
use crate::handoff::{InheritedState, Secrets};
use crate::handshake::Handshakes;
use crate::handshake::initials::InitialPackets;
use crate::handshake::quic::{self, NewConnection};
use crate::http::h3_streams::H3_NO_ERROR;
use crate::listen::permits::ConnectionPermits;
use crate::listen::permits::{HandshakeAdmission, HandshakeLimiter};
use crate::listen::udp_dispatch::DatagramDispatch;
use crate::listen::udp_dispatch::WorkerSocket;
use crate::route::QuicConfig;

/// All UDP ports.
pub(crate) struct QuicPorts {
    ports: Mutex<Vec<QuicPort>>,
    limiter: Arc<HandshakeLimiter>,
    secrets: Secrets,
    mark: IdMark,
    /// The previous process, while it still has connections.
    predecessor: Option<Arc<Predecessor>>,
    /// The stream on which a successor relays packets, once there is a successor.
    packets: Mutex<Option<StdUnixStream>>,
    /// Whether the successor reads the sockets.
    handed_over: watch::Sender<bool>,
    handshakes: Arc<Handshakes>,
    permits: Arc<ConnectionPermits>,
    /// Whether flights are claimed in a store. Then first packets are read before the endpoint
    /// processes them.
    claims_in_store: bool,
}

/// A UDP port with its endpoints.
struct QuicPort {
    address: SocketAddr,
    workers: Vec<Worker>,
    /// Further handles on the sockets, for a successor.
    sockets: Vec<UdpSocket>,
    dispatch: Arc<DatagramDispatch>,
    /// Whether new connections are accepted. A closed port is kept while it has connections.
    open: Arc<AtomicBool>,
    /// Whether the last [`QuicPorts::export_to`] exported its sockets.
    is_exported: bool,
}

/// An endpoint on one of a port's sockets.
#[derive(Clone)]
struct Worker {
    endpoint: Endpoint,
    /// The first packets received, if flights are claimed in a store.
    initials: Option<Arc<InitialPackets>>,
}

impl QuicPorts {
    /// No open port yet. Takes the previous process's secrets and stream from `inherited`.
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
        let predecessor = inherited.secrets.take();
        let secrets = predecessor.as_ref().map_or_else(Secrets::generate, Secrets::inherit);
        let predecessor = match (predecessor, inherited.packets.take()) {
            (Some(predecessor), Some(stream)) => {
                let mark = IdMark::new(predecessor.id_mark);
                Some(Predecessor::new(stream, mark).map_err(ServerError::InheritedState)?)
            }
            _ => None,
        };
        Ok(Self {
            ports: Mutex::new(Vec::new()),
            limiter: HandshakeLimiter::new(http3.retry_above, http3.refuse_above),
            handshakes,
            permits,
            mark: IdMark::new(secrets.id_mark),
            secrets,
            predecessor,
            packets: Mutex::new(None),
            handed_over: watch::Sender::new(false),
            claims_in_store: settings.store.is_some(),
        })
    }

    /// Opens an endpoint on each of a port's sockets and accepts connections, one task for each
    /// endpoint.
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
        let endpoint_config = self.endpoint_config(address);
        let open = Arc::new(AtomicBool::new(true));
        // A worker for each socket: the previous process may have had more threads than this one.
        let steering = Steering::new(u8::try_from(sockets.len()).unwrap_or(u8::MAX));
        let dispatch = Arc::new(DatagramDispatch::new(steering, self.predecessor.clone(), address));
        let mut workers = Vec::new();
        let duplicates = sockets.iter().map(UdpSocket::try_clone).collect::<Result<_, _>>();
        let duplicates = duplicates.map_err(failed)?;
        for (number, socket) in (0..).zip(sockets) {
            let initials = self.claims_in_store.then(InitialPackets::new);
            let opened = open_endpoint(
                socket,
                quic_config.server.clone(),
                endpoint_config.clone(),
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
        self.ports().push(QuicPort {
            address,
            workers,
            sockets: duplicates,
            dispatch,
            open,
            is_exported: false,
        });
        Ok(())
    }

    /// The configuration of a port's endpoints, apart from their connection ids.
    fn endpoint_config(&self, address: SocketAddr) -> EndpointConfig {
        let reset_key = ResetKey::new(self.secrets.reset_key).for_port(address);
        let mut config = EndpointConfig::new(Arc::new(reset_key));
        // quinn-proto would offer drafts too, but only the keys of version 1 are implemented.
        config.supported_versions(vec![1]);
        config
    }

    /// Whether a port is open, or closed but still there for [`QuicPorts::reopen`].
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        self.ports().iter().any(|port| port.address == address)
    }

    /// Lets a port accept connections again. Returns whether it is still there.
    pub(crate) fn reopen(&self, address: SocketAddr) -> bool {
        self.set_open(address, true)
    }

    /// Stops a port from accepting connections. Its existing connections continue.
    pub(crate) fn retire(&self, address: SocketAddr) {
        self.set_open(address, false);
    }

    fn set_open(&self, address: SocketAddr, open: bool) -> bool {
        let ports = self.ports();
        let mut found = ports.iter().filter(|port| port.address == address).peekable();
        let exists = found.peek().is_some();
        found.for_each(|port| port.open.store(open, Ordering::Relaxed));
        exists
    }

    /// Adds what a successor needs to `inherited`: duplicates of the sockets, the secrets, and the
    /// stream for relayed packets.
    ///
    /// # Errors
    /// The system's I/O error.
    pub(crate) fn export_to(
        &self,
        inherited: &mut InheritedState,
        ring: Option<&Ring>,
    ) -> io::Result<()> {
        for port in self.ports().iter_mut() {
            let mut inherited_ports = inherited.ports.iter_mut();
            let inherited_port = inherited_ports
                .find(|inherited_port| inherited_port.address == port.address)
                .filter(|_| port.open.load(Ordering::Relaxed));
            port.is_exported = inherited_port.is_some();
            if let Some(inherited_port) = inherited_port {
                let sockets = port.sockets.iter().map(UdpSocket::try_clone);
                inherited_port.udp = sockets.collect::<Result<_, _>>()?;
            }
        }
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        *self.packets.lock().unwrap_or_else(PoisonError::into_inner) = Some(ours);
        inherited.packets = Some(theirs);
        inherited.secrets = Some(self.secrets.with_ring(ring));
        Ok(())
    }

    /// Leaves the sockets to the successor, which relays the packets of this process's connections.
    /// If the successor dies, this process reads the sockets again.
    pub(crate) fn hand_off(self: &Arc<Self>) {
        self.handed_over.send_replace(true);
        // The successor did not get the sockets of ports that were closed, or opened later.
        for port in self.ports().iter().filter(|port| port.is_exported) {
            port.dispatch.set_handed_over(true);
        }
        let stream = self.packets.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stream = stream.and_then(|stream| UnixStream::from_std(stream).ok());
        let quic_ports = self.clone();
        tokio::spawn(async move {
            if let Some(stream) = stream {
                let ended = relay::receive(stream, |RelayedPacket { port, meta, datagram }| {
                    for open in quic_ports.ports().iter().filter(|open| open.address == port) {
                        open.dispatch.deliver(meta, datagram.clone());
                    }
                });
                let ended = ended.await;
                debug!("the successor relays no more packets: {ended:?}");
            }
            // Without the register, new connections would be ignored.
            quic_ports.handshakes.shared.gate.wait_for_register().await;
            quic_ports.take_back();
        });
    }

    /// Relays the packets of the previous process's connections from sockets of a port that is not
    /// open here, until that process has ended.
    pub(crate) fn relay_from(&self, address: SocketAddr, sockets: Vec<UdpSocket>) {
        let Some(predecessor) = &self.predecessor else { return };
        let metrics = &self.handshakes.shared.observers.metrics;
        for socket in sockets {
            let predecessor = predecessor.clone();
            let dispatch =
                DatagramDispatch::new(Steering::new(1), Some(predecessor.clone()), address);
            match Socket::new(socket) {
                Ok(socket) => {
                    let dispatch = Arc::new(dispatch);
                    let socket = WorkerSocket::new(socket, 0, dispatch, None, metrics.clone());
                    tokio::spawn(relay_until_ended(socket, predecessor));
                }
                Err(error) => warn!("connections over HTTP/3 on {address} are lost: {error}"),
            }
        }
    }

    /// Reads the sockets again, because there is no successor any more.
    fn take_back(&self) {
        for port in self.ports().iter() {
            port.dispatch.set_handed_over(false);
        }
        self.handed_over.send_replace(false);
    }

    /// Waits until this process reads the sockets.
    pub(crate) async fn wait_for_sockets(&self) {
        // Cannot fail: the sender lives as long as `self`.
        let _ = self.handed_over.subscribe().wait_for(|handed_over| !handed_over).await;
    }

    /// Whether the previous process still serves connections.
    pub(crate) fn has_predecessor(&self) -> bool {
        self.predecessor.as_ref().is_some_and(|predecessor| !predecessor.has_ended())
    }

    /// Applies a new configuration to the endpoints: tokens, buffers, limits.
    pub(crate) fn apply_config(
        &self,
        quic_config: Option<&QuicConfig>,
        http3: &firstflight_config::Http3Settings,
    ) {
        self.limiter.resize(http3.retry_above, http3.refuse_above);
        let Some(quic_config) = quic_config else { return };
        for Worker { endpoint, .. } in self.workers() {
            endpoint.set_server_config(quic_config.server.clone());
        }
    }

    async fn accept(self: Arc<Self>, worker: Worker, open: Arc<AtomicBool>) {
        let shared = &self.handshakes.shared;
        let stages = shared.shutdown.subscribe();
        while let Some(incoming) = worker.endpoint.accept().await {
            let stage = *stages.borrow();
            let has_successor = shared.gate.has_successor();
            let is_leaving = stage >= ShutdownStage::HandedOver || has_successor;
            // The client uses a connection id of this process's Retry, so the successor relays all of
            // its packets here. Its flight is claimed in the successor's register.
            let is_retried = has_successor && !incoming.may_retry();
            if !open.load(Ordering::Relaxed) || is_leaving && !is_retried {
                worker.forget(&incoming);
                match stage {
                    // The client retransmits to the successor, or to this process if it gets the
                    // register back.
                    ShutdownStage::HandedOver => incoming.ignore(),
                    _ if has_successor => incoming.ignore(),
                    _ => {
                        shared.observers.metrics.quic.refused.count(QuicRefusal::Refused);
                        incoming.refuse();
                    }
                }
                continue;
            }
            self.start(&worker, incoming, &stages);
        }
    }

    fn start(
        self: &Arc<Self>,
        worker: &Worker,
        incoming: Incoming,
        stage: &watch::Receiver<ShutdownStage>,
    ) {
        let counts = &self.handshakes.shared.observers.metrics.quic;
        let permit = match self.limiter.admit(incoming.remote_address_validated()) {
            HandshakeAdmission::Handshake(permit) => permit,
            HandshakeAdmission::Retry => {
                counts.refused.count(QuicRefusal::Retry);
                worker.forget(&incoming);
                // Cannot fail: the address is not validated.
                let _ = incoming.retry();
                return;
            }
            HandshakeAdmission::Ignore => {
                counts.refused.count(QuicRefusal::Overload);
                worker.forget(&incoming);
                return incoming.ignore();
            }
        };
        // QUIC has no backlog to wait in, and a refused client can use TCP.
        let Some(connection_permit) = self.permits.try_take() else {
            counts.refused.count(QuicRefusal::Refused);
            worker.forget(&incoming);
            return incoming.refuse();
        };
        // An address token from NEW_TOKEN, not from a Retry.
        if incoming.remote_address_validated() && incoming.may_retry() {
            counts.tokens.count(());
        }
        let client = incoming.remote_address();
        let port = worker.endpoint.local_addr().map_or(0, |address| address.port());
        let initials = worker.initials.clone();
        let new = NewConnection { incoming, permit, initials, port };
        let serving = quic::serve(self.handshakes.clone(), new, stage.clone());
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                debug!("{client}: {error}");
            }
            drop(connection_permit);
        });
    }

    /// The values for metrics.
    pub(crate) fn reading(&self) -> QuicReading {
        QuicReading { handshakes: self.limiter.handshakes() as u64 }
    }

    /// Does periodic work, about once a second: logs the end of an overload and drops closed ports
    /// without connections.
    pub(crate) fn maintain(&self) {
        self.limiter.log_recovery();
        self.ports().retain(|port| {
            let used = port.open.load(Ordering::Relaxed) || port.connections() > 0;
            if !used {
                port.close();
            }
            used
        });
    }

    /// Closes all connections and waits until their last packets are sent.
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

    fn ports(&self) -> MutexGuard<'_, Vec<QuicPort>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QuicPort {
    fn connections(&self) -> usize {
        self.workers.iter().map(|worker| worker.endpoint.open_connections()).sum()
    }

    /// The sockets close with the last handle on their endpoints, held by the accepting tasks.
    fn close(&self) {
        for Worker { endpoint, .. } in &self.workers {
            endpoint.close(VarInt::from_u32(H3_NO_ERROR), b"");
        }
    }
}

impl Worker {
    /// Drops the stored packets of a connection that does not start: another connection may use the
    /// same id.
    fn forget(&self, incoming: &Incoming) {
        if let Some(initials) = &self.initials {
            initials.forget(incoming);
        }
    }
}

/// Relays the packets of the previous process's connections, and drops all others.
async fn relay_until_ended(socket: WorkerSocket, predecessor: Arc<Predecessor>) {
    let mut buffer = vec![0; MAX_MERGED_BYTES];
    while !predecessor.has_ended() {
        let received = std::future::poll_fn(|cx| {
            let mut buffers = [IoSliceMut::new(&mut buffer)];
            socket.poll_receive(cx, &mut buffers, &mut [RecvMeta::default()])
        });
        if let Ok(Err(error)) = timeout(END_CHECK_INTERVAL, received).await {
            debug!("a socket of the previous process: {error}");
            sleep(END_CHECK_INTERVAL).await;
        }
    }
}

/// The size of a buffer for datagrams that the kernel has merged (GRO).
const MAX_MERGED_BYTES: usize = 1 << 16;

/// How often a relaying task checks whether the previous process has ended.
const END_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// An endpoint on one of a port's sockets, for the worker with this number. Received datagrams are
/// dispatched to workers and recorded in `initials` before the endpoint processes them.
///
/// # Errors
/// The socket's I/O error.
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
    let socket = Socket::new(socket)?;
    let socket = WorkerSocket::new(socket, worker, dispatch, initials, metrics);
    Ok(Endpoint::new(config, server, Arc::new(socket)))
}

/// How long to wait for the connections' last packets.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
