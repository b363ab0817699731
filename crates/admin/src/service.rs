//! Routes requests, and protects every response.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::{ALLOW, CONNECTION, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::Semaphore;

use crate::connections::Permit;
use crate::console::{self, SCRIPT, STYLE};
use crate::guard::{Guard, Refusal};
use crate::login;
use crate::response::{Body, HTML, PLAIN, plain, text, with_security_headers};
use crate::watcher::SourceWatcher;

/// Responds to requests on any number of connections.
pub(crate) struct Service {
    pub(crate) guard: ArcSwap<Guard>,
    pub(crate) watcher: Arc<SourceWatcher>,
    /// Limits the followers of events, so that other requests still get permits.
    followers: Arc<Semaphore>,
}

impl Service {
    pub(crate) fn new(guard: Guard, watcher: Arc<SourceWatcher>) -> Self {
        let followers = Arc::new(Semaphore::new(MAX_FOLLOWERS));
        Self { guard: ArcSwap::from_pointee(guard), watcher, followers }
    }

    /// Responds to a request on the connection with this permit. If there is a token, the connection of
    /// a request without it is closed after the response, so that it does not keep a permit.
    pub(crate) async fn respond(
        &self,
        request: Request<Incoming>,
        permit: &Permit,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
        let close = {
            let guard = self.guard.load();
            let trusted = guard.check_host(&head).is_ok() && guard.authorize(&head, now).is_ok();
            permit.set_trusted(trusted);
            guard.needs_token() && !trusted
        };
        let response = self.route(&head, body, now).await;
        let mut response =
            with_security_headers(response.unwrap_or_else(|refusal| match refusal {
                Refusal::Misdirected => plain(
                    StatusCode::MISDIRECTED_REQUEST,
                    "unknown host name; use localhost or an address, or add the name to `names` in \
                 [admin]",
                ),
                Refusal::OtherSite => {
                    plain(StatusCode::FORBIDDEN, "requests from pages of other sites are refused")
                }
                Refusal::Unauthorized => login::unauthorized(&head.headers, false),
            }));
        if close {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn route(
        &self,
        head: &Parts,
        body: Incoming,
        now: u64,
    ) -> Result<Response<Body>, Refusal> {
        let guard = self.guard.load_full();
        guard.check_host(head)?;
        let path = head.uri.path();
        match (&head.method, path) {
            (&Method::POST, "/login") => {
                let token = login::read_form(&head.headers, body).await.unwrap_or_default();
                return Ok(match guard.log_in(head, &token, now)? {
                    Some(cookie) => login::logged_in(&cookie),
                    None => login::unauthorized(&head.headers, true),
                });
            }
            (&Method::POST, "/logout") => {
                guard.check_same_origin(head)?;
                return Ok(login::logged_out());
            }
            (&Method::GET | &Method::HEAD, _) => {}
            _ => return Ok(not_allowed()),
        }
        if let Some(response) = public(path) {
            return Ok(response);
        }
        let authorized = guard.authorize(head, now);
        // Health probes need no token, but only authorized requests get the reason.
        if path == "/readyz" {
            return Ok(self.readiness(authorized.is_ok()));
        }
        authorized?;
        Ok(self.page(head, path, guard.needs_token()))
    }

    fn readiness(&self, with_reason: bool) -> Response<Body> {
        match self.watcher.readiness() {
            Ok(()) => plain(StatusCode::OK, "ok"),
            Err(why) if with_reason => plain(StatusCode::SERVICE_UNAVAILABLE, &why),
            Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        }
    }

    fn page(&self, head: &Parts, path: &str, log_out: bool) -> Response<Body> {
        let watcher = &self.watcher;
        match path {
            "/" => {
                let page = console::page(&watcher.status(), log_out);
                text(StatusCode::OK, HTML, page.into_string())
            }
            "/metrics" => {
                let accept = head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
                let (kind, page) = watcher.metrics(accept);
                text(StatusCode::OK, kind, page)
            }
            "/status.json" => {
                let json = format!("{}\n", watcher.status().json());
                text(StatusCode::OK, "application/json", json)
            }
            "/events" => watcher.states.follow(&watcher.status().json(), &self.followers),
            "/events/page" => {
                let now = console::content(&watcher.status()).into_string();
                watcher.pages.follow(&now, &self.followers)
            }
            _ => text(StatusCode::NOT_FOUND, PLAIN, NOT_FOUND),
        }
    }
}

/// Responses without a token. They contain nothing of the state of the server.
fn public(path: &str) -> Option<Response<Body>> {
    Some(match path {
        "/livez" => plain(StatusCode::OK, "ok"),
        "/console.css" => text(StatusCode::OK, "text/css; charset=utf-8", STYLE),
        "/console.js" => text(StatusCode::OK, "text/javascript; charset=utf-8", SCRIPT),
        "/icon.svg" => text(StatusCode::OK, "image/svg+xml", console::ICON),
        _ => return None,
    })
}

fn not_allowed() -> Response<Body> {
    let mut response =
        plain(StatusCode::METHOD_NOT_ALLOWED, "this server is read-only; use GET or HEAD");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

const NOT_FOUND: &str = "not found; available are / (console), /metrics, /readyz, /livez, \
                         /status.json and /events\n";

const MAX_FOLLOWERS: usize = 32;
