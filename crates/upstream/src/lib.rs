//! Pools of upstream HTTP servers: load balancing, health checks, retries and connection reuse, and
//! the PROXY protocol.
//!
//! ```text
//! pool, shared       the pool: sends a request, queues it while all servers are busy
//! attempt            one attempt on one server
//! server, socket, connection_cache, sender, upload, response_body, health_check
//!                    sockets and HTTP (hyper)
//! server_list, balance, health, retry
//!                    decisions, without sockets or clock
//! config, address, error, proxy_protocol
//! ```
//!
//! # Examples
//!
//! ```
//! use firstflight_upstream::{Pool, PoolConfig, ServerHealth};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = vec!["http://127.0.0.1:3000".parse()?, "unix:/run/app.sock".parse()?];
//! let pool = Pool::new("app", PoolConfig::new(servers))?;
//!
//! // No connection is made before the first request, and servers are up until they fail.
//! let status = pool.status();
//! assert_eq!(status.servers[1].address, "unix:/run/app.sock");
//! assert_eq!(status.servers[0].state, ServerHealth::Up);
//! # Ok(())
//! # }
//! ```
//!
//! # Why hyper's connections, and not its pool
//!
//! The choice of a server, the decision to retry, and the ejection of a failing server are rules that
//! have to be visible and tested. They depend on what a pool hides: whether a byte was sent, and on
//! which connection. hyper returns a request of which no byte was sent; a request with an unsafe method
//! is sent again only then, or if the server reports that it has not processed it.
//!
//! # Ejected servers, and servers that are down
//!
//! A server that fails several requests is *ejected* for a while, but is still used if there is no
//! other: failures often come from elsewhere (a short deadline, one slow path, the network), so with
//! one server left nothing is gained by ejecting it. A server that fails its health checks is *down*
//! and gets no requests: the operator chose that check, and its result holds for every request.

mod address;
mod attempt;
mod balance;
mod config;
mod connection_cache;
mod error;
mod health;
mod health_check;
mod pool;
pub mod proxy_protocol;
mod response_body;
mod retry;
mod sender;
mod server;
mod server_list;
mod shared;
mod socket;
mod upload;

use bytes::Bytes;

pub use address::{InvalidAddress, ServerAddress};
pub use attempt::{Attempt, Observer, SendOptions};
pub use config::{Balance, EjectionRule, HealthCheck, PoolConfig, Protocol, RetryRule};
pub use error::{PoolError, SendError};
pub use health::ServerHealth;
pub use pool::Pool;
pub use server_list::RequestTotals;
pub use shared::{PoolStatus, ServerStatus};

/// Why a body ended early.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body, of a request or of a response.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BodyError>;
