use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use firstflight_quic::ResetKey;
use quinn::congestion::CubicConfig;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{
    AsyncUdpSocket, Endpoint, EndpointConfig, IdleTimeout, Runtime, TokioRuntime, TransportConfig,
    UdpPoller, VarInt,
};
use tokio::io::Interest;
use tokio::sync::Notify;

/// A UDP socket that is connected to one address, so that the kernel hands over what ICMP says of
/// it. quinn swallows such errors, since one address of many must not end all connections; here
/// there is but one, and "port unreachable" is a response for which nobody has to wait.
#[derive(Debug)]
pub(super) struct PeerSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    /// The same socket, to hear of its errors: they do not make it readable.
    errors: tokio::net::UdpSocket,
    watching: AtomicBool,
    refused: Mutex<Option<io::Error>>,
    changed: Notify,
    sent: AtomicU64,
    first_sent: OnceLock<Instant>,
    /// Whether something has left after the first flight, so that a refusal may mean that.
    sent_later: AtomicBool,
    /// Whether anything has come in.
    received_any: AtomicBool,
}

/// What leaves within this time of the first datagram belongs to the first flight: a connection
/// that hears nothing sends again after a second (RFC 9002 section 6.2.2).
const FIRST_FLIGHT: Duration = Duration::from_millis(250);

impl PeerSocket {
    /// Binds to a port of the system's choice and connects to `peer`.
    pub(super) fn open(peer: SocketAddr) -> io::Result<Arc<Self>> {
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
            let received_any = self.errors.async_io(Interest::ERROR, || {
                self.error().ok_or_else(|| io::ErrorKind::WouldBlock.into())
            });
            tokio::select! {
                received_any = received_any => return received_any.unwrap_or_else(|error| error),
                () = changed => {}
            }
        }
    }

    /// Whether a refusal says that the first flight has not arrived: nothing else has left that it
    /// could be about, and nobody has answered.
    pub(super) fn refuses_first_flight(&self) -> bool {
        !self.sent_later.load(Ordering::Relaxed) && !self.received_any.load(Ordering::Relaxed)
    }

    /// The peer has answered: from now on the connection judges by itself.
    pub(super) fn stop_watching(&self) {
        self.watching.store(false, Ordering::Relaxed);
    }

    /// How often something was handed to the kernel.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until something was handed over after `sent` had that value.
    pub(super) async fn sent_after(&self, before: u64) {
        loop {
            let changed = self.changed.notified();
            if self.sent() > before {
                return;
            }
            changed.await;
        }
    }

    /// What the kernel has been told, if that means anything.
    fn error(&self) -> Option<io::Error> {
        let error = self.errors.take_error().ok()??;
        // A probe for a larger MTU may fail, which is what probes are for.
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
        // Else the kernel would hand the error to this sending, where it is lost.
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

/// Bytes that may be in flight before the first acknowledgement (RFC 9002 section 7.2).
const INITIAL_WINDOW: u64 = 14_720;

/// Bytes of a datagram that every path carries (RFC 9000 section 14); larger ones are found out
/// when the path is known. A first flight that does not arrive costs more than one that needs a
/// datagram more.
const INITIAL_MTU: u16 = 1_200;

/// Silence after which the path is taken for dead. A peer that is only slow acknowledges the pings.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// What we tell a server about ourselves, and how we send.
pub(super) fn transport() -> Arc<TransportConfig> {
    let mut window = CubicConfig::default();
    window.initial_window(INITIAL_WINDOW);
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(Arc::new(window))
        .initial_mtu(INITIAL_MTU)
        .max_idle_timeout(Some(IdleTimeout::from(
            VarInt::from_u32(IDLE_TIMEOUT.as_millis() as u32),
        )))
        .keep_alive_interval(Some(KEEP_ALIVE_INTERVAL))
        // A server opens no requests (RFC 9114 section 6.1), and we use no datagrams.
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None);
    Arc::new(transport)
}

/// An endpoint for one connection. Its tasks run on the runtime that it is made on.
pub(super) fn endpoint(socket: Arc<PeerSocket>) -> io::Result<Endpoint> {
    // For stateless resets (RFC 9000 section 10.3), which nobody expects of us.
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let mut config = EndpointConfig::new(Arc::new(ResetKey::new(key)));
    // Version 1 alone: quinn would take drafts as well.
    config.supported_versions(vec![1]);
    Endpoint::new_with_abstract_socket(config, None, socket, Arc::new(TokioRuntime))
}
