//! A server's configuration: settings, their defaults, and the file that contains them.
//!
//! | module | contents |
//! |---|---|
//! | `users` | password files |
//! | `server`, `site`, `listener`, `http3`, `limits`, `admin`, `process` | the settings |
//! | `policy`, `prefixes` | which requests may run early, by path and method |
//! | `file` | the TOML file: parsing into settings, and writing |
//! | `check`, `acme` | checks of settings that depend on each other, and of named files |
//! | `reference` | docs/reference/configuration.md and the JSON schema |
//! | `error` | errors with the path of the setting |
//!
//! # Examples
//!
//! ```
//! use std::path::Path;
//!
//! use firstflight_config::ServerConfig;
//!
//! let file = Path::new("firstflight.toml");
//! let text = r#"
//! [[listener]]
//! address = "127.0.0.1:8443"
//! [[site]]
//! [[site.route]]
//! root = "/srv/www"
//! "#;
//! let config = ServerConfig::parse(text, file).unwrap();
//! assert_eq!(config.listeners.len(), 1);
//!
//! // Errors name the file and the line, and suggest the key that was meant.
//! let error = ServerConfig::parse("[[listner]]", file).unwrap_err().to_string();
//! assert!(error.contains("firstflight.toml, line 1") && error.contains("`listener`"), "{error}");
//! ```
//!
//! # Decisions
//!
//! **A key is documented where it is defined.** The type of a setting defines its syntax, and its
//! doc comment is what operators read. The parser, the reference (docs/reference/configuration.md)
//! and the schema for editors are derived from that type, so they cannot disagree. Settings of
//! other crates are those crates' types (`PoolConfig`, `TelemetrySettings`); `firstflight-units`
//! has the few shared formats. Only where file and settings differ in shape (a route's action is
//! one of four keys) is there a separate type for the file.
//!
//! **All errors of a file are reported at once**, in stages: keys and types, then each section, then
//! their combination, then the files that they name. A section with an error in one stage is left
//! out of the later ones, whose errors may only follow from it. Errors have the path of their
//! setting; the line is looked up from it. So checks do not depend on TOML, and also apply to flags.
//!
//! **There are no variables in the file.** With `${NAME}` its meaning would depend on the reader:
//! `--check` run by an operator would check another file than the one that the service runs, a
//! reload would use the environment of the start, and a value's type, quoting and line would be
//! unknown. What differs between machines is set by flags or their environment variables; secrets
//! are in files of their own, whose permissions can be checked.

mod acme;
mod admin;
mod check;
mod error;
mod file;
mod http3;
mod limits;
mod listener;
mod policy;
mod prefixes;
mod process;
mod reference;
mod server;
mod site;
mod users;

pub use admin::{AdminAddress, AdminSettings, InvalidAdminAddress};
pub use error::{ConfigError, FileProblem, PathSegment, SettingError, SettingPath};
pub use file::headers::{CONTROLLED_FIELDS, UPSTREAM_FIELDS};
pub use firstflight_certificates::acme::{
    AcmeConfig, ChallengeKind, Directory, ExternalAccount, KeyKind,
};
pub use firstflight_units::{parse_duration, print_duration};
pub use http3::Http3Settings;
pub use limits::Limits;
pub use listener::{InvalidNetwork, IpNetwork, Listener, ListenerProtocol};
pub use policy::{Mode, Policy, WhenNotAllowed};
pub use prefixes::{InvalidRulePath, PathMatch, Prefixes};
pub use process::{AccessLogFormat, AccessLogSettings, LogFormat, LogSettings, ProcessSettings};
pub use reference::{json_schema, reference, reference_tables};
pub use server::{
    CertificateSource, EarlyDataSettings, KeySource, ServerConfig, TicketSettings, TlsSettings,
};
pub use site::{
    Action, Content, ENCODINGS, EarlyRules, FileSettings, Nonce, RateLimit, Redirect, Route, Site,
    Sites, Timestamp,
};
pub use users::read_users;
