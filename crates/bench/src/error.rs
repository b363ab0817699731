use std::io;
use std::net::SocketAddr;

use firstflight_tls::TlsError;

/// Why there is no result, each in one sentence that names the fix where there is one. What fails
/// in a run is counted in its result instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A setting that cannot work.
    #[error("{0}")]
    Usage(String),
    /// A TLS setting that the library does not take.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The first connection to a server failed, so there is nothing to measure.
    #[error("no connection to {address} works: {reason}")]
    WarmUp {
        /// The server.
        address: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// Nothing can be resumed.
    #[error("{address} issues no {what}; switch them on at the server, or measure full handshakes")]
    NoTickets {
        /// The server.
        address: SocketAddr,
        /// `tickets`, or `tickets that allow early data`.
        what: &'static str,
    },
    /// A thread could not be pinned.
    #[error("cannot pin a thread to core {core}: {reason}; give a core that this process may use")]
    Pin {
        /// The core.
        core: usize,
        /// Why not.
        reason: String,
    },
    /// The machine gives no threads, timers or event queues.
    #[error("this machine is out of resources for an event loop: {0}")]
    Resources(#[from] io::Error),
    /// The server's process is not there to be measured.
    #[error("cannot read the CPU time of process {pid}: {reason}; give a running process")]
    ServerProcess {
        /// The process.
        pid: u32,
        /// Why not.
        reason: String,
    },
}
