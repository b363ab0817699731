//! TLS: records, handshake messages, decryption, and the byte stream of each side.

pub(crate) mod client;
pub(crate) mod decrypt;
pub(crate) mod handshake;
pub(crate) mod legacy;
pub(crate) mod record;
pub(crate) mod server;
