//! BoringSSL behind safe types, for both roles: contexts, early data, sessions, ticket sealing.
//!
//! ```
//! use firstflight_tls::{
//!     Acceptor, AcceptorConfig, Connector, ConnectorConfig, Identity, Machine, Offer, Progress, Trust,
//! };
//!
//! fn carry(from: &mut Machine, to: &mut Machine) {
//!     to.feed(from.outgoing());
//!     from.sent(from.outgoing().len());
//! }
//!
//! # fn main() -> Result<(), firstflight_tls::TlsError> {
//! # let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
//! # let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
//! let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes())?;
//! let mut server = Acceptor::new(AcceptorConfig::new(identity))?.machine(false)?;
//! let offer = Offer { host: "localhost".to_owned(), session: None, early_data: false };
//! let mut client = Connector::new(ConnectorConfig::new(Trust::Anyone))?.machine(&offer)?;
//! while !(client.is_complete() && server.is_complete()) {
//!     client.handshake()?;
//!     carry(&mut client, &mut server);
//!     server.handshake()?;
//!     carry(&mut server, &mut client);
//! }
//! client.write(b"hello")?;
//! carry(&mut client, &mut server);
//! let mut buffer = [0; 16];
//! assert_eq!(server.read(&mut buffer)?, Progress::Done(5));
//! assert_eq!(&buffer[..5], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! Layers, each usable without the one above it:
//! - [`Acceptor`] and [`Connector`]: what a server or a client is willing to do;
//! - [`Machine`]: one connection without sockets (bytes in, bytes out), in early data or past it;
//! - [`Accepting`]: a server's connection of which it is not decided whether its early data is
//!   accepted;
//! - [`TlsStream`]: the machine on a socket, `AsyncRead + AsyncWrite`, which reads ahead, writes
//!   the handshake flight and the response as one, and drains to `Finished` before it closes.
//!
//! All BoringSSL FFI of TLS over TCP lives here; nothing above this crate is `unsafe`.
#![allow(unsafe_code)]

mod accepting;
mod acceptor;
mod buffers;
mod challenge;
mod clock;
mod connector;
mod constraints;
mod context;
mod der;
mod early;
mod error;
mod given;
mod handshake;
mod identities;
mod identity;
mod keylog;
mod machine;
mod names;
mod ocsp;
mod offer;
mod preference;
mod roots;
mod rsa;
pub mod seam;
mod session;
mod session_der;
mod shared;
mod stream;
mod ticket;
mod trust;
mod version;

pub use accepting::{Accepted, Accepting};
pub use acceptor::{Acceptor, AcceptorConfig};
pub use challenge::{ACME_TLS_ALPN, ChallengeCertificates};
pub use clock::SteadyClock;
pub use connector::{Connector, ConnectorConfig, Offer};
pub use context::{CipherPolicy, group_names};
pub use early::{EarlyData, EarlyDataReason, MAX_EARLY_DATA, MAX_TICKET_AGE_SKEW};
pub use error::TlsError;
pub use handshake::Handshake;
pub use identities::{Entry, Identities};
pub use identity::Identity;
pub use keylog::{KeyLog, KeyLogFile, KeyLogLines};
pub use machine::{Machine, Progress};
pub use names::{Names, host_name};
pub use offer::OfferedFlight;
pub use preference::CipherPreference;
pub use rsa::new_rsa_key;
pub use session::Session;
pub use shared::{HandshakeDriver, SharedStream, share};
pub use stream::TlsStream;
pub use ticket::{OpenedTicket, TicketSealer, Withheld};
pub use trust::Trust;
pub use version::Version;
