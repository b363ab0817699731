//! Certificates from an ACME authority (RFC 8555): when to ask for them, how, what is kept on disk
//! and what is shared among nodes.
//!
//! - [`AcmeConfig`]: what the operator says;
//! - [`Manager`]: keeps certificates valid and publishes them;
//! - [`Answers`]: what a server answers while the authority looks whether names lead here;
//! - [`Shelf`]: what several nodes share, [`Alone`] for one.
//!
//! When to try is decided by rules without a clock (`plan`); the rest is a thin shell around them.

// The shell that uses the rest comes with the orders.
#![allow(dead_code)]

mod answers;
mod challenge;
mod config;
mod error;
mod manager;
mod published;
mod shelf;

pub use answers::Answers;
pub use config::{AcmeConfig, BadDirectory, ChallengeKind, Directory, ExternalAccount, KeyKind};
pub use error::AcmeError;
pub use manager::Manager;
pub use published::{CertificateState, Issued, Phase, Tries, Trouble};
pub use shelf::{Alone, Shelf, ShelfError};
