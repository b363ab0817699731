//! Serves HTTP/1.1, HTTP/2 and HTTP/3 with early data (0-RTT) that is executed at most once.
//!
//! ```text
//! server        start, stop and reload; connects the stages
//! listen        TCP and UDP sockets, PROXY headers, connection permits
//! handshake     TLS over TCP and QUIC up to "early data accepted or refused"; tickets, tokens
//! handoff       upgrades: sockets, secrets, register and QUIC packets for the successor
//! http          HTTP/1.1, HTTP/2, HTTP/3 and ping-pong: reads requests, writes responses
//! route         the configuration's snapshot; request validation; sites, routes and their rules
//! handler       files, proxy, WebSocket, ACME challenges, the server's own responses
//! certificates  where certificates come from
//! gate          claims each flight once: in the process, at a successor, or in a store
//! observe       access log, metrics, traces, status
//! context       connection facts, shutdown stages, clocks, memory limits
//! ```
//!
//! Each folder imports only from those below it. `Snapshot`, which every stage reads, is in `route`
//! and not in `context`, because it holds the sites.
//!
//! The path of one early request:
//!
//! 1. `listen` takes a connection permit, accepts, and reads the PROXY header if there is one.
//! 2. `handshake` reads the ClientHello. `gate` claims its flight in this process's register or in
//!    the store, before TLS accepts early data.
//! 3. `http` creates a `Connection` with the current snapshot, and reads the request.
//! 4. `route` matches it once, to a site, a route and its rules, which decide whether it may run
//!    early.
//! 5. `http` has `gate` decide: execute now, or hold until the client's Finished is verified.
//! 6. The rules' claims are made (nonce, `Idempotency-Key`), and a `handler` responds.
//! 7. A response that is ready immediately leaves in one write with the server's flight. When it has
//!    ended, `observe` writes the log line, metrics and trace.
//!
//! # Examples
//!
//! Serves a directory, then stops:
//!
//! ```
//! use firstflight_config::{CertificateSource, Content, ServerConfig};
//! use firstflight_server::Server;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = ServerConfig::new("127.0.0.1:0".parse()?, Content::files("src"));
//! config.certificate = CertificateSource::SelfSigned { names: Vec::new(), save: None };
//! let server = Server::bind(config).await?;
//! println!("listening on {:?}", server.local_addrs());
//!
//! let handle = server.handle();
//! let running = tokio::spawn(server.run(std::future::pending()));
//! handle.wait_until_serving().await;
//! assert!(handle.status().ready);
//!
//! handle.stop();
//! running.await?;
//! # Ok(())
//! # }
//! ```

mod certificates;
mod context;
mod error;
mod gate;
mod handler;
mod handoff;
mod handshake;
mod http;
mod listen;
mod observe;
mod route;
mod server;

pub use certificates::{CertificateSource, SiteCertificate, exposed_keys};
pub use error::ServerError;
pub use handoff::InheritedState;
pub use handoff::register::HandoffError;
pub use observe::status::{LastReload, Replay, Status};
pub use server::handle::{Keys, ServerHandle};
pub use server::{Server, check};
