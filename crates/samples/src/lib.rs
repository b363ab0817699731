//! Samples of connections: what each was asked to be, in which order they are taken, what their
//! packets say they were, and on which machine. The lab and the measuring of servers elsewhere take
//! samples in networks of their own and share what is here.
//!
//! - [`RequestedConnection`]: what a connection is asked to be, one of the [`combinations`] of
//!   [`ConnectionAxes`];
//!   [`impossible`] ones are left out;
//! - [`blocks`]: randomised blocks, so that drift hits all cells alike;
//! - [`Connectors`], [`Stock`]: TLS contexts, and the tickets of earlier connections;
//! - [`ClientRecord`]: the connection as the client saw it; [`Flows`]: as its packets show it. What a
//!   sample
//!   is called comes from the packets ([`wrong`]), never from what client or server say.
//!
//! ```
//! use firstflight_samples::{ConnectionAxes, Kind, blocks, combinations, round_trips};
//!
//! let axes = ConnectionAxes { kinds: vec![Kind::Full, Kind::ZeroRtt], ..ConnectionAxes::one() };
//! let cells = combinations(&axes);
//! assert_eq!(cells.iter().map(round_trips).collect::<Vec<_>>(), [3, 2]);
//!
//! // Two blocks of both cells, each in an order of its own.
//! let order = blocks(&[0, 1], &|_| 2, 7);
//! assert_eq!(order.iter().map(|slot| slot.block).collect::<Vec<_>>(), [0, 0, 1, 1]);
//! ```

mod asked;
mod axes;
mod capture_file;
mod combinations;
mod connectors;
pub mod counters;
mod flows;
mod machine;
mod order;
mod taken;
mod tickets;

pub use asked::{RequestedConnection, round_trips, version_number};
pub use axes::{Certificate, Client, Group, Http, Kind, Size, Transport, Workload};
pub use capture_file::{Scene, append, begin, file_for, write_one};
pub use combinations::{ConnectionAxes, combinations, impossible};
pub use connectors::Connectors;
pub use flows::{
    Bytes, Flow, Flows, client_port, described, tls_version, wanted, wire_packet, wrong,
    wrong_but_for_group,
};
pub use machine::{blank_record, machine_facts, now};
pub use order::{MIN_FOR_CONTROL, Slot, blocks};
pub use taken::{ClientRecord, TOO_OLD_S, Times};
pub use tickets::{Stock, Ticket, TicketPool};
