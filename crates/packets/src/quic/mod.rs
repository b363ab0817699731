//! QUIC connections (RFC 9000, RFC 9001, RFC 9369) as a tap in the middle of the path sees them.
//!
//! Datagrams are kept unchanged until a connection is analyzed. Then they are decrypted one
//! encryption level after the other, because the handshake messages of a level select the keys of
//! the next.

mod analysis;
mod connections;
mod counts;
mod decryption;
mod flow;
mod handshake;
mod protection;
mod response;
mod round_trips;
mod trace;

#[cfg(test)]
mod tests;

pub(crate) use connections::Connections;
