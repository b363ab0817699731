//! Each request: whether it may look, and what is there.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::{ALLOW, CONNECTION, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::Semaphore;

use crate::console::{self, SCRIPT, STYLE};
use crate::guard::{Guard, Refusal};
use crate::login;
use crate::permits::Permit;
use crate::response::{Body, HTML, PLAIN, guarded, plain, text};
use crate::watch::SourceWatcher;

/// Answers requests on any number of connections.
pub(crate) struct Service {
    pub(crate) guard: ArcSwap<Guard>,
    pub(crate) watch: Arc<SourceWatcher>,
    /// For those who follow events: others find a response all the same.
    followers: Arc<Semaphore>,
}

impl Service {
    pub(crate) fn new(guard: Guard, watch: Arc<SourceWatcher>) -> Self {
        let followers = Arc::new(Semaphore::new(FOLLOWERS));
        Self { guard: ArcSwap::from_pointee(guard), watch, followers }
    }

    /// Answers a request on the connection with this permit. Where there is a token, the connection
    /// of a request without it is closed after the response, so that it does not keep a permit.
    pub(crate) async fn response(
        &self,
        request: Request<Incoming>,
        permit: &Permit,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
        let closes = {
            let guard = self.guard.load();
            let trusted = guard.may_ask(&head).is_ok() && guard.may_look(&head, now).is_ok();
            permit.set_trusted(trusted);
            guard.asks_for_token() && !trusted
        };
        let admitted = self.admit(&head, body, now).await;
        let mut response = guarded(admitted.unwrap_or_else(|refusal| match refusal {
            Refusal::Misdirected => plain(
                StatusCode::MISDIRECTED_REQUEST,
                "this host name is not known here; ask for localhost or an address, or give the \
                 name in `names` of [admin]",
            ),
            Refusal::OtherSite => {
                plain(StatusCode::FORBIDDEN, "this is not for pages of other sites")
            }
            Refusal::Unauthorised => login::unauthorised(&head.headers, false),
        }));
        if closes {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn admit(
        &self,
        head: &Parts,
        body: Incoming,
        now: u64,
    ) -> Result<Response<Body>, Refusal> {
        let guard = self.guard.load_full();
        guard.may_ask(head)?;
        let path = head.uri.path();
        match (&head.method, path) {
            (&Method::POST, "/login") => {
                let token = login::typed(&head.headers, body).await.unwrap_or_default();
                return Ok(match guard.log_in(head, &token, now)? {
                    Some(cookie) => login::welcome(&cookie),
                    None => login::unauthorised(&head.headers, true),
                });
            }
            (&Method::POST, "/logout") => {
                guard.may_send(head)?;
                return Ok(login::farewell());
            }
            (&Method::GET | &Method::HEAD, _) => {}
            _ => return Ok(not_allowed()),
        }
        if let Some(response) = self.open(path) {
            return Ok(response);
        }
        let may_look = guard.may_look(head, now);
        // Whoever asks how we are gets one word; the reason is for those who may look.
        if path == "/readyz" {
            return Ok(self.readiness(may_look.is_ok()));
        }
        may_look?;
        Ok(self.look(head, path, guard.asks_for_token()))
    }

    /// What anybody may have: nothing of the server's state is in it.
    fn open(&self, path: &str) -> Option<Response<Body>> {
        Some(match path {
            "/livez" => plain(StatusCode::OK, "ok"),
            "/console.css" => text(StatusCode::OK, "text/css; charset=utf-8", STYLE),
            "/console.js" => text(StatusCode::OK, "text/javascript; charset=utf-8", SCRIPT),
            "/icon.svg" => text(StatusCode::OK, "image/svg+xml", console::ICON),
            _ => return None,
        })
    }

    fn readiness(&self, reason: bool) -> Response<Body> {
        match self.watch.readiness() {
            Ok(()) => plain(StatusCode::OK, "ok"),
            Err(why) if reason => plain(StatusCode::SERVICE_UNAVAILABLE, &why),
            Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        }
    }

    fn look(&self, head: &Parts, path: &str, log_out: bool) -> Response<Body> {
        let watch = &self.watch;
        match path {
            "/" => {
                let page = console::page(&watch.status(), log_out);
                text(StatusCode::OK, HTML, page.into_string())
            }
            "/metrics" => {
                let accept = head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
                let (kind, page) = watch.metrics(accept);
                text(StatusCode::OK, kind, page)
            }
            "/status.json" => {
                let json = format!("{}\n", watch.status().json());
                text(StatusCode::OK, "application/json", json)
            }
            "/events" => watch.states.follow(&watch.status().json(), &self.followers),
            "/events/page" => {
                let now = console::content(&watch.status()).into_string();
                watch.pages.follow(&now, &self.followers)
            }
            _ => text(StatusCode::NOT_FOUND, PLAIN, NOT_FOUND),
        }
    }
}

fn not_allowed() -> Response<Body> {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "there is nothing to change here");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

const NOT_FOUND: &str = "nothing is here; there are / (console), /metrics, /readyz, /livez, \
                         /status.json and /events\n";

/// For a head, for a form, and for a reader to read on.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

const FOLLOWERS: usize = 32;
