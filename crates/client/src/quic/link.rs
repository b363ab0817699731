use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_quic::{ClientCrypto, Remembered, Resumption, ResumptionInbox};
use firstflight_tls::Handshake;
use h3::error::Code;
use quinn::{ClientConfig, Connecting, Connection, Endpoint, VarInt, ZeroRttAccepted};

use super::socket::PeerSocket;
use super::{failure, socket};
use crate::{ClientError, PhaseInstants};

/// A QUIC connection, with the times of its phases.
pub struct QuicConnected {
    /// The connection. With early data nothing has been sent yet: what is written before the caller
    /// first awaits leaves together with the ClientHello.
    pub link: QuicLink,
    /// Times of the phases; `connected` and `secured` (equal over QUIC) only if the handshake is
    /// complete.
    pub marks: PhaseInstants,
}

/// A QUIC connection of a client on its own socket, before or after the end of the handshake. Dropping
/// it closes the connection with H3_NO_ERROR.
pub struct QuicLink {
    handle: QuicHandle,
    state: State,
}

enum State {
    Connecting(Connecting),
    Early(ZeroRttAccepted),
    /// Whether early data was accepted.
    Complete(bool),
    Failed,
}

/// Connects to one address by QUIC; `host` is the server's name or address, for SNI and for the
/// certificate. Returns when the handshake is complete, or, if the remembered session allows early
/// data and it is requested, as soon as early data can be written.
///
/// # Errors
/// [`ClientError::Connect`] when the network refuses the address, [`ClientError::Tls`], or
/// [`ClientError::Quic`], for example when there was no response for 30 s.
pub async fn connect_quic(
    crypto: &Arc<ClientCrypto>,
    host: &str,
    remembered: Remembered,
    address: SocketAddr,
) -> Result<QuicConnected, ClientError> {
    let start = Instant::now();
    let mut link = QuicLink::dial(crypto, host, remembered, address)?;
    if !link.is_early() {
        link.complete().await?;
    }
    let mut marks = PhaseInstants { resolved: Some(start), ..PhaseInstants::new(start) };
    link.handle.mark(&mut marks);
    Ok(QuicConnected { link, marks })
}

impl QuicLink {
    /// Starts to connect; the ClientHello leaves when the caller first awaits.
    pub(crate) fn dial(
        crypto: &Arc<ClientCrypto>,
        host: &str,
        remembered: Remembered,
        address: SocketAddr,
    ) -> Result<Self, ClientError> {
        let unreachable = |source| ClientError::Connect { address, source };
        let (token_sent, resumes) = (remembered.token.is_some(), remembered.resumption.is_some());
        let (tls, tokens, inbox) = crypto.for_connection(host, remembered)?;
        let mut config = ClientConfig::new(tls);
        config.transport_config(socket::transport()).token_store(tokens);
        let socket = PeerSocket::open(address).map_err(unreachable)?;
        let endpoint = socket::endpoint(socket.clone()).map_err(unreachable)?;
        let dialled = Instant::now();
        let connecting = endpoint
            .connect_with(config, address, host)
            .map_err(|error| ClientError::Quic { address, reason: error.to_string() })?;
        let mut early_connection = OnceLock::new();
        let state = match connecting.into_0rtt() {
            Ok((connection, accepted)) => {
                early_connection = connection.into();
                State::Early(accepted)
            }
            Err(connecting) => State::Connecting(connecting),
        };
        let handle = QuicHandle(Arc::new(Core {
            connection: early_connection,
            secured: OnceLock::new(),
            endpoint,
            socket,
            inbox,
            peer: address,
            dialled,
            token_sent,
            resumes,
            early: matches!(state, State::Early(_)),
        }));
        Ok(Self { handle, state })
    }

    /// Waits until the handshake is complete. Returns whether early data was accepted. Cancel safe.
    ///
    /// # Errors
    /// As [`connect_quic`].
    pub async fn complete(&mut self) -> Result<bool, ClientError> {
        let core = self.handle.0.clone();
        let handshake = async {
            match &mut self.state {
                State::Complete(accepted) => Ok((None, *accepted)),
                State::Connecting(connecting) => Ok((Some(connecting.await?), false)),
                State::Early(accepted) => match (accepted.await, core.connection.get()) {
                    (accepted, Some(connection)) if core.is_open() => {
                        Ok((Some(connection.clone()), accepted))
                    }
                    (_, connection) => Err(connection
                        .and_then(Connection::close_reason)
                        .unwrap_or(quinn::ConnectionError::LocallyClosed)),
                },
                State::Failed => Err(quinn::ConnectionError::LocallyClosed),
            }
        };
        let result = tokio::select! {
            biased;
            result = handshake => {
                result.map_err(|error| failure::handshake_error(&error, core.peer))
            }
            source = core.socket.refused() => {
                Err(ClientError::Connect { address: core.peer, source })
            }
        };
        match result {
            Ok((connection, accepted)) => {
                if let Some(connection) = connection {
                    let _ = core.connection.set(connection);
                    let _ = core.secured.set(Instant::now());
                    core.socket.stop_watching();
                    self.state = State::Complete(accepted);
                }
                Ok(accepted)
            }
            Err(error) => {
                self.state = State::Failed;
                Err(error)
            }
        }
    }

    /// Returns whether early data can be written before the handshake is complete.
    pub fn is_early(&self) -> bool {
        matches!(self.state, State::Early(_))
    }

    /// Returns quinn's connection, for protocols other than HTTP; `None` while nothing can be written.
    pub fn connection(&self) -> Option<&Connection> {
        self.handle.0.connection.get()
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.handle.local()
    }

    /// Returns what TLS negotiated.
    pub fn facts(&self) -> Option<Handshake> {
        self.handle.facts()
    }

    /// Returns the statistics of the connection.
    pub fn quic_stats(&self) -> QuicStats {
        self.handle.quic_stats()
    }

    /// Returns the stream bytes sent in 0-RTT packets, accepted or not.
    pub fn early_bytes(&self) -> usize {
        self.handle.early_bytes()
    }

    /// Returns the sessions received since the last call.
    pub fn take_resumptions(&self) -> Vec<Resumption> {
        self.handle.take_resumptions()
    }

    /// Returns the address tokens received since the last call.
    pub fn take_tokens(&self) -> Vec<Bytes> {
        self.handle.take_tokens()
    }

    /// Waits for a session and an address token, at most `timeout`, and only a short time after the
    /// handshake is confirmed: servers send all three together.
    pub async fn wait_for_tickets(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut confirmed = None;
        while Instant::now() < deadline && self.handle.0.is_open() {
            if self.handle.has_session_and_token() {
                return;
            }
            let done = self.connection().is_some_and(|c| c.stats().frame_rx.handshake_done > 0);
            if done && confirmed.get_or_insert_with(Instant::now).elapsed() > REORDER_ALLOWANCE {
                return;
            }
            tokio::time::sleep(TICKET_POLL_INTERVAL).await;
        }
    }

    /// Closes the connection with H3_NO_ERROR, and returns when the packet has left.
    pub async fn close(self) {
        let socket = self.handle.0.socket.clone();
        let before = socket.sent();
        if self.handle.0.is_open() {
            drop(self);
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, socket.sent_after(before)).await;
        }
    }

    pub(crate) fn handle(&self) -> QuicHandle {
        self.handle.clone()
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        self.handle.0.endpoint.close(VarInt::from_u32(Code::H3_NO_ERROR.value() as u32), b"");
    }
}

/// Timeout of sending the last packet.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(50);

/// Poll interval for sessions and tokens; quinn does not notify of them.
const TICKET_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How long after the confirmation of the handshake a session or token may arrive.
const REORDER_ALLOWANCE: Duration = Duration::from_millis(20);

/// Statistics of a QUIC connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuicStats {
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The minimum round-trip time.
    pub min_rtt: Duration,
    /// Whether an address token was sent (RFC 9000 section 8.1.3).
    pub token_sent: bool,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Packets declared lost.
    pub lost: u64,
}

/// A shared handle to inspect a connection.
#[derive(Clone)]
pub(crate) struct QuicHandle(pub(super) Arc<Core>);

pub(super) struct Core {
    /// Set as soon as something can be written.
    pub(super) connection: OnceLock<Connection>,
    pub(super) secured: OnceLock<Instant>,
    /// The connection's tasks end when this is dropped.
    pub(super) endpoint: Endpoint,
    pub(super) socket: Arc<PeerSocket>,
    pub(super) inbox: ResumptionInbox,
    pub(super) peer: SocketAddr,
    pub(super) dialled: Instant,
    pub(super) token_sent: bool,
    pub(super) resumes: bool,
    pub(super) early: bool,
}

impl QuicHandle {
    pub(crate) fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.0.endpoint.local_addr().ok()
    }

    /// Over QUIC, `connected` is the time at which the handshake was complete.
    pub(crate) fn mark(&self, marks: &mut PhaseInstants) {
        marks.dialled = Some(self.0.dialled);
        marks.connected = self.0.secured.get().copied();
        marks.secured = marks.connected;
    }

    pub(crate) fn facts(&self) -> Option<Handshake> {
        let facts = self.0.connection.get()?.handshake_data()?;
        facts.downcast::<Handshake>().ok().map(|facts| *facts)
    }

    pub(crate) fn quic_stats(&self) -> QuicStats {
        let token_sent = self.0.token_sent;
        let Some(connection) = self.0.connection.get() else {
            return QuicStats { token_sent, ..QuicStats::default() };
        };
        let stats = connection.stats();
        QuicStats {
            rtt: stats.path.rtt,
            min_rtt: stats.path.min_rtt,
            token_sent,
            datagrams_sent: stats.udp_tx.datagrams,
            datagrams_received: stats.udp_rx.datagrams,
            lost: stats.path.lost_packets,
        }
    }

    pub(crate) fn early_bytes(&self) -> usize {
        self.0.inbox.early_bytes()
    }

    /// Whether a session was offered.
    pub(crate) fn resumes(&self) -> bool {
        self.0.resumes
    }

    /// Whether early data could be written before the handshake was complete.
    pub(crate) fn offered_early_data(&self) -> bool {
        self.0.early
    }

    /// Whether a refusal by the network proves that the first flight has not arrived.
    pub(crate) fn refuses_first_flight(&self) -> bool {
        self.0.socket.refuses_first_flight()
    }

    pub(crate) fn take_resumptions(&self) -> Vec<Resumption> {
        self.0.inbox.take_resumptions()
    }

    pub(crate) fn take_tokens(&self) -> Vec<Bytes> {
        self.0.inbox.take_tokens()
    }

    pub(super) fn has_session_and_token(&self) -> bool {
        self.0.inbox.has_ticket_and_token()
    }
}

impl Core {
    pub(super) fn is_open(&self) -> bool {
        self.connection.get().is_some_and(|connection| connection.close_reason().is_none())
    }
}
