//! The event loop of one thread over QUIC: quinn's state machines without its tasks.

mod connection;
mod http3;
mod socket;
mod worker;

pub(crate) use http3::FrameReader;
pub(crate) use socket::{ReceiveBuffer, UdpSocket};
pub(crate) use worker::QuicWorker;
