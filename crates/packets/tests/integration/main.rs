//! Whole connections, packet by packet, on a simulated clock.

mod fast_open;
mod garbage;
mod legacy;
mod many;
mod ngtcp2;
mod path;
mod pcapng;
mod peers;
mod quic;
mod quic_end;
mod quic_many;
mod quic_path;
mod quic_peers;
mod quic_trouble;
mod relay;
mod response;
mod tls13;
mod trace;
mod trouble;
