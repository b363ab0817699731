//! The admin listener of a server: metrics, health probes, and a live console for operators.
//!
//! ```text
//! serve         Admin: binds, reloads, and serves connections
//! listener      the TCP or unix socket
//! connections   limits of connections
//! service       routes requests, and protects every response
//! guard, token  access control: host names, origins, the token, cookies; login is the form
//! watcher       samples the source every second, and publishes events
//! console       the HTML page: overview, charts, tables
//! answers       the three questions of the console, answered
//! status        the data of the console, as in /status.json
//! history       counts of the last hour, from the metrics
//! reasons       explains the reasons of the metrics; format formats figures
//! source        the trait for what is shown, implemented for a running server
//! ```
//!
//! # Paths
//!
//! - `/metrics`: metrics for Prometheus.
//! - `/livez`, `/readyz`: health probes. They need no token, and respond with one word.
//! - `/`: the console. It answers three questions: is 0-RTT used, if not, why not, and has anyone tried
//!   to replay?
//! - `/status.json`: everything that the console shows ([`Status`]).
//! - `/events`: the same every second, as server-sent events.
//!
//! The listener is separate from the sites of the server. It uses loopback or a unix socket unless
//! configured otherwise; other addresses need a token. It is read-only.
//!
//! # Examples
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::TcpStream;
//!
//! use firstflight_admin::{Admin, Source, State};
//! use firstflight_config::{AdminAddress, AdminSettings};
//! use firstflight_telemetry::metrics::{Metrics, Readings, Snapshot};
//!
//! /// A server that is always ready.
//! struct Ready(Metrics);
//!
//! impl Source for Ready {
//!     fn readiness(&self) -> Result<(), String> {
//!         Ok(())
//!     }
//!
//!     fn metrics(&self) -> Snapshot {
//!         self.0.snapshot(&Readings::default())
//!     }
//!
//!     fn state(&self) -> State {
//!         State::default()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Runtime::new()?;
//! let settings = AdminSettings::new(AdminAddress::Tcp("127.0.0.1:0".parse()?));
//! let admin = runtime.block_on(Admin::bind(settings, Ready(Metrics::default())))?;
//! let address = admin.name();
//! runtime.spawn(admin.run(std::future::pending()));
//!
//! let mut stream = TcpStream::connect(&address)?;
//! stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
//! let mut response = String::new();
//! stream.read_to_string(&mut response)?;
//! assert!(response.ends_with("ok\n"));
//! # Ok(())
//! # }
//! ```

mod answers;
mod connections;
mod console;
mod format;
mod guard;
mod history;
mod listener;
mod login;
mod reasons;
mod response;
mod serve;
mod service;
mod source;
mod status;
mod token;
mod watcher;

pub use serve::{Admin, AdminError, AdminHandle, Prepared, check};
pub use source::Source;
pub use status::{
    Answer, Answers, Certificate, EarlyDataState, Failure, Gauges, KeyRingState, KeyState, Kind,
    Moment, Percentiles, PuncturedTickets, Reason, Register, Reload, Replay, Replays, SCHEMA,
    ServerState, Severity, State, Status, Steps, Store, Totals, Upstream, Window, json_schema,
};
