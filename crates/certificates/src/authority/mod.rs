//! The development authority: certificates for trying out that clients trust.
//!
//! Each user has an authority of his own ([`Authority`]), made when it is first needed. What it may
//! vouch for is bounded by its certificate ([`may_vouch_for`]), so that its key opens nothing on
//! the internet. [`self_signed`] is for all that it may not vouch for. [`stores`] puts it where
//! systems and browsers look for authorities, and takes it out.
//!
//! Time is an argument, in seconds since 1970.

mod believing;
mod bounds;
mod error;
mod home;
mod making;
pub mod stores;

pub use bounds::{DOMAINS, NETWORKS, may_vouch_for};
pub use error::AuthorityError;
pub use home::{Authority, believed, directory, remove};
pub use making::{IssuedCertificate, renew_at, self_signed};
