//! Plans, runs and judges measurements: which connections, in which order, on which network, at
//! which server; and from the packets, what each of them was.
//!
//! [`run`] does all of it and returns the record. What a sample is called comes from its packets
//! ([`judge`](crate) by the `wire` room), never from what client or server say of themselves.

mod axes;
mod error;
mod judge;
mod lab;
mod machine;
mod plan;
mod replay;
mod sampler;
mod servers;
mod tickets;

pub use axes::{Certificate, Group, Http, Kind, Size, Workload};
pub use error::BenchError;
pub use lab::{LabConfig, Progress, run};
pub use plan::{Plan, PlannedCell};
pub use servers::{Abilities, Ability, Asked, CommandServer, Lack, SERVERS, ServerKind};
