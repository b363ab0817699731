//! The parts of the `firstflight` program that are more than parsing, calling and printing:
//!
//! - [`lifecycle`]: the server as a process: changed files, systemd, privileges, and the handoff to a
//!   successor during an upgrade;
//! - [`demo`]: two visits to a server and a replay, which `firstflight try` shows.
//!
//! They are a library so that tests can use them, too. The commands are modules of the binary:
//!
//! ```text
//! main          flags -> command -> exit code
//!   serve         runs the server: settings, process, signals, upgrade      -> lifecycle
//!   try           serves a directory and demonstrates 0-RTT                 -> demo
//!   fetch         an HTTP client with curl's flags
//!   keys          creates, rotates, lists and exports ticket keys
//!   authority     the development authority and the stores that trust it
//!   health        checks whether a server is ready
//!   audit         replays early data at a server
//!   lab, bench    measure in an emulated network, or a server elsewhere     -> results, progress
//!   report        shows and compares records                                -> results
//!   doctor        checks whether this machine can run the lab
//!   manual, completions
//! ```
//!
//! # Examples
//!
//! Detecting a renewed certificate:
//!
//! ```
//! use std::fs;
//!
//! use firstflight::lifecycle::WatchedFiles;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let certificate = directory.path().join("cert.pem");
//! fs::write(&certificate, "old")?;
//!
//! let mut files = WatchedFiles::new([certificate.clone()]);
//! fs::write(&certificate, "renewed")?;
//! // The first check finds the change, the second one that the file is no longer being written.
//! assert!(!files.have_changed());
//! assert!(files.have_changed());
//! # Ok(())
//! # }
//! ```

pub mod demo;
pub mod lifecycle;
