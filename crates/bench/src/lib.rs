//! Drives TLS connections as fast as they go or at a rate, and records their latency.
//!
//! [`run`] does what a [`LoadConfig`] says and draws up a [`LoadResult`]. Each thread has an event
//! loop of its own over [`firstflight_tls::TlsConnection`]s, with its own connections and tickets;
//! nothing is shared but counts.
//!
//! - Open loop ([`Model::Open`]): connections start at intended times ([`Schedule`]), and latency
//!   counts from there. What could not be started is counted.
//! - Closed loop ([`Model::Closed`]): so many connections are open all the time.
//!
//! What a connection was (full, resumed, early data accepted or refused) is what its TLS state
//! says, not what was requested; only those that were what was requested have a latency. TLS 1.3
//! tickets are used once, and come from a warm-up and from the run itself.

mod config;
mod connection;
mod cpu;
mod deadlines;
mod error;
mod events;
mod failure;
mod flood;
mod latency;
mod ledger;
mod memory;
mod quic;
pub mod remote;
mod response;
mod result;
mod run;
mod schedule;
mod source;
mod tally;
mod tickets;
mod worker;

pub use config::{Exchange, Kind, Limit, LoadConfig, Model, Transport};
pub use error::LoadError;
pub use failure::BadAnswer;
pub use flood::{Flood, FloodConfig, FloodPart, FloodResult, FloodTrial, Forgery};
pub use latency::Latency;
pub use response::{Answer, Answered};
pub use result::LoadResult;
pub use run::{LoadProgress, run};
pub use schedule::{Arrivals, Schedule, SchedulePlan};
pub use tally::{ErrorCount, ErrorKind, Handshakes};
