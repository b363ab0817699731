use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use firstflight_quic::{Resumption, ResumptionInbox};
use firstflight_tls::Handshake;
use quinn::{Connection, Endpoint};

use super::socket::Watched;
use crate::Marks;

/// What QUIC says about a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuicFacts {
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The least one.
    pub min_rtt: Duration,
    /// Whether an address token was sent along (RFC 9000 section 8.1.3).
    pub token_sent: bool,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Packets that were taken for lost.
    pub lost: u64,
}

/// Looks at a connection, whoever uses it.
#[derive(Clone)]
pub(crate) struct QuicHandle(pub(super) Arc<Core>);

pub(super) struct Core {
    /// Set as soon as something can be written.
    pub(super) connection: OnceLock<Connection>,
    pub(super) secured: OnceLock<Instant>,
    /// The connection's tasks end when this is gone.
    pub(super) endpoint: Endpoint,
    pub(super) socket: Arc<Watched>,
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

    /// Over QUIC to be connected is to have completed the handshake.
    pub(crate) fn mark(&self, marks: &mut Marks) {
        marks.dialled = Some(self.0.dialled);
        marks.connected = self.0.secured.get().copied();
        marks.secured = marks.connected;
    }

    pub(crate) fn facts(&self) -> Option<Handshake> {
        let facts = self.0.connection.get()?.handshake_data()?;
        facts.downcast::<Handshake>().ok().map(|facts| *facts)
    }

    pub(crate) fn quic_facts(&self) -> QuicFacts {
        let token_sent = self.0.token_sent;
        let Some(connection) = self.0.connection.get() else {
            return QuicFacts { token_sent, ..QuicFacts::default() };
        };
        let stats = connection.stats();
        QuicFacts {
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

    /// Whether a refusal by the network says that nothing of the first flight has arrived.
    pub(crate) fn refuses_first_flight(&self) -> bool {
        self.0.socket.refuses_first_flight()
    }

    pub(crate) fn take_resumptions(&self) -> Vec<Resumption> {
        self.0.inbox.take_resumptions()
    }

    pub(crate) fn take_tokens(&self) -> Vec<Bytes> {
        self.0.inbox.take_tokens()
    }

    pub(super) fn has_both_gifts(&self) -> bool {
        self.0.inbox.has_both()
    }
}

impl Core {
    pub(super) fn is_open(&self) -> bool {
        self.connection.get().is_some_and(|connection| connection.close_reason().is_none())
    }
}
