//! Certificates from an ACME authority (RFC 8555): ordered, renewed, stored on disk and shared among
//! nodes.
//!
//! | module | contents |
//! |---|---|
//! | `manager` | [`Manager`]: renews certificates, publishes their states; coordinates nodes |
//! | `order` | one order, from names to a certificate |
//! | `schedule` | when to order, as rules without a clock |
//! | `certificate` | [`IssuedCertificate`], [`CertificateState`], and what the manager knows of each |
//! | `challenge` | [`ChallengeResponses`]: what a server responds while the authority validates names |
//! | `account`, `client` | the account, and HTTPS to the authority |
//! | `storage`, `sharing` | the state on disk, and the [`SharedRecords`] of several nodes |
//!
//! # Decisions
//!
//! **ACME's messages come from instant-acme, its HTTPS from `firstflight-tls`.** BoringSSL is the
//! only TLS library that may be linked, and responses have to be checked where the bytes arrive. The
//! library drops the `Retry-After` of a refusal, reads bodies without a bound, and accepts whatever
//! the directory's URL responds as a directory.
//!
//! **Renewal follows rules, not timers.** The next attempt is a function of the time, the
//! certificate's lifetime, the window that the authority suggests, and the history of attempts,
//! which is on disk. So a test can simulate a year of wrong clocks, limits and outages, and a process
//! that restarts again and again orders no more often than one that runs. A timer set two months ago
//! would not notice a clock that was corrected since. The rules respect the tightest known limit:
//! five failed validations per hour. An attempt uses both challenges only if nothing was refused
//! since the last success; later attempts alternate.
//!
//! **One node orders, all respond.** An authority that validates a name may connect to any node.
//! Forwarding its request to the ordering node would require that all nodes can reach each other.
//! Instead the challenge responses are in the store during the order. Each node reads them every two
//! seconds, and the ordering node waits five seconds for that, once in two months. So during a
//! handshake the lookup is in a local map, and needs no request to the store. The lease that keeps
//! other nodes from ordering lasts longer than an order may take. It is never renewed, so a slow node
//! cannot assume that it still holds it.
//!
//! **An issued certificate is a new configuration generation.** The server presents it with a new
//! generation of the same configuration, as a reload does for a changed file. Replacing it inside TLS
//! would be a second mechanism for the same purpose, to be synchronized with QUIC and the metrics.
//! The generation's number does not change: it identifies the configuration, and nodes renew at
//! different times.
//!
//! **A node without a certificate is ready.** Readiness decides which nodes get traffic. The
//! authority connects in the same way, so a node that waited for its certificate would wait forever.
//! A missing certificate is reported by a metric, an alert and the console.
//!
//! **The state belongs to the unprivileged user.** The server opens its addresses first, which may
//! require root, then becomes its user, and then reads or creates the state, before it accepts a
//! connection. Read earlier, the state would belong to root, and the first renewal would fail weeks
//! later.

mod account;
mod certificate;
mod challenge;
mod client;
mod config;
mod error;
mod manager;
mod names;
mod order;
mod schedule;
mod sharing;
mod storage;
#[cfg(test)]
mod stub;
#[cfg(test)]
mod tests;

use std::time::{SystemTime, UNIX_EPOCH};

pub use certificate::{Attempts, CertificateState, IssuanceFailure, IssuedCertificate, Phase};
pub use challenge::ChallengeResponses;
pub use config::{AcmeConfig, BadDirectory, ChallengeKind, Directory, ExternalAccount, KeyKind};
pub use error::AcmeError;
pub use manager::Manager;
pub use names::certificate_names;
pub use sharing::{SharedRecords, SharedRecordsError, SingleNode};

/// The time in Unix seconds.
fn now() -> i64 {
    unix_seconds(SystemTime::now())
}

fn unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Formats a time for people (RFC 3339).
fn format_time(at: i64) -> String {
    jiff::Timestamp::from_second(at).map_or_else(|_| at.to_string(), |at| at.to_string())
}
