//! The load generator against a server in this process, and a proxy before it that misbehaves.

mod kinds;
mod quic;
mod support;
mod trouble;
