//! HTTP/3: one connection over QUIC with the instants of its phases ([`connect_quic`]), and one
//! exchange on it ([`Http3`], [`http3_get`]).

mod failure;
mod get;
mod guard;
mod handle;
mod http3;
mod link;
mod settings;
mod socket;

pub use get::{Http3Answer, http3_get};
pub use handle::QuicFacts;
pub use http3::{Http3, Receiving};
pub use link::{QuicConnected, QuicLink, connect_quic};

pub(crate) use get::{Launched, launch, start};
pub(crate) use handle::QuicHandle;

/// The protocol as ALPN names it (RFC 9114 section 3.1).
pub(crate) const ALPN: &[u8] = b"h3";
