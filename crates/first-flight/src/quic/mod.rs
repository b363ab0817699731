//! Datagrams of QUIC (RFC 9000, RFC 9001): first flights, and what a connection is made of.

mod assembly;
mod connection_ids;
mod datagrams;
mod space;
#[cfg(test)]
mod tests;

pub use connection_ids::ZeroRttPackets;

pub(crate) use assembly::{Assembly, MAX_STREAM_BYTES};
pub(crate) use connection_ids::rewrite;
pub(crate) use datagrams::{
    FIRST_UNIDIRECTIONAL, ID_LEN, MAX_DATAGRAM, QuicParts, first_flight, long_header, pack_frames,
    pad, seal_long, seal_short, transport_parameters,
};
pub(crate) use space::{Space, stream_frames};
