//! Whole connections, packet by packet, on a simulated clock.

mod connections;
mod fast_open;
mod garbage;
mod legacy;
mod loss;
mod ngtcp2;
mod pcapng;
mod peers;
mod quic;
mod quic_loss;
mod quic_path;
mod quic_peers;
mod response;
mod tcp_path;
mod tls13;
mod trace;
