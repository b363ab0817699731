//! What is served: sites by name, routes by path, and their actions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_units::{DurationText, Text};
use firstflight_upstream::{InvalidAddress, PoolConfig};
use http::{HeaderName, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CertificateSource, InvalidRulePath, Mode, Policy};

/// What is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// HTTP.
    Sites(Sites),
    /// `PONG` for each `PING`, without HTTP: the lab uses it to count round trips.
    PingPong,
}

/// Sites, and the upstreams that their routes refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// The first site is for clients that send no name, or an unknown one.
    pub sites: Vec<Site>,
    /// Upstreams by name.
    pub upstreams: BTreeMap<String, PoolConfig>,
}

/// What is served under some host names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Host names; `*.example.test` stands for all names with one more label. Tickets are valid for
    /// the site with the same first name.
    pub names: Vec<String>,
    /// The site's certificate; `None`: that of the server.
    pub certificate: Option<CertificateSource>,
    /// Further certificates for the same names, with keys of other kinds: chain and key.
    pub other_certificates: Vec<(PathBuf, PathBuf)>,
    /// A file with an OCSP response, DER, to staple (RFC 6066 section 8).
    pub ocsp: Option<PathBuf>,
    /// Header fields of all responses, replacing fields of the same names; an empty value removes
    /// the field.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The route with the longest prefix of the request's path, by whole segments, is used.
    pub routes: Vec<Route>,
}

/// What happens to the requests below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path prefix, as for [`crate::Policy::rule`].
    pub path: String,
    /// What produces the response.
    pub action: Action,
    /// Header fields in addition to the site's; for equal names this value is used.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// What may run from early data.
    pub early: EarlyRules,
    /// With [`Action::Upstream`]: what replaces the route's path in the path that is forwarded.
    pub rewrite: Option<String>,
    /// A file of users, as for [`crate::read_users`]; `None`: everybody is admitted.
    pub users: Option<PathBuf>,
    /// Whether responses are compressed on the fly.
    pub compress: bool,
    /// With [`Action::Upstream`]: whether its Early Hints (103, RFC 8297) are passed on.
    pub early_hints: bool,
    /// How many requests each client may send.
    pub rate_limit: Option<RateLimit>,
}

/// How many requests a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table such as { requests = 5, per = \"1s\" }")]
pub struct RateLimit {
    /// Number of requests, at least 1.
    pub requests: u32,
    /// Time for which they are allowed, 1ms to 24h.
    #[serde(with = "DurationText")]
    pub per: Duration,
    /// How many may come at once, at least 1.
    ///
    /// By default `requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// What produces the response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The files below a directory.
    Files(FileSettings),
    /// An upstream, by its name in [`Sites::upstreams`].
    Upstream(String),
    /// A redirect.
    Redirect(Redirect),
    /// A response with one line of text.
    Status(StatusCode),
}

/// How files are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// The directory below which the request's whole path is resolved.
    pub root: PathBuf,
    /// Encodings whose precompressed variants (`page.html.br`) are sent to clients that accept
    /// them: [`ENCODINGS`]. By default none: each costs a file lookup.
    pub precompressed: Vec<String>,
    /// Whether symbolic links may lead out of the directory. By default false; relative links
    /// within it are always followed.
    pub follow_symlinks: bool,
}

/// The encodings of precompressed files (RFC 9110 section 8.4.1), with their file name suffixes.
pub const ENCODINGS: [(&str, &str); 4] =
    [("br", ".br"), ("gzip", ".gz"), ("zstd", ".zst"), ("deflate", ".zz")];

/// A redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The URL or path of the `Location`.
    pub to: HeaderValue,
    /// Whether the request's path below that of the route, and its query, are appended.
    pub keep_path: bool,
    /// 301, 302, 303, 307 or 308. By default 308, which keeps the method.
    pub status: StatusCode,
}

/// What may run from early data on a route. `Default`: as for the whole server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EarlyRules {
    /// The mode; `None`: that of `[early_data]`.
    pub mode: Option<Mode>,
    /// Requests of any method with an `Idempotency-Key` may run early; each key runs one request
    /// within this time.
    pub idempotency_key: Option<Duration>,
    /// Early requests without a fresh timestamp are held.
    pub timestamp: Option<Timestamp>,
    /// Early requests without a new nonce are held.
    pub nonce: Option<Nonce>,
    /// The header field that tells the upstream in which flight a request arrived.
    pub flight_header: Option<HeaderName>,
}

/// A header field with the time at which a request was created.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timestamp {
    /// Name of the field. Its value is a time as in RFC 3339, or in Unix seconds.
    #[serde(with = "Text::<HeaderName>")]
    pub header: HeaderName,
    /// Maximum difference to the current time, in both directions, 1s to 168h.
    #[serde(with = "DurationText")]
    pub window: Duration,
}

/// A header field with a unique value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nonce {
    /// Name of the field. Its value has 1 to 255 bytes.
    #[serde(with = "Text::<HeaderName>")]
    pub header: HeaderName,
    /// How long values are remembered, 1s to 168h.
    #[serde(with = "DurationText")]
    pub lifetime: Duration,
}

impl Content {
    /// Serves the files below a directory, under any name.
    pub fn files(root: impl Into<PathBuf>) -> Self {
        Self::single_route(Action::Files(FileSettings::new(root)), BTreeMap::new())
    }

    /// Forwards to the HTTP server at an address (`http://HOST:PORT`, `unix:/PATH`), under any
    /// name.
    ///
    /// # Errors
    /// [`InvalidAddress`].
    pub fn upstream(address: &str) -> Result<Self, InvalidAddress> {
        let pool = PoolConfig::new(vec![address.parse()?]);
        let name = "upstream".to_owned();
        Ok(Self::single_route(Action::Upstream(name.clone()), BTreeMap::from([(name, pool)])))
    }

    fn single_route(action: Action, upstreams: BTreeMap<String, PoolConfig>) -> Self {
        let sites = vec![Site::new(vec![Route::new("/", action)])];
        Self::Sites(Sites { sites, upstreams })
    }
}

impl FileSettings {
    /// Serves the files below a directory, with the defaults.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), precompressed: Vec::new(), follow_symlinks: false }
    }
}

impl Site {
    /// A site with these routes, the server's certificate and no header fields.
    pub fn new(routes: Vec<Route>) -> Self {
        Self {
            names: Vec::new(),
            certificate: None,
            other_certificates: Vec::new(),
            ocsp: None,
            headers: Vec::new(),
            routes,
        }
    }

    /// Returns `policy` with the modes of this site's routes.
    ///
    /// # Errors
    /// [`InvalidRulePath`]: the path of a route.
    pub fn policy(&self, policy: &Policy) -> Result<Policy, InvalidRulePath> {
        let modes = self.routes.iter().filter_map(|route| Some((&route.path, route.early.mode?)));
        modes.into_iter().try_fold(policy.clone(), |policy, (path, mode)| policy.rule(path, mode))
    }

    /// Returns the rules of the routes for early data, by path; none if all routes have the
    /// default. Sites with equal rules let the same requests run early, since the other settings
    /// are the server's.
    pub fn early_rules(&self) -> Vec<(&str, &EarlyRules)> {
        let mut rules: Vec<_> =
            self.routes.iter().map(|route| (route.path.as_str(), &route.early)).collect();
        if rules.iter().all(|(_, rules)| **rules == EarlyRules::default()) {
            rules.clear();
        }
        rules.sort_by_key(|(path, _)| *path);
        rules
    }
}

impl Route {
    /// A route without header fields or rules of its own.
    pub fn new(path: impl Into<String>, action: Action) -> Self {
        Self {
            path: path.into(),
            action,
            headers: Vec::new(),
            early: EarlyRules::default(),
            rewrite: None,
            users: None,
            rate_limit: None,
            compress: false,
            early_hints: false,
        }
    }
}
