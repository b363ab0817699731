//! Builds, repeats and completes first flights of TLS 1.3, to test how other servers treat them.
//!
//! ```text
//! tcp, udp               links over sockets, with time limits
//!   driver               runs a connection over a link until an event, and keeps the events
//!     flight             a first flight, as it is planned and sent, and its connections
//!       tcp_connection, quic_connection
//!                        a flight that was sent: events of the response, data in both directions
//!         handshake      order and transcript of messages, secrets, the last flight
//!           parts        the offer of a flight, and its secrets to read the response
//!             hello      writes ClientHellos
//!             quic       writes datagrams, puts streams into order
//!             record     protects and opens records
//!           messages     parses the server's handshake messages
//!             schedule   the key schedule
//!       connection       the interface of connections
//! ticket                 a session ticket with its secret
//! test_server            a simulated server with chosen mistakes, for tests
//! ```
//!
//! # Examples
//!
//! A full handshake to get a ticket, then the first flight that resumes it:
//!
//! ```
//! use std::time::Duration;
//!
//! use firstflight_first_flight::{Entropy, FlightPlan, Hello};
//!
//! let hello = Hello::new("localhost", &["http/1.1"]);
//! let flight = FlightPlan::full(hello).build(Duration::ZERO, &Entropy::system());
//! assert_eq!(flight.bytes()[0], 22, "a record of handshake messages");
//!
//! // Each connection that sends the flight reads the response by itself.
//! let mut connection = flight.connection();
//! assert_eq!(connection.take_output().concat(), flight.bytes());
//! assert!(connection.next_event().is_none());
//! ```
//!
//! # Usage
//!
//! A [`FirstFlight`] is a value: its bytes can be sent as often as a test needs, and each
//! [`Connection`] made from it is another copy. The builder of the flight can read the response to
//! any copy, which an attacker cannot; this is how a test sees that a server responded to a copy. A
//! connection can also be completed, which makes it the original, or be left incomplete, as an
//! attacker has to leave it.
//!
//! [`FlightPlan`] has the faults of a test: a wrong ticket age, flipped bits in the ticket, a wrong
//! binder, no key share (which forces a HelloRetryRequest), another name or protocol than the ticket's,
//! more early data than permitted.
//!
//! Over QUIC ([`Hello::over_quic`]) a flight is one or more datagrams. An attacker can send them again,
//! from any address, and can give their Initial packets another connection id, but not their 0-RTT
//! packets: [`FirstFlight::with_connection_id`] builds the possible variants.
//!
//! # Limits
//!
//! This is no general TLS or QUIC stack: over QUIC it does without flow control beyond a megabyte, loss
//! detection, key updates and migration. It speaks TLS 1.3 with X25519 and the three common cipher suites.
//! **Servers are not authenticated**: a server proves that it holds the keys of the handshake by its
//! Finished, but its certificate is ignored. Send nothing that is secret.
//!
//! Bytes of a server never cause a panic. At most one record is buffered at a time, and handshake
//! messages up to 128 KiB.

mod connection;
mod driver;
mod entropy;
mod flight;
mod handshake;
mod hello;
mod messages;
mod parts;
mod quic;
mod quic_connection;
mod record;
#[cfg(test)]
mod rfc8448_tests;
mod schedule;
mod tcp;
mod tcp_connection;
#[cfg(feature = "test_server")]
pub mod test_server;
mod ticket;
mod udp;
mod wire;

pub use connection::{Alert, Connection, Event};
pub use driver::{Driver, Ended, Link, Received, TimedEvent};
pub use entropy::Entropy;
pub use firstflight_wire::Suite;
pub use flight::{FirstFlight, FlightPlan};
pub use hello::Hello;
pub use quic::ZeroRttPackets;
pub use tcp::{FastOpen, TcpLink};
pub use ticket::Ticket;
pub use udp::UdpLink;
pub use wire::ProtocolError;
