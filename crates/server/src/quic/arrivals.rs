//! The socket below an endpoint, and a second reader of the first packets that come in on it: a
//! flight is claimed in the store before quinn reads its ClientHello.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use firstflight_quic::{FirstFlight, FirstFlights, FirstFlightsLimits};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ConnectionId, Incoming, UdpPoller};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A ClientHello that came, and the address token that came with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) client_hello: Vec<u8>,
    pub(super) token: Vec<u8>,
}

/// First flights as they come in on one socket.
pub(super) struct Arrivals {
    state: Mutex<State>,
    began: Instant,
}

struct State {
    flights: FirstFlights,
    /// Who waits for the rest of a ClientHello.
    waiting: HashMap<(SocketAddr, ConnectionId), oneshot::Sender<()>>,
}

impl Arrivals {
    pub(super) fn new() -> Arc<Self> {
        let flights = FirstFlights::new(FirstFlightsLimits::default());
        let state = Mutex::new(State { flights, waiting: HashMap::new() });
        Arc::new(Self { state, began: Instant::now() })
    }

    /// The socket, each of whose datagrams is shown here before quinn has it.
    pub(super) fn watch(
        self: &Arc<Self>,
        socket: Arc<dyn AsyncUdpSocket>,
    ) -> Arc<dyn AsyncUdpSocket> {
        Arc::new(Watched { socket, arrivals: self.clone() })
    }

    /// The ClientHello of a connection that begins. One that takes several datagrams is waited for
    /// a moment. `None`: it is not to be had.
    pub(super) async fn of(&self, incoming: &Incoming) -> Option<Arrived> {
        let remote = incoming.remote_address();
        let (id, rest) = {
            let mut state = self.state();
            // After a Retry the client goes on with an id that only the Retry's token tells.
            let after_retry = incoming.remote_address_validated() && !incoming.may_retry();
            let id = match after_retry {
                true => state.flights.with_token(remote)?,
                false => incoming.orig_dst_cid(),
            };
            match state.flights.take(remote, &id) {
                FirstFlight::Whole { client_hello, token } => {
                    return Some(Arrived { client_hello, token });
                }
                FirstFlight::Unknown => return None,
                FirstFlight::Partial => {}
            }
            let (whole, rest) = oneshot::channel();
            state.waiting.insert((remote, id), whole);
            (id, rest)
        };
        let _ = timeout(PATIENCE, rest).await;
        let mut state = self.state();
        state.waiting.remove(&(remote, id));
        match state.flights.take(remote, &id) {
            FirstFlight::Whole { client_hello, token } => Some(Arrived { client_hello, token }),
            FirstFlight::Partial | FirstFlight::Unknown => {
                state.flights.forget(remote, &id);
                None
            }
        }
    }

    fn see(&self, remote: SocketAddr, datagram: &[u8]) {
        if !FirstFlights::may_begin(datagram) {
            return;
        }
        let mut state = self.state();
        if let Some(id) = state.flights.see(remote, datagram, self.began.elapsed())
            && let Some(waiting) = state.waiting.remove(&(remote, id))
        {
            let _ = waiting.send(());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket whose datagrams are shown to [`Arrivals`].
struct Watched {
    socket: Arc<dyn AsyncUdpSocket>,
    arrivals: Arc<Arrivals>,
}

impl AsyncUdpSocket for Watched {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.socket.poll_recv(cx, bufs, meta))?;
        for (buffer, meta) in bufs.iter().zip(meta.iter()).take(count) {
            let received = buffer.get(..meta.len).unwrap_or_default();
            // The kernel may have joined datagrams of one length (GRO).
            for datagram in received.chunks(meta.stride.max(1)) {
                self.arrivals.see(meta.addr, datagram);
            }
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// For the rest of a ClientHello. Datagrams of one flight come together; one that was lost comes
/// again after a second only (RFC 9002 section 6.2.2), and is then not worth waiting for.
const PATIENCE: Duration = Duration::from_millis(50);
