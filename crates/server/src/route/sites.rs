//! Sites: which of them a request is for, and whether its connection is one of that site's.

use bytes::Bytes;
use firstflight_config::ServerConfig;
use firstflight_tls::{Identities, Names};
use http::{Request, Response, StatusCode};
use http_body::Body;

use crate::ServerError;
use crate::handler::proxy::Forwarding;
use crate::handler::response::{BodyError, ResponseBody, plain};
use crate::handler::upstreams::Pools;
use crate::http::connection::Connection;
use crate::route::authority;
use crate::route::early::RouteRules;
use crate::route::routes::{ReadyRoute, ReadySite};

/// All sites of one configuration.
pub(crate) struct Sites {
    /// The first is for unknown names.
    sites: Vec<ReadySite>,
    names: Names<usize>,
}

/// What a connection's client was shown when it came.
pub(crate) struct PresentedCertificates<'a> {
    /// The name that it asked for (SNI).
    pub(crate) server_name: Option<&'a str>,
    /// The certificates that it was shown one of.
    pub(crate) identities: &'a Identities,
}

impl<'a> PresentedCertificates<'a> {
    fn to(connection: &'a Connection) -> Self {
        Self {
            server_name: connection.facts.server_name.as_deref(),
            identities: &connection.snapshot.identities,
        }
    }
}

/// What becomes of a request.
enum Choice<'a> {
    Route(&'a ReadyRoute),
    /// This status, with the site's fields.
    Status(StatusCode, Option<&'a ReadySite>),
}

impl Sites {
    /// Checks what the configuration names.
    ///
    /// # Errors
    /// [`ServerError::Root`], [`ServerError::Tls`] for names, or [`ServerError::Config`].
    pub(crate) fn new(
        content: &firstflight_config::Sites,
        config: &ServerConfig,
        pools: &Pools,
    ) -> Result<Self, ServerError> {
        let (mut sites, mut names) = (Vec::new(), Names::default());
        for (index, site) in content.sites.iter().enumerate() {
            sites.push(ReadySite::new(site, config, pools)?);
            for name in &site.names {
                names.add(name, index)?;
            }
        }
        Ok(Self { sites, names })
    }

    /// Whether a request may run from early data. It depends on nothing but the request.
    pub(crate) fn may_run_early<B>(&self, request: &Request<B>) -> bool {
        let Ok(host) = authority::host(request) else { return false };
        let site = self.sites.get(self.index(host.as_deref()));
        site.is_some_and(|site| site.may_run_early(request))
    }

    /// What else its route demands of a request that comes on a connection.
    pub(crate) fn rules<B>(
        &self,
        request: &Request<B>,
        connection: &Connection,
    ) -> Option<&RouteRules> {
        match self.choose(request, &PresentedCertificates::to(connection)) {
            Choice::Route(route) => Some(route.rules()),
            Choice::Status(..) => None,
        }
    }

    /// Answers a request. `None`: the client went away and needs no answer.
    pub(crate) async fn answer<B>(
        &self,
        request: Request<B>,
        forwarding: Forwarding<'_>,
    ) -> Option<Response<ResponseBody>>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        match self.choose(&request, &PresentedCertificates::to(forwarding.connection)) {
            Choice::Route(route) => route.answer(request, forwarding).await,
            Choice::Status(status, site) => {
                let mut answer = plain(status);
                if let Some(site) = site {
                    site.apply(answer.headers_mut());
                }
                Some(answer)
            }
        }
    }

    fn choose<B>(&self, request: &Request<B>, shown: &PresentedCertificates<'_>) -> Choice<'_> {
        let Ok(host) = authority::host(request) else {
            return Choice::Status(StatusCode::BAD_REQUEST, None);
        };
        let asked = self.index(host.as_deref());
        // A whole URL is what a proxy is asked, and names that are nobody's are for none here.
        let elsewhere = authority::is_absolute(request)
            && host.as_deref().is_some_and(|host| {
                self.names.find(host).is_none()
                    && !shown.server_name.is_some_and(|name| name.eq_ignore_ascii_case(host))
            });
        if elsewhere || asked != self.index(shown.server_name) {
            // RFC 9110 section 7.4: a client may ask one connection for all names that its
            // certificate covers, and for no others.
            let identity = shown.identities.of(shown.server_name);
            if !host.is_some_and(|host| identity.covers(&host)) {
                return Choice::Status(StatusCode::MISDIRECTED_REQUEST, None);
            }
        }
        let Some(site) = self.sites.get(asked) else {
            return Choice::Status(StatusCode::NOT_FOUND, None);
        };
        match site.route(request.uri().path()) {
            Ok(route) => Choice::Route(route),
            Err(status) => Choice::Status(status, Some(site)),
        }
    }

    /// Whether a site has this name; any is known where no site has names.
    pub(crate) fn knows(&self, host: &str) -> bool {
        self.names.is_empty() || self.names.find(host).is_some()
    }

    fn index(&self, name: Option<&str>) -> usize {
        name.and_then(|name| self.names.find(name)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use firstflight_config::{Action, Content, Route, Site};
    use firstflight_tls::{Entry, Identity};
    use http::header;

    use super::*;

    const ONE: &[&str] = &["one.test", "www.one.test"];
    const TWO: &[&str] = &["two.test", "*.two.test"];

    /// Two sites that answer 201 and 202. The first one's certificate covers `a.two.test` too.
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

    fn entry(names: &[&str], covered: &[&str]) -> Entry {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let made = rcgen::generate_simple_self_signed(owned(covered)).unwrap();
        let key = made.signing_key.serialize_pem();
        let identity = Identity::from_pem(made.cert.pem().as_bytes(), key.as_bytes()).unwrap();
        Entry { names: owned(names), identity }
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
        match sites.choose(request, &PresentedCertificates { server_name, identities }) {
            Choice::Route(route) => route.code().as_u16(),
            Choice::Status(status, _) => status.as_u16(),
        }
    }

    #[test]
    fn rfc9110_7_4_the_host_chooses_the_site_if_the_certificate_covers_it() {
        let sites = sites();
        for (server_name, host, expected) in [
            (Some("one.test"), "one.test", 201),
            (Some("one.test"), "www.one.test:8443", 201),
            (Some("ONE.test"), "One.Test.", 201),
            (Some("two.test"), "two.test", 202),
            (Some("x.two.test"), "y.two.test", 202),
            // What the certificate does not cover.
            (Some("one.test"), "two.test", 421),
            (Some("two.test"), "one.test", 421),
            (None, "two.test", 421),
            // What it does.
            (Some("one.test"), "a.two.test", 202),
            (None, "a.two.test", 202),
            // Unknown names are the first's.
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
    fn rfc9110_7_4_a_whole_url_is_for_a_name_of_this_server() {
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
            // What the connection is for, whoever shows it a certificate.
            (Some("unknown.test"), "unknown.test", 201),
            (Some("unknown.test"), "else.test", 421),
        ] {
            let request = Request::builder().uri(format!("http://{authority}/"));
            let request = request.header(header::HOST, "one.test").body(()).unwrap();
            let code = chosen(&sites, server_name, &request);
            assert_eq!(code, expected, "{server_name:?} {authority}");
        }
    }
}
