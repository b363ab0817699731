//! Pools of HTTP servers, against peers whose behaviour each test defines.

mod failover;
mod peer;
mod pool;
mod replacement;
mod uploads;
