//! What can go wrong with a browser.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::Make;

/// Why a browser did not do what it was told. Where a browser stopped answering it is gone: it was
/// killed, with all of its processes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrowserError {
    /// Nothing of that make in `PATH`.
    #[error("no {make} is installed here: `apt-get install {}`, or name its program", make.package())]
    Missing {
        /// What was looked for.
        make: Make,
    },
    /// The program is there, and is none that this crate can drive.
    #[error("{} is no browser that can be driven: {said}; name a Firefox or a Chromium", path.display())]
    NotABrowser {
        /// Its path.
        path: PathBuf,
        /// What it answered to `--version`, or why it did not.
        said: String,
    },
    /// A program could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// Its path.
        program: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// It did not answer in time, and was killed.
    #[error("{browser} did not {step} within {} s and was killed{last}", limit.as_secs_f64())]
    Silent {
        /// Its name.
        browser: Make,
        /// What it was told.
        step: String,
        /// How long it had for it.
        limit: Duration,
        /// Its last words, or nothing.
        last: String,
    },
    /// It ended by itself.
    #[error("{browser} ended when it had to {step}{last}")]
    Gone {
        /// Its name.
        browser: Make,
        /// What it was told.
        step: String,
        /// Its last words, or nothing.
        last: String,
    },
    /// It does not know the command, or does not want to.
    #[error("{browser} refuses to {step}: {reason}")]
    Refused {
        /// Its name.
        browser: Make,
        /// What it was told.
        step: String,
        /// Its words.
        reason: String,
    },
    /// It could not open a page; the browser is still there.
    #[error("{browser} cannot open {url}: {reason}")]
    NotOpened {
        /// Its name.
        browser: Make,
        /// The page.
        url: String,
        /// Its words, such as `net::ERR_CONNECTION_REFUSED` or `NS_ERROR_CONNECTION_REFUSED`.
        reason: String,
    },
    /// A script in the page threw.
    #[error("a script in {browser}'s page failed: {reason}")]
    Script {
        /// Its name.
        browser: Make,
        /// The exception's words.
        reason: String,
    },
    /// It said what nobody can read.
    #[error("{browser} answered {step} with what this version cannot read: {reason}")]
    Garbled {
        /// Its name.
        browser: Make,
        /// What it was told.
        step: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Whom it should trust could not be told to it.
    #[error(
        "cannot tell {browser} whom to trust: {reason}; it needs `apt-get install libnss3-tools`"
    )]
    Trust {
        /// Its name.
        browser: Make,
        /// What failed.
        reason: String,
    },
    /// A setting that its make does not have.
    #[error("{browser} cannot {what}; leave that to it, or take another browser")]
    Unable {
        /// Its name.
        browser: Make,
        /// What was requested.
        what: &'static str,
    },
    /// It could not be ended.
    #[error("cannot end {browser}: {source}; end it by hand")]
    Lasting {
        /// Its name.
        browser: Make,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file of its profile.
    #[error("cannot {verb} {}: {source}", path.display())]
    File {
        /// What was tried, such as `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
}
