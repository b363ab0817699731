//! What fuzz targets and seeds have in common: how a capture lies in bytes, and a server and a
//! client to talk to.

mod capture;
mod endpoints;
pub mod quic;

pub use capture::{Event, Flags, UDP};
pub use endpoints::{OpenSealer, acceptor, connector};
