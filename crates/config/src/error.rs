//! What can be wrong with settings, each in one sentence that names the mend.

use std::io;
use std::path::PathBuf;

/// Why settings are of no use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {path}: {reason}; give a readable file with --config")]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// The configuration file says what it may not.
    #[error("{path}, line {line}: {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// Flags that contradict each other or limits that make no sense.
    #[error("{0}")]
    Setting(String),
}
