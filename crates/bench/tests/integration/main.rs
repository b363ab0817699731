//! The load generator against a server in this process, and against a proxy that misbehaves.

mod failures;
mod kinds;
mod quic;
mod support;
