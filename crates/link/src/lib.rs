//! An emulated network on one machine: namespaces, delayed forwarding, a tap and an attacker.
//!
//! ```text
//! client namespace ---- veth ---- [ link: rings, delay, tap ] ---- veth ---- server namespace
//!                                                    attacker namespace ---- veth ----'
//! ```
//!
//! Everything is held by descriptors, threads and one process-id namespace per room of the
//! network: nothing has a name outside, so nothing remains when the process ends, however it ends.

#![allow(unsafe_code)]
#![cfg(target_os = "linux")]

mod attacker;
mod awake;
mod children;
mod clock;
mod delay;
mod error;
mod forwarder;
mod margin;
mod namespace;
mod network;
mod offload;
mod path;
mod privilege;
mod ring;
mod sysctl;
mod tap;
mod veth;

pub use attacker::{Attacker, Attempt, Ending, Resend};
pub use children::Process;
pub use clock::{monotonic_ns, unix_offset_ns};
pub use delay::{DelayCell, Departure};
pub use error::LinkError;
pub use forwarder::Counters;
pub use namespace::Namespace;
pub use network::{Network, NetworkConfig};
pub use path::{Direction, MAX_PATHS, Path, PathConfig};
pub use privilege::{Privilege, enter_user_namespace};
pub use tap::{Batch, CapturedPacket, Lateness, Tap};
