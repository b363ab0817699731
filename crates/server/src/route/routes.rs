//! The routes of a site and their handlers.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use firstflight_config::{
    Action, CONTROLLED_FIELDS, ConfigError, Mode, PathMatch, Policy, Prefixes, Route, ServerConfig,
    Site,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;

use crate::ServerError;
use crate::context::{BodyError, ResponseBody};
use crate::handler::RequestContext;
use crate::handler::compress::AcceptedEncodings;
use crate::handler::files::Files;
use crate::handler::proxy::Pools;
use crate::handler::proxy::Proxy;
use crate::handler::response::{discard, plain};
use crate::handler::rewrite::Rewrite;
use crate::route::early::RouteRules;
use crate::route::guards::Guards;

/// A site that is ready to serve.
pub(crate) struct ReadySite {
    /// What may run as early data, including the routes' own modes.
    policy: Policy,
    routes: Prefixes<Arc<ReadyRoute>>,
    /// For responses that no route produces.
    fields: ResponseFields,
}

/// A route that is ready to serve.
pub(crate) struct ReadyRoute {
    handler: Handler,
    /// `None` for most routes.
    guards: Option<Box<Guards>>,
    rules: RouteRules,
    fields: ResponseFields,
    /// Whether responses are compressed on the fly.
    compress: bool,
}

enum Handler {
    Files(Files),
    /// Forwards to upstream servers.
    Proxy(Proxy),
    Redirect(firstflight_config::Redirect),
    RedirectKeepingPath(Rewrite, StatusCode),
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
        let invalid =
            |error: firstflight_config::InvalidRulePath| ServerError::setting(error.to_string());
        let fields = ResponseFields::new(&site.headers)?;
        let policy = site.policy(&config.early_data.policy).map_err(invalid)?;
        let mut routes = Prefixes::default();
        for route in &site.routes {
            let ready = ReadyRoute {
                handler: Handler::new(route, pools)?,
                guards: Guards::new(route)?.map(Box::new),
                rules: RouteRules::new(&route.early),
                fields: fields.merge(&route.headers)?,
                compress: route.compress,
            };
            if routes.insert(&route.path, Arc::new(ready)).map_err(invalid)?.is_some() {
                return Err(duplicate_route(site, route));
            }
        }
        Ok(Self { policy, routes, fields })
    }

    /// The mode of a path.
    pub(crate) fn mode(&self, path: &str) -> Mode {
        self.policy.mode(path)
    }

    /// The route of a path, and whether the path differs only in case from another route's, which
    /// some servers treat as equal.
    ///
    /// # Errors
    /// The status for a path without a route, and for a path that servers parse differently, if it
    /// could belong to several routes: no spelling bypasses a route.
    pub(crate) fn find(&self, path: &str) -> (Result<&Arc<ReadyRoute>, StatusCode>, bool) {
        let found = self.routes.find(path);
        let differs_in_case = matches!(found, PathMatch::CaseDependent(_));
        let route = match found {
            PathMatch::Unique(route) | PathMatch::CaseDependent(route) => {
                route.ok_or(StatusCode::NOT_FOUND)
            }
            PathMatch::Ambiguous => {
                let only = self.routes.only_root().filter(|route| !route.handler.rewrites());
                only.ok_or(StatusCode::BAD_REQUEST)
            }
        };
        (route, differs_in_case)
    }

    /// Sets the site's fields on a response that no route produced.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        self.fields.apply(headers);
    }
}

impl ReadyRoute {
    /// The rules for early requests and for requests that run only once.
    pub(crate) fn rules(&self) -> &RouteRules {
        &self.rules
    }

    /// Checks a request before it claims anything.
    ///
    /// # Errors
    /// The response to a request that exceeds its client's rate, or has no valid credentials.
    pub(crate) async fn check(
        &self,
        headers: &HeaderMap,
        client: IpAddr,
    ) -> Result<(), Response<ResponseBody>> {
        let Some(guards) = &self.guards else { return Ok(()) };
        Box::pin(guards.check(headers, client)).await.map_err(|refusal| self.with_fields(refusal))
    }

    /// Sets the route's fields on a response.
    pub(crate) fn with_fields(
        &self,
        mut response: Response<ResponseBody>,
    ) -> Response<ResponseBody> {
        self.fields.apply(response.headers_mut());
        response
    }

    /// Handles a request. Returns `None` if the client has disconnected.
    pub(crate) async fn handle<B>(
        &self,
        mut request: Request<B>,
        context: &RequestContext<'_>,
    ) -> Option<Response<ResponseBody>>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        let accepted = self.compress.then(|| AcceptedEncodings::of(&request));
        let response = match &self.handler {
            Handler::Files(files) => match discard(&mut request, context.body_timeout).await {
                true => {
                    context.record.set_executed(true);
                    files.respond(request).await
                }
                false => plain(StatusCode::BAD_REQUEST),
            },
            // Boxed, so that other handlers' requests do not take its memory.
            Handler::Proxy(proxy) => Box::pin(proxy.forward(request, context)).await?,
            Handler::Redirect(redirect) => {
                let mut response = plain(redirect.status);
                response.headers_mut().insert(header::LOCATION, redirect.to.clone());
                response
            }
            Handler::RedirectKeepingPath(rewrite, status) => {
                let target = rewrite.apply(request.uri().path(), request.uri().query());
                match HeaderValue::from_str(&target) {
                    Ok(target) => {
                        let mut response = plain(*status);
                        response.headers_mut().insert(header::LOCATION, target);
                        response
                    }
                    Err(_) => plain(StatusCode::BAD_REQUEST),
                }
            }
            Handler::Status(status) => plain(*status),
        };
        let mut response = self.with_fields(response);
        if let Some(accepted) = accepted {
            let reserve_memory = |bytes| context.record.reserve_memory(bytes);
            response = Box::pin(accepted.compress(response, reserve_memory)).await;
        }
        Some(response)
    }
}

impl Handler {
    fn new(route: &Route, pools: &Pools) -> Result<Self, ServerError> {
        Ok(match &route.action {
            Action::Files(settings) => Self::Files(Files::new(settings)?),
            Action::Upstream(name) => {
                let unknown = || {
                    let known: Vec<_> = pools.keys().map(String::as_str).collect();
                    ServerError::setting(format!(
                        "there is no upstream {name:?}; configured upstreams: {}",
                        known.join(", ")
                    ))
                };
                let rewrite = route.rewrite.as_ref().map(|new| Rewrite::new(&route.path, new));
                let pool = pools.get(name).ok_or_else(unknown)?.clone();
                Self::Proxy(Proxy::new(pool, rewrite, route.early_hints))
            }
            Action::Redirect(redirect) if redirect.keep_path => {
                let to = String::from_utf8_lossy(redirect.to.as_bytes());
                Self::RedirectKeepingPath(Rewrite::new(&route.path, &to), redirect.status)
            }
            Action::Redirect(redirect) => Self::Redirect(redirect.clone()),
            Action::Status(status) => Self::Status(*status),
        })
    }

    /// Whether it replaces the route's path in requests, which must not be ambiguous then.
    fn rewrites(&self) -> bool {
        match self {
            Self::Proxy(proxy) => proxy.rewrites(),
            Self::RedirectKeepingPath(..) => true,
            Self::Files(_) | Self::Redirect(_) | Self::Status(_) => false,
        }
    }
}

fn duplicate_route(site: &Site, route: &Route) -> ServerError {
    let of_site = site.names.first().map(|name| format!(" of site {name}")).unwrap_or_default();
    ServerError::setting(format!("two routes{of_site} have the path {:?}; remove one", route.path))
}

#[cfg(test)]
impl ReadyRoute {
    /// The status of a route that only responds with one.
    pub(crate) fn code(&self) -> StatusCode {
        match &self.handler {
            Handler::Status(status) => *status,
            _ => unreachable!("tests use routes with a status only"),
        }
    }
}

/// Fields to set on responses, replacing fields of the same names.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseFields(Vec<(HeaderName, HeaderValue)>);

impl ResponseFields {
    /// A site's fields.
    ///
    /// # Errors
    /// [`ConfigError::Setting`] for fields that only the server can set.
    pub(crate) fn new(fields: &[(HeaderName, HeaderValue)]) -> Result<Self, ConfigError> {
        match fields.iter().find(|(name, _)| CONTROLLED_FIELDS.contains(name)) {
            Some((name, _)) => Err(ConfigError::Setting(format!(
                "the field {name} cannot be set on responses, because the server sets it itself; \
                 remove it"
            ))),
            None => Ok(Self(fields.to_vec())),
        }
    }

    /// A route's fields, and the site's fields for all other names.
    ///
    /// # Errors
    /// As [`ResponseFields::new`].
    pub(crate) fn merge(&self, route: &[(HeaderName, HeaderValue)]) -> Result<Self, ConfigError> {
        let Self(mut fields) = Self::new(route)?;
        let others = self.0.iter().filter(|(name, _)| route.iter().all(|(ours, _)| ours != name));
        fields.extend(others.cloned());
        Ok(Self(fields))
    }

    /// Sets the fields on a response. An empty value removes the field.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for (name, _) in &self.0 {
            headers.remove(name);
        }
        for (name, value) in self.0.iter().filter(|(_, value)| !value.is_empty()) {
            headers.append(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use firstflight_config::Content;

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
        site.find(path).0.map_or_else(|status| status, |route| route.code()).as_u16()
    }

    #[test]
    fn the_route_with_the_longest_path_of_whole_segments_responds() {
        let site = site(&[("/", 200), ("/a/b", 202), ("/a", 201)]).unwrap();
        for (path, expected) in
            [("/", 200), ("/x", 200), ("/a", 201), ("/ab", 200), ("/a/%62/c", 202), ("/A/b", 200)]
        {
            assert_eq!(code(&site, path), expected, "{path}");
        }
    }

    #[test]
    fn no_spelling_of_a_path_bypasses_a_route() {
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
}

#[cfg(test)]
mod response_fields_tests {
    use super::*;

    fn pairs(text: &'static [(&'static str, &'static str)]) -> Vec<(HeaderName, HeaderValue)> {
        let pair =
            |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        text.iter().map(pair).collect()
    }

    #[test]
    fn a_routes_fields_override_its_sites_and_both_override_the_responses() {
        let site = ResponseFields::new(&pairs(&[("x-a", "site"), ("x-b", "site"), ("server", "")]))
            .unwrap();
        let route = site.merge(&pairs(&[("x-b", "one"), ("x-b", "two")])).unwrap();
        let mut headers = HeaderMap::new();
        for name in ["x-b", "x-b", "server", "x-c"] {
            headers.append(name, HeaderValue::from_static("upstream"));
        }
        route.apply(&mut headers);
        let all = |name| headers.get_all(name).iter().map(|value| value.to_str().unwrap());
        assert_eq!(all("x-a").collect::<Vec<_>>(), ["site"]);
        assert_eq!(all("x-b").collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(all("x-c").collect::<Vec<_>>(), ["upstream"]);
        assert_eq!(all("server").count(), 0);
    }

    #[test]
    fn fields_that_frame_a_response_cannot_be_set() {
        for name in ["content-length", "transfer-encoding", "connection", "keep-alive"] {
            let fields = [(HeaderName::from_static(name), HeaderValue::from_static("x"))];
            assert!(ResponseFields::new(&fields).unwrap_err().to_string().contains(name));
        }
    }
}
