//! Packet-level networks: one emulated on this machine, and a capture of connections over real ones.
//!
//! ```text
//! client namespace ---- veth ---- [ link: rings, cells, tap ] ---- veth ---- server namespace
//!                                                    attacker namespace ---- veth ----'
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `network` | [`Network`]: builds and reconfigures the emulated network |
//! | `profile`, `path` | named networks, paths with their cells and counters |
//! | `forwarder`, `tap` | the thread that moves packets, and the capture of every packet |
//! | `chain`, `cells` | what a path does to packets, without I/O and without a clock |
//! | `attacker` | resends captured first flights |
//! | `namespace`, `process`, `holder` | namespaces, the processes inside, entering them |
//! | `port`, `interfaces` | packet rings and TUN devices; interfaces, routes, kernel settings |
//! | `wake`, `clock` | wake-ups and the two clocks |
//! | `privilege`, `examine` | user namespaces, and checks of what a machine supports |
//! | `sniffer` | [`Sniffer`]: captures this process's connections to a server |
//!
//! Everything is held by descriptors, threads and a process-id namespace per network namespace.
//! Nothing has a name outside, so nothing remains when the process ends in any way. A
//! [`NamespaceHolder`] lets other processes enter.
//!
//! # Examples
//!
//! Chains of cells need neither privileges nor a clock: a packet that arrives at 0 ms leaves a path
//! with a delay of 10 ms each way at 10 ms.
//!
//! ```
//! use std::time::Duration;
//!
//! use firstflight_emulator::{Chains, PathConfig};
//!
//! let path = PathConfig::symmetric("example", Duration::from_millis(20));
//! let mut chains = Chains::new(&[(&path.up, &path.down)], 0);
//! chains.push(0, 0, vec![0; 64].into());
//! assert_eq!(chains.pop(9_999_999), None);
//! assert_eq!(chains.pop(10_000_000).unwrap().due_ns, 10_000_000);
//! ```
//!
//! # Decisions
//!
//! **The link uses packet rings, not netem.** Packet-socket rings on two veth pairs, in a namespace
//! between client and server, need neither root nor `/dev/net/tun` nor kernel modules that many
//! machines lack. The deadline of each packet is computed only from its arrival, by the kernel's
//! timestamp, so one late delivery does not delay the next. One thread forwards in both directions.
//! It sleeps until shortly before the next deadline and spins for the rest; the margin adapts between
//! 60 and 300 us. The same thread sees every packet, so it is also the tap. The attacker has
//! its own namespace next to the server, without delay and without keys. TUN devices are the
//! alternative; they provide no arrival timestamps, and ordinary users often may not open them.
//!
//! **Routes and offloads are configured explicitly.** Every route has congestion control cubic and
//! an initial window of 10, because a kernel's default may use pacing, which distorts short
//! transfers. Offloads are disabled; otherwise the tap captures packets that exist on no wire.
//!
//! **Cells compute with logical times.** The effects of a path are a chain of cells for each
//! direction: rate, loss, delay and so on, without sockets and without a clock. A packet passes its
//! chain when it arrives, starting from its arrival time. So a late delivery affects no other packet,
//! and the same arrivals and seed have the same outcome. Only behind a cell that reorders does a
//! packet wait for its logical time, because the next cell has to get packets in their new order.
//! Middleboxes are cells too. The tap keeps the frame as sent, with the cell that dropped it or the
//! frame that a cell altered it into: with only the receiver's side, a lost SYN with data would look
//! like one that was never sent.
//!
//! **Children run in process-id namespaces.** Servers under test must not outlive the lab, however it
//! ends. A parent-death signal reaches only the direct child, and leaves the workers of a server
//! behind. In a process-id namespace the kernel kills all processes when the first one dies, which
//! waits for the end of this process.

#![allow(unsafe_code)]
#![cfg(target_os = "linux")]

mod attacker;
mod cells;
mod chain;
mod clock;
mod error;
mod examine;
mod forwarder;
mod holder;
mod interfaces;
mod namespace;
mod network;
mod path;
mod port;
mod privilege;
mod process;
mod profile;
mod sniffer;
mod tap;
mod wake;

pub use attacker::{Attacker, Attempt, ConnectionEnd, Resend, ResendDatagrams};
pub use cells::*;
pub use chain::{Chains, ProcessedPacket};
pub use clock::{monotonic_ns, unix_offset_ns};
pub use error::LinkError;
pub use examine::{Finding, State, examine};
pub use holder::{NamespaceHolder, enter, holders};
pub use namespace::Namespace;
pub use network::{Backend, Network, NetworkConfig};
pub use path::{
    CellCounters, ChannelCounters, Counters, Direction, MAX_PATHS, Path, PathConfig, PathCounters,
};
pub use privilege::{Privilege, enter_user_namespace};
pub use process::Process;
pub use profile::{Profile, ProfileKind};
pub use sniffer::{SniffedProtocol, Sniffer};
pub use tap::{AlteredFrame, Batch, CapturedPacket, LINK_FULL, Lateness, REFUSED, Tap};
pub use wake::{WakeSettings, wake_promptly};
