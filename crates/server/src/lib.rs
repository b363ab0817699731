//! Serves HTTP over TLS and QUIC with early data that runs at most once: files, proxy, ping-pong.
//!
//! [`Server::bind`] checks a [`ServerConfig`](firstflight_config::ServerConfig) and listens, [`Server::run`] serves until it is told
//! to stop. Every request that came as early data passes the gate (`firstflight-replay`) before
//! files, upstream or `PONG` see it: it runs at once when its flight's claim is won, and waits for
//! the end of its handshake otherwise.

mod accept;
mod access_log;
mod acme;
mod authority;
mod budget;
mod certificate;
mod certificates;
mod connection;
mod content;
mod development;
mod drive;
mod early;
mod error;
mod estate;
mod exposed_keys;
mod fields;
mod files;
mod form;
mod forwarded;
mod framed;
mod frames;
mod framing;
mod gatekeeper;
mod generation;
mod hand_over;
mod handle;
mod inside;
mod key_log;
mod keys;
mod listener;
mod listeners;
mod pass;
mod ping_pong;
mod places;
mod prompt_files;
mod proxied;
mod proxy;
mod quic;
mod readings;
mod record;
mod redirect;
mod replays;
mod routes;
mod server;
mod service;
mod shared_register;
mod sites;
mod socket;
mod status;
mod tally;
mod timeline;
mod trace;
mod tunnel;
mod upstreams;
mod visit;
mod websocket;

pub use certificates::{CertificateSource, SiteCertificate};
pub use error::ServerError;
pub use estate::Estate;
pub use exposed_keys::exposed_keys;
pub use hand_over::HandOverError;
pub use handle::ServerHandle;
pub use inside::Keys;
pub use replays::Replay;
pub use server::{Server, check};
pub use status::{LastReload, Status};
