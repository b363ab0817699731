//! QUIC connections (RFC 9000, RFC 9001, RFC 9369) as a tap in the middle sees them.
//!
//! Datagrams are kept as they are until a connection is judged. Then they are opened level by
//! level, since the keys of each are found in the messages of the one before it.

mod causes;
mod connections;
mod crypto;
mod facts;
mod flow;
mod frames;
mod header;
mod http3;
mod judge;
mod keys;
mod opening;
mod pieces;
mod protection;
mod response;
mod tally;
mod trace;
mod turns;
mod version;

pub(crate) use connections::Connections;
pub(crate) use header::Long;
