//! Pools of HTTP servers, against peers that behave as each test says.

mod peer;
mod pool;
