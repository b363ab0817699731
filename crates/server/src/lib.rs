//! Serves HTTP over TLS and QUIC with early data that runs at most once: files, proxy, ping-pong.
//!
//! ```text
//! server        start, stop, reload; wires the stages
//! listen        TCP and UDP sockets, PROXY header, connection permits
//! handshake     TLS over TCP and QUIC up to "early data accepted or refused"; tickets, tokens
//! handoff       upgrades: sockets, secrets, register and QUIC packets to the successor
//! http          HTTP/1.1 and HTTP/2, HTTP/3, ping-pong: requests read, responses written
//! route         the configuration's snapshot; validation, match to site and route, its rules
//! handler       files, proxy, WebSocket, ACME challenges, the server's own responses
//! certificates  where certificates come from    gate     whose flight it is: the register
//! observe       access log, metrics, traces     context  connection facts, stopping, memory
//! ```
//!
//! Each stage imports only from those below it. The path of one early request:
//!
//! 1. `listen` takes a connection permit, accepts, and reads the PROXY header where there is one.
//! 2. `handshake` reads the ClientHello. Its flight is claimed in the `gate`, by this process's
//!    register or by the store, before TLS accepts early data.
//! 3. `http` makes a `Connection` of it, with the snapshot of that moment, and reads the request.
//! 4. `route` matches it once, to a site, a route and its rules. They say whether it may run early.
//! 5. The gate's decision: run it now, or hold it until the client's Finished is verified.
//! 6. What its rules require is claimed (nonce, `Idempotency-Key`), and its `handler` responds.
//! 7. A response that is there at once leaves in one write with the server's flight; when it has
//!    ended, `observe` has its line in the access log, its metrics and its trace.
//!
//! [`Server::bind`] checks a [`ServerConfig`](firstflight_config::ServerConfig) and listens,
//! [`Server::run`] serves until it is told to stop.

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
pub use handoff::register::HandOverError;
pub use observe::status::{LastReload, Replay, Status};
pub use server::handle::{Keys, ServerHandle};
pub use server::{Server, check};
