use std::io;
use std::path::PathBuf;

use firstflight_browser::BrowserError;
use firstflight_client::ClientError;
use firstflight_emulator::LinkError;
use firstflight_tls::TlsError;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The network could not be built.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A TLS context could not be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A connection that fetches tickets for later samples failed.
    #[error("{server} did not respond before the measurement: {source}")]
    WarmUp {
        /// The server.
        server: String,
        /// The cause.
        source: ClientError,
    },
    /// A server name is unknown.
    #[error("unknown server {name:?}; allowed are {known} and all")]
    UnknownServer {
        /// The unknown name.
        name: String,
        /// The names of the servers.
        known: String,
    },
    /// A page name is unknown.
    #[error("unknown page {name:?}; allowed are {known}")]
    UnknownPage {
        /// The unknown name.
        name: String,
        /// The names of the pages.
        known: String,
    },
    /// A browser could not be started or controlled.
    #[error(transparent)]
    Browser(#[from] BrowserError),
    /// A command line that cannot start a server.
    #[error("the server command {command:?} cannot be used: {reason}")]
    BadCommand {
        /// The command.
        command: String,
        /// The cause.
        reason: String,
    },
    /// A server's program is not installed.
    #[error("{server} is not installed; install it ({install_hint}) or leave it out with --server")]
    NotInstalled {
        /// The server.
        server: &'static str,
        /// The command that installs it.
        install_hint: &'static str,
    },
    /// A server did not start.
    #[error("{server} did not start: {reason}")]
    Start {
        /// The server.
        server: &'static str,
        /// The reason, with the last lines of its output.
        reason: String,
    },
    /// A server ended during the run.
    #[error("{server} ended during the run: {reason}")]
    Ended {
        /// The server.
        server: &'static str,
        /// Its exit status, with the last lines of its output.
        reason: String,
    },
    /// A file of the run could not be written or read.
    #[error("cannot {verb} {path}: {source}")]
    File {
        /// The operation, such as `read`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The plan has no cells.
    #[error("{0}")]
    EmptyPlan(String),
    /// A server's log does not show how often it executed a request.
    #[error(
        "the log of {server} shows {count} executions of the original request of flight {flight} \
         instead of one, so replays cannot be counted"
    )]
    Uncountable {
        /// The server.
        server: String,
        /// The flight.
        flight: String,
        /// The number of executions in the log.
        count: usize,
    },
    /// No flight with early data could be captured.
    #[error("no first flight with early data could be captured at {server}: {reason}")]
    NoFlight {
        /// The server.
        server: String,
        /// The reason.
        reason: String,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// The failed stages after the samples, a sentence each. The run continues without their results,
/// so that hours of samples are not lost.
#[derive(Debug, Default)]
pub(crate) struct FailedStages(pub Vec<String>);

impl FailedStages {
    /// Returns the result of a stage, or the default value if it failed.
    pub(crate) fn attempt<T: Default>(&mut self, stage: &str, result: Result<T, LabError>) -> T {
        result.unwrap_or_else(|error| {
            self.add(stage, &error);
            T::default()
        })
    }

    pub(crate) fn add(&mut self, stage: &str, error: &LabError) {
        self.0.push(format!("{stage}: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_fails_is_named_and_has_no_result() {
        let mut failed = FailedStages::default();
        assert_eq!(failed.attempt("costs", Ok(vec![1])), [1]);
        let error = LabError::Ended { server: "nginx", reason: "signal: 11".to_owned() };
        assert_eq!(failed.attempt("the attack on nginx", Err::<Option<u8>, _>(error)), None);
        assert_eq!(failed.0, ["the attack on nginx: nginx ended during the run: signal: 11"]);
    }
}
