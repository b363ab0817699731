//! Certificates for a server: [`acme`] obtains them from a public authority and renews them
//! (RFC 8555); [`authority`] signs them for development, with bounds that keep its key worthless on
//! the internet.
//!
//! ```
//! use std::time::{SystemTime, UNIX_EPOCH};
//!
//! use firstflight_certificates::authority::{Authority, may_vouch_for};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
//!
//! let authority = Authority::open_or_make(directory.path(), now)?;
//! let signed = authority.sign(&["shop.test".to_owned(), "127.0.0.1".to_owned()], now)?;
//! assert!(signed.certificate.starts_with("-----BEGIN CERTIFICATE-----"));
//! // The TLS library accepts the certificate together with its key.
//! signed.identity()?;
//!
//! // Names that mean the same everywhere are left to public authorities.
//! assert!(!may_vouch_for("example.org"));
//! # Ok(())
//! # }
//! ```

pub mod acme;
pub mod authority;
