//! The store that the nodes of a cluster share, on Redis or Valkey: the strike register's claims,
//! and the small records beside them (ticket keys, nodes, single-use tickets).

mod address;
mod config;
mod error;
mod store;

pub use address::StoreUrl;
pub use config::{Address, StoreConfig, StoreTls, Topology};
pub use error::StoreError;
pub use store::{Store, StoreStatistics, Taken};
