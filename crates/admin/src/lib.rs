//! The operators' side of a server: metrics, readiness, and a console that a person looks at.
//!
//! It listens apart from the sites that the server serves, on loopback or a unix socket unless it
//! is told otherwise, and asks for a token elsewhere. Nothing can be changed through it.
//!
//! - `/metrics`: for Prometheus.
//! - `/livez`, `/readyz`: for probes; open to all, and say one word.
//! - `/`: the console. Whether 0-RTT is used, why not where not, and whether anyone has tried to
//!   replay; drawn by the server, and kept up to date by a short script.
//! - `/status.json`: all that the console shows ([`Status`]).
//! - `/events`: the same each second, as server-sent events.
//!
//! [`Admin`] serves what a [`Source`] says.

mod answers;
mod console;
mod counts;
mod error;
mod events;
mod guard;
mod history;
mod listener;
mod login;
mod patience;
mod permits;
mod reasons;
mod response;
mod running;
mod serve;
mod service;
mod source;
mod status;
mod token;
mod watch;

pub use error::AdminError;
pub use serve::{Admin, AdminHandle, Prepared, check};
pub use source::Source;
pub use status::{
    Answer, Answers, Certificate, EarlyDataState, Failure, KeyState, KeysState, Kind, Moment, Mood,
    Now, Percentiles, Reason, Register, Reload, Replay, Replays, SCHEMA, ServerState, State,
    Status, Steps, Store, Upstream, Window, json_schema,
};
