//! Pools of HTTP servers, against peers that behave as each test says.

mod failover;
mod peer;
mod pool;
mod replacement;
mod uploads;
