//! The configuration file: early-data policy and limits, in TOML, with errors that name the line.
//!
//! ```toml
//! [early_data]
//! enabled = true
//! default = "permissive"        # disabled, strict, permissive, unrestricted
//! when_not_allowed = "hold"     # hold, 425
//! freshness = "10s"
//! register_capacity = 1048576
//!
//! [early_data.paths]
//! "/api" = "strict"
//! "/api/pay" = "disabled"
//!
//! [limits]
//! header_timeout = "10s"
//! header_size = 32768
//! idle_timeout = "60s"
//! connections = 10000
//! streams = 100
//! upstream_timeout = "60s"
//! drain_timeout = "30s"
//! ```

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::{EarlyDataSettings, Limits, Mode, Policy, ServerError, WhenNotAllowed};

/// What a configuration file says; what it leaves out has its default.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// The section `[early_data]`.
    pub early_data: EarlyDataSettings,
    /// The section `[limits]`.
    pub limits: Limits,
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ServerError::ConfigFile`], or [`ServerError::Config`] with the line and what is allowed.
    pub fn read(path: &Path) -> Result<Self, ServerError> {
        let text = fs::read_to_string(path)
            .map_err(|reason| ServerError::ConfigFile { path: path.to_owned(), reason })?;
        Self::parse(&text, path)
    }

    /// Reads text; `path` is for errors.
    ///
    /// # Errors
    /// [`ServerError::Config`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ServerError> {
        let wrong = |at: Range<usize>, reason: String| ServerError::Config {
            path: path.to_owned(),
            line: line_of(text, at.start),
            reason,
        };
        let document: Document = toml::from_str(text)
            .map_err(|error| wrong(error.span().unwrap_or(0..0), error.message().to_owned()))?;
        let mut policy = Policy::new(document.early_data.default.unwrap_or(Mode::Permissive));
        let mut paths: Vec<_> = document.early_data.paths.into_iter().collect();
        paths.sort_by_key(|(path, _)| path.span().start);
        for (prefix, mode) in paths {
            policy = policy
                .rule(prefix.get_ref(), mode)
                .map_err(|error| wrong(prefix.span(), error.to_string()))?;
        }
        let limits_at = document.limits.span();
        let limits = document.limits.into_inner().or_defaults();
        limits.check().map_err(|error| wrong(limits_at, error.to_string()))?;
        let early = EarlyDataSettings::default();
        Ok(Self {
            early_data: EarlyDataSettings {
                enabled: document.early_data.enabled.unwrap_or(early.enabled),
                policy,
                when_not_allowed: document.early_data.when_not_allowed.unwrap_or_default(),
                freshness: document.early_data.freshness.unwrap_or(early.freshness),
                register_capacity: document
                    .early_data
                    .register_capacity
                    .unwrap_or(early.register_capacity),
            },
            limits,
        })
    }
}

/// Reads a length of time such as `10s`, `500ms` or `1m 30s`, for flags and for the file.
///
/// # Errors
/// A sentence with what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| format!("{text:?} is no length of time; allowed are such as 10s or 500ms"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    early_data: EarlyDataSection,
    #[serde(default = "no_limits")]
    limits: Spanned<LimitsSection>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct EarlyDataSection {
    enabled: Option<bool>,
    default: Option<Mode>,
    when_not_allowed: Option<WhenNotAllowed>,
    #[serde(default, deserialize_with = "duration")]
    freshness: Option<Duration>,
    register_capacity: Option<usize>,
    #[serde(default)]
    paths: HashMap<Spanned<String>, Mode>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsSection {
    #[serde(default, deserialize_with = "duration")]
    header_timeout: Option<Duration>,
    header_size: Option<usize>,
    #[serde(default, deserialize_with = "duration")]
    idle_timeout: Option<Duration>,
    connections: Option<u32>,
    streams: Option<u32>,
    #[serde(default, deserialize_with = "duration")]
    upstream_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    drain_timeout: Option<Duration>,
}

impl LimitsSection {
    fn or_defaults(self) -> Limits {
        let default = Limits::default();
        Limits {
            header_timeout: self.header_timeout.unwrap_or(default.header_timeout),
            header_size: self.header_size.unwrap_or(default.header_size),
            idle_timeout: self.idle_timeout.unwrap_or(default.idle_timeout),
            connections: self.connections.unwrap_or(default.connections),
            streams: self.streams.unwrap_or(default.streams),
            upstream_timeout: self.upstream_timeout.unwrap_or(default.upstream_timeout),
            drain_timeout: self.drain_timeout.unwrap_or(default.drain_timeout),
        }
    }
}

fn no_limits() -> Spanned<LimitsSection> {
    Spanned::new(0..0, LimitsSection::default())
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use http::Method;
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<ConfigFile, String> {
        ConfigFile::parse(text, Path::new("f.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_has_the_defaults() {
        let file = parse("").unwrap();
        assert_eq!(file.limits, Limits::default());
        assert!(file.early_data.enabled);
        assert_eq!(file.early_data.policy, Policy::default());
    }

    #[test]
    fn the_example_of_the_documentation_is_read() {
        let text: String = include_str!("config_file.rs")
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.trim_start_matches("//!").to_owned() + "\n")
            .collect();
        let file = parse(&text).unwrap();
        assert_eq!(file.limits, Limits::default());
        let policy = &file.early_data.policy;
        assert!(policy.may_run_early(&Method::GET, "/api/x", None));
        assert!(!policy.may_run_early(&Method::GET, "/api/pay", None));
    }

    #[test]
    fn errors_name_file_line_and_allowed_values() {
        for (text, line, words) in [
            ("[early_data]\ndefault = \"lax\"", 2, "`permissive`"),
            ("\n[early_data]\nwhen_not_allowed = \"503\"", 3, "`hold` or `425`"),
            ("[early_data]\nenable = true", 2, "`enabled`"),
            ("[limit]\n", 1, "`limits`"),
            ("[limits]\nheader_timeout = \"soon\"", 2, "10s"),
            ("[limits]\nheader_timeout = \"-1s\"", 2, "10s"),
            ("[limits]\nheader_timeout = \"1h\"", 1, "30s"),
            ("\n[limits]\nheader_size = 10", 2, "1024 to 1048576"),
            ("[limits]\nconnections = 0", 1, "1 and more"),
            ("[early_data.paths]\n\"/a\" = \"strict\"\n\"/a?b\" = \"strict\"", 3, "\"/api\""),
            ("[early_data.paths]\n\"/a\" = \"Strict\"", 2, "`strict`"),
            ("[early_data\n", 1, ""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("f.toml, line {line}: ")), "{text}: {error}");
            assert!(error.contains(words), "{text}: {error}");
            assert!(!error.contains('\n'), "one sentence: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\PC\n]{0,200}") {
            let _ = parse(&text);
        }
    }
}
