//! quinn's cryptography on BoringSSL: QUIC's handshake (RFC 9001) for both roles, 0-RTT with its
//! refusal, address tokens (RFC 9000 section 8.1), and what a server has to know of a first flight
//! before it answers.
//!
//! ```
//! use firstflight_quic::Steering;
//!
//! // Four sockets share a port. A connection ID names the worker of its connection, so a
//! connection // stays with its worker when the client's address changes. let steering =
//! Steering::new(4); let id = steering.connection_ids(2).generate_cid(); let short_header =
//! [&[0x40], &id[..]].concat(); assert_eq!(steering.worker(&short_header), 2);
//! ```
//!
//! - [`ServerCrypto`] and [`ClientCrypto`] stand behind quinn's `ServerConfig` and `ClientConfig`.
//!   Early data is accepted only if somebody says so ([`EarlyDataJudge`]), on the same facts as
//!   over TCP, and before anything is sent.
//! - [`FirstFlights`] collects ClientHellos from datagrams that quinn has not seen yet, so that a
//!   judge who has to ask elsewhere can be asked ahead ([`ServerCrypto::rehearse`]).
//! - [`AddressTokens`] seals what Retry and NEW_TOKEN carry under the ticket keys.
//! - [`Inflow`] guards the HTTP/3 library of either role against what its peer makes it keep.
//! - [`Steering`] gives the workers of one port their connections by connection id.
//!
//! All BoringSSL FFI of TLS over QUIC lives here.
#![allow(unsafe_code)]

mod burst;
mod client;
mod client_hello;
mod client_session;
mod early_bytes;
mod first_flight;
#[doc(hidden)]
pub mod foreign;
mod frames;
mod header;
mod inflow;
mod initial;
mod late;
mod mark;
mod method;
mod packet;
mod parameters;
mod reset;
#[cfg(test)]
mod rfc9001_tests;
mod server;
mod server_session;
mod session;
mod steering;
mod suite;
mod tokens;

pub use burst::{Burst, make_room_for_close};
pub use client::{ClientCrypto, Remembered, Resumption, ResumptionInbox};
pub use first_flight::{FirstFlight, FirstFlights, FirstFlightsLimits};
pub use firstflight_tls::Handshake;
pub use frames::TooLong;
pub use inflow::Inflow;
pub use mark::IdMark;
pub use reset::ResetKey;
pub use server::{EarlyDataJudge, FirstFlightPreview, ServerCrypto};
pub use steering::Steering;
pub use tokens::{AddressTokens, SpentTokens, TokenSerial};
