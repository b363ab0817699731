//! What can be wrong with settings: each error is one sentence that names the fix.

use std::borrow::Cow;
use std::path::PathBuf;
use std::{fmt, io};

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {path}: {reason}; set --config to a readable file")]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        reason: io::Error,
    },
    /// The configuration file has errors.
    #[error("{}", lines(path, problems))]
    Config {
        /// The file.
        path: PathBuf,
        /// All errors, by line; at least one.
        problems: Vec<FileProblem>,
    },
    /// Flags contradict each other, or a value is out of range.
    #[error("{0}")]
    Setting(String),
}

/// An error in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileProblem {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

impl From<SettingError> for ConfigError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error.to_string())
    }
}

/// One line per error.
fn lines(path: &std::path::Path, problems: &[FileProblem]) -> String {
    let line = |problem: &FileProblem| {
        format!("{}, line {}: {}", path.display(), problem.line, problem.reason)
    };
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// An error in a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct SettingError {
    /// The setting.
    pub path: SettingPath,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

/// The path of a setting: `site[0].route[2].root`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingPath(Vec<PathSegment>);

/// A segment of the path of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// A key of a table.
    Key(Cow<'static, str>),
    /// An index in a list, from 0.
    Index(usize),
}

impl SettingError {
    /// An error of a key of the section being checked.
    pub fn new(key: impl Into<Cow<'static, str>>, reason: impl Into<String>) -> Self {
        Self { path: SettingPath(vec![PathSegment::Key(key.into())]), reason: reason.into() }
    }

    /// An error of the section being checked as a whole.
    pub fn section(reason: impl Into<String>) -> Self {
        Self { path: SettingPath::default(), reason: reason.into() }
    }

    /// Prepends the key of the parent section.
    pub fn under(mut self, key: impl Into<Cow<'static, str>>) -> Self {
        self.path.0.insert(0, PathSegment::Key(key.into()));
        self
    }

    /// Prepends the index in the parent's list.
    pub fn under_index(mut self, key: &'static str, index: usize) -> Self {
        self.path.0.splice(0..0, [PathSegment::Key(key.into()), PathSegment::Index(index)]);
        self
    }
}

impl SettingPath {
    /// The segments, outermost first.
    pub fn segments(&self) -> &[PathSegment] {
        &self.0
    }
}

impl fmt::Display for SettingPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, segment) in self.0.iter().enumerate() {
            match segment {
                PathSegment::Key(key) if position == 0 => f.write_str(key)?,
                PathSegment::Key(key) => write!(f, ".{key}")?,
                PathSegment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Returns the errors of checks that failed. A check has a key, whether its value is allowed, and
/// the reason if it is not.
pub(crate) fn failed_checks<const N: usize>(
    checks: [(&'static str, bool, &str); N],
) -> Vec<SettingError> {
    let failed = checks.into_iter().filter(|(_, allowed, _)| !allowed);
    failed.map(|(key, _, reason)| SettingError::new(key, reason)).collect()
}

/// Returns the known name that is closest to `name`, or `None` if none is similar.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, name), *known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min()
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_shown_as_keys_and_indexes() {
        let error = SettingError::new("root", "no").under_index("route", 2).under_index("site", 0);
        assert_eq!(error.to_string(), "site[0].route[2].root: no");
        assert_eq!(SettingError::section("no").under("tls").to_string(), "tls: no");
    }
}

#[cfg(test)]
mod nearest_tests {
    use super::*;

    #[test]
    fn typos_are_recognized_and_other_words_are_not() {
        let known = ["header_timeout", "idle_timeout", "streams", "url"];
        assert_eq!(nearest("header_timout", &known), Some("header_timeout"));
        assert_eq!(nearest("stream", &known), Some("streams"));
        assert_eq!(nearest("uri", &known), Some("url"));
        assert_eq!(nearest("backlog", &known), None);
    }
}
