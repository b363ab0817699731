//! What a server is to do: settings, their defaults, and the file that holds them.
//!
//! Settings that belong to a room of their own (store, ticket keys, TLS) are that room's types.

mod admin;
mod error;
mod file;
mod files;
mod limits;
mod policy;
mod prefixes;
mod settings;
mod site;

pub use admin::{AdminAddress, AdminSettings};
pub use error::ConfigError;
pub use file::{ConfigFile, parse_duration};
pub use limits::Limits;
pub use policy::{Mode, Policy, WhenNotAllowed};
pub use prefixes::{BadRulePath, Found, Prefixes};
pub use settings::{
    AccessLogSettings, CertificateSource, EarlyDataSettings, Http3Settings, IpNetwork, KeySource,
    Listener, ListenerProtocol, LogFormat, ProcessSettings, ServerConfig, TicketSettings,
    TlsSettings,
};
pub use site::{
    Action, Content, ENCODINGS, EarlyRules, FileSettings, Nonce, Redirect, Route, Site, Sites,
    Timestamp,
};
