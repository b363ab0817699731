//! What a server is to do: settings, their defaults, and the file that holds them.
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
//! Settings that belong to a room of their own (store, ticket keys, TLS, traces) are that room's
//! types. What a key of the file means is told once, where its type is.

mod acme;
mod admin;
mod check;
mod early_data;
mod error;
mod file;
mod files;
mod http3;
mod limits;
mod listener;
mod logs;
mod look;
mod misfit;
mod nearest;
mod policy;
mod prefixes;
mod process;
mod reference;
mod server;
mod site;
mod tickets;
mod tls;

pub use admin::{AdminAddress, AdminSettings, BadAdminAddress};
pub use early_data::EarlyDataSettings;
pub use error::{ConfigError, FileProblem};
pub use firstflight_certificates::acme::{
    AcmeConfig, ChallengeKind, Directory, ExternalAccount, KeyKind,
};
pub use firstflight_units::{parse_duration, print_duration};
pub use http3::Http3Settings;
pub use limits::Limits;
pub use listener::{BadNetwork, IpNetwork, Listener, ListenerProtocol};
pub use logs::{AccessLogSettings, LogFormat, LogSettings};
pub use misfit::{Place, SettingError, Step};
pub use policy::{Mode, Policy, WhenNotAllowed};
pub use prefixes::{BadRulePath, Found, Prefixes};
pub use process::ProcessSettings;
pub use reference::{json_schema, reference};
pub use server::ServerConfig;
pub use site::{
    Action, Content, ENCODINGS, EarlyRules, FileSettings, Nonce, Redirect, Route, Site, Sites,
    Timestamp,
};
pub use tickets::{KeySource, TicketSettings};
pub use tls::{CertificateSource, TlsSettings};
