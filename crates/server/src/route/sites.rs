//! Selects the site of a request and checks that the connection's certificate covers it.
//!
//! # The host selects the site, the server name the certificate
//!
//! What may run as early data must follow from the request alone, so the request's host selects its
//! site, not the server name of the connection. A client may use one connection for every name that
//! its certificate covers (RFC 9110 section 7.4). Requests for other names get 421 (Misdirected
//! Request).

use std::sync::Arc;

use firstflight_config::ServerConfig;
use firstflight_tls::{HostMap, Identities};
use http::{Request, Response, StatusCode};

use crate::ServerError;
use crate::context::ResponseBody;
use crate::handler::proxy::Pools;
use crate::handler::response::plain;
use crate::route::early::RouteRules;
use crate::route::routes::{ReadyRoute, ReadySite};
use crate::route::validation;

/// All sites of one configuration.
pub(crate) struct Sites {
    /// The first one also serves unknown names.
    sites: Vec<Arc<ReadySite>>,
    names: HostMap<usize>,
}

/// The certificate that a connection's client has received.
pub(crate) struct PresentedCertificates<'a> {
    /// The server name that it requested (SNI).
    pub(crate) server_name: Option<&'a str>,
    /// The certificates from which it was selected.
    pub(crate) identities: &'a Identities,
}

/// The site that a request belongs to by its host, and the route by its path.
pub(crate) struct SiteMatch {
    /// `None`: the request's host is invalid.
    site: Option<Arc<ReadySite>>,
    route: Option<Arc<ReadyRoute>>,
    /// Whether the path differs only in case from another route's, which some servers treat as
    /// equal.
    differs_in_case: bool,
    refusal: Option<Refusal>,
}

/// Why no route handles a request.
enum Refusal {
    /// No site handles it on this connection.
    Connection(StatusCode),
    /// Its site has no route for it. The response has the site's fields.
    Path(StatusCode),
}

impl Sites {
    /// Checks the settings of all sites.
    ///
    /// # Errors
    /// [`ServerError::Root`], [`ServerError::Tls`] for names, or [`ServerError::Config`].
    pub(crate) fn new(
        content: &firstflight_config::Sites,
        config: &ServerConfig,
        pools: &Pools,
    ) -> Result<Self, ServerError> {
        let (mut sites, mut names) = (Vec::new(), HostMap::default());
        for (index, site) in content.sites.iter().enumerate() {
            sites.push(Arc::new(ReadySite::new(site, config, pools)?));
            for name in &site.names {
                names.add(name, index)?;
            }
        }
        Ok(Self { sites, names })
    }

    /// Finds the site and the route of a request.
    pub(crate) fn find<B>(
        &self,
        request: &Request<B>,
        presented: &PresentedCertificates<'_>,
    ) -> SiteMatch {
        let Ok(host) = validation::host(request) else {
            return SiteMatch::refused(None, StatusCode::BAD_REQUEST);
        };
        let requested = self.index(host.as_deref());
        let Some(site) = self.sites.get(requested) else {
            return SiteMatch::refused(None, StatusCode::NOT_FOUND);
        };
        let mut found = SiteMatch::in_site(site, request.uri().path());
        // A whole URL is sent to a proxy, and this server is not a proxy for unknown names.
        let names_other_host = validation::is_absolute(request)
            && host.as_deref().is_some_and(|host| {
                self.names.get(host).is_none()
                    && !presented.server_name.is_some_and(|name| name.eq_ignore_ascii_case(host))
            });
        if names_other_host || requested != self.index(presented.server_name) {
            // RFC 9110 section 7.4: a client may use one connection for all names that its
            // certificate covers, and for no others.
            let identity = presented.identities.for_name(presented.server_name);
            if !host.is_some_and(|host| identity.covers(&host)) {
                found.refusal = Some(Refusal::Connection(StatusCode::MISDIRECTED_REQUEST));
            }
        }
        found
    }

    /// Whether a site has this name. Without named sites, every host is known.
    pub(crate) fn is_known_host(&self, host: &str) -> bool {
        self.names.is_empty() || self.names.get(host).is_some()
    }

    fn index(&self, name: Option<&str>) -> usize {
        name.and_then(|name| self.names.get(name)).copied().unwrap_or(0)
    }
}

impl SiteMatch {
    fn refused(site: Option<Arc<ReadySite>>, status: StatusCode) -> Self {
        let refusal = Some(Refusal::Connection(status));
        Self { site, route: None, differs_in_case: false, refusal }
    }

    fn in_site(site: &Arc<ReadySite>, path: &str) -> Self {
        let (route, differs_in_case) = site.find(path);
        let (route, refusal) = match route {
            Ok(route) => (Some(route.clone()), None),
            Err(status) => (None, Some(Refusal::Path(status))),
        };
        Self { site: Some(site.clone()), route, differs_in_case, refusal }
    }

    /// Whether the request may run as early data. Not if its path differs only in case from another
    /// route's: an upstream that treats them as equal would bypass that route's rules.
    pub(crate) fn may_run_early<B>(&self, request: &Request<B>) -> bool {
        let Some(site) = self.site.as_ref().filter(|_| !self.differs_in_case) else { return false };
        let mode = site.mode(request.uri().path());
        match &self.route {
            Some(route) => route.rules().may_run_early(request, mode),
            None => RouteRules::default().may_run_early(request, mode),
        }
    }

    /// The route that handles the request.
    pub(crate) fn route(&self) -> Option<&ReadyRoute> {
        self.route.as_deref().filter(|_| self.refusal.is_none())
    }

    /// The response if no route handles the request.
    pub(crate) fn refusal(&self) -> Response<ResponseBody> {
        let (status, site) = match &self.refusal {
            Some(Refusal::Path(status)) => (*status, self.site.as_ref()),
            Some(Refusal::Connection(status)) => (*status, None),
            None => (StatusCode::NOT_FOUND, None),
        };
        let mut response = plain(status);
        if let Some(site) = site {
            site.apply(response.headers_mut());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use firstflight_config::{Action, Content, Mode, Route, Site};
    use firstflight_tls::{Identity, IdentityEntry};
    use http::header;

    use super::*;

    const ONE: &[&str] = &["one.test", "www.one.test"];
    const TWO: &[&str] = &["two.test", "*.two.test"];

    /// Two sites that respond with 201 and 202. The first one's certificate also covers
    /// `a.two.test`.
    fn sites() -> (Sites, Identities) {
        let site = |names: &[&str], code| Site {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            ..Site::new(vec![Route::new("/", Action::Status(code))])
        };
        let sites = vec![site(ONE, StatusCode::CREATED), site(TWO, StatusCode::ACCEPTED)];
        let content = firstflight_config::Sites { sites, upstreams: BTreeMap::new() };
        let config = ServerConfig::new("[::1]:0".parse().unwrap(), Content::files("/"));
        let one = entry(ONE, &["one.test", "www.one.test", "a.two.test"]);
        let identities = Identities::new(one, vec![entry(TWO, TWO)]).unwrap();
        (Sites::new(&content, &config, &Pools::new()).unwrap(), identities)
    }

    fn entry(names: &[&str], covered: &[&str]) -> IdentityEntry {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let made = rcgen::generate_simple_self_signed(owned(covered)).unwrap();
        let key = made.signing_key.serialize_pem();
        let identity = Identity::from_pem(made.cert.pem().as_bytes(), key.as_bytes()).unwrap();
        IdentityEntry::new(owned(names), identity)
    }

    fn code(sites: &(Sites, Identities), server_name: Option<&str>, host: &str) -> u16 {
        let request = Request::builder().uri("/").header(header::HOST, host).body(()).unwrap();
        chosen(sites, server_name, &request)
    }

    fn chosen(
        (sites, identities): &(Sites, Identities),
        server_name: Option<&str>,
        request: &Request<()>,
    ) -> u16 {
        let found = sites.find(request, &PresentedCertificates { server_name, identities });
        match (&found.refusal, &found.route) {
            (Some(Refusal::Connection(status) | Refusal::Path(status)), _) => status.as_u16(),
            (None, route) => route.as_ref().unwrap().code().as_u16(),
        }
    }

    #[test]
    fn rfc9110_7_4_the_host_selects_the_site_if_the_certificate_covers_it() {
        let sites = sites();
        for (server_name, host, expected) in [
            (Some("one.test"), "one.test", 201),
            (Some("one.test"), "www.one.test:8443", 201),
            (Some("ONE.test"), "One.Test.", 201),
            (Some("two.test"), "two.test", 202),
            (Some("x.two.test"), "y.two.test", 202),
            // Names that the certificate does not cover.
            (Some("one.test"), "two.test", 421),
            (Some("two.test"), "one.test", 421),
            (None, "two.test", 421),
            // Names that it covers.
            (Some("one.test"), "a.two.test", 202),
            (None, "a.two.test", 202),
            // Unknown names belong to the first site.
            (None, "one.test", 201),
            (None, "192.0.2.1", 201),
            (Some("unknown.test"), "else.test", 201),
            (Some("unknown.test"), "one.test", 201),
            (Some("two.test"), "unknown.test", 421),
            (Some("one.test"), "bad name", 400),
        ] {
            assert_eq!(code(&sites, server_name, host), expected, "{server_name:?} {host}");
        }
    }

    #[test]
    fn rfc9110_7_4_an_absolute_url_must_name_this_server() {
        let sites = sites();
        for (server_name, authority, expected) in [
            (Some("one.test"), "one.test", 201),
            (Some("one.test"), "ONE.test:8443", 201),
            (Some("one.test"), "a.two.test", 202),
            (Some("one.test"), "two.test", 421),
            (Some("one.test"), "else.test", 421),
            (Some("two.test"), "else.test", 421),
            (None, "else.test", 421),
            (None, "192.0.2.1", 421),
            (None, "www.one.test", 201),
            // The server name of the connection is accepted, whichever certificate was sent.
            (Some("unknown.test"), "unknown.test", 201),
            (Some("unknown.test"), "else.test", 421),
        ] {
            let request = Request::builder().uri(format!("http://{authority}/"));
            let request = request.header(header::HOST, "one.test").body(()).unwrap();
            let code = chosen(&sites, server_name, &request);
            assert_eq!(code, expected, "{server_name:?} {authority}");
        }
    }

    #[test]
    fn a_routes_mode_is_part_of_the_sites_policy() {
        let mut pay = Route::new("/pay", Action::Status(StatusCode::OK));
        pay.early.mode = Some(Mode::Disabled);
        let root = Route::new("/", Action::Status(StatusCode::OK));
        let config = ServerConfig::new("[::1]:0".parse().unwrap(), Content::files("/"));
        let site = Site::new(vec![root, pay]);
        let site = Arc::new(ReadySite::new(&site, &config, &Pools::new()).unwrap());
        for (path, may) in [("/", true), ("/pay/1", false), ("/x/../pay", false), ("/PAY", false)] {
            let request = Request::builder().uri(path).body(()).unwrap();
            assert_eq!(SiteMatch::in_site(&site, path).may_run_early(&request), may, "{path}");
        }
    }
}
