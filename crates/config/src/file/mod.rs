//! The configuration file: early-data policy, limits, store and tickets, in TOML, with errors that
//! name the line.
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
//! drain_delay = "0s"
//!
//! [http3]
//! enabled = true
//! alt_svc = "24h"               # how long clients may remember it; or false
//! initial_mtu = 1200            # up to 1452
//! token_lifetime = "12h"        # default: the tickets'
//! retry_above = 1000            # handshakes in progress
//! refuse_above = 5000
//!
//! [store]                       # without it this process is alone
//! url = "redis://127.0.0.1:6379"
//! mode = "single"               # single, sentinel, cluster
//! budget = "3ms"
//! connections = 2
//! replicas = 0
//! prefix = "firstflight"
//! clock_margin = "6s"
//!
//! [tickets]
//! keys = "process"              # process, file, store
//! single_use = false
//! ```

mod http3;
mod password;
mod store;
mod tickets;

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use firstflight_store::StoreConfig;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use self::http3::Http3Section;
use self::store::StoreSection;
use self::tickets::TicketSection;
use crate::{
    ConfigError, EarlyDataSettings, Http3Settings, Limits, Mode, Policy, TicketSettings,
    WhenNotAllowed,
};

/// What a configuration file says; what it leaves out has its default.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// The section `[early_data]`.
    pub early_data: EarlyDataSettings,
    /// The section `[limits]`.
    pub limits: Limits,
    /// The section `[http3]`.
    pub http3: Http3Settings,
    /// The section `[store]`; `None`: there is none.
    pub store: Option<StoreConfig>,
    /// The section `[tickets]`.
    pub tickets: TicketSettings,
}

impl ConfigFile {
    /// Reads a file, and the passwords in the files that it names.
    ///
    /// # Errors
    /// [`ConfigError::ConfigFile`], or [`ConfigError::Config`] with the line and what is allowed.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|reason| ConfigError::ConfigFile { path: path.to_owned(), reason })?;
        Self::parse(&text, path)
    }

    /// Reads text; `path` is for errors.
    ///
    /// # Errors
    /// [`ConfigError::Config`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let wrong = |at: Range<usize>, reason: String| ConfigError::Config {
            path: path.to_owned(),
            line: line_of(text, at.start),
            reason,
        };
        let mut document: Document = toml::from_str(text)
            .map_err(|error| wrong(error.span().unwrap_or(0..0), error.message().to_owned()))?;
        let mut policy = Policy::new(document.early_data.default.unwrap_or(Mode::Permissive));
        let mut paths: Vec<_> = document.early_data.paths.drain().collect();
        paths.sort_by_key(|(path, _)| path.span().start);
        for (prefix, mode) in paths {
            policy = policy
                .rule(prefix.get_ref(), mode)
                .map_err(|error| wrong(prefix.span(), error.to_string()))?;
        }
        let limits_at = document.limits.span();
        let limits = document.limits.into_inner().or_defaults();
        limits.check().map_err(|error| wrong(limits_at, error.to_string()))?;
        let default = EarlyDataSettings::default();
        let early = document.early_data;
        let early_data = EarlyDataSettings {
            enabled: early.enabled.unwrap_or(default.enabled),
            policy,
            when_not_allowed: early.when_not_allowed.unwrap_or_default(),
            freshness: early.freshness.unwrap_or(default.freshness),
            register_capacity: early.register_capacity.unwrap_or(default.register_capacity),
        };
        let at_wrong = |Misplaced(at, reason)| wrong(at, reason);
        let tickets_at = document.tickets.span();
        let tickets = document.tickets.into_inner();
        let has_store = document.store.is_some();
        let tickets = tickets.settings(&tickets_at, has_store).map_err(at_wrong)?;
        let http3 = document.http3.settings().map_err(at_wrong)?;
        let store = match document.store {
            Some(store) => {
                let at = store.span();
                let store = store.into_inner().config(at, early_data.freshness);
                Some(store.map_err(at_wrong)?)
            }
            None => None,
        };
        Ok(Self { early_data, limits, http3, store, tickets })
    }
}

/// What is wrong in a section, and where.
struct Misplaced(Range<usize>, String);

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
    #[serde(default = "nothing")]
    limits: Spanned<LimitsSection>,
    #[serde(default)]
    http3: Http3Section,
    store: Option<Spanned<StoreSection>>,
    #[serde(default = "nothing")]
    tickets: Spanned<TicketSection>,
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
    #[serde(default, deserialize_with = "duration")]
    drain_delay: Option<Duration>,
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
            drain_delay: self.drain_delay.unwrap_or(default.drain_delay),
        }
    }
}

/// A section that is not there.
fn nothing<S: Default>() -> Spanned<S> {
    Spanned::new(0..0, S::default())
}

/// A length of time of which it has to be known where it stands.
#[derive(Clone, Copy)]
struct Length(Duration);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse_duration(&text).map(Self).map_err(serde::de::Error::custom)
    }
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
mod tests;
