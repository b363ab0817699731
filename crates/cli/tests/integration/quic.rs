//! QUIC and HTTP/3 between this program and other implementations.

pub(crate) mod aioquic;
mod attacker;
mod fetch;
mod first_flight;
mod forged;
pub(crate) mod initial;
mod ngtcp2;
mod nodes;
mod quic_go;
mod refused;
mod relay;
mod replay;
mod rustls_client;
mod rustls_server;
mod setup;
mod theft;
