//! Certificates for a server: from an ACME authority, or from the user's development authority.
//!
//! - [`acme`] orders certificates from a public authority and renews them (RFC 8555).
//! - [`authority`] signs certificates for development. Name constraints keep its key worthless on
//!   the internet.
//!
//! # Examples
//!
//! ```
//! use std::time::{SystemTime, UNIX_EPOCH};
//!
//! use firstflight_certificates::authority::{Authority, is_permitted_name};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
//!
//! let authority = Authority::open_or_create(directory.path(), now)?;
//! let signed = authority.sign(&["shop.test".to_owned(), "127.0.0.1".to_owned()], now)?;
//! assert!(signed.certificate.starts_with("-----BEGIN CERTIFICATE-----"));
//! // The TLS library accepts the certificate together with its key.
//! signed.identity()?;
//!
//! // It signs only for names with a local meaning.
//! assert!(!is_permitted_name("example.org"));
//! # Ok(())
//! # }
//! ```

pub mod acme;
pub mod authority;
