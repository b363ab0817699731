//! HTTP/3: one connection over QUIC with the instants of its phases ([`connect_quic`]), and one
//! exchange on it ([`Http3`], [`http3_get`]).

mod failure;
mod get;
mod http3;
mod link;
mod settings;
mod socket;

pub use get::{Http3Answer, http3_get};
pub use http3::{Http3, Receiving};
pub use link::{QuicConnected, QuicFacts, QuicLink, connect_quic};

pub(crate) use get::{Launched, launch, start};
pub(crate) use link::QuicHandle;

/// The protocol as ALPN names it (RFC 9114 section 3.1).
pub(crate) const ALPN: &[u8] = b"h3";
