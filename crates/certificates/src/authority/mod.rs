//! The development authority: certificates for experiments that clients trust.
//!
//! Each user has one [`Authority`], created when it is first needed. Name constraints limit it to
//! local names and addresses ([`is_permitted_name`]), so a stolen key of it is worthless on the
//! internet. [`self_signed`] is for all other names. [`trust_stores`] adds it to the trust stores
//! of the system and of browsers, and removes it.
//!
//! # Why an authority, and why constrained
//!
//! A self-signed certificate changes at each start, and teaches people `-k`. An authority has to be
//! trusted only once. But clients then trust everything that its key signs, and a key in a home
//! directory is copied, backed up and lost. So the certificate constrains it to names and addresses
//! without a meaning on the internet. A key that is deleted after each signature would need no
//! constraints, but would have to be trusted again at each start.
//!
//! BoringSSL's verifier does not support constraints on addresses: it refuses the certificate.
//! `firstflight-tls` checks them if that is the verifier's only objection, and refuses what it does
//! not understand. Constraints on names alone would leave all addresses to a stolen key.
//!
//! Time is an argument, in Unix seconds.

mod constraints;
mod files;
mod issue;
pub mod trust_stores;

use std::io;
use std::path::PathBuf;

pub use constraints::{PERMITTED_DOMAINS, PERMITTED_NETWORKS, is_permitted_name};
pub use files::{Authority, default_directory, name_in, remove, trust_anchor};
pub use issue::{CertifiedKey, renew_at, self_signed};

/// Why the development authority cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The user's data directory is unknown.
    #[error("no directory for the development authority: set HOME or XDG_DATA_HOME")]
    NoDataDirectory,
    /// A file or directory cannot be used.
    #[error("cannot {verb} {path}: {source}")]
    File {
        /// What failed.
        verb: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Other users have access to the key or the certificate.
    #[error(
        "{path} may be read or written by others, who could pretend to be anything here; run \
         `chmod go= {path}`, or `firstflight authority remove` if others may have read it"
    )]
    AccessibleByOthers {
        /// The key's or the certificate's file, or their directory.
        path: PathBuf,
    },
    /// The files belong to another user.
    #[error(
        "{path} belongs to another user; set XDG_DATA_HOME to a \
         directory that you own"
    )]
    WrongOwner {
        /// The file or directory.
        path: PathBuf,
    },
    /// A file is damaged, or is not a development authority.
    #[error("{path} is not a development authority ({reason}); run `firstflight authority remove`")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The authority has expired.
    #[error(
        "the development authority in {path} has expired; run `firstflight authority remove`, and \
         a new one is created"
    )]
    Expired {
        /// Its certificate.
        path: PathBuf,
    },
    /// No certificate can be issued for these names.
    #[error("cannot issue a certificate for {names}: {reason}; use host names or addresses")]
    Names {
        /// The names.
        names: String,
        /// Why.
        reason: String,
    },
    /// No key can be generated.
    #[error("cannot generate a key: {0}")]
    Key(String),
}
