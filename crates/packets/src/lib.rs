//! Classifies TCP, QUIC and TLS connections from their packets: labels, early data, round trips.
//!
//! ```text
//! observer              groups packets into connections and returns the facts of each
//!   copies              sorts a connection's packets by arrival, removes the path's copies
//!   tcp, quic           one transport each: reassembly, retransmissions, causality of packets
//!     tls               records, handshake messages, decryption with the key log
//!     round_trips       counts round trips as the causal depth of packets
//! facts, trace          the result: FlowFacts of a connection, and packet by packet its Trace
//! packet, keylog        the input: captured frames, and the secrets of an NSS key log
//! pcapng                writes captures with secrets, so that other programs decrypt them
//! ```
//!
//! Nothing that a client or a server reports about itself is used. Every figure can be checked
//! against its packets: [`pcapng`] writes them to a file together with the secrets
//! of their connections. This crate has its own writer because the libraries for the format cannot
//! write the block that holds secrets.
//!
//! # Examples
//!
//! ```
//! use firstflight_packets::{Direction, Observer, Packet};
//!
//! let mut observer = Observer::new();
//! // An Ethernet frame with neither TCP nor UDP in it belongs to no connection.
//! let frame = [0; 60];
//! let packet =
//!     Packet { direction: Direction::ToServer, arrived: 0, delivered: Some(1_000), frame: &frame };
//! observer.packet(&packet);
//! assert_eq!(observer.add_secrets("# a key log without secrets\n"), 0);
//! for facts in observer.finish() {
//!     println!("{:?} in {:?} round trips", facts.label(), facts.round_trips());
//! }
//! ```
//!
//! # Usage
//!
//! The crate has no sockets and no clock. An [`Observer`] takes the [`Packet`]s of a tap in the
//! middle of the path and the lines of an NSS key log (`SSLKEYLOGFILE`), and returns the
//! [`FlowFacts`] of each connection. Packets may arrive before their secrets: a connection is
//! analyzed when its facts are requested.
//!
//! Facts that packets and secrets do not show are [`Unknown`], with the reason; nothing is guessed.
//! Packets cannot make the observer panic, and [`Limits`] bound its memory.
//!
//! [`FirstResponse`] and [`LastResponse`] define how round trips are counted. A [`Trace`] lists
//! what each packet of a connection carried; it is made on request.

mod copies;
mod event;
mod facts;
mod keylog;
mod observer;
mod packet;
pub mod pcapng;
mod quic;
mod reassembly;
mod round_trips;
mod tcp;
mod tls;
mod trace;

pub use event::Event;
pub use facts::{
    AddressToken, BeforeValidation, CertificateFacts, Closed, EarlyData, EarlyFacts, FastOpen,
    FirstFlight, FirstResponse, FlowFacts, HandshakeKind, Label, LabelKind, LabelTransport,
    LastResponse, NamedGroup, QuicFacts, Stall, TcpFacts, TlsFacts, TlsVersion, TokenOrigin,
    Traffic, TransportFacts, Unknown, Unlabelled,
};
pub use firstflight_wire::PacketKind;
pub use keylog::KeyLog;
pub use observer::{Limits, Observer};
pub use packet::{Direction, FastOpenOption, Packet, TcpFlags, TcpOptions};
pub use trace::{Carried, Part, TcpHeader, Trace, TracedPacket};
