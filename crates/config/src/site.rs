//! What is served: sites by name, routes by path, and what each of them does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_units::{DurationText, Text};
use firstflight_upstream::{InvalidAddress, PoolConfig};
use http::{HeaderName, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CertificateSource, Mode};

/// What is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// HTTP.
    Sites(Sites),
    /// `PONG` for each `PING`, without HTTP: the lab's measure of round trips.
    PingPong,
}

/// Sites, and the upstreams that their routes name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// The first is for clients that name no site, or an unknown one.
    pub sites: Vec<Site>,
    /// Upstreams by name.
    pub upstreams: BTreeMap<String, PoolConfig>,
}

/// What is served under some names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Host names; `*.example.test` stands for all names with one label more. Tickets are good for
    /// the site with the same first name.
    pub names: Vec<String>,
    /// Where certificate and key come from; `None`: from where the server's do.
    pub certificate: Option<CertificateSource>,
    /// A file with an OCSP response, DER, to staple (RFC 6066 section 8).
    pub ocsp: Option<PathBuf>,
    /// Fields that each response gets, in place of those of the same names; an empty value removes
    /// the field.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The longest path that is a prefix of the request's, by whole segments, decides.
    pub routes: Vec<Route>,
}

/// What becomes of the requests below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path, decoded, from the root, as [`crate::Policy::rule`] has it.
    pub path: String,
    /// What answers.
    pub action: Action,
    /// The same as the site's, beside them; for a name that both have, this counts.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// What may run from early data.
    pub early: EarlyRules,
}

/// What answers a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The files below a directory.
    Files(FileSettings),
    /// An upstream, by its name in [`Sites::upstreams`].
    Upstream(String),
    /// A redirect.
    Redirect(Redirect),
    /// A response without more than a line of text.
    Status(StatusCode),
}

/// Files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// The directory; the request's whole path is looked up below it.
    pub root: PathBuf,
    /// Encodings whose ready-made variants (`page.html.br`) are sent to clients that take them:
    /// [`ENCODINGS`]. Default none: each costs a look at the disk.
    pub precompressed: Vec<String>,
    /// Whether symbolic links are followed out of the directory. Default no: within it they are
    /// followed, if they are relative.
    pub follow_symlinks: bool,
}

/// The encodings that files may be there in (RFC 9110 section 8.4.1), with the ends of their names.
pub const ENCODINGS: [(&str, &str); 4] =
    [("br", ".br"), ("gzip", ".gz"), ("zstd", ".zst"), ("deflate", ".zz")];

/// A redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Where to: a URL or a path. The request's path and query are not added.
    pub to: HeaderValue,
    /// 301, 302, 303, 307 or 308. Default 308, which keeps the method.
    pub status: StatusCode,
}

/// What may run from early data on a route. `Default`: what holds for the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EarlyRules {
    /// By method; `None`: as `[early_data]` says.
    pub mode: Option<Mode>,
    /// Requests of any method with an `Idempotency-Key` may run early, and each key runs one
    /// request within this time.
    pub idempotency_key: Option<Duration>,
    /// An early request has to carry a fresh time stamp, or is held.
    pub timestamp: Option<Timestamp>,
    /// An early request has to carry a nonce that was not seen before, or is held.
    pub nonce: Option<Nonce>,
    /// The field by which the upstream learns in which flight a request came.
    pub flight_header: Option<HeaderName>,
}

/// A field with the time at which a request was made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timestamp {
    /// The field's name. Its value is a time by RFC 3339, or seconds since 1970.
    #[serde(with = "Text::<HeaderName>")]
    pub header: HeaderName,
    /// How far it may be off, both ways, 1s to 168h.
    #[serde(with = "DurationText")]
    pub window: Duration,
}

/// A field that no two requests share.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nonce {
    /// The field's name. Its value has 1 to 128 bytes.
    #[serde(with = "Text::<HeaderName>")]
    pub header: HeaderName,
    /// How long it is remembered, 1s to 168h.
    #[serde(with = "DurationText")]
    pub lifetime: Duration,
}

impl Content {
    /// The files below a directory, under any name.
    pub fn files(root: impl Into<PathBuf>) -> Self {
        Self::one(Action::Files(FileSettings::new(root)), BTreeMap::new())
    }

    /// What the HTTP server at an address (`http://HOST:PORT`, `unix:/PATH`) answers, under any
    /// name.
    ///
    /// # Errors
    /// [`InvalidAddress`].
    pub fn upstream(address: &str) -> Result<Self, InvalidAddress> {
        let pool = PoolConfig::new(vec![address.parse()?]);
        let name = "upstream".to_owned();
        Ok(Self::one(Action::Upstream(name.clone()), BTreeMap::from([(name, pool)])))
    }

    fn one(action: Action, upstreams: BTreeMap<String, PoolConfig>) -> Self {
        let sites = vec![Site::new(vec![Route::new("/", action)])];
        Self::Sites(Sites { sites, upstreams })
    }
}

impl FileSettings {
    /// The files below a directory, as they are.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), precompressed: Vec::new(), follow_symlinks: false }
    }
}

impl Site {
    /// A site with these routes, the server's certificate and no headers.
    pub fn new(routes: Vec<Route>) -> Self {
        Self { names: Vec::new(), certificate: None, ocsp: None, headers: Vec::new(), routes }
    }
}

impl Route {
    /// A route without headers or rules of its own.
    pub fn new(path: impl Into<String>, action: Action) -> Self {
        Self { path: path.into(), action, headers: Vec::new(), early: EarlyRules::default() }
    }
}
