//! What a server does per connection: instructions, calls and system calls, by function and area.
//!
//! Reads what callgrind, perf and strace wrote; starts nothing.

mod area;
mod callgrind;
mod profile;
mod strace;

pub use area::Area;
pub use callgrind::CallgrindDump;
pub use profile::{Profile, table};
pub use strace::system_calls;
