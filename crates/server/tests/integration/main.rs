//! The server over loopback, in this process: early data, replays, limits, reloads, upgrades.

mod acme;
mod cluster;
mod early_data;
mod framing;
mod half_closed;
mod header_memory;
mod http3;
mod idempotency;
mod limits;
mod metrics;
mod proxy_protocol;
mod punctured;
mod quic_admission;
mod quic_cluster;
mod quic_early_data;
mod quic_limits;
mod quic_workers;
mod register_handoff;
mod reload;
mod replay;
mod shared_tickets;
mod sites;
mod support;
mod traces;
mod upgrade;
mod websocket;
