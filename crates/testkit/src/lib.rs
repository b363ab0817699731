//! Real store processes for tests and experiments: Redis, Valkey, sentinels, a cluster. They can be
//! frozen, killed and started again, and none outlives the one who started it. And a receiver of
//! traces and metrics, an ACME authority, and fresh machines to install things on.
//!
//! ```
//! let port = firstflight_testkit::free_port();
//! std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
//! ```
//!
//! For tests only: whatever goes wrong is a panic that says what. All calls block.

mod child;
mod cluster;
mod collector;
mod committed;
mod keeper;
mod machine;
mod pebble;
mod ports;
mod process;
mod programs;
mod sentinels;

pub use child::{Running, TEST_TIMEOUT, text, until, within};
pub use cluster::Cluster;
pub use collector::{Collector, Span, attribute};
pub use committed::assert_committed;
pub use machine::{Machine, Root, Shell, can_boot, skipped_without_root};
pub use pebble::{Pebble, PebblePlan};
pub use ports::free_port;
pub use process::{Kind, Listen, Plan, Process};
pub use programs::{find_program, program_path, skipped_without};
pub use sentinels::{MASTER_NAME, Sentinels};
