//! Judges TCP and TLS connections from their packets: labels, early data, round trips.
//!
//! Sans-IO: an [`Observer`] is fed the [`Packet`]s of a tap in the middle of the path and the
//! lines of an NSS key log (`SSLKEYLOGFILE`), and gives one [`FlowFacts`] for each connection.
//! Packets may come before their secrets: a connection is judged only when it is taken.
//!
//! What the packets and secrets do not show is said to be [`Unknown`], with the reason; nothing
//! is guessed. Bytes from the network cannot make it panic, and memory stays within [`Limits`].
//!
//! How round trips are counted is written in [`FirstResponse`].

mod facts;
mod flow;
mod handshake;
mod keylog;
mod observer;
mod packet;
mod reassembly;
mod record;
mod round_trips;

mod client_side;
mod decrypt;
mod server_side;

pub use facts::{
    EarlyData, EarlyFacts, FastOpen, FirstResponse, FlowFacts, Kind, Label, LabelKind, TcpFacts,
    TlsFacts, TlsVersion, Unknown, Unlabelled,
};
pub use keylog::KeyLog;
pub use observer::{Limits, Observer};
pub use packet::{Direction, FastOpenOption, Packet};
