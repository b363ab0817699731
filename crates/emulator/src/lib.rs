//! Networks at the level of packets: one emulated on this machine (namespaces, forwarding through
//! cells, a tap, an attacker), and a sniffer for connections over a real one.
//!
//! ```text
//! client namespace ---- veth ---- [ link: rings, cells, tap ] ---- veth ---- server namespace
//!                                                    attacker namespace ---- veth ----'
//! ```
//!
//! Everything is held by descriptors, threads and one process-id namespace per room of the
//! network: nothing has a name outside, so nothing remains when the process ends, however it ends.
//! Who wants to look around inside is let in by a [`NamespaceHolder`].

#![allow(unsafe_code)]
#![cfg(target_os = "linux")]

mod attacker;
mod awake;
mod cells;
mod chain;
mod children;
mod clock;
mod counters;
mod door;
mod error;
mod examine;
mod forwarder;
mod margin;
mod namespace;
mod network;
mod offload;
mod path;
mod port;
mod privilege;
mod profile;
mod ring;
mod sniffer;
mod sysctl;
mod tap;
mod tun;
mod wake;
mod wiring;

pub use attacker::{Attacker, Attempt, Ending, Resend, ResendDatagrams};
pub use cells::{
    BurstyLossSpec, CellSpec, DelaySpec, Distribution, JitterSpec, LossSpec, Middlebox, MtuSpec,
    RateSpec, ReconfigurationSpec, ReorderSpec, TooBig,
};
pub use chain::{Chains, Exit};
pub use children::Process;
pub use clock::{monotonic_ns, unix_offset_ns};
pub use counters::{CellCounters, Counters, LaneCounters, PathCounters};
pub use door::{NamespaceHolder, doors, enter};
pub use error::LinkError;
pub use examine::{Finding, State, examine};
pub use namespace::Namespace;
pub use network::{Backend, Network, NetworkConfig};
pub use path::{Direction, MAX_PATHS, Path, PathConfig};
pub use privilege::{Privilege, enter_user_namespace};
pub use profile::{Profile, ProfileKind};
pub use sniffer::Sniffer;
pub use tap::{AlteredFrame, Batch, CapturedPacket, LINK_FULL, Lateness, REFUSED, Tap};
pub use wake::{WakeSettings, wake_promptly};
