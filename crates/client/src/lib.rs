//! An HTTP client that puts its request into the first flight, and says what became of it.
//!
//! ```
//! use firstflight_client::{Target, Template};
//!
//! let target = Target::parse("https://example.test/page?id=1").unwrap();
//! assert_eq!((target.host(), target.port()), ("example.test", 443));
//! assert_eq!(target.path_and_query(), "/page?id=1");
//! // Variables of `-w` that are not known, such as a misspelt one.
//! assert_eq!(Template::parse("%{http_code} %{time_totl}").unknown(), ["time_totl"]);
//! ```
//!
//! From the bottom up, each usable without the one above it:
//! - [`connect_tcp`] and [`connect_tls`]: one connection with the instants of its phases, for who
//!   measures;
//! - [`Exchange`]: HTTP/1.1 or HTTP/2 on such a connection, the request in its first write;
//! - [`connect_quic`], [`Http3`] and [`http3_get`]: the same over QUIC;
//! - [`Jar`]: sessions and address tokens on disk, encrypted, each handed out once;
//! - [`Client`]: all of it together with curl's meaning of names, times and exit codes.
//!
//! Everything runs on the calling thread's current-thread runtime, in whatever network namespace
//! that thread is.

mod client;
mod config;
mod connect;
mod early;
mod error;
mod exchange;
mod jar;
mod listener;
mod quic;
mod report;
mod request;
mod resolve;
mod target;
mod tcp_info;
mod timings;
mod transfer;
mod transport;
mod verbose;
mod write_out;

pub use client::Client;
pub use config::{ClientConfig, HttpVersions};
pub use connect::{Connected, TcpConnected, connect_tcp, connect_tls};
pub use early::{EarlyPolicy, is_safe};
pub use error::ClientError;
pub use exchange::{Answer, Exchange, http_get};
pub use jar::{Found, Jar, JarError, JarKey, JarQuery, Origin, Ticket, Token, TrustId};
pub use listener::{Event, Head, Listener};
pub use quic::{
    Http3, Http3Answer, QuicConnected, QuicFacts, QuicLink, Receiving, connect_quic, http3_get,
};
pub use report::Report;
pub use request::Request;
pub use resolve::{Family, Resolver};
pub use target::{Scheme, Target};
pub use tcp_info::TcpFacts;
pub use timings::{Marks, Timings};
pub use transport::{Stream, Wire};
pub use verbose::Verbose;
pub use write_out::{Output, Piece, Template};
