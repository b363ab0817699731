//! Where a server spends its time per connection, by function and area.
//!
//! Reads what callgrind and perf wrote; starts nothing.

mod area;
mod callgrind;
mod profile;

pub use area::Area;
pub use callgrind::CallgrindDump;
pub use profile::{Profile, table};
