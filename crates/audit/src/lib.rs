//! Checks whether a server executes early data at most once, by replaying it (RFC 9846 section 8, RFC
//! 8470).
//!
//! ```text
//! formats            text, JSON, SARIF, JUnit, HTML
//! audit              runs all checks: a Report with its Findings
//!   checks           one file per check: what is sent, and the verdict
//!     software       recognises servers; remedies for each of them
//!     probe          flights, tickets, the witness
//!       exchange     a connection: handshake, requests, responses
//!         http, http3
//! capture            the bytes of an audit as pcapng
//!   recorder         records what goes over each connection
//! checklist          what to know before early data is switched on, by check
//! target             what is audited: over TCP or QUIC, or simulated
//! witness            counts executions, for any server that forwards to it
//! finding            verdicts, findings, the report
//! ```
//!
//! # Examples
//!
//! ```
//! use firstflight_audit::{Check, Verdict};
//!
//! let check = Check::find("replay-at-once").unwrap();
//! assert_eq!(check.section, "RFC 9846 section 8");
//! assert!(Verdict::Fail < Verdict::Pass, "the worst first");
//! ```
//!
//! # Usage
//!
//! [`audit`] takes the addresses of a server as [`Node`]s: the first is audited, and copies go to the
//! others too. Each has a [`Target`], which connects to it and has a clock: a [`TcpTarget`] or a
//! [`QuicTarget`]. The checks know neither sockets nor clocks, so they are tested with a simulated
//! server that makes one mistake at a time.
//!
//! **How an execution is proven.** Each request has a nonce. With a [`Witness`] behind the server,
//! the number of its executions is known. Without one, a copy counts as executed if it gets a
//! response although its handshake is never completed. A server that executes it silently looks
//! like one that waits, so these findings say that they are conclusions.
//!
//! **Audit only servers that you are permitted to test.** The checks execute requests, repeat them,
//! and leave handshakes unfinished.

mod audit;
mod capture;
mod checklist;
mod checks;
mod exchange;
mod finding;
pub mod formats;
mod http;
mod http3;
mod probe;
mod recorder;
mod software;
mod target;
mod witness;

pub use audit::{AuditError, Settings, audit, audit_captured};
pub use capture::Capture;
pub use checklist::{CHECKLIST, ChecklistItem};
pub use checks::{CHECKS, Check};
pub use finding::{Connection, Finding, Report, Verdict};
#[doc(hidden)]
pub use http::response_length;
#[doc(hidden)]
pub use http3::is_response;
pub use software::Software;
pub use target::{Node, QuicTarget, Target, TcpTarget};
pub use witness::{InvalidRequest, Witness, witness_response};
