//! A connection as the client saw it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::Slot;

/// A connection as the client saw it; what it was is for the packets to say.
pub struct ClientRecord {
    /// Its place in the order.
    pub slot: Slot,
    /// Just before the connect call, on the link's clock.
    pub began_ns: u64,
    /// The client's end, which finds the packets.
    pub local: Option<SocketAddr>,
    /// What finds the packets of a client of another make: its client random. Such a client's times
    /// are the packets', and those of `outcome` say nothing.
    pub client_random: Option<Vec<u8>>,
    /// The server's end.
    pub server: SocketAddr,
    /// Its times, or why it failed.
    pub outcome: Result<Times, String>,
}

/// The client's times of one connection, from just before the connect call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Until the handshake was complete.
    pub setup: Option<Duration>,
    /// Until the first byte of the response.
    pub first_byte: Duration,
    /// Until its last byte.
    pub total: Duration,
}

/// The age by which a ticket is surely refused for early data: servers that check freshness allow
/// 10 s (RFC 8446 section 8.3), BoringSSL 60 s.
pub const TOO_OLD_S: u32 = 100;
