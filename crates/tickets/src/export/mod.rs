//! A ring for servers of another make: nginx, HAProxy and Envoy, all of which seal tickets by
//! AES-256-CBC and HMAC-SHA256 under keys of 80 bytes, and each of which wants them in an order of
//! its own.
//!
//! None of them looks at a clock: the order says which key seals. So what is written holds at the
//! time at which it is written, and has to be written again when the ring is rotated and when its
//! next key becomes current ([`Target::write`], as often as one likes).

mod foreign;
mod order;
mod target;

pub use foreign::ForeignKey;
pub use order::{envoy, haproxy, nginx};
pub use target::{Format, Target, TargetError};

#[cfg(test)]
mod tests;
