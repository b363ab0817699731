//! What tests need around the code under test: store processes (Redis, Valkey, sentinels, a cluster),
//! an ACME authority, an OTLP collector, an upstream, an attacker on the path, and fresh Debian
//! machines.
//!
//! ```text
//! machine                        a Debian system that boots for one test
//! store_topology                 a cluster; a master with a replica and sentinels
//! store_process, pebble          one store; an ACME authority (Pebble)
//! collector                      a receiver of OTLP traces and metrics
//! upstream                       an HTTP/1.1 origin that records its requests
//! recorder                       an attacker on the path that records and replays first flights
//! server_hello                   whether a server resumes a session, by its packets
//! thief                          an attacker who steals a process's memory
//! runtime                        where upstreams and recorders run
//! limited                        ends commands that hang
//! child, committed               child processes, free ports, programs; generated files
//! ```
//!
//! Every process can be frozen, killed and restarted, and ends with the test that started it, even
//! if the test is killed. Failures are panics with a message. Calls block, unless they are async.
//!
//! # Examples
//!
//! ```
//! use std::process::Command;
//!
//! use firstflight_testkit::{Running, free_port, until};
//!
//! let port = free_port();
//! std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
//!
//! // Killed when dropped, even if the test fails.
//! let mut child = Running::start(Command::new("sleep").arg("0.01"));
//! assert!(until(|| child.has_ended()));
//! ```

mod child;
mod collector;
mod committed;
mod limited;
mod machine;
mod pebble;
mod recorder;
mod runtime;
mod server_hello;
mod service_manager;
mod store_process;
mod store_topology;
mod thief;
mod upstream;

pub use child::{
    Running, Serving, TEST_TIMEOUT, find_program, free_port, program_path, skipped_without, text,
    until, within,
};
pub use collector::{Collector, Span, attribute};
pub use committed::assert_committed;
pub use limited::{Watchdog, next_client, output_within};
pub use machine::{Machine, Root, Shell, can_boot, skipped_without_root};
pub use pebble::{Pebble, PebblePlan};
pub use recorder::{HeldFlight, Recorder, resend};
pub use server_hello::{resumes, resumes_over_tcp};
pub use service_manager::ServiceManager;
pub use store_process::{StoreKind, StoreListen, StoreOptions, StoreProcess, faketime_library};
pub use store_topology::{Cluster, MASTER_NAME, Sentinels};
pub use thief::{MemorySnapshot, RecordedFlight, StolenSecret};
pub use upstream::{ReceivedRequest, Upstream, UpstreamResponse};
