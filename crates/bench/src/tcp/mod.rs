//! The event loop of one thread over TCP.

mod connection;
mod worker;

pub(crate) use worker::TcpWorker;
