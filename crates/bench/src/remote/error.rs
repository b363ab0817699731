use std::io;
use std::path::PathBuf;

use firstflight_emulator::LinkError;

/// Why a server elsewhere could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Its packets may not be captured.
    #[error(transparent)]
    Capture(#[from] LinkError),
    /// The URL cannot be used, or leads to no server.
    #[error("{url} cannot be measured: {reason}")]
    Url {
        /// As it was given.
        url: String,
        /// Why not.
        reason: String,
    },
    /// The plan has no cell.
    #[error("{0}")]
    EmptyPlan(String),
    /// A capture file could not be written.
    #[error("cannot write {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}
