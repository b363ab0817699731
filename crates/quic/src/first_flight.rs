use std::net::SocketAddr;
use std::time::Duration;

/// Collects the ClientHellos of connections that begin, from datagrams as they come in and before
/// quinn sees them. Sans-IO: the time is given, nothing waits, memory is bounded.
///
/// It is a second reader beside quinn; what it says decides nothing by itself. The judge compares
/// the client random of the connection with the one that was rehearsed.
pub struct FirstFlights;

/// Bounds of [`FirstFlights`].
#[derive(Clone, Copy, Debug)]
pub struct FirstFlightsLimits {
    /// Connections at a time; beyond it the oldest are dropped.
    pub flights: usize,
    /// Bytes of a ClientHello.
    pub client_hello: usize,
    /// How long a flight is kept.
    pub life: Duration,
}

/// What is known of a connection that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstFlight {
    /// The ClientHello is whole: the message with its header, and the token of the Initial packet
    /// (empty: none).
    Whole {
        /// The message.
        client_hello: Vec<u8>,
        /// The token.
        token: Vec<u8>,
    },
    /// Some of it came.
    Partial,
    /// Nothing is known of it.
    Unknown,
}

impl FirstFlights {
    /// An empty collection.
    pub fn new(_limits: FirstFlightsLimits) -> Self {
        unimplemented!()
    }

    /// Looks at a datagram from `remote`; anything but a client's Initial packets is left alone.
    /// Gives true if a ClientHello became whole.
    pub fn see(&mut self, _remote: SocketAddr, _datagram: &[u8], _now: Duration) -> bool {
        unimplemented!()
    }

    /// The flight of the connection that `remote` began with this destination connection id.
    pub fn find(&self, _remote: SocketAddr, _orig_dst_cid: &[u8]) -> FirstFlight {
        unimplemented!()
    }

    /// Forgets it.
    pub fn forget(&mut self, _remote: SocketAddr, _orig_dst_cid: &[u8]) {
        unimplemented!()
    }
}
