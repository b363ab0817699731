//! The sections `[[site.route]]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use firstflight_units::{OptionalDurationText, OptionalText};
use http::{HeaderName, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::beside;
use super::fields::Fields;
use crate::{
    Action, EarlyRules, FileSettings, Mode, Nonce, Redirect, Route, SettingError, Timestamp,
};

/// What becomes of the requests below a path: exactly one of `root`, `upstream`, `redirect` and
/// `status`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RouteSection {
    /// The path, decoded, from the root. The longest path that is a prefix of the request's, by
    /// whole segments, decides.
    ///
    /// By default all that no other route has.
    pub(crate) path: String,
    /// A directory whose files are served. The request's whole path is looked up below it.
    pub(crate) root: Option<PathBuf>,
    /// The name of an upstream that answers, of a section `[upstream.NAME]`.
    pub(crate) upstream: Option<String>,
    /// A URL or path to which clients are sent. The request's path and query are not added.
    pub(crate) redirect: Option<String>,
    /// The status of a response without more than a line of text, 200 to 599; beside `redirect`,
    /// its status: 301, 302, 303, 307 or 308.
    ///
    /// A redirect has by default 308, which keeps the method.
    pub(crate) status: Option<u16>,
    /// Beside `root`: encodings whose ready-made variants (`page.html.br`) are sent to clients that
    /// take them, of `"br"`, `"gzip"`, `"zstd"` and `"deflate"`.
    ///
    /// By default none: each costs a look at the disk.
    pub(crate) precompressed: Vec<String>,
    /// Beside `root`: whether symbolic links are followed out of the directory. Within it they are
    /// followed, if they are relative.
    ///
    /// By default not: a link is then no way to files that were not meant to be served.
    pub(crate) follow_symlinks: bool,
    /// Fields that each response gets beside the site's; for a name that both have, this counts.
    pub(crate) headers: Fields,
    /// What may run from early data.
    ///
    /// By default what `[early_data]` says.
    pub(crate) early_data: Option<Mode>,
    /// Lets requests of any method run early that have an `Idempotency-Key`: within this time each
    /// key runs one request, so that a client's own retry executes once too. 1m to 168h.
    ///
    /// By default the method decides alone.
    #[serde(with = "OptionalDurationText")]
    pub(crate) idempotency_key: Option<Duration>,
    /// A field with the time at which a request was made. An early request has to have a fresh one,
    /// or is held.
    pub(crate) timestamp: Option<Timestamp>,
    /// A field that no two requests share. An early request has to have one that was not seen
    /// before, or is held.
    pub(crate) nonce: Option<Nonce>,
    /// Beside `upstream`: the name of a field that tells it in which flight a request came.
    ///
    /// By default it is told `Early-Data: 1` alone (RFC 8470).
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
        Ok(Route { path: self.path.clone(), action: self.action(base)?, headers, early })
    }

    fn action(self, base: &Path) -> Result<Action, SettingError> {
        self.check_company()?;
        if let Some(root) = self.root {
            let root = beside(base, root);
            let (precompressed, follow_symlinks) = (self.precompressed, self.follow_symlinks);
            return Ok(Action::Files(FileSettings { root, precompressed, follow_symlinks }));
        }
        if let Some(name) = self.upstream {
            return Ok(Action::Upstream(name));
        }
        match (self.redirect, self.status) {
            (Some(to), status) => redirect(&to, status).map(Action::Redirect),
            (None, Some(status)) => match StatusCode::from_u16(status) {
                Ok(code) if (200..600).contains(&status) => Ok(Action::Status(code)),
                _ => Err(SettingError::new("status", "a route's status is one of 200 to 599")),
            },
            (None, None) => Err(SettingError::here(
                "the route has no response; give root = \"DIR\", upstream = \"NAME\", redirect = \
                 \"URL\" or status = 404",
            )),
        }
    }

    /// Keys that exclude each other, or have no meaning alone.
    fn check_company(&self) -> Result<(), SettingError> {
        let actions = [
            ("root", self.root.is_some()),
            ("upstream", self.upstream.is_some()),
            ("redirect", self.redirect.is_some()),
            ("status", self.status.is_some() && self.redirect.is_none()),
        ];
        let mut given = actions.into_iter().filter(|(_, given)| *given).map(|(key, _)| key);
        if let (Some(one), Some(other)) = (given.next(), given.next()) {
            let reason = format!("a route has one answer, but this has {one} and {other}");
            return Err(SettingError::new(other, reason));
        }
        let of_files = [
            ("precompressed", !self.precompressed.is_empty()),
            ("follow_symlinks", self.follow_symlinks),
        ];
        if let (None, Some((key, _))) = (&self.root, of_files.iter().find(|(_, given)| *given)) {
            return Err(SettingError::new(*key, format!("{key} is of use beside root alone")));
        }
        if self.flight_header.is_some() && self.upstream.is_none() {
            let reason = "flight_header is of use beside upstream alone";
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
            redirect: None,
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
    let not_there = "a redirect goes to a URL such as \"https://example.test/\" or a path such as \
                     \"/new\", in ASCII";
    let good = to.starts_with('/') || to.contains("://");
    let value = HeaderValue::from_str(to).ok().filter(|to| good && to.to_str().is_ok());
    let to = value.ok_or_else(|| SettingError::new("redirect", not_there))?;
    let status = status.unwrap_or(StatusCode::PERMANENT_REDIRECT.as_u16());
    match StatusCode::from_u16(status) {
        Ok(status) if REDIRECTS.contains(&status.as_u16()) => Ok(Redirect { to, status }),
        _ => Err(SettingError::new("status", "a redirect's status is 301, 302, 303, 307 or 308")),
    }
}

/// RFC 9110 section 15.4: those that have a `Location` to follow.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];
