//! TLS 1.0 to 1.3 on BoringSSL behind safe types, for servers and clients, with early data.
//!
//! ```text
//! TlsStream            a TLS connection on a socket: AsyncRead + AsyncWrite
//!   ├ HandshakeDriver  completes the handshake while an HTTP library waits for a response
//!   └ Accepting        a server's connection before early data is accepted or refused
//! TlsConnection        one connection without a socket: bytes in, bytes out
//!   ├ Handshake        what was negotiated; EarlyData, EarlyDataReason, OfferedFlight
//!   └ Session          what a client keeps to resume
//! Acceptor, Connector  configuration of a server or client, checked once
//!   ├ Identities       certificates by server name; OCSP staples, ACME challenges
//!   ├ TicketSealer     seals and opens session tickets
//!   ├ Trust            which certificate authorities a client trusts
//!   ├ EchKeys          decrypt ClientHellos (RFC 9849)
//!   └ KeyLog           receives secrets in the NSS key log format
//! SteadyClock          the clock by which tickets are issued and aged
//! connect_tcp          a client's socket, by whichever address of the host responds
//! ```
//!
//! # Examples
//!
//! A handshake without sockets:
//!
//! ```
//! use firstflight_tls::{
//!     Acceptor, AcceptorConfig, ConnectOptions, Connector, ConnectorConfig, Identity, Progress,
//!     TlsConnection, Trust,
//! };
//!
//! fn transfer(from: &mut TlsConnection, to: &mut TlsConnection) {
//!     to.feed(from.outgoing());
//!     from.sent(from.outgoing().len());
//! }
//!
//! # fn main() -> Result<(), firstflight_tls::TlsError> {
//! # let generated = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
//! # let (certificate, key) = (generated.cert.pem(), generated.signing_key.serialize_pem());
//! let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes())?;
//! let mut server = Acceptor::new(AcceptorConfig::new(identity))?.connection(false)?;
//! let options = ConnectOptions { host: "localhost".to_owned(), ..Default::default() };
//! let mut client = Connector::new(ConnectorConfig::new(Trust::Anyone))?.connection(&options)?;
//! while !(client.is_complete() && server.is_complete()) {
//!     client.handshake()?;
//!     transfer(&mut client, &mut server);
//!     server.handshake()?;
//!     transfer(&mut server, &mut client);
//! }
//! client.write(b"hello")?;
//! transfer(&mut client, &mut server);
//! let mut buffer = [0; 16];
//! assert_eq!(server.read(&mut buffer)?, Progress::Done(5));
//! assert_eq!(&buffer[..5], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Design notes
//!
//! **Why BoringSSL.** Early data across processes needs stateless tickets with a sealer of the
//! application's choice, early data that is read like any other data, and sessions that can be
//! converted to and from bytes. BoringSSL has all three, for both roles and all versions. It checks
//! the PSK binder, ALPN, cipher and ticket age of early data. It does not detect replays: the
//! caller has to.
//!
//! **One state machine, two ways to run it.** [`TlsConnection`] has no socket, so tests and load
//! generators drive it directly. [`TlsStream`] puts it on a socket. It reads a full record ahead,
//! and sends what was written on a flush or when a read has to wait. So ClientHello and early data
//! leave in one write, and so do the server's flight and its response. A client whose early data
//! was refused writes it again by itself. Before it closes, a stream reads up to the client's
//! Finished: closing a socket with unread bytes resets the connection, which could destroy the
//! response.
//!
//! **FFI.** All BoringSSL FFI of TLS over TCP is in this crate; the crates above it contain no
//! `unsafe` for TLS, except `firstflight-quic`, which uses [`quic_support`].
#![allow(unsafe_code)]

mod acceptor;
mod buffers;
mod clock;
mod compression;
mod connection;
mod connector;
mod constraints;
mod context;
mod der;
mod driver;
mod ech;
mod error;
mod handshake;
mod host_map;
mod identity;
mod keylog;
mod ocsp;
mod offered_flight;
mod pre_shared_key;
mod psk_offer;
pub mod quic_support;
mod session;
mod stream;
mod tcp;
mod ticket;
mod trust;
mod version;

pub use acceptor::{AcceptState, Accepting, Acceptor, AcceptorConfig};
pub use clock::SteadyClock;
pub use connection::{Progress, TlsConnection};
pub use connector::{ConnectOptions, Connector, ConnectorConfig};
pub use context::{CipherPolicy, CipherPreference, group_names};
pub use driver::{HandshakeDriver, SharedStream, split_driver};
pub use ech::{EchKey, EchKeys};
pub use error::TlsError;
pub use handshake::{EarlyData, EarlyDataReason, Handshake, MAX_EARLY_DATA, MAX_TICKET_AGE_SKEW};
pub use host_map::{HostMap, normalize_host};
pub use identity::{
    ACME_TLS_ALPN, ChallengeCertificates, Identities, Identity, IdentityEntry, generate_rsa_key,
};
pub use keylog::{KeyLog, KeyLogFile, KeyLogLines};
pub use offered_flight::OfferedFlight;
pub use psk_offer::PskOffer;
pub use session::{Session, session_of_age};
pub use stream::TlsStream;
pub use tcp::connect_tcp;
pub use ticket::{OpenedTicket, TicketSealer, TicketUse, WithheldReason};
pub use trust::Trust;
pub use version::Version;
