//! Serves HTTP over TLS and QUIC with early data that runs at most once: files, proxy, ping-pong.
//!
//! [`Server::bind`] checks a [`ServerConfig`](firstflight_config::ServerConfig) and listens, [`Server::run`] serves until it is told
//! to stop. Every request that came as early data passes the gate (`firstflight-replay`) before
//! files, upstream or `PONG` see it: it runs at once when its flight's claim is won, and waits for
//! the end of its handshake otherwise.

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

pub use certificates::exposed_keys::exposed_keys;
pub use certificates::{CertificateSource, SiteCertificate};
pub use error::ServerError;
pub use handoff::register::HandOverError;
pub use handoff::state::InheritedState as Estate;
pub use observe::replays::Replay;
pub use observe::status::{LastReload, Status};
pub use server::handle::ServerHandle;
pub use server::inside::Keys;
pub use server::{Server, check};
