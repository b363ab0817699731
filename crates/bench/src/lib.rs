//! Measures TLS servers under load and over the real network.
//!
//! ```text
//! remote             measures a server elsewhere, connection by connection
//! flood              sends forged QUIC Initial packets, beside a load of honest clients
//!
//! run                starts the threads, reports progress, returns a LoadResult
//! tcp, quic          the event loop of one thread over TCP or QUIC
//! worker             what both loops share: warm-up, tickets, the role of each connection
//! source, schedule   when connections start: closed loop, open loop, warm-up
//! response           reads one response, without I/O
//! keep_alive         requests on persistent connections
//! cost               CPU cost by function and area, from the output of callgrind, perf and strace
//! counts, result     what a thread counts, and the result that is made from it
//! events, process    epoll, deadlines and timers; CPU time and memory from the kernel
//! config, error      settings; errors of a run, failures of a connection
//! ```
//!
//! # Load
//!
//! [`run`] runs the load that a [`LoadConfig`] describes and returns a [`LoadResult`].
//!
//! - Open loop ([`Model::Open`]): connections start at scheduled times ([`Schedule`]), and latency
//!   counts from these. Connections that could not be started are counted.
//! - Closed loop ([`Model::Closed`]): a fixed number of connections is open all the time.
//!
//! The TLS state tells the kind of each connection (full, resumed, early data accepted or refused).
//! Only connections of the requested kind contribute to the latencies. TLS 1.3 tickets are used
//! once; they come from a warm-up and from the run itself.
//!
//! # Why the load generator has its own event loops
//!
//! A load generator that costs more than the server measures itself. Each thread therefore runs an
//! epoll loop over [`firstflight_tls::TlsConnection`]s, with its own TLS context, connections and tickets.
//! Threads share only counts. A flight is written with one call, and reads take as much as there is.
//! The server closes first, so that connections in TIME_WAIT do not use up the client's ports. One
//! connection costs the client at most a sixth more than in the bare loops of `examples/`
//! (`results/2026-11-27-vm/load.txt`, made by `make load-client`).
//!
//! A thread that has no ticket left makes a full handshake instead, to fetch new ones. This
//! handshake is not measured, and the result says how often it happened.
//!
//! # Examples
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use firstflight_bench::{Exchange, LoadHandshake, Limit, LoadConfig, Model, run};
//! use firstflight_config::{Content, ServerConfig};
//! use firstflight_server::Server;
//! use firstflight_tls::Trust;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Runtime::new()?;
//! let config = ServerConfig::new("127.0.0.1:0".parse()?, Content::PingPong);
//! let server = runtime.block_on(Server::bind(config))?;
//! let address = server.local_addrs()[0];
//! runtime.spawn(server.run(std::future::pending()));
//!
//! let config = LoadConfig {
//!     kind: LoadHandshake::Resumed,
//!     exchange: Exchange::PingPong,
//!     trust: Trust::Anyone,
//!     model: Model::Closed { connections: 4 },
//!     limit: Limit::Connections(20),
//!     ..LoadConfig::new(vec![address], "localhost")
//! };
//! let result = run(&config, |_| ControlFlow::Continue(()))?;
//! assert_eq!(result.handshakes.resumed, 20);
//! # Ok(())
//! # }
//! ```

mod config;
pub mod cost;
mod counts;
mod error;
mod events;
mod flood;
mod keep_alive;
mod process;
mod quic;
pub mod remote;
mod response;
mod result;
mod run;
mod schedule;
mod source;
mod tcp;
mod worker;

pub use config::{Exchange, Limit, LoadConfig, LoadHandshake, Model, Transport};
pub use counts::{Datagrams, Handshakes, Latency};
pub use error::{BadResponse, ErrorCount, ErrorKind, LoadError};
pub use flood::{Flood, FloodConfig, FloodPhase, FloodResult, FloodTrial, Forgery};
pub use keep_alive::{KeepAliveConfig, KeepAliveResult, run_keep_alive};
pub use response::{ResponseReader, ResponseSummary};
pub use result::{LoadResult, MAX_CLIENT_BUSY};
pub use run::{LoadProgress, run};
pub use schedule::{Arrivals, Schedule, SchedulePlan};
