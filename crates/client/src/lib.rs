//! An HTTP client that sends its request in the first flight and reports what happened to it.
//!
//! ```text
//! client, transfer         one transfer: connections, redirections, retries, session jar
//! exchange, stream         HTTP/1.1 and HTTP/2 on one connection, the request in its first write
//! quic                     one QUIC connection, and HTTP/3 on it
//! connect, resolve         names, TCP and TLS connections, with the time of each phase
//! jar                      sessions and address tokens on disk
//! report, listener, write_out, error      results: times, events, curl's -w, -v and exit codes
//! ```
//!
//! The lower layers can be used alone: [`connect_tcp`] and [`connect_tls`] give one connection with
//! its [`PhaseInstants`]; [`Exchange`] speaks HTTP on it; [`connect_quic`] and [`http3_get`] do the
//! same over QUIC. [`Client`] joins them, with curl's names for times and exit codes. Everything runs
//! on the calling thread's runtime, in that thread's network namespace.
//!
//! # Examples
//!
//! ```
//! use firstflight_client::{Client, ClientConfig, Request, Target, Template};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let client = Client::new(ClientConfig::new()).unwrap();
//! // Nobody listens on port 1.
//! let target = Target::parse("http://127.0.0.1:1/page?id=1").unwrap();
//! let mut body = Vec::new();
//! let report = client.fetch(Request::get(target), &mut body).await;
//!
//! assert_eq!(report.exit_code(), 7); // as curl: could not connect
//! let output = Template::parse("%{http_code} %{num_connects}").render(&report);
//! assert_eq!(output[0].text, "000 0");
//! # });
//! ```
//!
//! # Sessions are encrypted, and used once
//!
//! The jar is sealed like the ticket keys in the store (XChaCha20-Poly1305, under a file of
//! key-encryption keys), or under a key that Argon2id derives from a passphrase. The costs of Argon2
//! are constants of the program and not part of the jar, so an untrusted jar cannot make the client
//! work for long. A format that other programs open (age) would bring an older generation of the same
//! ciphers and 80 crates, for a file whose loss costs one full handshake with each server.
//!
//! A TLS 1.3 ticket is handed out once, even to concurrent processes (RFC 8446 appendix C.4): a
//! ticket that is used twice links its connections.

mod client;
mod connect;
mod error;
mod exchange;
mod jar;
mod listener;
mod quic;
mod report;
mod request;
mod resolve;
mod stream;
mod target;
mod transfer;
mod write_out;

pub use client::{Client, ClientConfig, EarlyPolicy, HttpVersions, is_safe};
pub use connect::{Connected, TcpConnected, TcpInfo, connect_tcp, connect_tls};
pub use error::ClientError;
pub use exchange::{Exchange, HttpResponse, http_get};
pub use jar::{Jar, JarError, JarKey, JarMatch, JarQuery, Origin, Ticket, Token, TrustId};
pub use listener::{Event, Head, Listener, Verbose};
pub use quic::{
    Http3, Http3Response, PendingResponse, QuicConnected, QuicLink, QuicStats, connect_quic,
    http3_get,
};
pub use report::{PhaseInstants, Report, Timings};
pub use request::Request;
pub use resolve::{Family, Resolver};
pub use stream::{SharedStream, Stream};
pub use target::{Scheme, Target};
pub use write_out::{Output, Piece, Template};
