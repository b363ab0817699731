//! The configuration file, TOML: read into settings, and written from them.
//!
//! Its form is the type [`Document`]: what its keys mean, and what they default to, is told by that
//! type's descriptions, of which the reference and the JSON schema are made. A room's own settings
//! stand in it as they are; where file and settings differ in shape, there is a section's type
//! here.

mod early_data;
mod fields;
mod locate;
mod password;
mod route;
mod sections;
mod site;
mod store;
mod tickets;
mod tls;
mod unknown;

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
pub(crate) use self::route::RouteSection;
pub(crate) use self::site::SiteSection;
pub(crate) use self::store::StoreSection;
pub(crate) use self::tickets::TicketSection;
pub(crate) use self::tls::TlsSection;
use crate::error::FileProblem;
use crate::{
    AccessLogSettings, AdminSettings, ConfigError, Content, Http3Settings, Limits, Listener,
    LogSettings, ProcessSettings, ServerConfig, SettingError, Sites,
};

/// A configuration file's content.
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
    /// Reads a file, and looks at the files that it names; what it leaves out has its default.
    ///
    /// # Errors
    /// [`ConfigError::ConfigFile`], or [`ConfigError::Config`] with all that is wrong, each with
    /// its line and what is allowed.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|reason| ConfigError::ConfigFile { path: path.to_owned(), reason })?;
        let config = Self::parse(&text, path)?;
        refuse_if_any(config.look_at_files(), &text, path)?;
        Ok(config)
    }

    /// Reads text; `path` is for errors, and names in the text are relative to where it lies. Of
    /// the files that it names, those with passwords are read.
    ///
    /// # Errors
    /// [`ConfigError::Config`] with all that is wrong.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let document = read_document(text, path)?;
        let base = path.parent().unwrap_or(Path::new(""));
        let (config, misfits) = document.settings(base);
        refuse_if_any(misfits, text, path)?;
        refuse_if_any(config.misfits(), text, path)?;
        Ok(config)
    }

    /// A file that says the same, with all defaults filled in. Passwords and keys are in files of
    /// their own, whose names it has.
    pub fn to_toml(&self) -> String {
        // The document is made of text, numbers and maps by text, which TOML always takes.
        toml::to_string(&Document::of(self)).unwrap_or_default()
    }
}

/// The sections of a text, each as its type has it.
fn read_document(text: &str, path: &Path) -> Result<Document, ConfigError> {
    let (mut table, errors) = DeTable::parse_recoverable(text);
    let wrong = |error: &toml::de::Error| locate::wrong(text, error);
    if !errors.is_empty() {
        return Err(refusal(errors.iter().map(wrong).collect(), path));
    }
    let unknown = unknown::take_out(table.get_mut());
    let mut wrongs: Vec<_> = unknown
        .into_iter()
        .map(|(at, reason)| FileProblem { line: locate::line(text, at), reason })
        .collect();
    let (document, errors) = sections::read(table.into_inner());
    wrongs.extend(errors.iter().map(wrong));
    if wrongs.is_empty() { Ok(document) } else { Err(refusal(wrongs, path)) }
}

/// The section `[admin]` of a file, of which nothing else is looked at.
pub(crate) fn admin_section(path: &Path) -> Result<Option<AdminSettings>, ConfigError> {
    #[derive(serde::Deserialize)]
    struct Section {
        admin: Option<AdminSettings>,
    }
    let text = fs::read_to_string(path)
        .map_err(|reason| ConfigError::ConfigFile { path: path.to_owned(), reason })?;
    let section: Section =
        toml::from_str(&text).map_err(|error| refusal(vec![locate::wrong(&text, &error)], path))?;
    Ok(section.admin.map(|admin| admin.beside(path.parent().unwrap_or(Path::new("")))))
}

impl Document {
    /// The settings, and what cannot be.
    fn settings(self, base: &Path) -> (ServerConfig, Vec<SettingError>) {
        let mut misfits = Vec::new();
        let mut config = ServerConfig::default();
        let has_store = self.store.is_some();
        let mut note = |misfit: SettingError| misfits.push(misfit);
        match self.tls.settings(base) {
            Ok((tls, certificate)) => (config.tls, config.certificate) = (tls, certificate),
            Err(misfit) => note(misfit.under("tls")),
        }
        match self.early_data.settings() {
            Ok(early_data) => config.early_data = early_data,
            Err(misfit) => note(misfit.under("early_data")),
        }
        match self.store.map(|store| store.config(config.early_data.freshness, base)).transpose() {
            Ok(store) => config.store = store,
            Err(misfit) => note(misfit.under("store")),
        }
        match self.tickets.settings(has_store, base) {
            Ok(tickets) => config.tickets = tickets,
            Err(misfit) => note(misfit.under("tickets")),
        }
        let pool = |pool: PoolConfig| {
            let ca = pool.ca.clone().map(|file| beside(base, file));
            PoolConfig { ca, ..pool }
        };
        let upstreams = self.upstream.into_iter().map(|(name, one)| (name, pool(one))).collect();
        let mut sites = Sites { sites: Vec::new(), upstreams };
        for (at, site) in self.site.into_iter().enumerate() {
            match site.site(base) {
                Ok(site) => sites.sites.push(site),
                Err(misfit) => note(misfit.under_index("site", at)),
            }
        }
        config.content = Content::Sites(sites);
        config.acme = self.acme.map(|acme| acme_beside(base, acme));
        config.listeners = self.listener;
        config.http3 = self.http3;
        config.limits = self.limits;
        config.log = self.log;
        config.telemetry = self.telemetry;
        config.process = self.process;
        config.admin = self.admin.map(|admin| admin.beside(base));
        config.access_log = self
            .access_log
            .map(|log| AccessLogSettings { file: log.file.map(|file| beside(base, file)), ..log });
        (config, misfits)
    }

    /// What a file would say.
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

/// A path as a file in `base` means it.
pub(crate) fn beside(base: &Path, path: PathBuf) -> PathBuf {
    match base.as_os_str().is_empty() {
        true => path,
        false => base.join(path),
    }
}

fn acme_beside(base: &Path, acme: AcmeConfig) -> AcmeConfig {
    let account =
        |account: ExternalAccount| ExternalAccount { key: beside(base, account.key), ..account };
    AcmeConfig {
        state: beside(base, acme.state),
        authority: acme.authority.map(|file| beside(base, file)),
        external_account: acme.external_account.map(account),
        ..acme
    }
}

fn refuse_if_any(misfits: Vec<SettingError>, text: &str, path: &Path) -> Result<(), ConfigError> {
    if misfits.is_empty() {
        return Ok(());
    }
    let wrong = |misfit: SettingError| FileProblem {
        line: locate::line(text, locate::offset(text, &misfit.at)),
        reason: misfit.reason,
    };
    Err(refusal(misfits.into_iter().map(wrong).collect(), path))
}

fn refusal(mut wrongs: Vec<FileProblem>, path: &Path) -> ConfigError {
    wrongs.sort();
    wrongs.dedup();
    ConfigError::Config { path: path.to_owned(), wrongs }
}

#[cfg(test)]
mod tests;
