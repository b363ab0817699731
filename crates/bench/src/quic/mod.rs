//! The same over QUIC: quinn's state machines without its tasks, in an event loop of ours.

mod connection;
mod failure;
mod http3;
mod socket;
mod timers;
mod worker;

pub(crate) use http3::Frames;
pub(crate) use socket::{ReceiveBuffer, UdpSocket};
pub(crate) use worker::QuicWorker;
