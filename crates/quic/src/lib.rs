//! QUIC cryptography for quinn and quinn-proto on BoringSSL (RFC 9001), for servers and clients, with
//! 0-RTT and address tokens.
//!
//! ```text
//! ServerCrypto       quinn's crypto for a server; EarlyDataJudge accepts or refuses 0-RTT
//! ClientCrypto       quinn's crypto for a client; ResumptionInbox collects tickets and tokens
//! FirstFlights       reads ClientHellos from datagrams before quinn processes them
//! AddressTokens      seals Retry and NEW_TOKEN tokens under the ticket keys
//!   └ SpentTokens      accepts each token once
//! Steering           selects the worker of a datagram by its connection id
//!   └ IdMark             marks connection ids of one process, for upgrades
//! StreamFilter       limits what an HTTP/3 peer can make the library buffer
//! Burst              a congestion controller whose first burst is the initial window
//! ```
//!
//! # Examples
//!
//! Four sockets share a port. A connection id determines the worker of its connection, so the
//! connection stays with its worker when the client's address changes:
//!
//! ```
//! use firstflight_quic::Steering;
//!
//! let steering = Steering::new(4);
//! let id = steering.connection_ids(2).generate_cid();
//! let datagram_with_short_header = [&[0x40], &id[..]].concat();
//! assert_eq!(steering.worker(&datagram_with_short_header), 2);
//! ```
//!
//! # Design notes
//!
//! **Why quinn, and BoringSSL below it.** quinn has address tokens (NEW_TOKEN), an interface for
//! other crypto libraries, and state machines without sockets (quinn-proto). Its own crypto is
//! rustls, which allows 0-RTT only with sessions that are stored in one process. With BoringSSL, QUIC
//! uses the same tickets and ticket keys as TLS over TCP, and the same reasons for refusals.
//!
//! **Claims are settled before TLS responds.** As over TCP, a flight's claim is settled before
//! anything is sent. But quinn's crypto interface is synchronous: a connection cannot wait in the
//! middle of its ClientHello.
//!
//! - A register in this process is queried directly: the session calls its [`EarlyDataJudge`] between
//!   the ClientHello and the first byte of the response.
//! - A register in a store has to be awaited. [`FirstFlights`] reads each datagram before quinn does.
//!   quinn announces a new connection (`Incoming`) before it processes it, and buffers further
//!   datagrams meanwhile. During this pause, [`ServerCrypto::preview`] processes the ClientHello on a
//!   temporary connection, which yields the flight's digest and ticket age after its binder was
//!   verified. Then the store is queried. Then the connection starts, with a judge that accepts only
//!   that flight. So a preview alone decides nothing: if quinn sees another ClientHello, early data
//!   is refused.
//!
//! A refusal restarts the handshake from the same ClientHello, as over TCP. The temporary connection
//! costs one key agreement for each flight that offers early data, and is needed only with a store.
//!
//! **Address tokens are numbered.** Accepting a token once needs a memory for as long as tokens are
//! valid. Each token contains its issuer and a sequence number, so a spent token is one bit: 4 MB
//! for 33 million tokens, exact, and one atomic command in a store. The token is checked before the
//! flight is claimed: after a Retry the client sends its flight again, and must find it unclaimed.
//!
//! All BoringSSL FFI of TLS over QUIC is in this crate.
#![allow(unsafe_code)]

mod burst;
mod client;
mod client_hello;
mod client_session;
mod early_bytes;
mod first_flight;
mod frames;
mod header;
mod initial;
mod late;
mod mark;
mod method;
mod packet;
mod parameters;
mod reset;
mod resumption;
#[cfg(test)]
mod rfc9001_tests;
mod server;
mod server_config;
mod server_session;
mod session;
mod steering;
mod stream_filter;
mod suite;
#[doc(hidden)]
pub mod test_packets;
mod tokens;

pub use burst::{Burst, make_room_for_close};
pub use client::ClientCrypto;
pub use first_flight::{FirstFlight, FirstFlights, FirstFlightsLimits};
pub use firstflight_tls::Handshake;
pub use frames::{TooLong, Truncated};
pub use mark::IdMark;
pub use reset::ResetKey;
pub use resumption::{Remembered, Resumption, ResumptionInbox};
pub use server::{FirstFlightPreview, ServerCrypto};
pub use server_config::{ConnectionOptions, NegotiationObserver};
pub use server_session::EarlyDataJudge;
pub use steering::Steering;
pub use stream_filter::StreamFilter;
pub use tokens::{AddressTokens, SpentTokens, TokenSerial};
