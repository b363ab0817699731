//! Pools of HTTP servers: which server a request goes to, whether it may go to another one after a
//! failure, and the connections that are kept. [`proxy_protocol`] tells a server whom a connection
//! is for.
//!
//! The decisions are sans-IO, with the time as an argument: `balance` chooses, `health` judges a
//! server, `budget` and `retry` decide what is sent again, and `roster` joins them. [`Pool`] puts
//! them on sockets; HTTP is hyper's.
//!
//! ```no_run
//! use firstflight_upstream::{Pool, PoolConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = vec!["http://127.0.0.1:3000".parse()?, "unix:/run/app.sock".parse()?];
//! let pool = Pool::new("app", PoolConfig::new(servers))?;
//! // Starts the health checks.
//! pool.start();
//! println!("{:?}", pool.status());
//! # Ok(())
//! # }
//! ```

mod address;
mod attempt;
mod balance;
mod budget;
mod check;
mod config;
mod connect;
mod error;
mod form;
mod health;
mod kept;
mod observer;
mod pool;
mod progress;
pub mod proxy_protocol;
mod response;
mod retry;
mod roster;
mod sender;
mod server;
mod status;

use bytes::Bytes;

pub use address::{BadAddress, ServerAddress};
pub use config::{AsideRule, Balance, HealthCheck, PoolConfig, Protocol, RetryRule};
pub use error::{PoolError, SendError};
pub use health::ServerHealth;
pub use observer::{Attempt, Observer};
pub use pool::{Pool, SendOptions};
pub use status::{PoolStatus, ServerStatus, Totals};

/// Why a body broke off.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body, of a request or of a response.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BodyError>;
