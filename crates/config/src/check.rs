//! What cannot be, whatever each section allows by itself.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use firstflight_tls::MAX_TICKET_AGE_SKEW;
use firstflight_upstream::PoolError;

use crate::nearest::nearest;
use crate::{
    Action, Content, ENCODINGS, EarlyRules, ListenerProtocol, Prefixes, Route, ServerConfig,
    SettingError, Site, Sites,
};

impl ServerConfig {
    /// Whether it can be, as far as it can be said without looking at files. That it listens
    /// somewhere and serves something is not looked at: flags may yet say so.
    ///
    /// # Errors
    /// The first misfit.
    pub fn check(&self) -> Result<(), SettingError> {
        self.misfits().into_iter().next().map_or(Ok(()), Err)
    }

    /// All that cannot be.
    pub(crate) fn misfits(&self) -> Vec<SettingError> {
        let mut misfits = Vec::new();
        let mut note =
            |misfit: SettingError, section: &'static str| misfits.push(misfit.under(section));
        let _ = self.limits.check().map_err(|misfit| note(misfit, "limits"));
        let _ = self.http3.check().map_err(|misfit| note(misfit, "http3"));
        if let Some(admin) = &self.admin {
            let _ = admin.check().map_err(|misfit| note(misfit, "admin"));
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
        let freshness = self.early_data.freshness;
        if self.store.is_some() && freshness > MAX_TICKET_AGE_SKEW {
            let reason = "with a store, freshness may be more than 0s and up to 60s";
            note(SettingError::new("freshness", reason), "early_data");
        }
        if self.process.workers == Some(0) {
            let reason = "0 worker threads would serve nobody; allowed is 1 and more";
            note(SettingError::new("workers", reason), "process");
        }
        let sampled = self.telemetry.as_ref().map(|telemetry| telemetry.traces_sampled);
        if sampled.is_some_and(|part| !(0.0..=1.0).contains(&part)) {
            let reason = "traces_sampled is a part of all requests; allowed are 0 to 1";
            note(SettingError::new("traces_sampled", reason), "telemetry");
        }
        misfits.extend(self.listener_misfits());
        misfits.extend(self.acme_misfits());
        if let Content::Sites(sites) = &self.content {
            misfits.extend(site_misfits(sites));
        }
        misfits
    }

    fn listener_misfits(&self) -> Vec<SettingError> {
        let mut taken = BTreeSet::new();
        let mut misfits = Vec::new();
        for (at, listener) in self.listeners.iter().enumerate() {
            let address = listener.address;
            if address.port() != 0 && !taken.insert(address) {
                let reason = format!("{address} is listened on twice; keep one");
                misfits.push(SettingError::new("address", reason).under_index("listener", at));
            }
        }
        let redirects = |one: &crate::Listener| one.protocol == ListenerProtocol::Redirect;
        if !self.listeners.is_empty() && self.listeners.iter().all(redirects) {
            let reason = "every listener redirects to https, but none speaks it; add one with \
                          protocol = \"https\"";
            misfits.push(SettingError::new("protocol", reason).under_index("listener", 0));
        }
        misfits
    }
}

fn site_misfits(sites: &Sites) -> Vec<SettingError> {
    let mut misfits = Vec::new();
    let mut names = HashMap::new();
    for (at, site) in sites.sites.iter().enumerate() {
        let here =
            names_misfits(site, at, &mut names).into_iter().chain(routes_misfits(site, sites));
        misfits.extend(here.map(|misfit| misfit.under_index("site", at)));
    }
    for (name, pool) in &sites.upstreams {
        if let Err(error) = pool.check() {
            let misfit = match &error {
                PoolError::Setting { key, reason } => SettingError::new(*key, *reason),
                error => SettingError::here(error.to_string()),
            };
            misfits.push(misfit.under(name.clone()).under("upstream"));
        }
    }
    misfits
}

/// `taken`: the names of the sites before.
fn names_misfits<'a>(
    site: &'a Site,
    at: usize,
    taken: &mut HashMap<&'a str, usize>,
) -> Vec<SettingError> {
    let mut misfits = Vec::new();
    if site.names.is_empty() && at > 0 {
        let reason = "no client would reach this site, which is neither the first nor has a name; \
                      give names = [\"example.test\"]";
        misfits.push(SettingError::new("names", reason));
    }
    for name in &site.names {
        if !is_host_name(name) {
            let reason = format!(
                "{name:?} is no host name; allowed are such as \"example.test\" and \
                 \"*.example.test\""
            );
            misfits.push(SettingError::new("names", reason));
        } else if let Some(other) = taken.insert(name, at) {
            let reason = match other == at {
                true => format!("{name:?} is named twice; keep one"),
                false => format!("{name:?} is the name of an earlier site; keep one"),
            };
            misfits.push(SettingError::new("names", reason));
        }
    }
    misfits
}

fn routes_misfits(site: &Site, sites: &Sites) -> Vec<SettingError> {
    if site.routes.is_empty() {
        let reason = "the site has no route, so nothing answers; add one with [[site.route]]";
        return vec![SettingError::new("route", reason)];
    }
    let mut misfits = Vec::new();
    let mut paths = Prefixes::default();
    for (at, route) in site.routes.iter().enumerate() {
        let misfit = match paths.insert(&route.path, ()) {
            Err(error) => Some(SettingError::new("path", error.to_string())),
            Ok(Some(())) => {
                let reason = format!("{:?} is the path of an earlier route; keep one", route.path);
                Some(SettingError::new("path", reason))
            }
            Ok(None) => route_misfit(route, sites),
        };
        misfits.extend(misfit.map(|misfit| misfit.under_index("route", at)));
    }
    misfits
}

fn route_misfit(route: &Route, sites: &Sites) -> Option<SettingError> {
    if let Action::Upstream(name) = &route.action
        && !sites.upstreams.contains_key(name)
    {
        let known: Vec<_> = sites.upstreams.keys().map(String::as_str).collect();
        let mend = match nearest(name, &known) {
            Some(known) => format!("did you mean {known:?}?"),
            None => format!("give it a section [upstream.{name}]"),
        };
        return Some(SettingError::new(
            "upstream",
            format!("there is no upstream {name:?}; {mend}"),
        ));
    }
    if let Action::Files(files) = &route.action
        && let Some(other) =
            files.precompressed.iter().find(|one| ENCODINGS.iter().all(|(name, _)| name != one))
    {
        let reason = format!(
            "{other:?} is no encoding of files; allowed are \"br\", \"gzip\", \"zstd\" and \
             \"deflate\""
        );
        return Some(SettingError::new("precompressed", reason));
    }
    early_misfit(&route.early)
}

/// How long names are remembered: each takes memory, and less is no protection.
fn early_misfit(rules: &EarlyRules) -> Option<SettingError> {
    let out_of = |key, time: Option<Duration>, least: Duration| {
        let time = time?;
        let reason = format!(
            "{key} is out of bounds; allowed are {} to 168h",
            firstflight_units::print_duration(least)
        );
        let fits = (least..=MAX_RECORD_LIFE).contains(&time);
        (!fits).then(|| SettingError::new(key, reason))
    };
    let key = out_of("idempotency_key", rules.idempotency_key, Duration::from_secs(60));
    let window = rules.timestamp.as_ref().map(|rule| rule.window);
    let window = out_of("window", window, Duration::from_secs(1));
    let lifetime = rules.nonce.as_ref().map(|rule| rule.lifetime);
    let lifetime = out_of("lifetime", lifetime, Duration::from_secs(1));
    key.or(window.map(|misfit| misfit.under("timestamp")))
        .or(lifetime.map(|misfit| misfit.under("nonce")))
}

/// A name as certificates and URLs have it, or an address.
fn is_host_name(name: &str) -> bool {
    let name = name.strip_prefix("*.").unwrap_or(name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// As long as a ticket lives at most: an early copy of a request cannot come later.
const MAX_RECORD_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
