//! What a connection offers, and what comes of it, over TCP and over QUIC.

use bytes::Bytes;
use firstflight_samples::{Ticket, Times};
use firstflight_tls::Handshake;

/// What a connection brings along.
#[derive(Clone, Default)]
pub(crate) struct ConnectionOffer {
    /// The server's name.
    pub host: String,
    /// What it resumes.
    pub ticket: Option<Ticket>,
    /// Whether to send the request as early data.
    pub early_data: bool,
    /// An address token; QUIC only.
    pub token: Option<Bytes>,
}

/// What came of a connection.
pub(crate) struct Exchanged {
    pub times: Times,
    /// What TLS says of itself, over QUIC; for trials alone, for what a sample was is for its
    /// packets to say.
    pub facts: Option<Handshake>,
    /// For later connections.
    pub tickets: Vec<Ticket>,
    /// Address tokens for later connections from the same address.
    pub tokens: Vec<Bytes>,
}

/// Our largest answer, and room for a server that has another one.
pub(crate) const MAX_RESPONSE_BYTES: usize = 4 << 20;
