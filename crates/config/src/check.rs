//! Checks of settings that are valid by themselves but not together, and of the files that they name.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use firstflight_tickets::{KeyEncryption, KeyFile, SecretFileError, read_secret_file};
use firstflight_tls::{
    CipherPolicy, Connector, ConnectorConfig, EchKey, Identity, MAX_TICKET_AGE_SKEW, TlsError,
    Trust,
};
use firstflight_upstream::PoolError;

use crate::error::{failed_checks, nearest};
use crate::file::PUNCTURED_WITH_STORE;
use crate::{
    Action, CertificateSource, Content, ENCODINGS, EarlyRules, KeySource, ListenerProtocol,
    Prefixes, Route, ServerConfig, SettingError, Site, Sites, read_users,
};

impl ServerConfig {
    /// Checks the settings without reading files. Listeners and sites may be missing, because flags
    /// may add them.
    ///
    /// # Errors
    /// The first error.
    pub fn check(&self) -> Result<(), SettingError> {
        self.errors().into_iter().next().map_or(Ok(()), Err)
    }

    /// All errors.
    pub(crate) fn errors(&self) -> Vec<SettingError> {
        let mut errors = Vec::new();
        let mut note =
            |error: SettingError, section: &'static str| errors.push(error.under(section));
        self.limits.errors().into_iter().for_each(|error| note(error, "limits"));
        self.http3.errors().into_iter().for_each(|error| note(error, "http3"));
        if self.tickets.keys == KeySource::Punctured && self.store.is_some() {
            note(SettingError::new("keys", PUNCTURED_WITH_STORE), "tickets");
        }
        if let Some(admin) = &self.admin {
            let _ = admin.check().map_err(|error| note(error, "admin"));
        }
        let tls = &self.tls;
        if tls.min_version > tls.max_version {
            let reason = format!(
                "the oldest TLS version ({}) is newer than the newest ({}); swap min_version and \
                 max_version",
                tls.min_version, tls.max_version
            );
            note(SettingError::new("min_version", reason), "tls");
        }
        if self.early_data.freshness > MAX_TICKET_AGE_SKEW {
            let reason = "freshness is at most 60s, the TLS library's limit";
            note(SettingError::new("freshness", reason), "early_data");
        }
        if self.process.workers == Some(0) {
            let reason = "0 worker threads cannot serve requests; allowed is 1 or more";
            note(SettingError::new("workers", reason), "process");
        }
        if let (Some(_), None) = (&self.process.group, &self.process.user) {
            let reason = "a group without a user; set user, or remove group";
            note(SettingError::new("group", reason), "process");
        }
        if let Some(telemetry) = &self.telemetry {
            let interval = telemetry.metrics_interval;
            let found = failed_checks([
                (
                    "traces_sampled",
                    (0.0..=1.0).contains(&telemetry.traces_sampled),
                    "traces_sampled is a fraction of all requests; allowed are 0 to 1",
                ),
                (
                    "metrics_interval",
                    interval.is_none_or(|interval| METRICS_INTERVALS.contains(&interval)),
                    "metrics_interval is out of range; allowed are 1s to 24h, or false",
                ),
                (
                    "queue",
                    (1..=MAX_SPANS).contains(&telemetry.queue),
                    "queue is out of range; allowed are 1 to 1000000 spans",
                ),
            ]);
            found.into_iter().for_each(|error| note(error, "telemetry"));
        }
        errors.extend(self.listener_errors());
        errors.extend(self.acme_errors());
        if let Content::Sites(sites) = &self.content {
            errors.extend(site_errors(sites));
        }
        errors
    }

    fn listener_errors(&self) -> Vec<SettingError> {
        let mut taken = BTreeSet::new();
        let mut errors = Vec::new();
        for (at, listener) in self.listeners.iter().enumerate() {
            let address = listener.address;
            if address.port() != 0 && !taken.insert(address) {
                let reason = format!("{address} is used by two listeners; keep one");
                errors.push(SettingError::new("address", reason).under_index("listener", at));
            }
        }
        let redirects =
            |listener: &crate::Listener| listener.protocol == ListenerProtocol::Redirect;
        if !self.listeners.is_empty() && self.listeners.iter().all(redirects) {
            let reason = "every listener redirects to https, but none serves it; add one with \
                          protocol = \"https\"";
            errors.push(SettingError::new("protocol", reason).under_index("listener", 0));
        }
        errors
    }
}

fn site_errors(sites: &Sites) -> Vec<SettingError> {
    let mut errors = Vec::new();
    let mut names = HashMap::new();
    for (at, site) in sites.sites.iter().enumerate() {
        let section =
            name_errors(site, at, &mut names).into_iter().chain(route_errors(site, sites));
        errors.extend(section.map(|error| error.under_index("site", at)));
    }
    for (name, pool) in &sites.upstreams {
        let found = pool.errors().into_iter().map(pool_error);
        errors.extend(found.map(|error| error.under(name.clone()).under("upstream")));
    }
    errors
}

/// Converts the error of a pool, whose key may be in a table: `retry.tries`.
fn pool_error(error: PoolError) -> SettingError {
    let (key, reason) = match error {
        PoolError::Setting { key, reason } => (key, reason),
        error => return SettingError::section(error.to_string()),
    };
    let (tables, key) = key.rsplit_once('.').map_or((None, key), |(table, key)| (Some(table), key));
    let error = SettingError::new(key, reason);
    tables.into_iter().fold(error, SettingError::under)
}

/// `taken` has the names of the previous sites.
fn name_errors<'a>(
    site: &'a Site,
    at: usize,
    taken: &mut HashMap<&'a str, usize>,
) -> Vec<SettingError> {
    let mut errors = Vec::new();
    if site.names.is_empty() && at > 0 {
        let reason = "no client can reach this site: it is not the first and has no name; \
                      give names = [\"example.test\"]";
        errors.push(SettingError::new("names", reason));
    }
    for name in &site.names {
        if !is_host_name(name) {
            let reason = format!(
                "{name:?} is not a host name; examples are \"example.test\" and \
                 \"*.example.test\""
            );
            errors.push(SettingError::new("names", reason));
        } else if let Some(other) = taken.insert(name, at) {
            let reason = match other == at {
                true => format!("{name:?} is listed twice; keep one"),
                false => format!("{name:?} is the name of an earlier site; keep one"),
            };
            errors.push(SettingError::new("names", reason));
        }
    }
    errors
}

fn route_errors(site: &Site, sites: &Sites) -> Vec<SettingError> {
    if site.routes.is_empty() {
        let reason = "the site has no route; add one with [[site.route]]";
        return vec![SettingError::new("route", reason)];
    }
    let mut errors = Vec::new();
    let mut paths = Prefixes::default();
    for (at, route) in site.routes.iter().enumerate() {
        let error = match paths.insert(&route.path, ()) {
            Err(error) => Some(SettingError::new("path", error.to_string())),
            Ok(Some(())) => {
                let reason = format!("{:?} is the path of an earlier route; keep one", route.path);
                Some(SettingError::new("path", reason))
            }
            Ok(None) => route_error(route, sites),
        };
        errors.extend(error.map(|error| error.under_index("route", at)));
    }
    errors
}

fn route_error(route: &Route, sites: &Sites) -> Option<SettingError> {
    if let Action::Upstream(name) = &route.action
        && !sites.upstreams.contains_key(name)
    {
        let known: Vec<_> = sites.upstreams.keys().map(String::as_str).collect();
        let fix = match nearest(name, &known) {
            Some(known) => format!("did you mean {known:?}?"),
            None if name.contains("://") => {
                format!("add [upstream.app] with servers = [{name:?}], and give upstream = \"app\"")
            }
            None => format!("add a section [upstream.{name}]"),
        };
        return Some(SettingError::new(
            "upstream",
            format!("there is no upstream {name:?}; {fix}"),
        ));
    }
    if let Action::Files(files) = &route.action
        && let Some(other) = files
            .precompressed
            .iter()
            .find(|encoding| ENCODINGS.iter().all(|(name, _)| name != encoding))
    {
        let reason = format!(
            "{other:?} is not an encoding; allowed are \"br\", \"gzip\", \"zstd\" and \
             \"deflate\""
        );
        return Some(SettingError::new("precompressed", reason));
    }
    if let Some(rewrite) = &route.rewrite
        && (Prefixes::default().insert(rewrite, ()).is_err() || !is_uri_path(rewrite))
    {
        let reason = format!(
            "{rewrite:?} cannot replace a path; examples are \"/\" and \"/v2\", in ASCII and \
             without spaces, queries and dot segments"
        );
        return Some(SettingError::new("rewrite", reason));
    }
    if let Some(limit) = &route.rate_limit {
        let times = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
        let error = match (limit.requests, times.contains(&limit.per), limit.burst) {
            (0, ..) => ("requests", "requests is out of range; allowed is 1 or more"),
            (_, false, _) => ("per", "per is out of range; allowed are 1ms to 24h"),
            (_, _, Some(0)) => ("burst", "burst is out of range; allowed is 1 or more"),
            _ => return early_error(&route.early),
        };
        return Some(SettingError::new(error.0, error.1).under("rate_limit"));
    }
    early_error(&route.early)
}

fn is_uri_path(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/!$&'()*+,=:@".contains(&byte))
}

/// Checks the times of keys, timestamps and nonces: their records take memory for this long, and
/// too short times do not protect.
fn early_error(rules: &EarlyRules) -> Option<SettingError> {
    let check = |key, time: Option<Duration>, min: Duration| {
        let time = time?;
        let reason = format!(
            "{key} is out of range; allowed are {} to 168h",
            firstflight_units::print_duration(min)
        );
        let fits = (min..=MAX_RECORD_LIFE).contains(&time);
        (!fits).then(|| SettingError::new(key, reason))
    };
    let key = check("idempotency_key", rules.idempotency_key, Duration::from_secs(60));
    let window = rules.timestamp.as_ref().map(|rule| rule.window);
    let window = check("window", window, Duration::from_secs(1));
    let lifetime = rules.nonce.as_ref().map(|rule| rule.lifetime);
    let lifetime = check("lifetime", lifetime, Duration::from_secs(1));
    key.or(window.map(|error| error.under("timestamp")))
        .or(lifetime.map(|error| error.under("nonce")))
}

/// A host name, possibly with a wildcard, or an IPv4 address.
fn is_host_name(name: &str) -> bool {
    let name = name.strip_prefix("*.").unwrap_or(name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// The maximum lifetime of a ticket: an early copy of a request cannot arrive later.
const MAX_RECORD_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

impl ServerConfig {
    /// Checks the files that the settings name, and the cipher lists. The store is not contacted.
    pub fn check_files(&self) -> Vec<SettingError> {
        let mut errors: Vec<_> = [
            certificate(&self.certificate).map_err(|error| error.under("tls")),
            self.check_ech_keys().map_err(|error| error.under("tls")),
            self.check_ticket_keys().map_err(|error| error.under("tickets")),
            self.check_token().map_err(|error| error.under("admin")),
            self.check_store_authorities().map_err(|error| error.under("store")),
            self.check_acme_files().map_err(|error| error.under("acme")),
            self.process.check_names().map_err(|error| error.under("process")),
        ]
        .into_iter()
        .filter_map(Result::err)
        .collect();
        errors.extend(self.cipher_list_errors().into_iter().map(|error| error.under("tls")));
        if let Content::Sites(sites) = &self.content {
            for (at, site) in sites.sites.iter().enumerate() {
                errors.extend(
                    site_file_errors(site).into_iter().map(|error| error.under_index("site", at)),
                );
            }
            for (name, pool) in &sites.upstreams {
                let problem = |reason| SettingError::new("ca", reason).under(name.clone());
                let read = pool.ca.as_deref().map_or(Ok(()), check_authorities);
                errors.extend(read.err().map(|reason| problem(reason).under("upstream")));
            }
        }
        errors
    }

    /// Errors of cipher lists, which only the TLS library can check.
    fn cipher_list_errors(&self) -> Vec<SettingError> {
        let CipherPolicy { ciphers, tls13_ciphers, groups } = self.tls.ciphers.clone();
        let default = CipherPolicy::default;
        let lists = [
            ("ciphers", CipherPolicy { ciphers, ..default() }),
            ("tls13_ciphers", CipherPolicy { tls13_ciphers, ..default() }),
            ("groups", CipherPolicy { groups, ..default() }),
        ];
        let error = |(key, ciphers): (&'static str, CipherPolicy)| {
            let config = ConnectorConfig { ciphers, ..ConnectorConfig::new(Trust::Anyone) };
            let error = Connector::new(config).err()?;
            Some(SettingError::new(key, error.to_string()))
        };
        lists.into_iter().filter_map(error).collect()
    }

    fn check_ech_keys(&self) -> Result<(), SettingError> {
        self.tls.ech.iter().try_for_each(|file| {
            let read = EchKey::from_file(file);
            read.map(drop).map_err(|error| SettingError::new("ech", error.to_string()))
        })
    }

    fn check_ticket_keys(&self) -> Result<(), SettingError> {
        match &self.tickets.keys {
            KeySource::Process | KeySource::Punctured => Ok(()),
            KeySource::File(path) => {
                let read = KeyFile::new(path).read();
                read.map(drop).map_err(|error| SettingError::new("file", error.to_string()))
            }
            KeySource::Store { key_encryption, .. } => {
                let open = KeyEncryption::open(key_encryption);
                let problem = |error: String| SettingError::new("key_encryption_file", error);
                open.map(drop).map_err(|error| problem(error.to_string()))
            }
        }
    }

    fn check_token(&self) -> Result<(), SettingError> {
        let Some(path) = self.admin.as_ref().and_then(|admin| admin.token_file.as_ref()) else {
            return Ok(());
        };
        let shown = path.display();
        let problem = |reason: String| Err(SettingError::new("token_file", reason));
        match read_secret_file(path) {
            Ok((text, _)) if text.trim().is_empty() => problem(format!(
                "{shown} has no token; create one, for example with `openssl rand -hex 32`"
            )),
            Ok(_) => Ok(()),
            Err(SecretFileError::ReadableByOthers(mode)) => problem(format!(
                "the token in {shown} can be read by others (mode {mode:03o}); run `chmod 600 \
                 {shown}`"
            )),
            Err(SecretFileError::Read(reason)) => {
                problem(format!("cannot read the token in {shown}: {reason}; use a readable file"))
            }
            Err(SecretFileError::TooLong) => problem(format!("{shown} is too long for a token")),
        }
    }

    fn check_store_authorities(&self) -> Result<(), SettingError> {
        let tls = self.store.as_ref().and_then(|store| store.tls.as_ref());
        match tls.and_then(|tls| tls.ca_file.as_ref()) {
            Some(path) => {
                check_authorities(path).map_err(|reason| SettingError::new("ca_file", reason))
            }
            None => Ok(()),
        }
    }
}

fn certificate(source: &CertificateSource) -> Result<(), SettingError> {
    match source {
        CertificateSource::Files { cert, key } => {
            Identity::from_files(cert, key).map(drop).map_err(identity_error)
        }
        CertificateSource::Development
        | CertificateSource::SelfSigned { .. }
        | CertificateSource::Acme => Ok(()),
    }
}

/// An error of a certificate or its key, at the setting that names the file.
fn identity_error(error: TlsError) -> SettingError {
    let key = match &error {
        TlsError::File { what: "private key", .. } | TlsError::Pem { what: "private key", .. } => {
            "key"
        }
        _ => "certificate",
    };
    SettingError::new(key, error.to_string())
}

pub(crate) fn check_authorities(path: &Path) -> Result<(), String> {
    let trust = Trust::File(path.to_owned());
    Connector::new(ConnectorConfig::new(trust)).map(drop).map_err(|error| error.to_string())
}

fn site_file_errors(site: &Site) -> Vec<SettingError> {
    let mut errors = Vec::new();
    if let Some(source) = &site.certificate {
        errors.extend(certificate(source).err());
    }
    for (at, (cert, key)) in site.other_certificates.iter().enumerate() {
        if let Err(error) = Identity::from_files(cert, key) {
            errors.push(identity_error(error).under_index("other_certificates", at));
        }
    }
    if let Some(path) = &site.ocsp {
        let read = check_readable(path, "the OCSP response", "use a DER file");
        errors.extend(read.err().map(|reason| SettingError::new("ocsp", reason)));
    }
    for (at, route) in site.routes.iter().enumerate() {
        if let Some(Err(reason)) = route.users.as_deref().map(read_users) {
            errors.push(SettingError::new("users", reason).under_index("route", at));
        }
        if let Action::Files(files) = &route.action {
            let error =
                check_directory(&files.root).err().map(|reason| SettingError::new("root", reason));
            errors.extend(error.map(|error| error.under_index("route", at)));
        }
    }
    errors
}

fn check_directory(path: &Path) -> Result<(), String> {
    let problem = |reason: String| {
        format!("cannot serve {}: {reason}; use a readable directory", path.display())
    };
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            fs::read_dir(path).map(drop).map_err(|error| problem(error.to_string()))
        }
        Ok(_) => Err(problem("it is not a directory".to_owned())),
        Err(error) => Err(problem(error.to_string())),
    }
}

fn check_readable(path: &Path, what: &str, fix: &str) -> Result<(), String> {
    match File::open(path) {
        Ok(_) => Ok(()),
        Err(reason) => Err(format!("cannot read {what} {}: {reason}; {fix}", path.display())),
    }
}

/// How often metrics may be exported.
const METRICS_INTERVALS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(86_400);

/// Spans that take about 1 GB.
const MAX_SPANS: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn an_error_of_a_key_file_is_at_the_key() {
        let source = || io::Error::from(io::ErrorKind::NotFound);
        let file = |what| TlsError::File { what, path: "file.pem".into(), source: source() };
        let pem = |what| TlsError::Pem { what, path: "file.pem".into(), reason: String::new() };
        for (error, key) in [
            (file("certificate"), "certificate: "),
            (file("private key"), "key: "),
            (pem("private key"), "key: "),
        ] {
            let error = identity_error(error).to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }

    #[test]
    fn an_error_of_a_pool_has_the_path_of_its_setting() {
        for (key, path) in [("retry.tries", "retry.tries: no"), ("servers", "servers: no")] {
            let error = PoolError::Setting { key, reason: "no" };
            assert_eq!(pool_error(error).to_string(), path);
        }
    }
}
