use std::io;
use std::path::PathBuf;

use firstflight_browser::BrowserError;
use firstflight_client::ClientError;
use firstflight_emulator::LinkError;
use firstflight_tls::TlsError;

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The network could not be built.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A TLS context could not be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A connection that the run needs, outside the samples, failed.
    #[error("{server} did not answer before the measuring began: {source}")]
    WarmUp {
        /// Which server.
        server: String,
        /// Why not.
        source: ClientError,
    },
    /// A word that names no server under test.
    #[error("unknown server {name:?}; allowed are {known} and all")]
    UnknownServer {
        /// The word.
        name: String,
        /// The servers that there are.
        known: String,
    },
    /// A word that names no page for browsers.
    #[error("unknown page {name:?}; allowed are {known}")]
    UnknownPage {
        /// The word.
        name: String,
        /// The pages that there are.
        known: String,
    },
    /// A browser could not be started or driven, outside the visits.
    #[error(transparent)]
    Browser(#[from] BrowserError),
    /// A command line that cannot be a server's.
    #[error("the server command {command:?} cannot be used: {reason}")]
    BadCommand {
        /// The command as it was given.
        command: String,
        /// Why not.
        reason: String,
    },
    /// A server's program is not installed.
    #[error("{server} is not installed; install it ({mend}) or leave it out with --server")]
    NotInstalled {
        /// Which server.
        server: &'static str,
        /// How to get it.
        mend: &'static str,
    },
    /// A server did not start.
    #[error("{server} did not start: {reason}")]
    Start {
        /// Which server.
        server: &'static str,
        /// What it said.
        reason: String,
    },
    /// A file of the run could not be written or read.
    #[error("cannot {verb} {path}: {source}")]
    File {
        /// What was tried.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The plan has no cell.
    #[error("{0}")]
    EmptyPlan(String),
    /// A server's log does not tell how often it executed a request.
    #[error(
        "{server} executed the original request of flight {flight} {count} times by its own log; \
         it has to be once, or replays cannot be counted"
    )]
    Uncountable {
        /// Which server.
        server: String,
        /// Which flight.
        flight: String,
        /// How often.
        count: usize,
    },
    /// No flight with early data could be captured.
    #[error("no first flight with early data could be captured at {server}: {reason}")]
    NoFlight {
        /// Which server.
        server: String,
        /// Why.
        reason: String,
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
