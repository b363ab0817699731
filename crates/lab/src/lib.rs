//! Plans, runs and judges measurements: which connections, in which order, on which network, at
//! which server; and from the packets, what each of them was.
//!
//! [`run`] does all of it and returns the record. What a sample is called comes from its packets
//! ([`judge`](crate) by the `packets` crate), never from what client or server say of themselves.

mod calibration;
mod captures;
mod config;
mod connection;
mod costs;
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
mod over_tcp;
mod paths;
mod plan;
mod progress;
mod replay;
mod sampler;
mod servers;
mod third_party;
mod tickets;
mod visits;

pub use captures::Captures;
pub use config::LabConfig;
pub use error::LabError;
pub use experiment::{Axes, BuiltIn, Experiment};
pub use explore::{
    Exploration, ExploreConfig, Handshake, LAB_VARIABLES, LabDescription, NetworkDescription, Seen,
    ServerDescription,
};
pub use firstflight_packets::TlsVersion;
pub use firstflight_samples::{
    Certificate, Client, Group, Http, Kind, RequestedConnection, Size, Slot, Transport, Workload,
};
pub use lab::run;
pub use middlebox::MiddleboxConfig;
pub use plan::{Plan, PlannedCell};
pub use progress::Progress;
pub use servers::{
    Abilities, Ability, CommandServer, MissingAbility, SERVERS, ServerKind, Surveyed, survey,
};
pub use visits::{InNamespace, VisitPage, VisitSet, VisitsConfig, visit};
