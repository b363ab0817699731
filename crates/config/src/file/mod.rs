//! The configuration file (TOML): read into settings, and written from them.
//!
//! Its schema is the type [`Document`]. The doc comments of that type and its sections are the
//! reference: docs/reference/configuration.md and the JSON schema are generated from them. Settings
//! types of other crates are used directly; where file and settings differ in shape, this module
//! has a type for the section.

mod early_data;
pub(crate) mod headers;
mod parse;
mod site;
mod store;
mod tickets;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use firstflight_certificates::acme::{AcmeConfig, ExternalAccount};
use firstflight_telemetry::otlp::TelemetrySettings;
use firstflight_units::TextList;
use firstflight_upstream::PoolConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::de::DeTable;

pub(crate) use self::early_data::EarlyDataSection;
pub(crate) use self::site::{RouteSection, SiteSection};
pub(crate) use self::store::StoreSection;
pub(crate) use self::tickets::{PUNCTURED_WITH_STORE, TicketSection};
pub(crate) use self::tls::TlsSection;
use crate::error::FileProblem;
use crate::{
    AccessLogSettings, AdminSettings, ConfigError, Content, Http3Settings, IpNetwork, Limits,
    Listener, LogSettings, ProcessSettings, ServerConfig, SettingError, Sites,
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
    pub(crate) proxies: ProxySection,
    pub(crate) store: Option<StoreSection>,
    pub(crate) tickets: TicketSection,
    pub(crate) admin: Option<AdminSettings>,
    pub(crate) access_log: Option<AccessLogSettings>,
    pub(crate) log: LogSettings,
    pub(crate) telemetry: Option<TelemetrySettings>,
    pub(crate) process: ProcessSettings,
}

/// Proxies in front of this server, such as those of a CDN.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProxySection {
    /// Networks such as `"10.0.0.0/8"` whose `X-Forwarded-For` counts: the last address in it
    /// outside these networks is the client, in logs, for rate limits and for upstreams.
    ///
    /// By default none: anybody could claim any address.
    #[serde(with = "TextList::<IpNetwork>")]
    pub(crate) trusted: Vec<IpNetwork>,
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
        Self::load(&text, path, Self::check_files)
    }

    /// Parses text. `path` is used in errors, and relative paths in the text are resolved against
    /// its directory. Password files are read.
    ///
    /// # Errors
    /// [`ConfigError::Config`] with all errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::load(text, path, |_| Vec::new())
    }

    /// Parses text. `check_files` checks the files that the settings name.
    fn load(
        text: &str,
        path: &Path,
        check_files: impl FnOnce(&Self) -> Vec<SettingError>,
    ) -> Result<Self, ConfigError> {
        let (document, mut problems) = read_document(text, path)?;
        let base = path.parent().unwrap_or(Path::new(""));
        let (config, errors) = document.settings(base);
        problems.add(errors);
        problems.add(config.errors());
        problems.add(check_files(&config));
        problems.into_result(path).map(|()| config)
    }

    /// Writes an equivalent file with all defaults. Passwords and keys stay in their own files.
    pub fn to_toml(&self) -> String {
        // The document contains only text, numbers and string-keyed maps, which TOML can represent.
        toml::to_string(&Document::of(self)).unwrap_or_default()
    }
}

/// Parses the sections. Invalid keys get their defaults, and an error.
///
/// # Errors
/// [`ConfigError::Config`] if the text is not TOML.
fn read_document<'t>(text: &'t str, path: &Path) -> Result<(Document, Problems<'t>), ConfigError> {
    let (mut table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let problems = errors.iter().map(|error| parse::parser_error(text, error)).collect();
        return Err(refusal(problems, path));
    }
    let mut problems = Problems { text, found: parse::check_keys(table.get_mut()) };
    let (document, errors) = parse::read_sections(table.into_inner());
    problems.found.extend(errors.iter().map(parse::type_error));
    Ok((document, problems))
}

/// The errors of a file: the offset and the reason of each.
struct Problems<'t> {
    text: &'t str,
    found: Vec<(usize, String)>,
}

impl Problems<'_> {
    /// Adds errors of settings, except in sections with an earlier error, from which they may follow.
    fn add(&mut self, errors: Vec<SettingError>) {
        let section = |offset: usize| parse::section_start(self.text, offset);
        let with_errors: BTreeSet<_> =
            self.found.iter().map(|(offset, _)| section(*offset)).collect();
        let new = errors.into_iter().map(|error| {
            let offset = parse::offset(self.text, &error.path);
            (offset, error.reason)
        });
        let new: Vec<_> =
            new.filter(|(offset, _)| !with_errors.contains(&section(*offset))).collect();
        self.found.extend(new);
    }

    fn into_result(self, path: &Path) -> Result<(), ConfigError> {
        if self.found.is_empty() {
            return Ok(());
        }
        let problem =
            |(offset, reason)| FileProblem { line: parse::line(self.text, offset), reason };
        Err(refusal(self.found.into_iter().map(problem).collect(), path))
    }
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
        let mut sites = Sites { sites: Vec::new(), upstreams: BTreeMap::new() };
        for (at, section) in self.site.into_iter().enumerate() {
            let (site, found) = section.site(base);
            sites.sites.push(site);
            errors.extend(found.into_iter().map(|error| error.under_index("site", at)));
        }
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
            Err(found) => found.into_iter().for_each(|error| note(error.under("store"))),
        }
        match self.tickets.settings(has_store, base) {
            Ok(tickets) => config.tickets = tickets,
            Err(error) => note(error.under("tickets")),
        }
        let pool = |pool: PoolConfig| {
            let ca = pool.ca.clone().map(|file| resolve(base, file));
            PoolConfig { ca, ..pool }
        };
        sites.upstreams =
            self.upstream.into_iter().map(|(name, config)| (name, pool(config))).collect();
        config.content = Content::Sites(sites);
        config.acme = self.acme.map(|acme| resolve_acme(base, acme));
        config.listeners = self.listener;
        config.http3 = self.http3;
        config.limits = self.limits;
        config.trusted_proxies = self.proxies.trusted;
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
        let no_sites = Sites::default();
        let sites = match &config.content {
            Content::Sites(sites) => sites,
            Content::PingPong => &no_sites,
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
            proxies: ProxySection { trusted: config.trusted_proxies.clone() },
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

fn refusal(mut problems: Vec<FileProblem>, path: &Path) -> ConfigError {
    problems.sort();
    problems.dedup();
    ConfigError::Config { path: path.to_owned(), problems }
}

#[cfg(test)]
mod tests;
