//! QUIC and HTTP/3 between this program and stacks that are not ours.

pub(crate) mod aioquic;
mod aioquic_asks;
mod attacker;
mod fetch_asks;
mod first_flight;
mod forged;
pub(crate) mod initial;
mod ngtcp2;
mod ngtcp2_asks;
mod nodes;
mod quic_go;
mod quic_go_asks;
mod refused;
mod relay;
mod replay;
mod rustls_asks;
mod rustls_client;
mod rustls_server;
mod stage;
