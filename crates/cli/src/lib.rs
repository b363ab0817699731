//! The parts of the `firstflight` program that are more than parsing, calling and printing:
//!
//! - [`lifecycle`]: the server as a process: changed files, systemd, privileges, messages to its
//!   successor;
//! - [`demo`]: two visits to a server and one replay, which `firstflight try` shows.
//!
//! They are a library so that the program's tests can use them too.
//!
//! ```
//! use std::fs;
//!
//! use firstflight::lifecycle::Files;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let certificate = directory.path().join("cert.pem");
//! fs::write(&certificate, "old")?;
//!
//! let mut files = Files::new([certificate.clone()]);
//! fs::write(&certificate, "renewed")?;
//! // The first look finds the change, the second one that nobody is still writing.
//! assert!(!files.have_changed());
//! assert!(files.have_changed());
//! # Ok(())
//! # }
//! ```

pub mod demo;
pub mod lifecycle;
