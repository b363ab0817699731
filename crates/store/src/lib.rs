//! The store that the nodes of a cluster share, on Redis or Valkey: the strike register's claims,
//! and the small records beside them (ticket keys, nodes, single-use tickets).
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
//! Connections are kept by tasks. A *lane* takes all claims that wait and sends them as one
//! pipeline, with questions behind them by which `firstflight_replay` judges whether the responses
//! count; a *keeper* sends heartbeats, by which it knows the process at the other end and writes
//! its epoch. What is not answered in time, or not by a store that can be trusted, is
//! [`firstflight_replay::Unknown`], never an error and never a win.

mod address;
mod config;
mod error;
#[doc(hidden)]
pub mod foreign;
mod link;
mod master;
pub mod ring;
mod settings;
mod statistics;
mod store;
mod topology;

pub use address::StoreUrl;
pub use config::{Address, StoreConfig, StoreTls, Topology};
pub use error::StoreError;
pub use statistics::{CLAIM_TIME_BOUNDS, StoreStatistics};
pub use store::{Claimant, Spent, Store, Taken};
