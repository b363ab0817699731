//! The access log, and the server's own.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A line for each request. Without this section there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccessLogSettings {
    /// The file, or `"-"` for standard output. It is opened again on SIGUSR1, for log rotation, and
    /// made with mode 0640 by the user that the server runs as. A symbolic link is not followed.
    ///
    /// By default where a container's or a unit's log is gathered.
    #[serde(serialize_with = "print_file", deserialize_with = "parse_file")]
    #[schemars(with = "String")]
    pub file: Option<PathBuf>,
    /// How a line looks.
    ///
    /// By default as people read it.
    pub format: LogFormat,
}

/// What the server says about itself, on standard error.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// How a line looks.
    ///
    /// By default as people read it.
    pub format: LogFormat,
    /// How much is said: `error`, `warn`, `info`, `debug`, `trace`, also for parts of the program,
    /// as in `"info,firstflight_server=debug"`.
    ///
    /// By default what an operator has to know, and nothing for each connection.
    pub level: String,
}

/// How a line of a log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Fields in a fixed order, the later ones as `name=value`.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

fn print_file<S: Serializer>(file: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match file {
        Some(file) => file.serialize(to),
        None => to.serialize_str("-"),
    }
}

fn parse_file<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let file = PathBuf::deserialize(from)?;
    Ok((file.as_os_str() != "-").then_some(file))
}
