//! HTTP/3: one connection over QUIC with the instants of its phases ([`connect_quic`]), and one
//! exchange on it ([`Http3`], [`http3_get`]).

mod failure;
mod get;
mod guard;
mod http3;
mod link;
mod socket;

pub use get::{Http3Response, http3_get};
pub use http3::{Http3, PendingResponse};
pub use link::{QuicConnected, QuicLink, QuicStats, connect_quic};

pub(crate) use get::{HandshakeDone, complete_handshake, start};
pub(crate) use link::QuicHandle;

/// The protocol as ALPN names it (RFC 9114 section 3.1).
pub(crate) const ALPN: &[u8] = b"h3";
