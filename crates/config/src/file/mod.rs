//! The configuration file (TOML): read into settings, and written from them.
//!
//! Its schema is the type [`Document`]. The doc comments of that type and its sections are the
//! reference: docs/reference/configuration.md and the JSON schema are generated from them. Settings
//! types of other crates are used as they are; where file and settings differ in shape, this module
//! has a type for the section.

mod early_data;
mod headers;
mod parse;
mod site;
mod store;
mod tickets;
mod tls;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use firstflight_certificates::acme::{AcmeConfig, ExternalAccount};
use firstflight_telemetry::otlp::TelemetrySettings;
use firstflight_upstream::PoolConfig;
use schemars::JsonSchema;
use serde::Serialize;
use toml::de::DeTable;

pub(crate) use self::early_data::EarlyDataSection;
pub(crate) use self::site::{RouteSection, SiteSection};
pub(crate) use self::store::StoreSection;
pub(crate) use self::tickets::{PUNCTURED_WITH_STORE, TicketSection};
pub(crate) use self::tls::TlsSection;
use crate::error::FileProblem;
use crate::{
    AccessLogSettings, AdminSettings, ConfigError, Content, Http3Settings, Limits, Listener,
    LogSettings, ProcessSettings, ServerConfig, SettingError, Sites,
};

/// The content of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Document {
    pub(crate) listener: Vec<Listener>,
    pub(crate) tls: TlsSection,
    pub(crate) acme: Option<AcmeConfig>,
    pub(crate) site: Vec<SiteSection>,
    pub(crate) upstream: BTreeMap<String, PoolConfig>,
    pub(crate) early_data: EarlyDataSection,
    pub(crate) http3: Http3Settings,
    pub(crate) limits: Limits,
    pub(crate) store: Option<StoreSection>,
    pub(crate) tickets: TicketSection,
    pub(crate) admin: Option<AdminSettings>,
    pub(crate) access_log: Option<AccessLogSettings>,
    pub(crate) log: LogSettings,
    pub(crate) telemetry: Option<TelemetrySettings>,
    pub(crate) process: ProcessSettings,
}

impl ServerConfig {
    /// Reads a file, and checks the files that it names. Missing keys have their defaults.
    ///
    /// # Errors
    /// [`ConfigError::ConfigFile`], or [`ConfigError::Config`] with all errors, each with its line
    /// and what is allowed.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|reason| ConfigError::ConfigFile { path: path.to_owned(), reason })?;
        let config = Self::parse(&text, path)?;
        refuse_errors(config.check_files(), &text, path)?;
        Ok(config)
    }

    /// Parses text. `path` is used in errors, and relative paths in the text are resolved against
    /// its directory. Password files are read.
    ///
    /// # Errors
    /// [`ConfigError::Config`] with all errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let document = read_document(text, path)?;
        let base = path.parent().unwrap_or(Path::new(""));
        let (config, errors) = document.settings(base);
        refuse_errors(errors, text, path)?;
        refuse_errors(config.errors(), text, path)?;
        Ok(config)
    }

    /// Writes an equivalent file with all defaults. Passwords and keys stay in their own files.
    pub fn to_toml(&self) -> String {
        // The document contains only text, numbers and string-keyed maps, which TOML can represent.
        toml::to_string(&Document::of(self)).unwrap_or_default()
    }
}

/// Parses the sections.
fn read_document(text: &str, path: &Path) -> Result<Document, ConfigError> {
    let (mut table, errors) = DeTable::parse_recoverable(text);
    let problem = |error: &toml::de::Error| parse::parser_error(text, error);
    if !errors.is_empty() {
        return Err(refusal(errors.iter().map(problem).collect(), path));
    }
    let unknown = parse::remove_unknown_keys(table.get_mut());
    let mut problems: Vec<_> = unknown
        .into_iter()
        .map(|(at, reason)| FileProblem { line: parse::line(text, at), reason })
        .collect();
    let (document, errors) = parse::read_sections(table.into_inner());
    problems.extend(errors.iter().map(problem));
    if problems.is_empty() { Ok(document) } else { Err(refusal(problems, path)) }
}

/// Reads the section `[admin]` of a file, ignoring the others.
pub(crate) fn admin_section(path: &Path) -> Result<Option<AdminSettings>, ConfigError> {
    #[derive(serde::Deserialize)]
    struct Section {
        admin: Option<AdminSettings>,
    }
    let text = fs::read_to_string(path)
        .map_err(|reason| ConfigError::ConfigFile { path: path.to_owned(), reason })?;
    let section: Section = toml::from_str(&text)
        .map_err(|error| refusal(vec![parse::parser_error(&text, &error)], path))?;
    Ok(section.admin.map(|admin| admin.resolve(path.parent().unwrap_or(Path::new("")))))
}

impl Document {
    /// Converts to settings, with all errors.
    fn settings(self, base: &Path) -> (ServerConfig, Vec<SettingError>) {
        let mut errors = Vec::new();
        let mut config = ServerConfig::default();
        let has_store = self.store.is_some();
        let mut note = |error: SettingError| errors.push(error);
        match self.tls.settings(base) {
            Ok((tls, certificate)) => (config.tls, config.certificate) = (tls, certificate),
            Err(error) => note(error.under("tls")),
        }
        match self.early_data.settings() {
            Ok(early_data) => config.early_data = early_data,
            Err(error) => note(error.under("early_data")),
        }
        match self.store.map(|store| store.config(config.early_data.freshness, base)).transpose() {
            Ok(store) => config.store = store,
            Err(error) => note(error.under("store")),
        }
        match self.tickets.settings(has_store, base) {
            Ok(tickets) => config.tickets = tickets,
            Err(error) => note(error.under("tickets")),
        }
        let pool = |pool: PoolConfig| {
            let ca = pool.ca.clone().map(|file| resolve(base, file));
            PoolConfig { ca, ..pool }
        };
        let upstreams = self.upstream.into_iter().map(|(name, one)| (name, pool(one))).collect();
        let mut sites = Sites { sites: Vec::new(), upstreams };
        for (at, site) in self.site.into_iter().enumerate() {
            match site.site(base) {
                Ok(site) => sites.sites.push(site),
                Err(error) => note(error.under_index("site", at)),
            }
        }
        config.content = Content::Sites(sites);
        config.acme = self.acme.map(|acme| resolve_acme(base, acme));
        config.listeners = self.listener;
        config.http3 = self.http3;
        config.limits = self.limits;
        config.log = self.log;
        config.telemetry = self.telemetry;
        config.process = self.process;
        config.admin = self.admin.map(|admin| admin.resolve(base));
        config.access_log = self
            .access_log
            .map(|log| AccessLogSettings { file: log.file.map(|file| resolve(base, file)), ..log });
        (config, errors)
    }

    /// Converts from settings.
    fn of(config: &ServerConfig) -> Self {
        let nothing = Sites::default();
        let sites = match &config.content {
            Content::Sites(sites) => sites,
            Content::PingPong => &nothing,
        };
        Self {
            listener: config.listeners.clone(),
            tls: TlsSection::of(&config.tls, &config.certificate),
            acme: config.acme.clone(),
            site: sites.sites.iter().map(SiteSection::of).collect(),
            upstream: sites.upstreams.clone(),
            early_data: EarlyDataSection::of(&config.early_data),
            http3: config.http3.clone(),
            limits: config.limits.clone(),
            store: config.store.as_ref().map(StoreSection::of),
            tickets: TicketSection::of(&config.tickets),
            admin: config.admin.clone(),
            access_log: config.access_log.clone(),
            log: config.log.clone(),
            telemetry: config.telemetry.clone(),
            process: config.process.clone(),
        }
    }
}

/// Resolves a path relative to the directory `base`.
pub(crate) fn resolve(base: &Path, path: PathBuf) -> PathBuf {
    match base.as_os_str().is_empty() {
        true => path,
        false => base.join(path),
    }
}

fn resolve_acme(base: &Path, acme: AcmeConfig) -> AcmeConfig {
    let account =
        |account: ExternalAccount| ExternalAccount { key: resolve(base, account.key), ..account };
    AcmeConfig {
        state: resolve(base, acme.state),
        authority: acme.authority.map(|file| resolve(base, file)),
        external_account: acme.external_account.map(account),
        ..acme
    }
}

fn refuse_errors(errors: Vec<SettingError>, text: &str, path: &Path) -> Result<(), ConfigError> {
    if errors.is_empty() {
        return Ok(());
    }
    let problem = |error: SettingError| FileProblem {
        line: parse::line(text, parse::offset(text, &error.path)),
        reason: error.reason,
    };
    Err(refusal(errors.into_iter().map(problem).collect(), path))
}

fn refusal(mut problems: Vec<FileProblem>, path: &Path) -> ConfigError {
    problems.sort();
    problems.dedup();
    ConfigError::Config { path: path.to_owned(), problems }
}

#[cfg(test)]
mod tests;
