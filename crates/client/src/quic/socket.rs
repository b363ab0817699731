use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use firstflight_quic::ResetKey;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGroSegment;
use quinn::congestion::CubicConfig;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{
    AsyncUdpSocket, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, Runtime,
    TokioRuntime, TransportConfig, UdpPoller, VarInt,
};
use socket2::{Domain, Socket, Type};
use tokio::io::Interest;
use tokio::sync::Notify;

/// A UDP socket that is connected to one address, so that the kernel reports ICMP errors. quinn
/// ignores such errors, because one address of many must not end all connections. Here there is
/// only one, and "port unreachable" ends the wait for a response.
#[derive(Debug)]
pub(super) struct PeerSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    /// The same socket, polled for errors: they do not make it readable.
    errors: tokio::net::UdpSocket,
    watching: AtomicBool,
    refused: Mutex<Option<io::Error>>,
    changed: Notify,
    sent: AtomicU64,
    first_sent: OnceLock<Instant>,
    /// Whether anything was sent after the first flight. A refusal may then be about that.
    sent_later: AtomicBool,
    /// Whether anything was received.
    received_any: AtomicBool,
}

/// Packets sent within this time of the first datagram belong to the first flight: a connection
/// without a response retransmits after a second (RFC 9002 section 6.2.2).
const FIRST_FLIGHT: Duration = Duration::from_millis(250);

impl PeerSocket {
    /// Binds to a port of the system's choice and connects to `peer`.
    pub(super) fn open(peer: SocketAddr) -> io::Result<Arc<Self>> {
        keep_gro_enabled();
        let any: SocketAddr = match peer {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(peer)?;
        socket.set_nonblocking(true)?;
        let errors = tokio::net::UdpSocket::from_std(socket.try_clone()?)?;
        Ok(Arc::new(Self {
            inner: TokioRuntime.wrap_udp_socket(socket)?,
            errors,
            watching: AtomicBool::new(true),
            refused: Mutex::new(None),
            changed: Notify::new(),
            sent: AtomicU64::new(0),
            first_sent: OnceLock::new(),
            sent_later: AtomicBool::new(false),
            received_any: AtomicBool::new(false),
        }))
    }

    /// Waits until the network refuses the peer.
    pub(super) async fn refused(&self) -> io::Error {
        loop {
            let changed = self.changed.notified();
            if let Some(error) = self.lock().take() {
                return error;
            }
            let error = self.errors.async_io(Interest::ERROR, || {
                self.error().ok_or_else(|| io::ErrorKind::WouldBlock.into())
            });
            tokio::select! {
                result = error => return result.unwrap_or_else(|error| error),
                () = changed => {}
            }
        }
    }

    /// Returns whether a refusal proves that the first flight has not arrived: nothing else was
    /// sent, and the peer has not responded.
    pub(super) fn refuses_first_flight(&self) -> bool {
        !self.sent_later.load(Ordering::Relaxed) && !self.received_any.load(Ordering::Relaxed)
    }

    /// Stops watching: the peer has responded, and from now on the connection detects failures
    /// itself.
    pub(super) fn stop_watching(&self) {
        self.watching.store(false, Ordering::Relaxed);
    }

    /// Returns the number of sends to the kernel.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until `sent()` exceeds `before`.
    pub(super) async fn sent_after(&self, before: u64) {
        loop {
            let changed = self.changed.notified();
            if self.sent() > before {
                return;
            }
            changed.await;
        }
    }

    /// Takes the kernel's pending error, if it is relevant.
    fn error(&self) -> Option<io::Error> {
        let error = self.errors.take_error().ok()??;
        // A path MTU probe may fail.
        (error.raw_os_error() != Some(libc::EMSGSIZE)).then_some(error)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<io::Error>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncUdpSocket for PeerSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // Otherwise the kernel would report the error to this send, where it is lost.
        if self.watching.load(Ordering::Relaxed)
            && let Some(error) = self.error()
        {
            *self.lock() = Some(error);
            self.changed.notify_waiters();
        }
        self.inner.try_send(transmit)?;
        if self.first_sent.get_or_init(Instant::now).elapsed() > FIRST_FLIGHT {
            self.sent_later.store(true, Ordering::Relaxed);
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = self.inner.poll_recv(cx, buffers, meta);
        if let Poll::Ready(Ok(1..)) = received {
            self.received_any.store(true, Ordering::Relaxed);
        }
        received
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// Keeps UDP_GRO in use on this machine. The kernel patches its code, which stops all processors, when
/// the first socket enables it and when the last such socket is closed, and quinn opens one for
/// each connection only to test for support.
fn keep_gro_enabled() {
    static SOCKETS: OnceLock<[Option<Socket>; 2]> = OnceLock::new();
    SOCKETS.get_or_init(|| {
        [Domain::IPV4, Domain::IPV6].map(|domain| {
            let socket = Socket::new(domain, Type::DGRAM, None).ok()?;
            setsockopt(&socket, UdpGroSegment, &true).ok()?;
            Some(socket)
        })
    });
}

/// Bytes that may be in flight before the first acknowledgement (RFC 9002 section 7.2).
const INITIAL_WINDOW: u64 = 14_720;

/// A datagram size that every path supports (RFC 9000 section 14); larger ones are probed once the
/// path is known. A lost first flight costs more than an additional datagram.
const INITIAL_MTU: u16 = 1_200;

/// Gain in bytes below which path MTU discovery stops.
const MIN_MTU_CHANGE: u16 = 200;

/// Silence after which the path counts as dead. A slow peer acknowledges the pings.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Returns our transport parameters and congestion control.
pub(super) fn transport() -> Arc<TransportConfig> {
    let mut window = CubicConfig::default();
    window.initial_window(INITIAL_WINDOW);
    // Tries the largest size first, which most paths support, instead of four sizes in four round
    // trips.
    let mut mtu_discovery = MtuDiscoveryConfig::default();
    mtu_discovery.minimum_change(MIN_MTU_CHANGE);
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(Arc::new(window))
        .initial_mtu(INITIAL_MTU)
        .mtu_discovery_config(Some(mtu_discovery))
        .max_idle_timeout(Some(IdleTimeout::from(
            VarInt::from_u32(IDLE_TIMEOUT.as_millis() as u32),
        )))
        .keep_alive_interval(Some(KEEP_ALIVE_INTERVAL))
        // A server opens no requests (RFC 9114 section 6.1), and datagrams are not used.
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None);
    Arc::new(transport)
}

/// Creates an endpoint for one connection. Its tasks run on the current runtime.
pub(super) fn endpoint(socket: Arc<PeerSocket>) -> io::Result<Endpoint> {
    // The key for stateless resets (RFC 9000 section 10.3), which clients do not need.
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let mut config = EndpointConfig::new(Arc::new(ResetKey::new(key)));
    // Version 1 only: quinn would also accept drafts.
    config.supported_versions(vec![1]);
    Endpoint::new_with_abstract_socket(config, None, socket, Arc::new(TokioRuntime))
}
