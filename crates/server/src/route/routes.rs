//! A site's routes, and what answers on each.

use bytes::Bytes;
use firstflight_config::{Action, ConfigError, Found, Policy, Prefixes, Route, ServerConfig, Site};
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body::Body;

use crate::ServerError;
use crate::handler::files::Files;
use crate::handler::proxy::{Forwarding, Proxy};
use crate::handler::response::{BodyError, ResponseBody, discard, plain};
use crate::handler::upstreams::Pools;
use crate::route::early::RouteRules;
use crate::route::response_fields::Fields;

/// A site, ready to answer.
pub(crate) struct ReadySite {
    /// What may run early, the routes' own modes among it.
    policy: Policy,
    routes: Prefixes<ReadyRoute>,
    /// For answers that come from no route.
    fields: Fields,
}

/// A route, ready to answer.
pub(crate) struct ReadyRoute {
    handler: Handler,
    rules: RouteRules,
    fields: Fields,
}

enum Handler {
    Files(Files),
    /// HTTP servers behind this one.
    Proxy(Proxy),
    Redirect(firstflight_config::Redirect),
    Status(StatusCode),
}

impl ReadySite {
    /// # Errors
    /// [`ServerError::Root`] or [`ServerError::Config`].
    pub(crate) fn new(
        site: &Site,
        config: &ServerConfig,
        pools: &Pools,
    ) -> Result<Self, ServerError> {
        let wrong = |error: firstflight_config::BadRulePath| setting(error.to_string());
        let fields = Fields::new(&site.headers)?;
        let mut policy = config.early_data.policy.clone();
        let mut routes = Prefixes::default();
        for route in &site.routes {
            if let Some(mode) = route.early.mode {
                policy = policy.rule(&route.path, mode).map_err(wrong)?;
            }
            let ready = ReadyRoute {
                handler: Handler::new(&route.action, pools)?,
                rules: RouteRules::new(&route.early),
                fields: fields.and(&route.headers)?,
            };
            if routes.insert(&route.path, ready).map_err(wrong)?.is_some() {
                return Err(twice(site, route));
            }
        }
        Ok(Self { policy, routes, fields })
    }

    /// Whether a request may run from early data. One whose path is another route's for servers
    /// that take `/A` and `/a` for one may not: it would pass that route's rules by.
    pub(crate) fn may_run_early<B>(&self, request: &Request<B>) -> bool {
        let path = request.uri().path();
        let mode = self.policy.mode(path);
        match (self.routes.find(path), self.route(path)) {
            (Found::ButForCase(_), _) => false,
            (_, Ok(route)) => route.rules.may_run_early(request, mode),
            (_, Err(_)) => RouteRules::default().may_run_early(request, mode),
        }
    }

    /// The route for a path.
    ///
    /// # Errors
    /// The status for a path without one, and for a path that servers read differently, where more
    /// than one route could be meant: no spelling is a way around a route.
    pub(crate) fn route(&self, path: &str) -> Result<&ReadyRoute, StatusCode> {
        match self.routes.find(path) {
            Found::Clear(route) | Found::ButForCase(route) => route.ok_or(StatusCode::NOT_FOUND),
            Found::Unclear => self.routes.only_root().ok_or(StatusCode::BAD_REQUEST),
        }
    }

    /// Puts the site's fields on an answer that comes from no route.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        self.fields.apply(headers);
    }
}

impl ReadyRoute {
    /// What it demands of early requests, and of those that are to run once.
    pub(crate) fn rules(&self) -> &RouteRules {
        &self.rules
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
        let mut answer = match &self.handler {
            Handler::Files(files) => {
                let patience = forwarding.connection.snapshot.limits.header_timeout;
                match discard(request, patience).await {
                    Some(request) => files.answer(request).await,
                    None => plain(StatusCode::BAD_REQUEST),
                }
            }
            Handler::Proxy(proxy) => proxy.forward(request, forwarding).await?,
            Handler::Redirect(redirect) => {
                let mut answer = plain(redirect.status);
                answer.headers_mut().insert(header::LOCATION, redirect.to.clone());
                answer
            }
            Handler::Status(status) => plain(*status),
        };
        self.fields.apply(answer.headers_mut());
        Some(answer)
    }
}

impl Handler {
    fn new(action: &Action, pools: &Pools) -> Result<Self, ServerError> {
        Ok(match action {
            Action::Files(settings) => Self::Files(Files::new(settings)?),
            Action::Upstream(name) => {
                let unknown = || {
                    let known: Vec<_> = pools.keys().map(String::as_str).collect();
                    setting(format!(
                        "there is no upstream {name:?}; there are these: {}",
                        known.join(", ")
                    ))
                };
                Self::Proxy(Proxy::new(pools.get(name).ok_or_else(unknown)?.clone()))
            }
            Action::Redirect(redirect) => Self::Redirect(redirect.clone()),
            Action::Status(status) => Self::Status(*status),
        })
    }
}

fn twice(site: &Site, route: &Route) -> ServerError {
    let of = site.names.first().map(|name| format!(" of site {name}")).unwrap_or_default();
    setting(format!("two routes{of} have the path {:?}; leave one out", route.path))
}

fn setting(text: String) -> ServerError {
    ServerError::Config(ConfigError::Setting(text))
}

#[cfg(test)]
impl ReadyRoute {
    /// What it answers, where that is a mere status.
    pub(crate) fn code(&self) -> StatusCode {
        match &self.handler {
            Handler::Status(status) => *status,
            _ => unreachable!("tests ask only such routes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use firstflight_config::{Content, Mode};

    use super::*;

    fn site(routes: &[(&str, u16)]) -> Result<ReadySite, ServerError> {
        let status = |code| Action::Status(StatusCode::from_u16(code).unwrap());
        let routes = routes.iter().map(|&(path, code)| Route::new(path, status(code))).collect();
        ready(Site::new(routes))
    }

    fn ready(site: Site) -> Result<ReadySite, ServerError> {
        let config = ServerConfig::new("[::1]:0".parse().unwrap(), Content::files("/"));
        ReadySite::new(&site, &config, &Pools::new())
    }

    fn code(site: &ReadySite, path: &str) -> u16 {
        site.route(path).map_or_else(|status| status, ReadyRoute::code).as_u16()
    }

    #[test]
    fn the_longest_path_by_whole_segments_answers() {
        let site = site(&[("/", 200), ("/a/b", 202), ("/a", 201)]).unwrap();
        for (path, expected) in
            [("/", 200), ("/x", 200), ("/a", 201), ("/ab", 200), ("/a/%62/c", 202), ("/A/b", 200)]
        {
            assert_eq!(code(&site, path), expected, "{path}");
        }
    }

    #[test]
    fn no_spelling_is_a_way_around_a_route() {
        let several = site(&[("/", 200), ("/a", 403)]).unwrap();
        let without_root = site(&[("/a", 403)]).unwrap();
        let one = site(&[("/", 200)]).unwrap();
        for path in ["/x/../a", "//a", "/%2e/a", "/x%2f..%2fa", "/a;v=1", "/x\\..\\a", "/%2561"] {
            assert_eq!(code(&several, path), 400, "{path}");
            assert_eq!(code(&without_root, path), 400, "{path}");
            assert_eq!(code(&one, path), 200, "{path}");
        }
        assert_eq!(code(&without_root, "/b"), 404);
    }

    #[test]
    fn routes_of_one_path_are_refused() {
        let error = site(&[("/a", 200), ("/a/", 201)]).err().unwrap();
        assert!(error.to_string().contains("two routes"), "{error}");
        assert!(site(&[("a", 200)]).is_err());
    }

    #[test]
    fn a_routes_mode_is_part_of_the_sites_policy() {
        let mut pay = Route::new("/pay", Action::Status(StatusCode::OK));
        pay.early.mode = Some(Mode::Disabled);
        let root = Route::new("/", Action::Status(StatusCode::OK));
        let site = ready(Site::new(vec![root, pay])).unwrap();
        for (path, may) in [("/", true), ("/pay/1", false), ("/x/../pay", false), ("/PAY", false)] {
            let request = Request::builder().uri(path).body(()).unwrap();
            assert_eq!(site.may_run_early(&request), may, "{path}");
        }
    }
}
