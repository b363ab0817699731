//! Judges TCP, QUIC and TLS connections from their packets: labels, early data, round trips.
//!
//! ```
//! use firstflight_packets::{Direction, Observer, Packet};
//!
//! let mut observer = Observer::new();
//! // An Ethernet frame that holds neither TCP nor UDP belongs to no connection.
//! let frame = [0; 60];
//! let packet =
//!     Packet { direction: Direction::ToServer, arrived: 0, delivered: Some(1_000), frame: &frame };
//! observer.packet(&packet);
//! assert_eq!(observer.add_secrets("# a key log without secrets\n"), 0);
//! assert!(observer.finish().is_empty());
//! ```
//!
//! Sans-IO: an [`Observer`] is fed the [`Packet`]s of a tap in the middle of the path and the
//! lines of an NSS key log (`SSLKEYLOGFILE`), and gives one [`FlowFacts`] for each connection.
//! Packets may come before their secrets: a connection is judged only when it is taken.
//!
//! What the packets and secrets do not show is said to be [`Unknown`], with the reason; nothing
//! is guessed. Bytes from the network cannot make it panic, and memory stays within [`Limits`].
//!
//! How round trips are counted is written in [`FirstResponse`] and [`LastResponse`]. A [`Trace`]
//! of a connection, made only when asked for, says what each of its packets carried; [`pcapng`]
//! writes packets and secrets to a file that other programs open.

mod event;
mod facts;
mod observer;
mod options;
mod packet;
pub mod pcapng;
mod trace;

mod authentication;
mod client_side;
mod decrypt;
mod flow;
mod handshake;
mod http2;
mod judge;
mod keylog;
mod legacy;
mod presentation;
mod quic;
mod reassembly;
mod record;
mod round_trips;
mod sayings;
mod server_side;

pub use event::{Event, PacketKind};
pub use facts::{
    AddressToken, BeforeValidation, CertificateFacts, Closed, EarlyData, EarlyFacts, FastOpen,
    FirstFlight, FirstResponse, FlowFacts, Kind, Label, LabelKind, LabelTransport, LastResponse,
    NamedGroup, QuicFacts, Stall, TcpFacts, TlsFacts, TlsVersion, TokenOrigin, Traffic,
    TransportFacts, Unknown, Unlabelled,
};
pub use keylog::KeyLog;
pub use observer::{Limits, Observer};
pub use options::{FastOpenOption, TcpOptions};
pub use packet::{Direction, Packet, TcpFlags};
pub use trace::{Carried, Part, TcpHeader, Trace, TracedPacket};
