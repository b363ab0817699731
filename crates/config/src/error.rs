//! What can be wrong with settings, each in one sentence that names the fix.

use std::io;
use std::path::PathBuf;

use crate::SettingError;

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
    #[error("{}", lines(path, wrongs))]
    Config {
        /// The file.
        path: PathBuf,
        /// All that is wrong, by line; at least one.
        wrongs: Vec<FileProblem>,
    },
    /// Flags that contradict each other or limits that make no sense.
    #[error("{0}")]
    Setting(String),
}

/// Something wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileProblem {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

impl From<SettingError> for ConfigError {
    fn from(misfit: SettingError) -> Self {
        Self::Setting(misfit.to_string())
    }
}

/// A line for each.
fn lines(path: &std::path::Path, wrongs: &[FileProblem]) -> String {
    let line =
        |wrong: &FileProblem| format!("{}, line {}: {}", path.display(), wrong.line, wrong.reason);
    wrongs.iter().map(line).collect::<Vec<_>>().join("\n")
}
