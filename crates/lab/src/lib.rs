//! Measures TLS connections to servers under test in an emulated network, and attacks those servers
//! by replaying captured first flights.
//!
//! [`run`] builds the network, starts the servers, takes the samples and returns the record;
//! [`run_visits`] does the same with real browsers. [`ExploreSession`] keeps network and servers up
//! for exploring by hand. Every sample is classified by its packets, never by what client or server
//! report.
//!
//! ```text
//! run          a run from start to end: network, servers, plan, measurement, record
//! experiment   which cells an experiment measures, on which networks, how often
//! plan, paths  the cells of a run, their networks, and the order of their samples
//! measure      the measurement, in the client's namespace
//!   sampler      takes samples by this project's client, or by `third_party` clients
//!   link         calibrates the link
//!   costs        processor time of a connection
//!   middlebox    connections through middleboxes
//!   replay       captures first flights and resends them
//! stalls       early data behind middleboxes and proxies
//! cold_start   restarts of this project's server
//! results      packets to samples, samples to the figures of cells
//! captures     capture files, and typical samples packet by packet
//! servers      servers under test: configuration, start, capabilities
//! visits       visits by browsers
//! explore      a lab that stays up
//! ```
//!
//! # One key-share group
//!
//! The lab's client offers a single group, X25519 unless the cell requests another, so that no
//! server can choose a different one. (TLS 1.0 and 1.1 also need P-256 for the certificate.) With
//! the post-quantum X25519MLKEM768 the ClientHello of a full handshake just fits into a SYN. With a
//! ticket it does not, and TCP Fast Open saves nothing, as the experiment `post-quantum` shows.
//! `serve` and `fetch` use BoringSSL's default, which is post-quantum if both sides support it.
//!
//! # Examples
//!
//! An experiment of two cells, a full and a 0-RTT handshake at this project's server on two
//! networks. [`run`] measures it; it needs network namespaces.
//!
//! ```
//! use firstflight_emulator::Profile;
//! use firstflight_lab::{Axes, Experiment, HandshakeKind};
//!
//! let mut axes = Axes::baseline();
//! axes.connections.kinds = vec![HandshakeKind::Full, HandshakeKind::ZeroRtt];
//! let experiment = Experiment {
//!     name: "early-data".to_owned(),
//!     title: "what 0-RTT saves".to_owned(),
//!     profiles: vec![Profile::parse("20")?, Profile::parse("cable")?],
//!     axes,
//!     samples: 100,
//!     control: true,
//! };
//! let cells = experiment.axes.connections();
//! assert_eq!(cells.len(), 2);
//! # Ok::<(), firstflight_emulator::LinkError>(())
//! ```

mod captures;
mod cold_start;
mod config;
mod costs;
mod error;
mod experiment;
mod explore;
mod link;
mod measure;
mod middlebox;
mod paths;
mod plan;
mod replay;
mod results;
mod run;
mod sampler;
mod servers;
mod stalls;
mod third_party;
mod visits;

pub use captures::Captures;
pub use config::{LabConfig, Progress};
pub use error::LabError;
pub use experiment::{Axes, BuiltInExperiment, Experiment};
pub use explore::{
    ExploreConfig, ExploreSession, HandshakeOutcome, LAB_VARIABLES, LabDescription,
    NetworkDescription, ObservedConnection, ServerDescription,
};
pub use firstflight_packets::TlsVersion;
pub use firstflight_samples::{
    CertificateKind, CipherSuite, ClientKind, ConnectionAxes, Group, HandshakeKind, HttpVersion,
    RequestedConnection, ResponseSize, Slot, Transport, Workload,
};
pub use middlebox::MiddleboxConfig;
pub use plan::{Plan, PlannedCell};
pub use run::run;
pub use servers::{
    Capabilities, Capability, CommandServer, MissingCapability, ProbedServer, SERVERS, ServerKind,
    probe_server,
};
pub use stalls::StallConfig;
pub use visits::{InNamespace, VisitPage, VisitSet, VisitsConfig, run_visits};
