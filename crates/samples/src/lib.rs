//! Samples of connections: what each requests, in which order they are taken, and how their packets
//! classify them.
//!
//! The lab takes samples in an emulated network, the bench from servers on real networks. Both
//! share this crate.
//!
//! ```text
//! connection     what a connection requests: its axes, the round trips that it needs
//! plan           all combinations of the axes, and samples in randomised blocks
//! client_state   the client's TLS contexts, tickets and address tokens
//! exchange       one connection: connect, request, response, close
//! flows          groups packets into connections, and turns connections into samples
//! capture_file   the packets of connections with their secrets, as pcapng
//! machine        facts about this machine, and its performance counters
//! ```
//!
//! # Examples
//!
//! ```
//! use firstflight_samples::{ConnectionAxes, HandshakeKind, blocks, combinations, round_trips};
//!
//! let axes = ConnectionAxes {
//!     kinds: vec![HandshakeKind::Full, HandshakeKind::ZeroRtt],
//!     ..ConnectionAxes::baseline()
//! };
//! let cells = combinations(&axes);
//! assert_eq!(cells.iter().map(round_trips).collect::<Vec<_>>(), [3, 2]);
//!
//! // Two blocks with both cells, each block in random order.
//! let order = blocks(&[0, 1], &|_| 2, 7);
//! assert_eq!(order.iter().map(|slot| slot.block).collect::<Vec<_>>(), [0, 0, 1, 1]);
//! ```

mod capture_file;
mod client_state;
mod connection;
mod exchange;
mod flows;
mod machine;
mod plan;

pub use capture_file::{CaptureFile, CaptureInfo, capture_path};
pub use client_state::{Connectors, IssuerPool, Ticket, TicketPool};
pub use connection::{
    CertificateKind, CipherSuite, ClientKind, Group, HandshakeKind, HttpVersion,
    RequestedConnection, ResponseSize, Transport, Workload, round_trips, version_number,
};
pub use exchange::{ConnectionOffer, Exchange, ExchangeLimits, exchange};
pub use flows::{
    ClientRecord, Flow, Flows, STALE_TICKET_AGE_S, Times, client_port, expected_label, mismatch,
    mismatch_except_group, sample_from_flow, tls_version, wire_packet,
};
pub use machine::{
    Counters, Counts, blank_record, counters_unavailable_reason, machine_facts, utc_now,
};
pub use plan::{ConnectionAxes, MIN_CONTROL_SAMPLES, Slot, blocks, combinations, why_impossible};
