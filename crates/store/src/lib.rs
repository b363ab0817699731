//! The store that the nodes of a cluster share, on Redis or Valkey: claims of the strike register,
//! and small records beside them (ticket keys, node status, single-use tickets).
//!
//! ```text
//! store, ring      what the server uses: claims and records; the shared ticket keys
//! topology         which process is the master: one address, sentinels, or a cluster's slots
//! master           one master: heartbeat, queue of commands, batches, log
//! connection       one connection: sockets, TLS, login, replies
//! config, settings, statistics, error
//! ```
//!
//! # Examples
//!
//! ```
//! use firstflight_store::{StoreConfig, StoreUrl, Topology};
//!
//! let url = StoreUrl::parse("rediss://redis.internal", 6379).unwrap();
//! assert!(url.tls);
//! StoreConfig::new(Topology::Single(url.address)).validate().unwrap();
//! // A password in the URL is refused: it belongs in a file.
//! assert!(StoreUrl::parse("redis://user:secret@redis.internal", 6379).is_err());
//! ```
//!
//! # How connections work
//!
//! Each master has one *heartbeat* task and several *worker* tasks. A worker takes all commands that
//! wait, sends them as one pipeline, and appends the queries by which `firstflight_replay` decides
//! whether the replies count. The heartbeat identifies the process at the other end and writes its
//! epoch record. A claim without a reply in time, or with a reply that does not count, is
//! [`firstflight_replay::Unknown`]: never an error, and never a win.
//!
//! Under load the queries cost nothing, and a single claim costs one round trip. A claim is never
//! retried: sent twice, it would lose against itself.
//!
//! # Why not the connections of a client library
//!
//! The crate `redis` provides commands and the parser; sockets, batches and reconnects are here. A
//! claim's reply counts only together with the replies that follow it on the same connection. So a
//! connection belongs to one process and one task, and ends by rules of this crate. A client library
//! that reconnects, retries or follows redirections hides which process a reply came from. Sockets
//! are also ours because BoringSSL is the only TLS library that may be linked.
//!
//! A majority decides which process is the master: of the sentinels, or of a cluster's masters.
//! Both are polled, and each reply is dated by the time of its request, because a subscription cannot
//! show that messages have stopped coming.

mod config;
mod connection;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod master;
pub mod ring;
mod settings;
mod statistics;
mod store;
mod topology;

pub use config::{Address, StoreConfig, StoreTls, StoreUrl, Topology};
pub use error::StoreError;
pub use statistics::{CLAIM_TIME_BOUNDS, StoreStatistics};
pub use store::{Claimant, Spent, Store, Taken};
