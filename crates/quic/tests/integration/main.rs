//! QUIC on BoringSSL: sessions without packets, and endpoints joined by a simulated link.

mod burst;
mod connections;
mod early_data;
mod first_flights;
mod preview;
mod sessions;
mod support;
