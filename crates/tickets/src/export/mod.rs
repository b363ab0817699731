//! Exports a ring for nginx, HAProxy and Envoy. They seal tickets by AES-256-CBC and HMAC-SHA256
//! under keys of 80 bytes, each in a different order.
//!
//! Their keys are derived from the ring's keys by HKDF, with a label for each server. So they follow
//! the ring's rotation, and are the same on every machine. It works one way only: stolen files of
//! nginx open no tickets of firstflight or HAProxy. The key's name is derived too, so no name refers
//! to two keys.
//!
//! These servers have no clock for keys: the order determines which key seals. So the files have to
//! be written again when the ring is rotated, and when its next key becomes current.
//! [`Target::write`] can be called as often as needed: it writes only if something has changed.

mod exported_key;
mod order;
mod target;

pub use exported_key::ExportedKey;
pub use order::{envoy, haproxy, nginx};
pub use target::{Format, Target, TargetError};

#[cfg(test)]
mod tests;
