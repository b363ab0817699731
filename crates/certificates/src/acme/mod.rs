//! Certificates from an ACME authority (RFC 8555): when to ask for them, how, what is kept on disk
//! and what is shared among nodes.
//!
//! - [`AcmeConfig`]: what the operator says;
//! - [`Manager`]: keeps certificates valid and publishes them;
//! - [`Answers`]: what a server answers while the authority looks whether names lead here;
//! - [`SharedRecords`]: what several nodes share, [`SingleNode`] for one.
//!
//! When to try is decided by rules without a clock (`plan`); the keeper is a thin shell around
//! them, which asks by orders, keeps what comes on disk and hands it to other nodes.

mod account;
mod answers;
mod blocking;
mod ca;
mod certificate;
mod challenge;
mod clock;
mod config;
mod error;
mod keeper;
mod key;
mod manager;
mod names;
mod order;
mod plan;
mod published;
mod renewal;
mod said;
mod sharing;
mod shelf;
mod state;
#[cfg(test)]
mod stub;
#[cfg(test)]
mod stub_tests;

pub use answers::Answers;
pub use config::{AcmeConfig, BadDirectory, ChallengeKind, Directory, ExternalAccount, KeyKind};
pub use error::AcmeError;
pub use manager::Manager;
pub use names::certificate_names;
pub use published::{Attempts, CertificateState, IssuanceFailure, Issued, Phase};
pub use shelf::{SharedRecords, SharedRecordsError, SingleNode};
