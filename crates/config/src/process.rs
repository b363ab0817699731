//! The sections `[process]`, `[access_log]` and `[log]`.

use std::path::PathBuf;

use nix::unistd::{Group, User, geteuid};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::SettingError;

/// The server process. Changes require a restart or an upgrade, except for `watch`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessSettings {
    /// Number of worker threads, 1 or more.
    ///
    /// By default one per core.
    pub workers: Option<u16>,
    /// User to switch to once all listeners are open and all keys are read.
    ///
    /// By default the user that started the process.
    pub user: Option<String>,
    /// Group to switch to.
    ///
    /// By default the user's.
    pub group: Option<String>,
    /// Whether changed files (configuration, certificates, OCSP responses) are reloaded
    /// automatically.
    ///
    /// By default true: otherwise a renewed certificate is not used, and the old one expires.
    pub watch: bool,
}

impl Default for ProcessSettings {
    fn default() -> Self {
        Self { workers: None, user: None, group: None, watch: true }
    }
}

impl ProcessSettings {
    /// Checks that user and group exist, if this process may become them.
    pub(crate) fn check_names(&self) -> Result<(), SettingError> {
        let unknown = |key: &'static str, name: &str| {
            let reason = format!("{key} {name:?} does not exist; create it, or set another");
            Err(SettingError::new(key, reason))
        };
        match (&self.user, &self.group) {
            _ if !geteuid().is_root() => Ok(()),
            (Some(user), _) if User::from_name(user).ok().flatten().is_none() => {
                unknown("user", user)
            }
            (_, Some(group)) if Group::from_name(group).ok().flatten().is_none() => {
                unknown("group", group)
            }
            _ => Ok(()),
        }
    }
}

/// The access log: one line per request. Without this section there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccessLogSettings {
    /// File, or `"-"` for standard output. Reopened on SIGUSR1, for log rotation; created with mode
    /// 0640 by the server's user. Symbolic links are not followed.
    ///
    /// By default standard output, which containers and systemd collect.
    #[serde(serialize_with = "print_file", deserialize_with = "parse_file")]
    #[schemars(with = "String")]
    pub file: Option<PathBuf>,
    /// Format of a line.
    pub format: AccessLogFormat,
}

/// The format of a line of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessLogFormat {
    /// Fields in a fixed order, the later ones as `name=value`.
    #[default]
    Text,
    /// A JSON object.
    Json,
    /// As in Apache and nginx, for tools that read it; without early data.
    Combined,
}

/// The server's own log, on standard error.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// Format of a line.
    pub format: LogFormat,
    /// Level: `error`, `warn`, `info`, `debug`, `trace`, also for parts of the program, as in
    /// `"info,firstflight_server=debug"`.
    ///
    /// By default what operators need to know, and nothing per connection.
    pub level: String,
}

/// The format of a log line.
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
