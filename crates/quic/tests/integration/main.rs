//! QUIC on BoringSSL: sessions without packets, and endpoints joined by a simulated wire.

mod burst;
mod connections;
mod early_data;
mod first_flights;
mod rehearsal;
mod sessions;
mod support;
