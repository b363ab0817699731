//! A server as a process among others: which of its files have changed, what the service manager
//! is told and has to give, privileges, and handing over to a successor.
//!
//! It knows nothing of servers: signals, configuration and connections are other rooms' business.

mod files;

pub use files::Files;
