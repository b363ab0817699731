//! The sections `[[site]]` and `[[site.route]]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use firstflight_units::{OptionalDurationText, OptionalText};
use http::{HeaderName, HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::headers::{CONTROLLED_FIELDS, Fields, UPSTREAM_FIELDS};
use super::{resolve, tls};
use crate::{
    Action, CertificateSource, EarlyRules, FileSettings, Mode, Nonce, RateLimit, Redirect, Route,
    SettingError, Site, Timestamp,
};

/// What is served under some host names. The first site is for clients that send no name, or an
/// unknown one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SiteSection {
    /// Host names; `"*.example.test"` stands for all names with one more label. Only the first site
    /// may have none. Tickets are valid for the site with the same first name.
    pub(crate) names: Vec<String>,
    /// Certificate chain, PEM, leaf first.
    ///
    /// By default that of `[tls]`.
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub(crate) key: Option<PathBuf>,
    /// Further certificates for the same names, with other kinds of keys, such as `[{ certificate =
    /// "rsa.pem", key = "rsa.key" }]` beside ECDSA. A client gets the first whose signatures it
    /// supports.
    ///
    /// By default none: practically all clients support ECDSA.
    pub(crate) other_certificates: Vec<CertificateFiles>,
    /// Whether the certificate for all of `names` is ordered from the authority of `[acme]` and
    /// renewed automatically.
    ///
    /// By default false: it needs names that lead to this server, and agreement to the authority's
    /// terms.
    pub(crate) acme: bool,
    /// DER file with an OCSP response to staple (RFC 6066 section 8). Another program has to renew
    /// it; changes are picked up.
    pub(crate) ocsp: Option<PathBuf>,
    /// Header fields of all responses, such as `{ "Cache-Control" = "max-age=60" }`. They replace
    /// fields of the same names; an empty value removes the field.
    pub(crate) headers: Fields,
    /// The routes, at least one.
    pub(crate) route: Vec<RouteSection>,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CertificateFiles {
    /// Certificate chain, PEM, leaf first.
    pub(crate) certificate: PathBuf,
    /// Its private key, PEM.
    pub(crate) key: PathBuf,
}

impl SiteSection {
    /// Converts to a site, with all errors. An invalid route is replaced, so that later errors have
    /// the index of their section.
    pub(super) fn site(self, base: &Path) -> (Site, Vec<SettingError>) {
        let mut errors = Vec::new();
        let files = tls::certificate(self.certificate, self.key, base).unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        if self.acme && files.is_some() {
            let reason = "a site has either acme = true or a certificate; remove one";
            errors.push(SettingError::new("acme", reason));
        }
        if files.is_none() && !self.other_certificates.is_empty() {
            let reason = "other certificates are used beside certificate and key; add these";
            errors.push(SettingError::new("other_certificates", reason));
        }
        let others = self.other_certificates.into_iter();
        let others =
            others.map(|files| (resolve(base, files.certificate), resolve(base, files.key)));
        let mut routes = Vec::new();
        for (at, section) in self.route.into_iter().enumerate() {
            let path = section.path.clone();
            routes.push(section.route(base).unwrap_or_else(|error| {
                errors.push(error.under_index("route", at));
                Route::new(path, Action::Status(StatusCode::NOT_FOUND))
            }));
        }
        let site = Site {
            names: self.names.iter().map(|name| name.to_ascii_lowercase()).collect(),
            certificate: files.or(self.acme.then_some(CertificateSource::Acme)),
            other_certificates: others.collect(),
            ocsp: self.ocsp.map(|path| resolve(base, path)),
            headers: self.headers.0,
            routes,
        };
        (site, errors)
    }

    pub(super) fn of(site: &Site) -> Self {
        let (certificate, key) = tls::files(site.certificate.as_ref());
        Self {
            names: site.names.clone(),
            certificate,
            key,
            acme: site.certificate == Some(CertificateSource::Acme),
            other_certificates: site
                .other_certificates
                .iter()
                .cloned()
                .map(|(certificate, key)| CertificateFiles { certificate, key })
                .collect(),
            ocsp: site.ocsp.clone(),
            headers: Fields(site.headers.clone()),
            route: site.routes.iter().map(RouteSection::of).collect(),
        }
    }
}

/// What the server does with requests below a path: exactly one of `root`, `upstream`, `redirect`
/// and `status`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RouteSection {
    /// Path prefix, decoded, starting with a slash. The longest prefix of the request's path, by
    /// whole segments, decides.
    ///
    /// By default all paths without another route.
    pub(crate) path: String,
    /// Directory whose files are served. The request's whole path is resolved below it.
    pub(crate) root: Option<PathBuf>,
    /// Upstream to forward to: the name of a section `[upstream.NAME]`.
    pub(crate) upstream: Option<String>,
    /// With `upstream`: replaces the route's path in the forwarded path: `"/"` removes it, so that
    /// `/app/x` arrives as `/x`. Ambiguous paths get 400.
    ///
    /// By default paths are forwarded unchanged.
    pub(crate) rewrite: Option<String>,
    /// With `upstream`: whether its Early Hints (103, RFC 8297) are passed on: `Link` and the
    /// policies that browsers apply to it, from HTTP/1.1 upstreams to HTTP/1.1 and HTTP/3 clients.
    ///
    /// By default false: old HTTP/1.1 clients take a 103 for the response.
    pub(crate) early_hints: bool,
    /// URL or path to redirect clients to.
    pub(crate) redirect: Option<String>,
    /// With `redirect`: whether the request's path below the route's, and its query, are appended.
    /// Ambiguous paths get 400.
    ///
    /// By default false: all requests lead to one page.
    pub(crate) keep_path: bool,
    /// Status of a response with one line of text, 200 to 599; with `redirect`, that of the
    /// redirect: 301, 302, 303, 307 or 308.
    ///
    /// By default 308 for a redirect, which keeps the method.
    pub(crate) status: Option<u16>,
    /// With `root`: encodings whose precompressed variants (`page.html.br`) are sent to clients
    /// that accept them: `"br"`, `"gzip"`, `"zstd"`, `"deflate"`.
    ///
    /// By default none: each costs a file lookup.
    pub(crate) precompressed: Vec<String>,
    /// With `root`: whether symbolic links may lead out of the directory. Relative links within it
    /// are always followed.
    ///
    /// By default false, so that links cannot expose other files.
    pub(crate) follow_symlinks: bool,
    /// File of users (`htpasswd -B`) for basic authentication (RFC 7617). Others get 401. A reload
    /// picks up changes.
    ///
    /// By default everybody is admitted.
    pub(crate) users: Option<PathBuf>,
    /// How many requests each client may send, such as `{ requests = 100, per = "1m", burst = 20
    /// }`; others get 429. A client is an IPv4 address or a /64 network of IPv6; the last 65,536
    /// are known, until a reload.
    ///
    /// By default there is no limit.
    pub(crate) rate_limit: Option<RateLimit>,
    /// Whether text, JSON, scripts and the like of 1 KiB and more are compressed on the fly, by
    /// zstd, Brotli or gzip as the client accepts.
    ///
    /// By default false: it costs CPU, and a response's length reveals secrets beside an attacker's
    /// input (BREACH).
    pub(crate) compress: bool,
    /// Header fields of this route's responses, in addition to the site's; for equal names these
    /// are used.
    pub(crate) headers: Fields,
    /// What may run from early data.
    ///
    /// By default the mode of `[early_data]`.
    pub(crate) early_data: Option<Mode>,
    /// Unsafe requests with an `Idempotency-Key` may run early, unless the mode is `disabled`: each key
    /// runs one request within this time, so a client's own retry executes once too. 1m to 168h.
    ///
    /// By default only the method decides.
    #[serde(with = "OptionalDurationText")]
    pub(crate) idempotency_key: Option<Duration>,
    /// Early requests without a fresh time of creation in a header field are held.
    pub(crate) timestamp: Option<Timestamp>,
    /// Early requests without a value in a header field are held; a used value gets 425 if early, else
    /// 409.
    pub(crate) nonce: Option<Nonce>,
    /// With `upstream`: name of a header field that tells it in which flight a request arrived.
    ///
    /// By default the upstream receives only `Early-Data: 1` (RFC 8470).
    #[serde(with = "OptionalText::<HeaderName>")]
    pub(crate) flight_header: Option<HeaderName>,
}

impl RouteSection {
    pub(super) fn route(self, base: &Path) -> Result<Route, SettingError> {
        let early = EarlyRules {
            mode: self.early_data,
            idempotency_key: self.idempotency_key,
            timestamp: self.timestamp.clone(),
            nonce: self.nonce.clone(),
            flight_header: self.flight_header.clone(),
        };
        let headers = self.headers.0.clone();
        let (rewrite, rate_limit) = (self.rewrite.clone(), self.rate_limit);
        let (compress, early_hints) = (self.compress, self.early_hints);
        let users = self.users.clone().map(|file| resolve(base, file));
        let path = self.path.clone();
        let action = self.action(base)?;
        Ok(Route {
            path,
            action,
            headers,
            early,
            rewrite,
            users,
            compress,
            early_hints,
            rate_limit,
        })
    }

    fn action(self, base: &Path) -> Result<Action, SettingError> {
        self.check_combination()?;
        if let Some(root) = self.root {
            let root = resolve(base, root);
            let (precompressed, follow_symlinks) = (self.precompressed, self.follow_symlinks);
            return Ok(Action::Files(FileSettings { root, precompressed, follow_symlinks }));
        }
        if let Some(name) = self.upstream {
            return Ok(Action::Upstream(name));
        }
        match (self.redirect, self.status) {
            (Some(to), status) => {
                let redirect = redirect(&to, status)?;
                Ok(Action::Redirect(Redirect { keep_path: self.keep_path, ..redirect }))
            }
            (None, Some(status)) => match StatusCode::from_u16(status) {
                Ok(code) if (200..600).contains(&status) => Ok(Action::Status(code)),
                _ => Err(SettingError::new("status", "a route's status is one of 200 to 599")),
            },
            (None, None) => Err(SettingError::section(
                "the route does nothing; add root = \"DIR\", upstream = \"NAME\", redirect = \
                 \"URL\" or status = 404",
            )),
        }
    }

    /// Checks that keys are used in a valid combination.
    fn check_combination(&self) -> Result<(), SettingError> {
        let actions = [
            ("root", self.root.is_some()),
            ("upstream", self.upstream.is_some()),
            ("redirect", self.redirect.is_some()),
            ("status", self.status.is_some() && self.redirect.is_none()),
        ];
        let mut set = actions.into_iter().filter(|(_, set)| *set).map(|(key, _)| key);
        if let (Some(first), Some(second)) = (set.next(), set.next()) {
            let reason = format!("a route has only one of {first} and {second}; remove one");
            return Err(SettingError::new(second, reason));
        }
        let root_keys = [
            ("precompressed", !self.precompressed.is_empty()),
            ("follow_symlinks", self.follow_symlinks),
        ];
        if let (None, Some((key, _))) = (&self.root, root_keys.iter().find(|(_, set)| *set)) {
            return Err(SettingError::new(*key, format!("{key} is only allowed with root")));
        }
        let upstream_keys = [
            ("flight_header", self.flight_header.is_some()),
            ("rewrite", self.rewrite.is_some()),
            ("early_hints", self.early_hints),
        ];
        if let (None, Some((key, _))) = (&self.upstream, upstream_keys.iter().find(|(_, set)| *set))
        {
            return Err(SettingError::new(*key, format!("{key} is only allowed with upstream")));
        }
        let has_query_or_fragment = self.redirect.as_deref().map(|to| to.contains(['?', '#']));
        let problem = match (self.keep_path, has_query_or_fragment) {
            (true, None) => "keep_path is only allowed with redirect",
            (true, Some(true)) => {
                "keep_path appends the request's path and query, so redirect has no query and no \
                 fragment of its own"
            }
            _ => return self.check_flight_header(),
        };
        Err(SettingError::new("keep_path", problem))
    }

    fn check_flight_header(&self) -> Result<(), SettingError> {
        if let Some(name) = &self.flight_header
            && (CONTROLLED_FIELDS.contains(name)
                || UPSTREAM_FIELDS.contains(&name.as_str())
                || CREDENTIALS.contains(name))
        {
            let reason = format!("the field {name} has a meaning of its own; choose another name");
            return Err(SettingError::new("flight_header", reason));
        }
        Ok(())
    }

    pub(super) fn of(route: &Route) -> Self {
        let mut section = Self {
            path: route.path.clone(),
            headers: Fields(route.headers.clone()),
            early_data: route.early.mode,
            idempotency_key: route.early.idempotency_key,
            timestamp: route.early.timestamp.clone(),
            nonce: route.early.nonce.clone(),
            flight_header: route.early.flight_header.clone(),
            rewrite: route.rewrite.clone(),
            users: route.users.clone(),
            rate_limit: route.rate_limit,
            compress: route.compress,
            early_hints: route.early_hints,
            ..Self::default()
        };
        match &route.action {
            Action::Files(files) => {
                section.root = Some(files.root.clone());
                section.precompressed = files.precompressed.clone();
                section.follow_symlinks = files.follow_symlinks;
            }
            Action::Upstream(name) => section.upstream = Some(name.clone()),
            Action::Redirect(redirect) => {
                section.redirect = Some(String::from_utf8_lossy(redirect.to.as_bytes()).into());
                section.status = Some(redirect.status.as_u16());
                section.keep_path = redirect.keep_path;
            }
            Action::Status(status) => section.status = Some(status.as_u16()),
        }
        section
    }
}

impl Default for RouteSection {
    fn default() -> Self {
        Self {
            path: "/".to_owned(),
            root: None,
            upstream: None,
            rewrite: None,
            redirect: None,
            keep_path: false,
            users: None,
            rate_limit: None,
            compress: false,
            early_hints: false,
            status: None,
            precompressed: Vec::new(),
            follow_symlinks: false,
            headers: Fields::default(),
            early_data: None,
            idempotency_key: None,
            timestamp: None,
            nonce: None,
            flight_header: None,
        }
    }
}

fn redirect(to: &str, status: Option<u16>) -> Result<Redirect, SettingError> {
    let expected = "redirect is a URL such as \"https://example.test/\" or a path such as \
                     \"/new\", in ASCII";
    if to.contains('$') {
        let reason = "a redirect has no variables; keep_path = true appends the request's path below \
                      the route's, and its query";
        return Err(SettingError::new("redirect", reason));
    }
    let host = to.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    let is_path = to.starts_with('/') && !to.contains("://");
    let good = (is_path || host.is_some_and(|host| !host.is_empty()))
        && to.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::from_str(to).ok().filter(|to| good && to.to_str().is_ok());
    let to = value.ok_or_else(|| SettingError::new("redirect", expected))?;
    let status = status.unwrap_or(StatusCode::PERMANENT_REDIRECT.as_u16());
    match StatusCode::from_u16(status) {
        Ok(status) if REDIRECTS.contains(&status.as_u16()) => {
            Ok(Redirect { to, keep_path: false, status })
        }
        _ => Err(SettingError::new("status", "a redirect's status is 301, 302, 303, 307 or 308")),
    }
}

/// Fields by which upstreams identify the user.
const CREDENTIALS: [HeaderName; 2] = [header::AUTHORIZATION, header::COOKIE];

/// The redirects of RFC 9110 section 15.4 with a `Location` to follow.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];
