//! Both roles of TLS, joined in memory.

mod accepting;
mod challenge;
mod ciphers;
mod ech;
mod identities;
mod pair;
mod stream;
mod support;
mod used_up;
