//! An endpoint on a real socket, with quinn's client.

mod connections;
mod early_data;
mod endpoint;
mod sockets;
mod streams;
mod support;
