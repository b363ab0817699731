//! Reads the first packets of QUIC connections before the endpoint does, so that a flight can be
//! claimed in the store before TLS processes its ClientHello.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use firstflight_endpoint::Incoming;
use firstflight_quic::{FirstFlight, FirstFlights, FirstFlightsLimits};
use quinn_proto::ConnectionId;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The ClientHello of a new connection, and its address token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReceivedInitial {
    pub(crate) client_hello: Vec<u8>,
    pub(crate) token: Vec<u8>,
}

/// The first flights received on one socket.
pub(crate) struct InitialPackets {
    state: Mutex<InitialsState>,
    created_at: Instant,
}

struct InitialsState {
    flights: FirstFlights,
    /// Tasks that wait for the rest of a ClientHello.
    waiting: HashMap<(SocketAddr, ConnectionId), oneshot::Sender<()>>,
}

impl InitialsState {
    /// The connection id of a new connection's flight. After a Retry the client uses a new one, which
    /// only the token reveals.
    fn id_of(&self, incoming: &Incoming) -> Option<ConnectionId> {
        match incoming.remote_address_validated() && !incoming.may_retry() {
            true => self.flights.connection_id_after_retry(incoming.remote_address()),
            false => Some(incoming.orig_dst_cid()),
        }
    }
}

impl InitialPackets {
    pub(crate) fn new() -> Arc<Self> {
        let flights = FirstFlights::new(FirstFlightsLimits::default());
        let state = Mutex::new(InitialsState { flights, waiting: HashMap::new() });
        Arc::new(Self { state, created_at: Instant::now() })
    }

    /// The ClientHello of a new connection. Waits briefly if it spans several datagrams. Returns
    /// `None` if it is incomplete or was not recorded.
    pub(crate) async fn client_hello_of(&self, incoming: &Incoming) -> Option<ReceivedInitial> {
        let remote = incoming.remote_address();
        let (id, completed) = {
            let mut state = self.state();
            let id = state.id_of(incoming)?;
            match state.flights.take(remote, &id) {
                FirstFlight::Whole { client_hello, token } => {
                    return Some(ReceivedInitial { client_hello, token });
                }
                FirstFlight::Unknown => return None,
                FirstFlight::Partial => {}
            }
            let (notify, completed) = oneshot::channel();
            state.waiting.insert((remote, id), notify);
            (id, completed)
        };
        let _ = timeout(CLIENT_HELLO_TIMEOUT, completed).await;
        let mut state = self.state();
        state.waiting.remove(&(remote, id));
        match state.flights.take(remote, &id) {
            FirstFlight::Whole { client_hello, token } => {
                Some(ReceivedInitial { client_hello, token })
            }
            FirstFlight::Partial | FirstFlight::Unknown => {
                state.flights.forget(remote, &id);
                None
            }
        }
    }

    /// Forgets a connection that does not start.
    pub(crate) fn forget(&self, incoming: &Incoming) {
        let mut state = self.state();
        if let Some(id) = state.id_of(incoming) {
            state.flights.forget(incoming.remote_address(), &id);
        }
    }

    /// Records a received datagram.
    pub(crate) fn record(&self, remote: SocketAddr, datagram: &[u8]) {
        if !FirstFlights::may_start_connection(datagram) {
            return;
        }
        let mut state = self.state();
        if let Some(id) =
            state.flights.process_datagram(remote, datagram, self.created_at.elapsed())
            && let Some(waiting) = state.waiting.remove(&(remote, id))
        {
            let _ = waiting.send(());
        }
    }

    fn state(&self) -> MutexGuard<'_, InitialsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The datagrams of one flight arrive together. A lost one is retransmitted after a second at the
/// earliest (RFC 9002 section 6.2.2), which is too long to wait.
const CLIENT_HELLO_TIMEOUT: Duration = Duration::from_millis(50);
