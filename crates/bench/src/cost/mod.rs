//! The cost of a server: instructions, calls and system calls, by function and area.
//!
//! Parses the output of callgrind, perf and strace; does not run these tools.

mod area;
mod callgrind;
mod profile;
mod strace;

pub use area::Area;
pub use callgrind::CallgrindDump;
pub use profile::{Profile, table};
pub use strace::system_calls;
