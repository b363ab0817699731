//! Plans, runs and judges measurements: which connections, in which order, on which network, at
//! which server; and from the packets, what each of them was.
//!
//! [`run`] does all of it and returns the record. What a sample is called comes from its packets
//! ([`judge`](crate) by the `packets` crate), never from what client or server say of themselves.

mod axes;
mod calibration;
mod captures;
mod combinations;
mod connectors;
mod costs;
mod counters;
mod effects;
mod error;
mod exchange;
mod experiment;
mod explore;
mod figures;
mod judge;
mod lab;
mod machine;
mod measure;
mod middlebox;
mod over_quic;
mod paths;
mod plan;
pub mod remote;
mod replay;
mod sampler;
mod servers;
mod third_party;
mod tickets;
mod visits;

pub use axes::{Certificate, Client, Group, Http, Kind, Size, Transport, Workload};
pub use captures::Captures;
pub use error::BenchError;
pub use experiment::{Axes, BuiltIn, Experiment};
pub use explore::{
    Exploration, ExploreConfig, Handshake, LAB_VARIABLES, Seen, Sketch, SketchedNetwork,
    SketchedServer,
};
pub use firstflight_packets::TlsVersion;
pub use lab::{LabConfig, Progress, run};
pub use machine::blank_record;
pub use middlebox::MiddleboxConfig;
pub use plan::{Plan, PlannedCell, Slot};
pub use servers::{
    Abilities, Ability, Asked, CommandServer, Lack, SERVERS, ServerKind, Surveyed, survey,
};
pub use visits::{InNamespace, VisitPage, VisitSet, VisitsConfig, visit};
