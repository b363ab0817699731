//! Errors of browsers.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::BrowserKind;

/// Why a browser did not do what was requested. A browser that does not respond is killed with all its
/// processes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrowserError {
    /// `PATH` has no browser of this kind.
    #[error("no {kind} is installed; run `apt-get install {}`, or give the path of its program", kind.package())]
    Missing {
        /// The kind of browser.
        kind: BrowserKind,
    },
    /// The program is not a supported browser.
    #[error("{} is not a supported browser: {reason}; name a Firefox or a Chromium", path.display())]
    NotABrowser {
        /// The path of the program.
        path: PathBuf,
        /// Its output for `--version`, or why there is none.
        reason: String,
    },
    /// A program could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The path of the program.
        program: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The browser did not respond in time, and was killed.
    #[error("{browser} did not {step} within {} s and was killed{command}{log}", timeout.as_secs_f64())]
    TimedOut {
        /// The kind of browser.
        browser: BrowserKind,
        /// What was requested.
        step: String,
        /// The command that had no response, as a part of a sentence, or nothing.
        command: String,
        /// The timeout.
        timeout: Duration,
        /// The last line of its log, or nothing.
        log: String,
    },
    /// The browser ended unexpectedly.
    #[error("{browser} ended unexpectedly and did not {step}{log}")]
    Exited {
        /// The kind of browser.
        browser: BrowserKind,
        /// What was requested.
        step: String,
        /// The last line of its log, or nothing.
        log: String,
    },
    /// The browser responded with an error.
    #[error("{browser} refuses to {step}: {reason}")]
    Refused {
        /// The kind of browser.
        browser: BrowserKind,
        /// What was requested.
        step: String,
        /// The message of the browser.
        reason: String,
    },
    /// The browser could not open a page. It stays usable.
    #[error("{browser} cannot open {url}: {reason}")]
    NavigationFailed {
        /// The kind of browser.
        browser: BrowserKind,
        /// The URL of the page.
        url: String,
        /// The message of the browser, such as `net::ERR_CONNECTION_REFUSED` or
        /// `NS_ERROR_CONNECTION_REFUSED`.
        reason: String,
    },
    /// A script in the page threw an exception.
    #[error("a script in {browser}'s page failed: {reason}")]
    Script {
        /// The kind of browser.
        browser: BrowserKind,
        /// The message of the exception.
        reason: String,
    },
    /// The response of the browser is invalid.
    #[error("{browser} sent an invalid response when it had to {step}: {reason}")]
    InvalidResponse {
        /// The kind of browser.
        browser: BrowserKind,
        /// What was requested.
        step: String,
        /// What is wrong with the response.
        reason: String,
    },
    /// Trusted certificates could not be added to the profile.
    #[error(
        "cannot add trusted certificates for {browser}: {reason}; this needs `apt-get install \
         libnss3-tools`"
    )]
    Trust {
        /// The kind of browser.
        browser: BrowserKind,
        /// The cause.
        reason: String,
    },
    /// The browser does not have a setting.
    #[error("{browser} cannot {what}; leave the setting out, or use another browser")]
    Unsupported {
        /// The kind of browser.
        browser: BrowserKind,
        /// The setting.
        what: &'static str,
    },
    /// The browser could not be killed.
    #[error("cannot kill {browser}: {source}; kill it by hand")]
    NotClosed {
        /// The kind of browser.
        browser: BrowserKind,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file of the profile could not be read or written.
    #[error("cannot {verb} {}: {source}", path.display())]
    File {
        /// The operation, such as `write`.
        verb: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl BrowserError {
    /// Adds the command that the browser did not respond to.
    pub(crate) fn during(mut self, method: &str) -> Self {
        if let Self::TimedOut { command, .. } = &mut self {
            *command = format!("; it did not respond to {method}");
        }
        self
    }
}
